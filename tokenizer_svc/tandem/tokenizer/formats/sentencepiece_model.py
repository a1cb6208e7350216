"""SentencePiece models (`tokenizer.model` of the Llama 2 family)."""

from __future__ import annotations

import re
from array import array
from pathlib import Path

from google.protobuf.message import DecodeError
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from tandem.tokenizer.config import TokenizerConfig
from tandem.tokenizer.formats.errors import FormatError
from tandem.tokenizer.formats.ids import check_reach, padded
from tandem.tokenizer.formats.roles import CONTROL_TEXTS, end_of_generation_ids
from tandem.tokenizer.formats.sidecar import AddedToken, Sidecar
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.vocabularies.spm import SpmVocabulary
from tandem.tokenizer.vocabularies.spm_merging import SPACE
from tandem.tokenizer.vocabularies.ugm import UgmVocabulary
from tandem.tokenizer.vocabulary import SpecialToken, TokenTable, TokenType

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def parse(data: bytes) -> ModelProto | None:
    """Returns the model in `data`, or None where it is not one."""
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return None
    return model if model.pieces and all(piece.piece for piece in model.pieces) else None


def load(path: Path, model: ModelProto, sidecar: Sidecar) -> Tokenizer:
    """Loads a SentencePiece model. Raises FormatError."""
    trainer = model.trainer_spec
    if trainer.model_type not in (trainer.BPE, trainer.UNIGRAM):
        kind = trainer.ModelType.Name(trainer.model_type)
        raise FormatError(path, f"is a SentencePiece model of type {kind}; BPE and UNIGRAM are supported")
    if trainer.treat_whitespace_as_suffix:
        raise FormatError(path, "treats white space as a suffix, which is not supported")
    for index, piece in enumerate(model.pieces):
        if not isinstance(piece.piece, str):  # protobuf gives bytes where the text is none
            raise FormatError(path, f"the piece of id {index} is not valid UTF-8")
    _apply_added_tokens(path, model, sidecar)
    _check(path, model)
    specials = _specials(model, sidecar)
    ids = {token.text: token.id for token in specials}

    def role(name: str, of_model: int) -> int | None:
        text = sidecar.special_texts.get(name)
        if text is not None and text in ids:
            return ids[text]
        return of_model if 0 <= of_model < len(model.pieces) else None

    unigram = trainer.model_type == trainer.UNIGRAM  # the T5 family ends its texts, the Llama family begins them
    bos_id, eos_id = role("bos_token", trainer.bos_id), role("eos_token", trainer.eos_id)
    config = TokenizerConfig(
        source="sentencepiece",
        bos_id=bos_id,
        eos_id=eos_id,
        unk_id=role("unk_token", trainer.unk_id),
        pad_id=role("pad_token", trainer.pad_id),
        end_of_generation_ids=end_of_generation_ids(((t.id, t.text) for t in specials), eos_id),
        adds_bos=bos_id is not None and (not unigram if sidecar.add_bos is None else sidecar.add_bos),
        adds_eos=eos_id is not None and (unigram if sidecar.add_eos is None else sidecar.add_eos),
        adds_space_prefix=model.normalizer_spec.add_dummy_prefix,
        clean_spaces=bool(sidecar.clean_spaces),
        chat_template=sidecar.chat_template,
    )
    table = TokenTable(
        pieces=[piece_bytes(piece.piece, piece.type) for piece in model.pieces],
        types=bytes(piece.type for piece in model.pieces),
        specials=specials,
        scores=array("f", (piece.score for piece in model.pieces)),
    )
    try:
        prefixed = config.adds_space_prefix
        vocabulary = UgmVocabulary(model, prefixed=prefixed) if unigram else SpmVocabulary(model)
        return Tokenizer(vocabulary, padded(table, sidecar.model_ids), config)
    except (ValueError, RuntimeError) as error:  # sentencepiece reports a bad model as RuntimeError
        raise FormatError(path, f"is not a usable SentencePiece model: {error}") from None


def _apply_added_tokens(path: Path, model: ModelProto, sidecar: Sidecar) -> None:
    """Applies the tokens that the folder adds behind the model's own, or whose type it changes."""
    added = sidecar.added_tokens
    if added:
        try:
            known = len(model.pieces) + sum(index >= len(model.pieces) for index in added)
            check_reach(max(max(added), len(model.pieces) - 1), known, "added_tokens_decoder beside it")
        except ValueError as error:
            raise FormatError(path, str(error)) from None
    for index, token in sorted(added.items()):
        while len(model.pieces) <= index:
            model.pieces.add(piece=f"<unused id {len(model.pieces)}>", score=0.0, type=TokenType.UNUSED)
        piece = model.pieces[index]
        if piece.type in (TokenType.UNKNOWN, TokenType.BYTE):
            continue
        piece.piece = token.text
        piece.type = _added_type(token)


def _added_type(token: AddedToken) -> int:
    control = token.special or token.text in CONTROL_TEXTS
    return int(TokenType.CONTROL if control else TokenType.USER_DEFINED)


def _check(path: Path, model: ModelProto) -> None:
    seen: dict[str, int] = {}
    for index, piece in enumerate(model.pieces):
        if "\0" in piece.piece:
            raise FormatError(path, f"id {index} has the piece {piece.piece!r}: a null character is not supported")
        if piece.piece in seen:
            raise FormatError(path, f"ids {seen[piece.piece]} and {index} have the same piece {piece.piece!r}")
        seen[piece.piece] = index
        if piece.type == TokenType.BYTE and BYTE_PIECE.fullmatch(piece.piece) is None:
            raise FormatError(path, f"id {index} is a byte, but its piece is {piece.piece!r}")
    unknown = sum(piece.type == TokenType.UNKNOWN for piece in model.pieces)
    if unknown != 1:
        raise FormatError(path, f"has {unknown} pieces of type UNKNOWN, expected one")
    if model.trainer_spec.byte_fallback:
        count = sum(piece.type == TokenType.BYTE for piece in model.pieces)
        if count != 256:
            raise FormatError(path, f"has {count} byte pieces, expected 256")


def _specials(model: ModelProto, sidecar: Sidecar) -> tuple[SpecialToken, ...]:
    specials: list[SpecialToken] = []
    for index, piece in enumerate(model.pieces):
        if piece.type in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED):
            added = sidecar.added_tokens.get(index)
            user_defined = piece.type == TokenType.USER_DEFINED
            specials.append(
                SpecialToken(
                    index,
                    piece.piece.replace(SPACE, " ") if user_defined else piece.piece,
                    TokenType(piece.type),
                    lstrip=added is not None and added.lstrip,
                    rstrip=added is not None and added.rstrip,
                )
            )
    return tuple(specials)


def piece_bytes(piece: str, kind: int) -> bytes:
    """Returns the bytes that a piece of that type decodes to."""
    match kind:
        case TokenType.BYTE:
            found = BYTE_PIECE.fullmatch(piece)
            assert found is not None
            return bytes([int(found[1], 16)])
        case TokenType.NORMAL | TokenType.USER_DEFINED:
            return piece.replace(SPACE, " ").encode()
        case TokenType.CONTROL | TokenType.UNKNOWN:
            return piece.encode()
        case _:
            return b""

"""The vocabulary of a GGUF file, and the bytes that each of its ids decodes to. One builder a type."""

from __future__ import annotations

import logging
import re
from array import array
from collections.abc import Sequence

import numpy as np
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from tandem.tokenizer.arrays import Places
from tandem.tokenizer.formats.byte_alphabet import from_alphabet_all
from tandem.tokenizer.formats.errors import FormatError
from tandem.tokenizer.formats.gguf_fields import PREFIX, GgufFields
from tandem.tokenizer.formats.rwkv_text import unescape
from tandem.tokenizer.vocabularies.bpe.compiled_bpe import are_ranked_by_what_they_make
from tandem.tokenizer.vocabularies.bpe.merges import MergeList
from tandem.tokenizer.vocabularies.bpe.pre_tokenizers import PreTokenizer
from tandem.tokenizer.vocabularies.bpe.vocabulary import BpeVocabulary
from tandem.tokenizer.vocabularies.raw_bpe import RawBpeVocabulary
from tandem.tokenizer.vocabularies.rwkv import RwkvVocabulary
from tandem.tokenizer.vocabularies.spm import SpmVocabulary
from tandem.tokenizer.vocabularies.spm_merging import SPACE
from tandem.tokenizer.vocabularies.ugm import UgmVocabulary
from tandem.tokenizer.vocabularies.wpm import WpmVocabulary
from tandem.tokenizer.vocabulary import CONTROL_TYPES, TokenType, Vocabulary

logger = logging.getLogger("tandem.tokenizer")

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_BYTES = SPACE.encode()
_SPACE, _LINE_BREAK = b" \n"


def build(fields: GgufFields, pre: PreTokenizer) -> tuple[Vocabulary, list[bytes]]:
    """Builds the vocabulary. Raises FormatError, and ValueError or RuntimeError where the parts do not fit together."""
    match fields.model:
        case "gpt2" if pre.raw_text:
            return _raw_byte_pairs(fields, pre)
        case "gpt2":
            return _byte_pairs(fields, pre)
        case "llama":
            pieces = _sentencepiece_pieces(fields)
            return SpmVocabulary(_scored(fields)), pieces
        case "t5":
            pieces = _sentencepiece_pieces(fields)
            return UgmVocabulary(_scored(fields)), pieces
        case "bert":
            return _word_pieces(fields), _sentencepiece_pieces(fields)
        case _:
            pieces = [_unescaped(index, text) for index, text in enumerate(fields.texts)]
            text = [(piece, index) for index, piece in enumerate(pieces) if fields.types[index] not in CONTROL_TYPES]
            return RwkvVocabulary(text, fields.id("unknown")), pieces


def unguarded(fields: GgufFields, pieces: Sequence[bytes]) -> Vocabulary | None:
    """Returns the vocabulary that also finds control tokens in plain text, or None: llama.cpp puts those of RWKV into
    its tree with all others."""
    if fields.model != "rwkv":
        return None
    return RwkvVocabulary([(piece, index) for index, piece in enumerate(pieces)], fields.id("unknown"))


def _unescaped(index: int, text: str) -> bytes:
    try:
        return unescape(text)
    except ValueError as error:
        raise ValueError(f"token {index} {error}") from None


def _merges(fields: GgufFields) -> tuple[list[bytes], Places, Places]:
    """Returns what each merge makes, and how many characters that and its left part have. There are hundreds of
    thousands of merges, so no Python loop runs over them."""
    merges: list[bytes] | None = fields.get("merges", list, None)
    if merges is None:
        raise ValueError(f"there are no {PREFIX}merges")
    together = b"\n".join(merges)
    characters = np.frombuffer(b"\n%b\n" % together, np.uint8)
    spaces, borders = np.flatnonzero(characters == _SPACE), np.flatnonzero(characters == _LINE_BREAK)
    if len(spaces) + 1 == len(borders) and ((borders[:-1] + 1 < spaces) & (spaces + 1 < borders[1:])).all():
        begun = np.cumsum((characters & 0xC0) != 0x80)
        left, whole = begun[spaces - 1] - begun[borders[:-1]], begun[borders[1:]] - begun[borders[:-1]] - 2
        return (together.replace(b" ", b"").split(b"\n") if merges else []), whole, left
    for number, merge in enumerate(merges):  # one of them is wrong, or has a line break, which GPT-2's alphabet has not
        if merge.count(b" ") != 1 or merge.startswith(b" ") or merge.endswith(b" "):
            raise ValueError(f"{PREFIX}merges[{number}] is not two tokens")
    products = [merge.replace(b" ", b"") for merge in merges]
    lefts = [merge.partition(b" ")[0] for merge in merges]
    whole, left = (np.array([len(text.decode()) for text in texts], np.int64) for texts in (products, lefts))
    return products, whole, left


def _byte_pairs(fields: GgufFields, pre: PreTokenizer) -> tuple[BpeVocabulary, list[bytes]]:
    """Builds a vocabulary whose tokens are written in GPT-2's alphabet of bytes. Merge ranks are the single bytes in id
    order, then what the merges make."""
    types = np.frombuffer(fields.types, np.uint8)
    normal = types == TokenType.NORMAL
    others = np.flatnonzero(~normal).tolist()
    texts = list(fields.texts)
    for index in others:
        texts[index] = ""
    pieces = from_alphabet_all(texts)
    for index in others:
        pieces[index] = _shown(fields.types[index], fields.texts[index])
    ids = dict(zip(fields.raw_texts, range(len(pieces)), strict=True))
    if len(ids) != len(pieces):
        logger.warning("%s: %d tokens have the text of another", fields.path, len(pieces) - len(ids))
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    bytes_alone = np.flatnonzero(normal & (lengths == 1))
    products, sizes, cuts = _merges(fields)
    try:
        found = np.fromiter(map(ids.__getitem__, products), np.int64, len(products))
    except KeyError as error:
        made = error.args[0].decode(errors="replace")
        raise ValueError(f"{PREFIX}merges make {made!r}, which is not in {PREFIX}tokens") from None
    # Merges of other characters than those of the alphabet have no text that they could be for.
    served = normal[found] & (lengths[found] == sizes)
    found, cuts = found[served], cuts[served]
    firsts = found[np.sort(np.unique(found, return_index=True)[1])]
    order: list[int] = np.concatenate((bytes_alone, firsts)).tolist()
    ranked = dict(zip(map(pieces.__getitem__, order), order, strict=True))
    places = np.zeros(len(pieces), np.uint32)  # of each id among what is ranked
    places[order] = np.arange(len(order))
    if len(ranked) < len(order):  # of tokens with the same bytes the first one counts, and a dictionary has the last
        ranked = {}
        for index in order:
            ranked.setdefault(pieces[index], index)
        place = {piece: number for number, piece in enumerate(ranked)}
        places[order] = [place[pieces[index]] for index in order]
    whole: dict[bytes, int] = {}
    if pre.ignore_merges and len(ranked) < normal.sum():
        whole = {
            piece: index
            for index, (piece, is_normal) in enumerate(zip(pieces, normal.tolist(), strict=True))
            if is_normal and piece not in ranked
        }
    merges = MergeList(places[found], cuts.astype(np.uint32))
    return BpeVocabulary(list(ranked.items()), pre.patterns, whole, merges=merges, whole=pre.ignore_merges), pieces


def _raw_byte_pairs(fields: GgufFields, pre: PreTokenizer) -> tuple[RawBpeVocabulary, list[bytes]]:
    """Builds a vocabulary of raw text. Pieces of several characters that no merge makes can only come from the text of
    special tokens."""
    products, _, cuts = _merges(fields)
    texts = [product.decode() for product in products]
    pairs = dict.fromkeys((text[:cut], text[cut:]) for text, cut in zip(texts, cuts.tolist(), strict=True))
    if not are_ranked_by_what_they_make(pairs):
        raise ValueError(f"{PREFIX}merges that make the same at clashing ranks are not supported for raw text")
    rank = {product: number for number, product in enumerate(dict.fromkeys(products))}
    scores = array("f", bytes(4 * len(fields.texts)))
    kinds = bytearray(fields.types)
    for index, text in enumerate(fields.texts):
        made_by = rank.get(text.encode())
        if made_by is not None:
            scores[index] = -made_by
        elif kinds[index] != TokenType.BYTE and len(text) > 1:
            kinds[index] = TokenType.CONTROL
    unk_id = fields.id("unknown")
    return (
        RawBpeVocabulary(_sentencepiece(fields, scores, kinds, 0 if unk_id is None else unk_id), pre.patterns),
        _sentencepiece_pieces(fields),
    )


def _shown(kind: int, text: str) -> bytes:
    return b"" if kind == TokenType.UNUSED else text.encode()


def _sentencepiece_pieces(fields: GgufFields) -> list[bytes]:
    pieces: list[bytes] = []
    for index, (text, kind) in enumerate(zip(fields.texts, fields.types, strict=True)):
        match kind:
            case TokenType.NORMAL:
                pieces.append(text.encode().replace(_SPACE_BYTES, b" "))
            case TokenType.BYTE:
                found = _BYTE_PIECE.fullmatch(text)
                if found is None:
                    raise FormatError(fields.path, f"token {index} is a byte, but its text is {text!r}")
                pieces.append(bytes([int(found[1], 16)]))
            case _:
                pieces.append(_shown(kind, text))
    return pieces


def _scored(fields: GgufFields) -> ModelProto:
    unk_id = fields.id("unknown")
    if unk_id is None:
        raise ValueError(f"there is no unknown token: {PREFIX}unknown_token_id")
    assert fields.scores is not None
    return _sentencepiece(fields, fields.scores, fields.types, unk_id)


def _sentencepiece(fields: GgufFields, scores: Sequence[float], kinds: Sequence[int], unk_id: int) -> ModelProto:
    """Returns the model as the sentencepiece library takes it. It only gets text in which no special token was found,
    so USER_DEFINED tokens are ordinary pieces there, as in llama.cpp; CONTROL tokens never come from text."""
    unigram = fields.model == "t5"
    model = ModelProto()
    model.trainer_spec.model_type = model.trainer_spec.UNIGRAM if unigram else model.trainer_spec.BPE
    normalizer = model.normalizer_spec
    normalizer.name = "gguf"
    normalizer.add_dummy_prefix = False
    normalizer.remove_extra_whitespaces = unigram and fields.flag("remove_extra_whitespaces", False)
    charsmap = fields.get("precompiled_charsmap", array, None)
    if charsmap is not None and unigram:
        normalizer.precompiled_charsmap = charsmap.tobytes()
    seen: set[str] = set()
    kinds = _with_bytes(fields, kinds)
    for index, (text, kind) in enumerate(zip(fields.texts, kinds, strict=True)):
        if index == unk_id:
            kind = TokenType.UNKNOWN
        elif kind == TokenType.UNKNOWN:
            kind = TokenType.CONTROL
        elif kind in (TokenType.USER_DEFINED, TokenType.UNUSED):
            kind = TokenType.NORMAL
        if "\0" in text:
            raise ValueError(f"{PREFIX}tokens[{index}] is {text!r}: a null character is not supported")
        if not text or text in seen:
            text, kind = f"<no text {index}>", TokenType.CONTROL
        seen.add(text)
        model.pieces.add(piece=text, score=scores[index], type=kind)
    model.trainer_spec.unk_id = unk_id
    model.trainer_spec.byte_fallback = sum(kind == TokenType.BYTE for kind in kinds) == 256
    return model


def _with_bytes(fields: GgufFields, kinds: Sequence[int]) -> Sequence[int]:
    """Returns the types, and marks the tokens of bytes where the file has no types: llama.cpp finds them by their
    text."""
    if fields.has("token_type"):
        return kinds
    found = [index for index, text in enumerate(fields.texts) if _BYTE_PIECE.fullmatch(text)]
    changed = bytearray(kinds)
    for index in found if len(found) == 256 else ():
        changed[index] = TokenType.BYTE
    return changed


def _word_pieces(fields: GgufFields) -> WpmVocabulary:
    """Builds WordPiece's vocabulary: a piece that begins a word has U+2581 in front, one that continues a word has
    nothing."""
    begin: dict[str, int] = {}
    inside: dict[str, int] = {}
    for index, text in enumerate(fields.texts):
        if fields.types[index] == TokenType.NORMAL:
            pieces = begin if text.startswith(SPACE) else inside
            pieces.setdefault(text.removeprefix(SPACE), index)
    unk_id = fields.id("unknown")
    if unk_id is None:
        raise ValueError(f"there is no unknown token: {PREFIX}unknown_token_id")
    return WpmVocabulary(begin, inside, unk_id)

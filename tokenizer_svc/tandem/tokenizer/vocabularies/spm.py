"""SentencePiece byte-pair encoding with byte fallback (Llama 2).

Most vocabularies are encoded by `spm_merging`, the others by the sentencepiece library.

The model is built without its own space prefix: llama.cpp puts one in front of the text and again after each special
token, which the caller knows and the library does not. But a model that merges white space swallows it at the beginning
of a text, where the caller's prefix would be. So there are two processors: one puts the prefix there itself, and takes
text that begins with white space; the other takes text that goes on from what is before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from tandem.tokenizer.arrays import NONE, Ids, ids_of, starts_of
from tandem.tokenizer.native.compiled_encoder import NotServed
from tandem.tokenizer.vocabularies.spm_merging import SPACE, SpmMerger
from tandem.tokenizer.vocabulary import Located, TokenType, VocabularyType

_SEEN = 64  # characters, of which a map is likely to keep one
_OF_TEXT = (TokenType.NORMAL, TokenType.USER_DEFINED)


class SpmVocabulary:
    """A vocabulary over `model`, a SentencePiece model of type BPE. The model is changed: its own space prefix is
    switched off."""

    type = VocabularyType.SPM
    safe_border = None

    def __init__(self, model: ModelProto) -> None:
        if model.trainer_spec.model_type != model.trainer_spec.BPE:
            raise ValueError("the SentencePiece model is not of type BPE")
        self._processors = Processors(model, prefixed=model.normalizer_spec.add_dummy_prefix)
        self._normalizer = normalizer_behaviour(model)
        self._byte_fallback = model.trainer_spec.byte_fallback
        processor = self._processors.of("")
        self._unk_id = processor.unk_id()
        # Byte lengths of what each piece stands for; they add up to the text unless text is normalized.
        self._lengths = ids_of(
            [
                1 if piece.type == TokenType.BYTE else len(piece.piece.replace(SPACE, " ").encode())
                for piece in model.pieces
            ]
        )
        spec = model.normalizer_spec
        # Without a piece for it, a space is spelt by the three bytes of U+2581.
        has_space = any(piece.piece == SPACE and piece.type in _OF_TEXT for piece in model.pieces)
        self._keeps_text = has_space and not (
            spec.precompiled_charsmap or spec.remove_extra_whitespaces or not spec.escape_whitespaces
        )
        self._merger: SpmMerger | None = None
        self.encoder = "sentencepiece"
        if self._keeps_text:
            try:
                self._merger = SpmMerger.of(model, processor.EncodeAsIds)
            except NotServed as reason:
                self.encoder = f"sentencepiece ({reason})"
        if self._merger is not None:
            self.encoder = "compiled"

    def first_of(self, text: str) -> str:
        """Returns the first character of the text that the model sees, or nothing where it drops all of it."""
        return self._processors.first_of(text)

    def encode(self, text: str) -> Ids:
        if self._merger is not None:
            return self._merger.encode(text)
        return ids_of(self._processors.of(text).EncodeAsIds(text))

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the ids of each text, by one call where that is possible."""
        if self._merger is None:
            return [self.encode(text) if text else NONE for text in texts]
        return self._merger.encode_many(texts)

    def encode_with_offsets(self, text: str) -> Located:
        ids = self.encode(text)
        if not self._keeps_text or (ids == self._unk_id).any():
            return mapped_offsets(self._processors.of(text), text)
        starts = starts_of(self._lengths[ids])
        if SPACE in text:
            starts = _count_literal_spaces(text, starts)
        return Located(ids, starts, np.append(starts[1:], np.uint32(len(text.encode())))[: len(ids)])

    def behaviour(self) -> Iterator[bytes]:
        yield b"normalizer " + self._normalizer
        yield b"byte fallback " + str(self._byte_fallback).encode()


class Processors:
    """The library's, for text that begins with white space and for other. The model is changed: its own space prefix is
    switched off."""

    def __init__(self, model: ModelProto, *, prefixed: bool) -> None:
        """`prefixed`: callers put a space in front of text that does not go on from another one."""
        model.normalizer_spec.add_dummy_prefix = False
        self._going_on = self._beginning = SentencePieceProcessor(model_proto=model.SerializeToString())
        self._mapping = _mapping(model)
        if prefixed and model.normalizer_spec.remove_extra_whitespaces:
            model.normalizer_spec.add_dummy_prefix = True
            self._beginning = SentencePieceProcessor(model_proto=model.SerializeToString())
            model.normalizer_spec.add_dummy_prefix = False

    def of(self, text: str) -> SentencePieceProcessor:
        """Returns the one that encodes a text."""
        if self._beginning is self._going_on or "!" <= text[:1] <= "~":
            return self._going_on
        return self._beginning if text[:1] == " " or self.first_of(text) == " " else self._going_on

    def first_of(self, text: str) -> str:
        """Returns the first character that the model's map makes of a text, or nothing where it drops all of it."""
        if self._mapping is None:
            return text[:1]
        found: str = self._mapping.Normalize(text[:_SEEN]) or self._mapping.Normalize(text[_SEEN:])
        return found[:1]


def _mapping(model: ModelProto) -> SentencePieceProcessor | None:
    """Returns a processor that only maps characters as the model does, if it does."""
    if not model.normalizer_spec.precompiled_charsmap:
        return None
    alone = ModelProto()
    alone.trainer_spec.model_type = alone.trainer_spec.UNIGRAM
    alone.normalizer_spec.CopyFrom(model.normalizer_spec)
    for flag in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        setattr(alone.normalizer_spec, flag, False)
    alone.pieces.add(piece="<unk>", type=TokenType.UNKNOWN)
    alone.pieces.add(piece="a", type=TokenType.NORMAL)
    return SentencePieceProcessor(model_proto=alone.SerializeToString())


def normalizer_behaviour(model: ModelProto) -> bytes:
    """Returns what a model does to text before it encodes it; the name that it has for that is not reliable."""
    spec = model.normalizer_spec
    flags = repr((spec.remove_extra_whitespaces, spec.escape_whitespaces)).encode()
    return flags + bytes(spec.precompiled_charsmap)


def mapped_offsets(processor: SentencePieceProcessor, text: str) -> Located:
    """Returns the ids of text that is normalized before it is encoded, and their places in the text before that."""
    mapping = processor.EncodeAsOffsetMapping(text)
    sizes = np.fromiter((len(character.encode()) for character in text), np.uint32, len(text))
    bytes_before = np.concatenate((NONE, [0], np.cumsum(sizes))).astype(np.uint32)
    places = np.array(mapping["offsets"], np.int64).reshape(-1, 2)
    return Located(ids_of(mapping["ids"]), bytes_before[places[:, 0]], bytes_before[places[:, 1]])


def _count_literal_spaces(text: str, offsets: Ids) -> Ids:
    """Corrects offsets that counted each U+2581 of `text` as the one byte of the space that it is read as: it has three
    bytes."""
    lengths = np.array([len(run.encode()) for run in text.split(SPACE)[:-1]])
    places = np.cumsum(lengths + 1) - 1
    return offsets + np.uint32(2) * np.searchsorted(places, offsets).astype(np.uint32)

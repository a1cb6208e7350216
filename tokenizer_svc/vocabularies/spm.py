"""SentencePiece byte-pair encoding with byte fallback (Llama 2), by the sentencepiece library.

The model is built without its own space prefix: llama.cpp puts one in front of the text and again after each special
token, which the caller knows and the library does not.

Most of these vocabularies have no piece with a space anywhere but at its beginning. Then no merge can ever cross from
one word into the next, and text is encoded word by word from memory; this is exact, and many times faster. Characters
that no piece joins to another (line breaks and digits in Llama 2) are words of their own.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from tokenizer_svc.vocabularies.words import WordCache
from tokenizer_svc.vocabulary import TokenType, VocabularyType

SPACE = "▁"  # U+2581, which stands for a space in the pieces
_ASCII = frozenset(map(chr, range(128)))
_MANY_WORDS = 64  # from so many new words on, one call that releases the interpreter lock pays for its thread
_WORD_BORDER = re.compile(f"[^ {SPACE}][ {SPACE}]")
_STRETCH = 32_768  # characters whose words are found in one go: the interpreter lock is held meanwhile
_SPACE_INSIDE = re.compile(f"[^{SPACE}]{SPACE}")


class SpmVocabulary:
    """`model` is a SentencePiece model of type BPE. It is changed: its own space prefix is switched off."""

    type = VocabularyType.SPM
    safe_border = None

    def __init__(self, model: ModelProto) -> None:
        if model.trainer_spec.model_type != model.trainer_spec.BPE:
            raise ValueError("the SentencePiece model is not of type BPE")
        model.normalizer_spec.add_dummy_prefix = False
        self._normalizer = normalizer_behaviour(model)
        self._byte_fallback = model.trainer_spec.byte_fallback
        self._processor = SentencePieceProcessor(model_proto=model.SerializeToString())
        self._unk_id = self._processor.unk_id()
        # Byte lengths of what each piece stands for; they add up to the text unless text is normalized.
        self._lengths = [
            1 if piece.type == TokenType.BYTE else len(piece.piece.replace(SPACE, " ").encode())
            for piece in model.pieces
        ]
        spec = model.normalizer_spec
        self._keeps_text = not (
            spec.precompiled_charsmap or spec.remove_extra_whitespaces or not spec.escape_whitespaces
        )
        known_space = self._byte_fallback or any(piece.piece == SPACE for piece in model.pieces)
        merging = [
            piece.piece
            for piece in model.pieces
            if piece.type not in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE) and len(piece.piece) > 1
        ]
        words_stand_alone = self._keeps_text and known_space and not any(map(_SPACE_INSIDE.search, merging))
        self._words = WordCache(self._encode_words) if words_stand_alone else None
        loners = re.escape("".join(sorted(_ASCII - set("".join(merging)) - {" "})))
        self._word = re.compile(f"[ {SPACE}]*[^ {SPACE}{loners}]+|[ {SPACE}]+" + (f"|[{loners}]" if loners else ""))

    def encode(self, text: str) -> list[int]:
        if self._words is not None:
            ids: list[int] = []
            for stretch in _stretches(text):
                ids += self._words.encode(self._word.findall(stretch))
            return ids
        return list(self._processor.EncodeAsIds(text))

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[int]]:
        ids = self.encode(text)
        if self._keeps_text and self._unk_id not in ids:
            lengths = self._lengths
            offsets = list(accumulate((lengths[index] for index in ids[:-1]), initial=0)) if ids else []
            return ids, offsets if SPACE not in text else _count_literal_spaces(text, offsets)
        mapping = self._processor.EncodeAsOffsetMapping(text)
        bytes_before = list(accumulate((len(character.encode()) for character in text), initial=0))
        return list(mapping["ids"]), [bytes_before[start] for start, _ in mapping["offsets"]]

    def _encode_words(self, words: list[str]) -> list[list[int]]:
        if len(words) < _MANY_WORDS:
            return [self._processor.EncodeAsIds(word) for word in words]
        found: list[list[int]] = self._processor.EncodeAsIds(words, num_threads=1)
        return found

    def behaviour(self) -> Iterator[bytes]:
        yield b"normalizer " + self._normalizer
        yield b"byte fallback " + str(self._byte_fallback).encode()


def normalizer_behaviour(model: ModelProto) -> bytes:
    """What a model does to text before it looks at it; its name for that says nothing."""
    spec = model.normalizer_spec
    flags = repr((spec.remove_extra_whitespaces, spec.escape_whitespaces)).encode()
    return flags + bytes(spec.precompiled_charsmap)


def _stretches(text: str) -> Iterator[str]:
    """The text in parts that end where words end."""
    at = 0
    while len(text) - at > 2 * _STRETCH:
        border = _WORD_BORDER.search(text, at + _STRETCH)
        if border is None:
            break
        yield text[at : border.start() + 1]
        at = border.start() + 1
    yield text[at:] if at else text


def _count_literal_spaces(text: str, offsets: list[int]) -> list[int]:
    """Offsets that counted each U+2581 of `text` as the one byte of the space it is read as, with its three bytes."""
    places: list[int] = []
    at = 0
    for run in text.split(SPACE)[:-1]:
        at += len(run.encode())
        places.append(at)
        at += 1
    return [offset + 2 * bisect_left(places, offset) for offset in offsets]

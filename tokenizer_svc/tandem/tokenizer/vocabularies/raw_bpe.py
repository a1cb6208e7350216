"""Byte-pair encoding of raw text (Gemma 4): characters merge, spaces are U+2581, bytes are a last resort.

Merging by rank is what SentencePiece does by score, so a model whose scores are the negated ranks gives the same ids.
The patterns cut text first, and nothing merges across a cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import regex  # type: ignore[import-untyped]
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from tandem.tokenizer.arrays import Ids, joined
from tandem.tokenizer.vocabularies.spm import SpmVocabulary
from tandem.tokenizer.vocabulary import Located, VocabularyType


class RawBpeVocabulary:
    """A vocabulary over `model`, a SentencePiece model of type BPE whose pieces that a merge makes have minus their
    merge rank as score."""

    type = VocabularyType.BPE
    safe_border = None

    def __init__(self, model: ModelProto, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)
        self._pattern = regex.compile("|".join(self._patterns))
        self._merging = SpmVocabulary(model)
        self.encoder = self._merging.encoder
        self._scores = b",".join(repr(piece.score).encode() for piece in model.pieces)

    def encode(self, text: str) -> Ids:
        return joined(self._merging.encode_many(self._pattern.findall(text)))

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        return list(map(self.encode, texts))

    def encode_with_offsets(self, text: str) -> Located:
        found: list[Located] = []
        base = 0
        for piece in self._pattern.findall(text):
            ids, starts, ends = self._merging.encode_with_offsets(piece)
            found.append(Located(ids, starts + np.uint32(base), ends + np.uint32(base)))
            base += len(piece.encode())
        return Located(*(joined([each[part] for each in found]) for part in range(3)))

    def behaviour(self) -> Iterator[bytes]:
        for pattern in self._patterns:
            yield b"pattern " + pattern.encode()
        yield b"scores " + self._scores
        yield from self._merging.behaviour()

"""A vocabulary whose text is normalized first, by steps that the vocabulary itself does not know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from tandem.tokenizer.arrays import NONE, Ids, ids_of
from tandem.tokenizer.normalizing import Normalizer
from tandem.tokenizer.offsets import code_point_ends, to_code_points
from tandem.tokenizer.vocabulary import Located, Vocabulary


class NormalizedVocabulary:
    """`vocabulary` behind a `normalizer`. Places are those in the text as it was given."""

    safe_border = None

    def __init__(self, vocabulary: Vocabulary, normalizer: Normalizer) -> None:
        self.type = vocabulary.type
        self.encoder = vocabulary.encoder
        self.normalizer = normalizer
        self._vocabulary = vocabulary

    def first_of(self, text: str) -> str:
        """Returns the first character of the normalized text, or nothing where all of it is dropped."""
        return self.normalizer.apply(text)[:1]

    def encode(self, text: str) -> Ids:
        normal = self.normalizer.apply(text)
        return self._vocabulary.encode(normal) if normal else NONE

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        return self._vocabulary.encode_many(list(map(self.normalizer.apply, texts)))

    def encode_with_offsets(self, text: str) -> Located:
        normal = self.normalizer.apply(text)
        if normal == text:
            return self._vocabulary.encode_with_offsets(text)
        if not normal:
            return Located(NONE, NONE, NONE)
        normal, places = self.normalizer.locate(text)
        origins = np.array([*places, len(text)])
        before = ids_of(list(accumulate((len(character.encode()) for character in text), initial=0)))
        ids, starts, ends = self._vocabulary.encode_with_offsets(normal)
        data = normal.encode()
        last = np.maximum(code_point_ends(data, starts, ends), 1) - 1
        found = before[origins[to_code_points(data, starts)]]
        return Located(ids, found, np.where(ends > starts, before[np.minimum(origins[last] + 1, len(text))], found))

    def behaviour(self) -> Iterator[bytes]:
        yield ", ".join(self.normalizer.steps).encode()
        yield from self._vocabulary.behaviour()

"""WordLevel: text is cut into words, each of which is a token, or else the unknown one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import regex  # type: ignore[import-untyped]

from tandem.tokenizer.arrays import Ids, ids_of
from tandem.tokenizer.vocabulary import Located, VocabularyType


class Cut(NamedTuple):
    """A step that cuts text: matches of a pattern are pieces, and so is what is between them if it `keeps` that."""

    pattern: str
    keeps: bool


class Cutter:
    """Cuts text by steps, one after the other."""

    def __init__(self, cuts: Sequence[Cut]) -> None:
        self.cuts = tuple(cuts)
        self._patterns = [(regex.compile(cut.pattern), cut.keeps) for cut in cuts]

    def cut(self, text: str) -> list[tuple[int, int]]:
        """Returns where each piece begins and ends."""
        pieces = [(0, len(text))] if text else []
        for pattern, keeps in self._patterns:
            finer: list[tuple[int, int]] = []
            for start, end in pieces:
                done = start
                for match in pattern.finditer(text[start:end]):  # no pattern sees what is around the piece
                    first, last = start + match.start(), start + match.end()
                    if keeps and done < first:
                        finer.append((done, first))
                    if last > first:
                        finer.append((first, last))
                    done = last
                if keeps and done < end:
                    finer.append((done, end))
            pieces = finer
        return pieces


class WordsVocabulary:
    """Maps whole words, which `cuts` make one after the other, to the ids of `words`, or else to `unk_id`."""

    type = VocabularyType.WPM
    safe_border = None
    encoder = "Python"

    def __init__(self, words: Mapping[str, int], unk_id: int, cuts: Sequence[Cut]) -> None:
        self._words, self._unk_id, self._cutter = words, unk_id, Cutter(cuts)

    def encode(self, text: str) -> Ids:
        return ids_of([self._words.get(text[start:end], self._unk_id) for start, end in self._cutter.cut(text)])

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        return list(map(self.encode, texts))

    def encode_with_offsets(self, text: str) -> Located:
        places = self._cutter.cut(text)
        before = list(accumulate((len(character.encode()) for character in text), initial=0))
        starts, ends = ([before[place[side]] for place in places] for side in (0, 1))
        return Located(self.encode(text), ids_of(starts), ids_of(ends))

    def behaviour(self) -> Iterator[bytes]:
        yield b"whole words " + repr([tuple(cut) for cut in self._cutter.cuts]).encode()
        yield b"unknown " + str(self._unk_id).encode()

"""Byte-pair encoding of characters: text is cut into words, whose characters are merged."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from tandem.tokenizer.arrays import Ids, ids_of
from tandem.tokenizer.vocabularies.words import Cut, Cutter
from tandem.tokenizer.vocabulary import Located, VocabularyType

_KEPT = 1 << 14  # words
_LONGEST = 256  # characters of a word that is kept


class Unknown(NamedTuple):
    """What becomes of a character that is no token."""

    id: int | None  # None: nothing
    fused: bool  # several beside each other are one


class WordPairsVocabulary:
    """Merges the characters of the words that `cuts` make.

    tokens: the ids of texts. merges: what a pair of ids makes, the pairs in the order of their ranks.
    bytes_of: the 256 ids of bytes, which spell a character that is no token where all of its bytes have one.
    whole: a word that is a token needs no merges (`ignore_merges`).
    """

    type = VocabularyType.BPE
    safe_border = None
    encoder = "Python"

    def __init__(
        self,
        tokens: Mapping[str, int],
        merges: Mapping[tuple[int, int], int],
        unknown: Unknown,
        cuts: Sequence[Cut],
        bytes_of: Mapping[int, int],
        *,
        whole: bool,
    ) -> None:
        self._tokens, self._unknown, self._bytes_of, self._whole = tokens, unknown, bytes_of, whole
        self._merges = merges
        self._ranked = {pair: (rank, made) for rank, (pair, made) in enumerate(merges.items())}
        self._cutter = Cutter(cuts)
        self._short = lru_cache(_KEPT)(self._merged)

    def encode(self, text: str) -> Ids:
        return ids_of([index for start, end in self._cutter.cut(text) for index, _ in self._pieces(text[start:end])])

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        return list(map(self.encode, texts))

    def encode_with_offsets(self, text: str) -> Located:
        before = list(accumulate((len(character.encode()) for character in text), initial=0))
        ids: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        for start, end in self._cutter.cut(text):
            for index, (first, last) in self._pieces(text[start:end]):
                ids.append(index)
                starts.append(before[start] + first)
                ends.append(before[start] + last)
        return Located(ids_of(ids), ids_of(starts), ids_of(ends))

    def behaviour(self) -> Iterator[bytes]:
        yield b"pairs of characters " + repr([tuple(cut) for cut in self._cutter.cuts]).encode()
        yield repr((tuple(self._unknown), self._whole, sorted(self._bytes_of.items()))).encode()
        yield repr(list(self._merges.items())).encode()

    def _pieces(self, word: str) -> tuple[tuple[int, tuple[int, int]], ...]:
        """Returns ids and their places in the word, in bytes."""
        return self._short(word) if len(word) <= _LONGEST else self._merged(word)

    def _merged(self, word: str) -> tuple[tuple[int, tuple[int, int]], ...]:
        if self._whole and word in self._tokens:
            return ((self._tokens[word], (0, len(word.encode()))),)
        return merged(self._spelt(word), self._ranked)

    def _spelt(self, word: str) -> list[tuple[int, tuple[int, int]]]:
        found: list[tuple[int, tuple[int, int]]] = []
        at, fusing = 0, False
        for character in word:
            data = character.encode()
            start, at = at, at + len(data)
            index = self._tokens.get(character)
            if index is None and all(byte in self._bytes_of for byte in data):
                found += ((self._bytes_of[byte], (start + place, start + place + 1)) for place, byte in enumerate(data))
                fusing = False
            elif index is not None:
                found.append((index, (start, at)))
                fusing = False
            elif self._unknown.id is not None:
                if fusing and self._unknown.fused:
                    start = found.pop()[1][0]
                found.append((self._unknown.id, (start, at)))
                fusing = True
        return found


def merged(
    pieces: list[tuple[int, tuple[int, int]]], ranked: Mapping[tuple[int, int], tuple[int, int]]
) -> tuple[tuple[int, tuple[int, int]], ...]:
    """Merges neighbours, those of the lowest rank first and of these the leftmost."""
    after, before = list(range(1, len(pieces) + 1)), list(range(-1, len(pieces) - 1))
    queue = [
        (found[0], place, found[1])
        for place in range(len(pieces) - 1)
        if (found := ranked.get((pieces[place][0], pieces[place + 1][0])))
    ]
    heapq.heapify(queue)
    gone = [False] * len(pieces)
    while queue:
        rank, place, made = heapq.heappop(queue)
        if gone[place] or after[place] >= len(pieces):
            continue
        other = after[place]
        if ranked.get((pieces[place][0], pieces[other][0])) != (rank, made):
            continue  # another one by now
        pieces[place] = (made, (pieces[place][1][0], pieces[other][1][1]))
        gone[other] = True
        after[place] = after[other]
        if after[place] < len(pieces):
            before[after[place]] = place
        for left in (before[place], place):
            right = after[left] if left >= 0 else len(pieces)
            if left >= 0 and right < len(pieces) and (found := ranked.get((pieces[left][0], pieces[right][0]))):
                heapq.heappush(queue, (found[0], left, found[1]))
    return tuple(piece for piece, left in zip(pieces, gone, strict=True) if not left)

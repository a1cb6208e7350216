"""Merges as files list them, and a check whether their products alone determine the result."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tandem.tokenizer.arrays import Ids, ids_of


class MergeList(NamedTuple):
    """Merges in the order of their merge ranks. Products are numbered in the order in which they are first made."""

    products: Ids  # [merges] the number of what each merge makes, among all tokens that have one
    cuts: Ids  # [merges] bytes of its left part


def are_ranked_by_product(merges: MergeList, by_product: Ids, by_pair: Callable[[], Ids], whole: bool) -> bool:
    """Returns True when ranking products gives the same result. `by_product` and `by_pair` hold for each token the
    bytes of the first of the two parts of which the one way and the other make it, 0 where it does not. With `whole` a
    piece that is a token is taken as it is, so it need not be made."""
    made = np.unique(merges.products)
    first = np.zeros(len(by_product), np.uint32)
    first[merges.products[::-1]] = merges.cuts[::-1]  # of several values for a place the last one stays
    if (by_product[made] == first[made]).all():
        return True
    if (by_pair()[made] != by_product[made]).any() or not (whole or by_product[made].all()):
        return False
    merged = np.flatnonzero(merges.cuts == by_product[merges.products])[::-1]
    ranks = np.full(len(by_product), -1, np.int64)
    ranks[merges.products[merged]] = merged
    return bool((np.diff(ranks[made[by_product[made] > 0]]) > 0).all())


def merges_of_bytes(pairs: Iterable[tuple[str, str]]) -> tuple[list[bytes], MergeList]:
    """Returns the tokens, and merges that first join the bytes of characters, then these pairs of them."""
    pairs = list(pairs)
    numbers = {bytes([byte]): byte for byte in range(256)}
    products: list[int] = []
    cuts: list[int] = []

    def add(left: bytes, right: bytes) -> None:
        products.append(numbers.setdefault(left + right, len(numbers)))
        cuts.append(len(left))

    for character in sorted({character for pair in pairs for part in pair for character in part}):
        data = character.encode()
        for end in range(1, len(data)):
            if data[: end + 1] not in numbers:
                add(data[:end], data[end : end + 1])
    for left, right in pairs:
        add(left.encode(), right.encode())
    return list(numbers), MergeList(ids_of(products), ids_of(cuts))


def merge(
    parts: Sequence[int], rank: Callable[[int, int], int | None], products: Sequence[int], stop: int
) -> list[int]:
    """Joins the two neighbours of the lowest merge rank, the leftmost of equal ones, to the `products` of their rank,
    until `stop` parts are left or none has a rank. Takes time n log n."""
    tokens = list(parts)
    end = len(tokens)
    following, before = list(range(1, end + 1)), list(range(-1, end - 1))
    ranks = [rank(tokens[n], tokens[n + 1]) for n in range(end - 1)] + [None]
    heap = [(each, n) for n, each in enumerate(ranks) if each is not None]
    heapq.heapify(heap)
    left = end
    while heap and left > stop:
        best, at = heapq.heappop(heap)
        if ranks[at] != best:
            continue
        tokens[at] = products[best]
        gone = following[at]
        ranks[gone] = None
        following[at] = behind = following[gone]
        if behind < end:
            before[behind] = at
        left -= 1
        for place in (before[at], at):
            if place >= 0:
                right = following[place]
                ranks[place] = fresh = rank(tokens[place], tokens[right]) if right < end else None
                if fresh is not None:
                    heapq.heappush(heap, (fresh, place))
    found: list[int] = []
    at = 0
    while at < end:
        found.append(tokens[at])
        at = following[at]
    return found


class PairMerger:
    """Merges by pairs, in Python."""

    def __init__(self, tokens: Sequence[bytes], merges: MergeList) -> None:
        self._tokens = tokens
        self._merges = merges
        self._numbers = {token: number for number, token in enumerate(tokens)}
        self._products: list[int] = merges.products.tolist()
        self._pairs: dict[tuple[int, int], int] = {}
        for rank, (product, cut) in enumerate(zip(self._products, merges.cuts.tolist(), strict=True)):
            parts = self._numbers.get(tokens[product][:cut]), self._numbers.get(tokens[product][cut:])
            if None not in parts:
                self._pairs.setdefault(parts, rank)  # type: ignore[arg-type]
        self._singles = [self._numbers[bytes([byte])] for byte in range(256)]

    def merge(self, piece: bytes, stop: int = 1) -> list[int]:
        """Returns the numbers of the tokens that a piece becomes."""
        return merge([self._singles[byte] for byte in piece], self._rank, self._products, stop)

    def _rank(self, left: int, right: int) -> int | None:
        return self._pairs.get((left, right))

    def _merge_by_product(self, piece: bytes, stop: int = 1) -> list[int]:
        """Merges a piece where the merge rank of neighbours is the number of what they become."""
        tokens = self._tokens

        def rank(left: int, right: int) -> int | None:
            return self._numbers.get(tokens[left] + tokens[right])

        return merge([self._singles[byte] for byte in piece], rank, range(len(tokens)), stop)

    def is_by_product(self, whole: bool) -> bool:
        """Returns True as `are_ranked_by_product` does."""
        by_product = self._splits(self._merge_by_product)
        return are_ranked_by_product(self._merges, by_product, lambda: self._splits(self.merge), whole)

    def _splits(self, merging: Callable[[bytes, int], list[int]]) -> Ids:
        found = np.zeros(len(self._tokens), np.uint32)
        for number, token in enumerate(self._tokens):
            parts = merging(token, 2)
            if len(parts) == 2 and merging(token, 1) == [number]:
                found[number] = len(self._tokens[parts[0]])
        return found

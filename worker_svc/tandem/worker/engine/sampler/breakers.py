"""Finds where DRY's sequence breakers stand in the tokens of a request. Numpy alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Breakers:
    """Holds sequence breakers so that a search costs the same however many there are."""

    single: Ids  # those of one token, which are never penalized
    heads: Ids  # the first token of each
    tails: dict[int, dict[int, set[tuple[int, ...]]]]  # head -> length, the longest first -> what follows it
    longest: int

    @classmethod
    def of(cls, sequences: Iterable[tuple[int, ...]]) -> Breakers:
        """Prepares the breakers, once a request."""
        tails: dict[int, dict[int, set[tuple[int, ...]]]] = {}
        for head, *tail in sorted(set(sequences), key=len, reverse=True):
            tails.setdefault(head, {}).setdefault(len(tail), set()).add(tuple(tail))
        single = [head for head, by_length in tails.items() if 0 in by_length]
        longest = 1 + max((length for by_length in tails.values() for length in by_length), default=0)
        return cls(np.array(single, np.int64), np.array(list(tails), np.int64), tails, longest)

    def reach(self, tokens: npt.NDArray[np.int32], most: int) -> int:
        """Returns how many tokens stand behind the last breaker in `tokens`; all of them where it has none. Numbers
        above `most` are not told apart. Of several that begin at the same token, the longest counts."""
        begin = max(0, len(tokens) - most - self.longest)
        for place in reversed((begin + np.flatnonzero(np.isin(tokens[begin:], self.heads))).tolist()):
            for length, followers in self.tails[int(tokens[place])].items():
                end = place + 1 + length
                if end <= len(tokens) and tuple(tokens[place + 1 : end].tolist()) in followers:
                    return len(tokens) - end
        return len(tokens)

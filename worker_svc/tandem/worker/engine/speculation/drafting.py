"""Remembers of each request how often its drafts are accepted, and where its n-grams ended."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tandem.worker.engine.chains import Tokens

FIRST_CHANCE = 0.6  # of a request's drafts to be accepted, before any was tried; counts as much as one that was
MEMORY_TOKENS = 64  # after so many more, what was seen of a request's drafts counts half
INDEXED_TOKENS = 32_768  # of a prompt, its last ones


class NGramIndex:
    """Finds where each n-gram of a sequence last ended, except for the one at its end."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._ends: dict[bytes, int] = {}
        self._indexed = 0  # n-grams that end at or before this place are there

    def continuation(self, tokens: Tokens, count: int) -> Tokens:
        """Returns what followed the last n tokens when they were last seen, `[0 to count]`; a cycle goes on for ever.

        Costs what is new in `tokens`, which must begin with those of the last call.
        """
        n, length = self._n, len(tokens)
        if length <= n:
            return tokens[:0]
        self._extend(tokens)
        end = self._ends.get(tokens[length - n :].tobytes())
        return tokens[:0] if end is None else np.resize(tokens[end : end + count], count)

    def _extend(self, tokens: Tokens) -> None:
        n, last = self._n, len(tokens) - 1
        first = max(self._indexed + 1, n, last - INDEXED_TOKENS)
        self._indexed = last
        if first == last:  # as in nearly every call
            self._ends[tokens[last - n : last].tobytes()] = last
            return
        data, width = tokens[first - n : last].tobytes(), n * tokens.itemsize
        step = tokens.itemsize
        self._ends.update((data[i * step : i * step + width], first + i) for i in range(last - first + 1))


@dataclass(slots=True)
class Memory:
    """Counts how a request's drafts fared."""

    index: NGramIndex | None = None  # where there is prompt lookup
    _accepted: float = 0.0  # drafts, each weighed by how long ago it was
    _tried: float = 0.0  # the same of all that stood behind an accepted token
    _learnt_at: int = 0  # number of tokens

    def chance(self, num_tokens: int) -> float:
        """Estimates the chance that a draft is accepted if those before it are; old rounds fade, so all are retried."""
        weight = self._weight(num_tokens)
        return (FIRST_CHANCE + weight * self._accepted) / (1 + weight * self._tried)

    def learn(self, proposed: int, accepted: int, num_tokens: int) -> None:
        """Learns from a round of drafts, after which the request has `num_tokens`."""
        weight = self._weight(num_tokens)
        self._accepted = weight * self._accepted + accepted
        self._tried = weight * self._tried + min(proposed, accepted + 1)
        self._learnt_at = num_tokens

    def _weight(self, num_tokens: int) -> float:
        return math.exp2((self._learnt_at - num_tokens) / MEMORY_TOKENS)

"""What speculation keeps of each request: how large its window is, and where its n-grams ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from worker_svc.engine.pages import Tokens

FIRST_WINDOW = 4
REST_TOKENS = 32  # without drafts, after FAILURES rounds without an accepted one
FAILURES = 4
INDEXED_TOKENS = 32_768  # of a prompt, its last ones


class NGramIndex:
    """Where each n-gram of a sequence last ended, except for the one at its end."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._ends: dict[bytes, int] = {}
        self._indexed = 0  # n-grams that end at or before this place are there

    def continuation(self, tokens: Tokens, count: int) -> Tokens:
        """What followed the last n tokens when they were last seen, `[0 to count]`; a cycle goes on for ever.

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
        data, width = tokens[first - n : last].tobytes(), n * tokens.itemsize
        step = tokens.itemsize
        self._ends.update((data[i * step : i * step + width], first + i) for i in range(last - first + 1))
        self._indexed = last


@dataclass(slots=True)
class Drafting:
    """How a request is speculated on, and how that goes."""

    max_tokens: int  # drafts at most
    ngram: int  # 0: no prompt lookup
    window: int = FIRST_WINDOW
    failures: int = 0  # rounds in a row without an accepted draft
    rest_until: int = 0  # number of tokens before which there are no drafts
    index: NGramIndex | None = None
    computed: int = 0  # tokens whose keys and values the draft model has

    def learn(self, proposed: int, accepted: int, num_tokens: int) -> None:
        """One round is over."""
        if accepted == proposed:
            self.window = min(self.max_tokens, 2 * max(self.window, proposed))
        else:
            self.window = min(self.max_tokens, accepted + 1)
        self.failures = 0 if accepted else self.failures + 1
        if self.failures >= FAILURES:
            self.failures, self.rest_until = 0, num_tokens + REST_TOKENS

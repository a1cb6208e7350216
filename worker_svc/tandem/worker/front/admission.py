"""The bound on what waits, counted in requests and in prompt tokens, before any work is done for them.

One count for everything between admission and end: the front cannot know at the moment of a decision which request
the engine is about to start. So a worker holds at most `max_running + max_waiting` requests and `max_tokens` prompt
tokens; a single request is always let in when there is no other.

A caller that has filled all of it must not shut the others out. Where it is full, who holds less than an equal share
of it is still let in, until twice as much is held; who holds more comes back later.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from tandem.common.advice import spread
from tandem.common.errors import resource_exhausted

_SHORTEST_RETRY, _LONGEST_RETRY = 0.1, 30.0  # seconds
_SMOOTHING = 0.2  # weight of the newest interval between two ends


@dataclass(slots=True)
class Admission:
    """Counts; used from one event loop, so that checking and counting are one step."""

    max_requests: int
    max_tokens: int
    requests: int = 0
    tokens: int = 0
    refused: int = 0
    _requests_of: Counter[str] = field(default_factory=Counter)  # by caller
    _tokens_of: Counter[str] = field(default_factory=Counter)
    _last_end: float | None = None
    _interval: float = 1.0  # seconds between two ends, smoothed
    _next_place: float = 0.0  # the moment for which the last who was refused was told to come back

    @property
    def callers(self) -> int:
        """Callers that hold something."""
        return len(self._requests_of)

    def has_others(self, caller: str) -> bool:
        """Whether other callers hold something."""
        return self.callers > (caller in self._requests_of)

    def enter(self, tokens: int, samples: int = 1, caller: str = "") -> None:
        """Counts a request of so many prompt tokens in, each of its samples as one request. Raises RESOURCE_EXHAUSTED
        with advice when to come back."""
        if self._is_full(caller, self._requests_of, self.requests, samples, self.max_requests):
            held = self._held_by(caller, self._requests_of[caller], self.max_requests)
            self.refused += 1
            raise resource_exhausted(
                f"the queue is full: {self.requests} of {self.max_requests} requests{held}",
                reason="QUEUE_FULL",
                retry_after=self.retry_after(time.monotonic()),
            )
        if self._is_full(caller, self._tokens_of, self.tokens, tokens, self.max_tokens):
            held = self._held_by(caller, self._tokens_of[caller], self.max_tokens)
            self.refused += 1
            raise resource_exhausted(
                f"the queue is full: {self.tokens} of {self.max_tokens} prompt tokens{held}, "
                f"and the request has {tokens}",
                reason="QUEUE_FULL",
                retry_after=self.retry_after(time.monotonic()),
            )
        self.requests += samples
        self.tokens += tokens
        self._requests_of[caller] += samples
        self._tokens_of[caller] += tokens

    def _is_full(self, caller: str, held: Counter[str], total: int, more: int, most: int) -> bool:
        if not self.requests or total + more <= most:
            return False
        return held[caller] + more > self._share(caller, most) or total + more > 2 * most

    def _share(self, caller: str, most: int) -> int:
        """An equal share among the callers that are here and this one."""
        return most // (self.callers + (caller not in self._requests_of))

    def _held_by(self, caller: str, held: int, most: int) -> str:
        if not self.has_others(caller):
            return ""
        return f", {held} of them this caller's, whose share is {self._share(caller, most)}"

    def leave(self, tokens: int, now: float, samples: int = 1, caller: str = "") -> None:
        """Counts a request out that `enter` counted in; `now` in seconds of any steady clock."""
        self.requests -= samples
        self.tokens -= tokens
        self._requests_of[caller] -= samples
        self._tokens_of[caller] -= tokens
        if not self._requests_of[caller]:
            del self._requests_of[caller], self._tokens_of[caller]
        assert self.requests >= 0
        assert self.tokens >= 0
        if self._last_end is not None:
            self._interval += _SMOOTHING * (now - self._last_end - self._interval)
        self._last_end = now

    def retry_after(self, now: float) -> float:
        """Seconds after which a place is likely to be free for one more who is refused: each gets a place of his own,
        at the usual pace of ends. Where that is beyond the longest advice, all are spread around it."""
        self._next_place = max(self._next_place, now) + self._interval
        if self._next_place - now > _LONGEST_RETRY:
            self._next_place = now + _LONGEST_RETRY
            return spread(_LONGEST_RETRY)
        return spread(max(_SHORTEST_RETRY, self._next_place - now))

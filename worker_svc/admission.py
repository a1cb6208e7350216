"""The bound on what waits, counted in requests and in prompt tokens, before any work is done for them.

One count for everything between admission and end: the front cannot know at the moment of a decision which request
the engine is about to start. So a worker holds at most `max_running + max_waiting` requests and `max_tokens` prompt
tokens; a single request is always let in when there is no other.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from svc_common.advice import spread
from svc_common.errors import resource_exhausted

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
    _last_end: float | None = None
    _interval: float = 1.0  # seconds between two ends, smoothed
    _next_place: float = 0.0  # the moment for which the last who was refused was told to come back

    def enter(self, tokens: int, samples: int = 1) -> None:
        """Counts a request of so many prompt tokens in, each of its samples as one request. Raises RESOURCE_EXHAUSTED
        with advice when to come back."""
        if self.requests and self.requests + samples > self.max_requests:
            self.refused += 1
            raise resource_exhausted(
                f"the queue is full: {self.requests} of {self.max_requests} requests",
                reason="QUEUE_FULL",
                retry_after=self.retry_after(time.monotonic()),
            )
        if self.requests and self.tokens + tokens > self.max_tokens:
            self.refused += 1
            raise resource_exhausted(
                f"the queue is full: {self.tokens} of {self.max_tokens} prompt tokens, and the request has {tokens}",
                reason="QUEUE_FULL",
                retry_after=self.retry_after(time.monotonic()),
            )
        self.requests += samples
        self.tokens += tokens

    def leave(self, tokens: int, now: float, samples: int = 1) -> None:
        """Counts a request out that `enter` counted in; `now` in seconds of any steady clock."""
        self.requests -= samples
        self.tokens -= tokens
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

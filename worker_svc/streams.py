"""What lies between the engine's steps and one gRPC stream.

Tokens pile up while the stream waits for its reader, and go out as one message when it comes back: a slow reader costs
one growing list of ids, which max_tokens bounds, and never holds up the engine or another reader.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from svc_common.errors import ServiceError
from worker_svc.engine.messages import Ended
from worker_svc.validation import Delivery


@dataclass(slots=True, eq=False)
class OutputStream:
    """The output of one request. The engine's side calls `push`, `end` and `fail`, the reader's side `ready` and
    `take`; all on one event loop."""

    handle: int
    delivery: Delivery
    ended: Ended | None = None
    _ids: list[int] = field(default_factory=list)
    _logprobs: list[float] = field(default_factory=list)
    _error: ServiceError | None = None
    _pending_since: float = 0.0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def over(self) -> bool:
        """Nothing will be pushed any more."""
        return self.ended is not None or self._error is not None

    @property
    def pending(self) -> int:
        """Tokens that have come and were not taken."""
        return len(self._ids)

    def push(self, token: int, logprob: float, now: float) -> None:
        """One more token."""
        if not self._ids:
            self._pending_since = now
        self._ids.append(token)
        self._logprobs.append(logprob)
        if len(self._ids) >= self.delivery.interval_tokens or self.delivery.max_delay_seconds is not None:
            self._wake.set()

    def end(self, ended: Ended) -> None:
        """The request has finished."""
        self.ended = ended
        self._wake.set()

    def fail(self, error: ServiceError) -> None:
        """The request will never finish; what is pending is not delivered."""
        self._error = error
        self._wake.set()

    async def ready(self) -> None:
        """Returns when a message is due: enough tokens, the oldest has waited long enough, or the end. Raises what the
        stream failed with."""
        while not self.over and len(self._ids) < self.delivery.interval_tokens:
            self._wake.clear()
            delay = self.delivery.max_delay_seconds
            if delay is None or not self._ids:
                await self._wake.wait()
                continue
            left = self._pending_since + delay - time.monotonic()
            if left <= 0:
                break
            try:
                await asyncio.wait_for(self._wake.wait(), left)
            except TimeoutError:
                break
        if self._error is not None:
            raise self._error

    def take(self) -> tuple[list[int], list[float]]:
        """The ids and logprobs that have come since the last call."""
        ids, logprobs = self._ids, self._logprobs
        self._ids, self._logprobs = [], []
        return ids, logprobs

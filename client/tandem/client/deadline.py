"""One time budget for a call that takes several hops."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .errors import deadline_exceeded


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on the monotonic clock; None: never."""

    at: float | None

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        return cls(None if seconds is None else time.monotonic() + seconds)

    def remaining(self, waiting_for: str, service: str = "client", request_id: str = "") -> float | None:
        """Seconds that are left, for an RPC's `timeout`; None: no limit. Raises DeadlineExceededError when none are."""
        if self.at is None:
            return None
        left = self.at - time.monotonic()
        if left <= 0:
            raise deadline_exceeded(waiting_for, service=service, request_id=request_id)
        return left

    def cap(self, seconds: float) -> float:
        """`seconds`, or what is left where that is less."""
        return seconds if self.at is None else max(0.0, min(seconds, self.at - time.monotonic()))

"""The timeout of a call that takes several RPCs."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tandem.client.errors import deadline_exceeded


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on the monotonic clock; None means never."""

    at: float | None

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        return cls(None if seconds is None else time.monotonic() + seconds)

    @property
    def left(self) -> float | None:
        """The seconds that are left, 0 when none are; None means no limit."""
        return None if self.at is None else max(0.0, self.at - time.monotonic())

    def remaining(self, waiting_for: str, service: str = "client", request_id: str = "") -> float | None:
        """Returns the seconds that are left, for an RPC's `timeout`; None means no limit. Raises DeadlineExceededError
        when none are."""
        left = self.left
        if left is not None and left <= 0:
            raise deadline_exceeded(waiting_for, service=service, request_id=request_id)
        return left

    def cap(self, seconds: float) -> float:
        """Returns `seconds`, or the time that is left where that is less."""
        return seconds if (left := self.left) is None else min(seconds, left)

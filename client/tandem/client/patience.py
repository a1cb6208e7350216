"""Decides how long a call is retried: what counts against it, and the pauses in between.

| what happened                                                       | effect                                        |
|---------------------------------------------------------------------|-----------------------------------------------|
| something new came (a token, a response of the tokenizer)           | resets everything                             |
| the server says that it restarts or drains; a server that was       | waits, at most `restart_seconds` in a row     |
| reached before cannot be reached; there is no room for an answer    |                                               |
| that has begun                                                      |                                               |
| anything else that may be retried, or a wait beyond that bound      | uses one of `attempts`                        |

Pure: no grpc.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from tandem.client.errors import StatusError, UnavailableError
from tandem.client.settings import FailoverSettings

RESTARTING = frozenset({"DRAINING", "ENGINE_DIED", "ENGINE_RESTARTING", "NO_WORKER", "SHUTTING_DOWN", "STARTING"})
"""Reasons of servers that will be there again, or of which another will do."""


def restarts(error: StatusError, *, reached: bool) -> bool:
    """Returns True when the server is expected back: it says so, or it was `reached` before and cannot be reached
    now."""
    return error.reason in RESTARTING or (isinstance(error, UnavailableError) and not error.reason and reached)


class Patience:
    """Counts the failures since something new came."""

    def __init__(self, failover: FailoverSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._failover = failover
        self._clock = clock
        self._spent = self._pauses = 0
        self._since: float | None = None  # when it began to fail

    def progressed(self) -> None:
        """Resets the counts, because something new has come."""
        self._spent = self._pauses = 0
        self._since = None

    def failed(self, error: StatusError, *, may_wait: bool) -> None:
        """Counts a failure, and raises it when it was the last allowed one. `may_wait` means that time will help, so it
        uses no attempt."""
        now = self._clock()
        if self._since is None:
            self._since = now
        if self._failover.attempts and may_wait and now - self._since < self._failover.restart_seconds:
            return
        self._spent += 1
        if self._spent > self._failover.attempts:
            raise error

    def pause(self, error: StatusError, left: float | None) -> float:
        """Returns the seconds until the same server is asked again; `left` are those of the deadline.

        Callers that failed together retry spread out: half of the backoff and a quarter of the server's advice are
        random. Where the server's advice is beyond the deadline, half of the time that is left is waited instead.
        """
        self._pauses += 1
        backoff = self._failover.backoff(self._pauses) * (0.5 + random.random() / 2)  # noqa: S311
        if error.retry_after is None:
            return backoff
        advised = error.retry_after * (1 + random.random() / 4)  # noqa: S311
        return max(backoff, advised if left is None or advised < left else left / 2)

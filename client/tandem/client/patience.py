"""How long one call goes on trying: what counts against it, and the pauses in between.

| what happened                                                       | it                                            |
|---------------------------------------------------------------------|-----------------------------------------------|
| something new came (a token, an answer of the tokenizer)            | forgets all that failed before                |
| the server says that it restarts or drains; one that was there      | waits, `restart_seconds` in a row at most     |
| cannot be reached; there is no room for an answer that has begun    |                                               |
| anything else that may be retried, and what is beyond that bound    | spends one of `attempts`                      |

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
    """Whether the server, which was `reached` before, will be there again: it says so, or it cannot be reached now."""
    return error.reason in RESTARTING or (isinstance(error, UnavailableError) and not error.reason and reached)


class Patience:
    """What has failed since something new came."""

    def __init__(self, failover: FailoverSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._failover = failover
        self._clock = clock
        self._spent = self._pauses = 0
        self._since: float | None = None  # when it began to fail

    def progressed(self) -> None:
        """Something new has come."""
        self._spent = self._pauses = 0
        self._since = None

    def failed(self, error: StatusError, *, may_wait: bool) -> None:
        """Counts a failure; raises it where it was the last. `may_wait`: time will help, so it spends no attempt."""
        now = self._clock()
        if self._since is None:
            self._since = now
        if self._failover.attempts and may_wait and now - self._since < self._failover.restart_seconds:
            return
        self._spent += 1
        if self._spent > self._failover.attempts:
            raise error

    def pause(self, error: StatusError, left: float | None) -> float:
        """Seconds until the same server is asked again; `left` are those of the deadline.

        Callers that failed together come back spread out: half of the backoff and a quarter of the server's advice are
        random. Advice that is beyond the deadline is only a guess of the server's: then half of what is left is waited.
        """
        self._pauses += 1
        backoff = self._failover.backoff(self._pauses) * (0.5 + random.random() / 2)  # noqa: S311
        if error.retry_after is None:
            return backoff
        advised = error.retry_after * (1 + random.random() / 4)  # noqa: S311
        return max(backoff, advised if left is None or advised < left else left / 2)

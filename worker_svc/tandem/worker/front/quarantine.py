"""Quarantines requests that make engines crash.

A request is a *suspect* when an engine dies in a step that computed it, before it has given it a token. It may have
been there by bad luck, so it is sent elsewhere like any other, and its suspicions are counted:

| the engine                                   | the request gets                                                    |
|----------------------------------------------|---------------------------------------------------------------------|
| crashed, with one suspect only               | quarantine: no client sends it again                                |
| crashed with several suspects, or was killed | UNAVAILABLE and its count; at MAX_SUSPICIONS quarantine             |

A token clears it. Who sends it to the next worker says the count (metadata SUSPICIONS_KEY); for those who do not, a
digest of the request is kept for a while. A request that is suspected has its first step by itself among those
(`Probation`), so that the next crash has one suspect, and not again all that failed over together.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

SUSPICIONS_KEY = "x-suspicions"
MAX_SUSPICIONS = 3
REMEMBERED_SECONDS = 600.0
REMEMBERED_REQUESTS = 1024


def told_suspicions(value: str | bytes | None) -> int:
    """Returns the caller's count, 0 if it is malformed, capped below what quarantines by itself."""
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else value or ""
    return min(int(text), MAX_SUSPICIONS - 1) if text.isdecimal() and len(text) < 10 else 0


def digest(request: bytes) -> bytes:
    """Returns a digest of a serialized request."""
    return hashlib.blake2b(request, digest_size=16).digest()


@dataclass(slots=True)
class _Suspicion:
    count: int
    until: float
    quarantined: bool


class Quarantine:
    """Remembers the requests that were suspected."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: OrderedDict[bytes, _Suspicion] = OrderedDict()  # the oldest suspicion first

    def __bool__(self) -> bool:
        """Tells whether anything is remembered: without that no digest is needed."""
        self._forget_old()
        return bool(self._known)

    def count(self, key: bytes) -> int:
        """Returns how often the request was suspected, as far as is remembered."""
        found = self._known.get(key)
        return found.count if found is not None else 0

    def holds(self, key: bytes) -> bool:
        """Tells whether the request is quarantined."""
        found = self._known.get(key)
        return found is not None and found.quarantined

    def suspect(self, key: bytes, before: int, *, alone: bool, crashed: bool) -> bool:
        """Counts a suspicion: an engine died in the first step of the request, which was suspected `before` times and
        was `alone` in its first step or not. Returns whether it is quarantined from now on."""
        count = 1 + max(before, 0)
        quarantined = count >= MAX_SUSPICIONS or (alone and crashed)
        self._known[key] = _Suspicion(count, self._clock() + REMEMBERED_SECONDS, quarantined)
        self._known.move_to_end(key)
        while len(self._known) > REMEMBERED_REQUESTS:
            self._known.popitem(last=False)
        return quarantined

    def clear(self, key: bytes) -> None:
        """Forgets the request, which has a token."""
        self._known.pop(key, None)

    def _forget_old(self) -> None:
        now = self._clock()
        while self._known and next(iter(self._known.values())).until <= now:
            self._known.popitem(last=False)


class Probation:
    """Lets suspected requests have their first step one after the other."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._holder: object | None = None

    async def enter(self, request: object) -> None:
        """Waits for its turn."""
        await self._lock.acquire()
        self._holder = request

    def leave(self, request: object) -> None:
        """Gives the turn to the next, once this one has a token or has ended; ignores those without a turn."""
        if self._holder is request:
            self._holder = None
            self._lock.release()

"""A limit on jobs that run at once, shared fairly by callers: the caller with the fewest running jobs is next."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class NoSlotError(Exception):
    """Too many jobs wait, of all callers or of this one."""


class CallerSlots:
    """Lets `slots` jobs run at once and `max_waiting` others wait. No caller has more than `per_caller` that wait or
    run. Use it from one event loop."""

    def __init__(self, slots: int, max_waiting: int, per_caller: int) -> None:
        self._free = slots
        self._max_waiting = max_waiting
        self._per_caller = per_caller
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # callers in the order in which they had their turn

    @asynccontextmanager
    async def slot(self, caller: str) -> AsyncIterator[None]:
        """Waits for a slot and holds it. Raises NoSlotError."""
        queue = self._waiting.get(caller, ())
        if (count := self._running[caller] + len(queue)) >= self._per_caller:
            raise NoSlotError(f"{count} conversations of this caller wait or run, which is the limit")
        if self._free:
            self._free -= 1
            self._running[caller] += 1
        else:
            await self._wait(caller)
        try:
            yield
        finally:
            self._leave(caller)

    async def _wait(self, caller: str) -> None:
        waiting = sum(map(len, self._waiting.values()))
        if waiting >= self._max_waiting:
            raise NoSlotError(f"{waiting} conversations wait for their template, which is the limit")
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._remove(caller, turn)
            else:  # the place was given in the same moment
                self._leave(caller)
            raise

    def _leave(self, caller: str) -> None:
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        if caller in self._waiting:
            self._waiting[caller] = self._waiting.pop(caller)
        while self._waiting:
            chosen = min(self._waiting, key=self._running.__getitem__)  # of equals the first
            turn = self._waiting[chosen][0]
            self._remove(chosen, turn)
            if not turn.done():  # who is gone may not have noticed yet
                self._running[chosen] += 1
                turn.set_result(None)
                return
        self._free += 1

    def _remove(self, caller: str, turn: asyncio.Future[None]) -> None:
        """Moves the caller to the end of the queue."""
        queue = self._waiting.pop(caller, deque())
        with suppress(ValueError):
            queue.remove(turn)
        if queue:
            self._waiting[caller] = queue

"""Runs steps that hold the event loop for milliseconds one at a time, with a pause behind each. However many large
requests come at once, other tasks wait for one of them at most."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

_LONGEST_PAUSE = 0.1  # seconds

T = TypeVar("T")


class Turns:
    """Gives turns on one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, step: Callable[[], T]) -> T:
        """Runs `step` when its turn has come and returns or raises what it does. The pause behind it is as long as it
        took, and the caller does not wait for it."""
        await self._lock.acquire()
        began = time.perf_counter()
        try:
            return step()
        finally:
            pause = min(_LONGEST_PAUSE, time.perf_counter() - began)
            asyncio.get_running_loop().call_later(pause, self._lock.release)

"""Keeps the RPCs that are open now: how many may be, which a drain waits for, and which it ends after its grace."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import Counter as PrometheusCounter

from tandem.common.errors import ServiceError, resource_exhausted

_RETRY_SECONDS = 1.0  # thousands of short calls are over by then


@dataclass(eq=False, slots=True)
class RunningRpc:
    """One RPC whose handler runs."""

    method: str  # /package.Service/Method
    task: asyncio.Task[object]
    work: bool  # a drain waits for it: not so health, admin, reflection
    cut: bool = False  # the server has ended it; its handler sees a cancellation


class OpenCalls:
    """Counts open calls from their arrival on, requests read or not. A context manager of one call."""

    def __init__(self, most: int, refused: PrometheusCounter) -> None:
        self._most = most
        self._open = 0
        self._refused = refused

    def refusal(self) -> ServiceError | None:
        """Returns the error while no further call is let in, or None."""
        if self._open < self._most:
            return None
        self._refused.inc()
        return resource_exhausted(
            f"{self._open} calls are open, which is the limit", reason="TOO_MANY_CALLS", retry_after=_RETRY_SECONDS
        )

    def __enter__(self) -> None:
        self._open += 1

    def __exit__(self, *_: object) -> None:
        self._open -= 1


class RunningRpcs:
    """A set of RPCs that can be waited for."""

    def __init__(self) -> None:
        self._rpcs: set[RunningRpc] = set()
        self._left = asyncio.Event()

    def __len__(self) -> int:
        return len(self._rpcs)

    def add(self, rpc: RunningRpc) -> None:
        """Adds an RPC that begins."""
        self._rpcs.add(rpc)

    def remove(self, rpc: RunningRpc) -> None:
        """Removes an RPC that has ended."""
        self._rpcs.remove(rpc)
        self._left.set()

    @property
    def work(self) -> int:
        """Returns how many RPCs a drain waits for."""
        return sum(rpc.work for rpc in self._rpcs)

    def by_method(self) -> dict[str, int]:
        """Returns how many RPCs of each method run, for a log line."""
        return dict(Counter(rpc.method for rpc in self._rpcs))

    async def wait_for_work(self, timeout: float) -> bool:
        """Waits until no work runs; returns False if some still does after `timeout` seconds."""
        return await self._wait(timeout, lambda: self.work == 0)

    async def wait_until_empty(self, timeout: float) -> bool:
        """Waits until nothing runs; returns False if something still does after `timeout` seconds."""
        return await self._wait(timeout, lambda: not self._rpcs)

    async def cut(self, timeout: float, *, spare: str) -> bool:
        """Ends every RPC (its client gets UNAVAILABLE); returns False if some still run after `timeout` seconds.

        Methods that begin with `spare` are waited for only: they end by themselves.
        """
        for rpc in self._rpcs:
            if not rpc.cut and not rpc.method.startswith(spare):
                rpc.cut = True
                rpc.task.cancel()
        return await self.wait_until_empty(timeout)

    async def _wait(self, timeout: float, reached: Callable[[], bool]) -> bool:
        try:
            async with asyncio.timeout(timeout):
                while not reached():
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            return reached()
        return True

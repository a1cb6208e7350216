"""Threads for work that would block the event loop, with a bound on the jobs that wait for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from tandem.tokenizer.rpc.metrics import TokenizerMetrics

T = TypeVar("T")


class PoolFullError(Exception):
    """Too many jobs wait. `retry_after` (seconds) is an estimate from the duration of recent jobs."""

    def __init__(self, queued: int, retry_after: float) -> None:
        super().__init__(f"{queued} jobs wait for a thread, which is the limit")
        self.retry_after = retry_after


class WorkPool:
    """Runs functions in `threads` threads; at most `max_queued` jobs wait. Use it from one event loop."""

    def __init__(self, threads: int, max_queued: int, metrics: TokenizerMetrics) -> None:
        self.threads = threads
        self._max_queued = max_queued
        self._metrics = metrics
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="encode")
        self._unfinished = 0  # jobs that wait or run
        self._usual_seconds = 0.01  # of a job, a moving average

    async def run(self, function: Callable[[], T]) -> T:
        """Runs `function` in a thread and returns what it returns or raises. Raises PoolFullError when too many jobs
        wait.

        When the caller is cancelled, a job that has not begun never runs.
        """
        return (await self.run_all([function]))[0]

    async def run_all(self, functions: list[Callable[[], T]]) -> list[T]:
        """Runs several jobs at once and returns their results in order. All of them are accepted or none.

        When one fails, its error is raised, and those that have not begun never run.
        """
        # A call that is larger than threads and queue together is let in when nothing else runs.
        if self._unfinished and self._unfinished + len(functions) > self.threads + self._max_queued:
            self._metrics.pool_refused.inc(len(functions))
            queued = self._unfinished - self.threads
            wait = min(10.0, max(0.05, self._unfinished * self._usual_seconds / self.threads))
            raise PoolFullError(max(0, queued), wait)
        loop = asyncio.get_running_loop()
        self._unfinished += len(functions)
        self._show()
        jobs = [self._executor.submit(self._begun, function, time.monotonic()) for function in functions]
        for job in jobs:  # what counts is the thread's end: the caller may be gone before it
            job.add_done_callback(partial(self._report_end, loop))
        try:
            return await asyncio.gather(*map(asyncio.wrap_future, jobs))
        except BaseException:
            for job in jobs:
                job.cancel()
            raise

    def close(self) -> None:
        """Drops the jobs that wait. Running jobs are left to end by themselves."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _begun(self, function: Callable[[], T], submitted: float) -> T:
        started = time.monotonic()
        self._metrics.pool_wait.observe(started - submitted)
        try:
            return function()
        finally:
            self._usual_seconds += 0.1 * (time.monotonic() - started - self._usual_seconds)

    def _report_end(self, loop: asyncio.AbstractEventLoop, job: Future[T]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and with it the service
            loop.call_soon_threadsafe(self._finished)

    def _finished(self) -> None:
        self._unfinished -= 1
        self._show()

    def _show(self) -> None:
        self._metrics.pool_running.set(min(self._unfinished, self.threads))
        self._metrics.pool_queued.set(max(0, self._unfinished - self.threads))

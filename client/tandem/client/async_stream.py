"""An answer while it is made, on the caller's event loop."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tandem.client import forks
from tandem.client.errors import CancelledError, ResultNotReadyError, TandemError
from tandem.client.pipeline import Pipeline
from tandem.client.plan import GenerationPlan
from tandem.client.types import Chunk, GenerationResult


class AsyncStream:
    """An answer while it is made: an async context manager and an async iterator of `Chunk`.

        >>> async with client.stream("Once upon a time", max_tokens=8) as stream:
        ...     text = "".join([chunk.text async for chunk in stream])
        >>> stream.result.finish_reason.name
        'MAX_TOKENS'

    Leaving the block early, calling `cancel()` or dropping the object ends the calls at both services. Errors are
    raised by the iteration, after all chunks that came before them.
    """

    def __init__(self, plan: GenerationPlan, start: Callable[[GenerationPlan], Pipeline]) -> None:
        self._plan = plan
        self._start = start
        self._running: Pipeline | None = None

    async def __aenter__(self) -> Self:
        self._pipeline()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        chunk = await self.next_chunk()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def next_chunk(self) -> Chunk | None:
        """Returns the next chunk, or None at the end. Raises the error that ended the stream early."""
        return await self._pipeline().next_chunk()

    async def pass_on(self, receive: Callable[[Chunk], bool]) -> bool:
        """Calls `receive` with each chunk where it arrives: an iteration would wake a task for each, which costs more
        than all else that is done with it. `receive` must be quick, and returns whether it takes more.

        Returns True at the end, and False where `receive` took no more: what comes then waits, as one larger chunk,
        until the next call. Raises the error that ended the stream early, after all chunks that came before it, or
        what `receive` raised. One reader at a time.
        """
        return await self._pipeline().pass_on(receive)

    async def collect(self) -> GenerationResult:
        """Waits for the end and returns the result. Raises the error that ended the stream early."""
        return await self._pipeline().finish()

    def cancel(self) -> None:
        """Ends the calls; the iteration raises CancelledError. After the end it does nothing."""
        self._pipeline().cancel(cancelled_by_caller(self._plan))

    async def close(self) -> None:
        """Ends the calls as `cancel` does, and waits until all are closed."""
        if self._running is not None:
            self.cancel()
            await self._running.closed()

    @property
    def request_id(self) -> str:
        """The id of this answer in the servers' logs."""
        return self._plan.request_id

    @property
    def text(self) -> str:
        """The text that has arrived so far; it stays readable after an error."""
        return self._running.text if self._running else ""

    @property
    def prompt_ids(self) -> list[int]:
        """The ids of the prompt; empty before it is encoded, which it is when the first chunk has come."""
        return self._running.prompt_ids if self._running else []

    @property
    def output_ids(self) -> list[int]:
        """The ids that have arrived so far and whose text is complete."""
        return self._running.output_ids if self._running else []

    @property
    def result(self) -> GenerationResult:
        """The result, once the stream has ended. Raises ResultNotReadyError before that, or the error that ended the
        stream early."""
        if self._running is not None:
            if self._running.result is not None:
                return self._running.result
            if isinstance(self._running.error, TandemError):
                raise self._running.error
        raise ResultNotReadyError("the stream has not ended: iterate to its end, or use collect()")

    def _pipeline(self) -> Pipeline:
        """Returns the calls, which start when the stream is entered or first read."""
        if self._running is None:
            self._running = self._start(self._plan)
            abandon = weakref.finalize(self, _abandon, asyncio.get_running_loop(), self._running)
            abandon.atexit = False
        return self._running


def cancelled_by_caller(plan: GenerationPlan) -> CancelledError:
    return CancelledError("the caller cancelled the request", service="client", request_id=plan.request_id)


def _abandon(loop: asyncio.AbstractEventLoop, pipeline: Pipeline) -> None:
    """Cancels the calls of a stream that was dropped. Runs in whichever thread collected the object."""
    if not pipeline.done and not loop.is_closed() and not forks.broken():
        loop.call_soon_threadsafe(pipeline.cancel, cancelled_by_caller(pipeline.plan))

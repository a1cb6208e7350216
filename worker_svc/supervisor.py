"""Keeps an engine running and hands its results to the streams that wait for them.

When the engine dies, every open stream fails with UNAVAILABLE at once, the worker is not ready, and a new engine is
started; after MAX_FAILED_STARTS starts in a row without one that worked, the worker gives up and leaves, because then
only its operator can help.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np

from svc_common.errors import unavailable
from worker_svc.engine.handle import EngineHandle, EngineStartError, Progress
from worker_svc.engine.messages import (
    Abort,
    Command,
    Compile,
    Ended,
    EngineInfo,
    Inbound,
    Load,
    Outbound,
    Reply,
    Step,
    Submit,
    Vocabulary,
)
from worker_svc.streams import OutputStream

logger = logging.getLogger("worker_svc")

MAX_FAILED_STARTS = 5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0  # seconds before the next start


class Observer(Protocol):
    """Who wants to know; `WorkerService` does."""

    def engine_up(self, info: EngineInfo) -> None:
        """An engine is ready."""
        ...

    def engine_down(self, why: str) -> None:
        """The engine is gone."""
        ...

    def engine_lost(self, why: str) -> None:
        """It cannot be started any more."""
        ...

    def engine_step(self, step: Step) -> None:
        """A step is done; called before its tokens reach the streams."""
        ...

    def request_ended(self, stream: OutputStream, ended: Ended) -> None:
        """A request has finished."""
        ...


class EngineSupervisor:
    """One engine after the other; all methods on one event loop."""

    def __init__(self, make_engine: Callable[[], EngineHandle], observer: Observer, progress: Progress) -> None:
        self._make_engine = make_engine
        self._observer = observer
        self._progress = progress
        self._engine: EngineHandle | None = None
        self._streams: dict[int, OutputStream] = {}
        self._commands: dict[int, asyncio.Future[Reply]] = {}
        self._serials = itertools.count(1)
        self._next_handle = 1
        self._task: asyncio.Task[None] | None = None
        self.info: EngineInfo | None = None  # of the last engine that was ready
        self.load = Load()
        self.restarts = 0

    async def start(self) -> EngineInfo:
        """Starts the first engine; raises EngineStartError."""
        engine = self._make_engine()
        info = await engine.start(self._receive, self._progress)
        self._set_engine(engine, info)
        self._task = asyncio.create_task(self._keep_running())
        return info

    async def stop(self) -> None:
        """Ends the engine; open streams fail."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._engine is not None:
            await self._engine.stop()
            self._engine = None
        self._fail_all("the worker has stopped")

    def require_info(self) -> EngineInfo:
        """What the running engine is; raises UNAVAILABLE without one."""
        self._require_engine()
        assert self.info is not None
        return self.info

    @property
    def running(self) -> bool:
        """Whether there is an engine now."""
        return self._engine is not None

    def take_handles(self, count: int) -> int:
        """The first of `count` numbers for the samples of the next request."""
        first, self._next_handle = self._next_handle, self._next_handle + count
        return first

    def submit(self, submit: Submit, streams: Sequence[OutputStream]) -> None:
        """Hands a request to the engine; the results of its samples will come to `streams`. Raises UNAVAILABLE without
        an engine."""
        self._require_engine().send(submit)
        self._streams.update((stream.handle, stream) for stream in streams)

    def abandon(self, streams: Sequence[OutputStream]) -> None:
        """Nobody reads the streams any more; ends what still runs of their request."""
        known = [stream for stream in streams if self._streams.pop(stream.handle, None) is not None]
        self.abort([stream for stream in known if not stream.over])

    def abort(self, streams: Sequence[OutputStream]) -> None:
        """Ends a request; its streams finish with CANCELLED."""
        if self._engine is not None and streams:
            self._engine.send(Abort([stream.handle for stream in streams]))

    def send_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Tells the engine what its ids say."""
        if self._engine is not None:
            self._engine.send(vocabulary)

    async def compile(self, guide: tuple[str, str], resumed: bytes) -> str:
        """Has the engine compile a guide; what is wrong with it, empty if nothing. Raises UNAVAILABLE."""
        return (await self._ask(lambda serial: Compile(serial, guide, resumed))).error

    async def command(self, what: Literal["clear_cache", "check"]) -> Reply:
        """Has the engine do something between two steps; raises UNAVAILABLE without an engine."""
        return await self._ask(lambda serial: Command(serial, what))

    async def _ask(self, message: Callable[[int], Inbound]) -> Reply:
        serial = next(self._serials)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._require_engine().send(message(serial))
        self._commands[serial] = future
        try:
            return await future
        finally:
            self._commands.pop(serial, None)

    def _require_engine(self) -> EngineHandle:
        if self._engine is None:
            raise unavailable("the engine is being restarted", reason="ENGINE_RESTARTING", retry_after=2.0)
        return self._engine

    # ------------------------------------------------------------------------------------------------ the engine speaks

    def _receive(self, message: Outbound) -> None:
        match message:
            case Step():
                self.load = message.load
                self._observer.engine_step(message)
                self._deliver(message)
            case Reply():
                self.load = message.load
                future = self._commands.get(message.serial)
                if future is not None and not future.done():
                    future.set_result(message)
            case _:
                raise AssertionError(f"unexpected from the engine: {type(message).__name__}")

    def _deliver(self, step: Step) -> None:
        now = time.monotonic()
        streams = self._streams
        handles = np.frombuffer(step.handles, dtype=np.uint64).tolist()
        ids = np.frombuffer(step.ids, dtype=np.int32).tolist()
        logprobs = np.frombuffer(step.logprobs, dtype=np.float32).tolist()
        ranks = np.frombuffer(step.ranks, dtype=np.int32).tolist()
        for part in step.prompts:
            stream = streams.get(part.handle)
            if stream is not None:
                stream.prompt.logprobs.extend(np.frombuffer(part.logprobs, dtype=np.float32).tolist())
                stream.prompt.ranks.extend(np.frombuffer(part.ranks, dtype=np.int32).tolist())
                if part.others is not None:
                    stream.prompt.others.extend(part.others.each())
        others = step.others.each() if step.others is not None else itertools.repeat(None)
        for handle, token, logprob, rank, other in zip(handles, ids, logprobs, ranks, others, strict=False):
            stream = streams.get(handle)
            if stream is not None:  # else nobody reads it any more
                stream.push(token, logprob, now, rank, other)
        for handle, held in step.held:
            stream = streams.get(handle)
            if stream is not None:
                stream.hold(held)
        for ended in step.ended:
            stream = streams.pop(ended.handle, None)
            if stream is not None:
                stream.end(ended)
                self._observer.request_ended(stream, ended)

    # ------------------------------------------------------------------------------------------------ death and return

    async def _keep_running(self) -> None:
        while True:
            assert self._engine is not None
            why = await self._engine.wait_until_dead()
            logger.error("the engine ended: %s; %d open streams fail", why, len(self._streams))
            dead, self._engine = self._engine, None
            self._observer.engine_down(why)
            self._fail_all("the engine ended and is being restarted")
            self.load = Load()
            await dead.stop()
            if not await self._restart():
                return

    def _set_engine(self, engine: EngineHandle, info: EngineInfo) -> None:
        self._engine, self.info = engine, info
        self.load = Load(pages_total=info.kv_cache_tokens // info.page_size)
        self.load.pages_free = self.load.pages_total
        self._observer.engine_up(info)

    async def _restart(self) -> bool:
        pause = _FIRST_PAUSE
        for attempt in range(1, MAX_FAILED_STARTS + 1):
            engine = self._make_engine()
            try:
                info = await engine.start(self._receive, self._progress)
            except (EngineStartError, OSError) as error:
                logger.error("the engine could not be restarted (%d of %d): %s", attempt, MAX_FAILED_STARTS, error)
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE, 2 * pause)
                continue
            self.restarts += 1
            self._set_engine(engine, info)
            return True
        self._observer.engine_lost(f"the engine could not be started {MAX_FAILED_STARTS} times in a row")
        return False

    def _fail_all(self, why: str) -> None:
        error = unavailable(why, reason="ENGINE_DIED")
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()
        for future in self._commands.values():
            if not future.done():
                future.set_exception(error)

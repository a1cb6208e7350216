"""Keeps an engine running and hands its results to the streams that wait for them.

When the engine dies, every open stream fails with UNAVAILABLE at once, the worker is not ready, and a new engine is
started; after MAX_FAILED_STARTS starts in a row without one that worked, the worker gives up and leaves, because then
only its operator can help. An engine that is silent for too long (`watchdog.py`), or a start without progress, is ended
by force and treated the same. So is whatever else goes wrong here: no end of this task is silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import grpc
import numpy as np

from tandem.common.advice import spread
from tandem.common.errors import ServiceError, unavailable
from tandem.worker.engine.load import Load
from tandem.worker.engine.process.handle import KILL_SECONDS, EngineDeath, EngineHandle, EngineStartError, Progress
from tandem.worker.engine.process.messages import (
    Abort,
    Busy,
    Command,
    Compile,
    Ended,
    EngineInfo,
    Forget,
    Inbound,
    Outbound,
    Pages,
    Ping,
    Reply,
    Step,
    Submit,
    Vocabulary,
    Watch,
)
from tandem.worker.engine.process.processes import bury_orphans
from tandem.worker.front.streams import OutputStream
from tandem.worker.front.watchdog import Silence, until_stalled

logger = logging.getLogger("tandem.worker")

MAX_FAILED_STARTS = 5
COMMAND_SECONDS = 30.0  # for the engine to come to the end of a step and obey
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0  # seconds before the next start
_SHORTEST_ADVICE = 0.5  # seconds; a load may take longer than the last one


class Observer(Protocol):
    """Is told what happens to the engine; `WorkerService` is one."""

    def engine_up(self, info: EngineInfo) -> None:
        """Called when an engine is ready."""
        ...

    def engine_down(self, why: str) -> None:
        """Called when the engine is gone."""
        ...

    def engine_stalled(self) -> None:
        """Called when the engine was silent for too long; `engine_down` follows."""
        ...

    def start_failed(self) -> None:
        """Called when an engine that was to replace another one did not start."""
        ...

    def lost_with(self, streams: Sequence[OutputStream], death: EngineDeath) -> dict[OutputStream, ServiceError]:
        """Returns the errors of streams that were open when the engine died, where they are more than UNAVAILABLE."""
        ...

    def engine_lost(self, why: str) -> None:
        """Called when the engine cannot be started any more."""
        ...

    def engine_step(self, step: Step) -> None:
        """Called after a step, before its tokens reach the streams."""
        ...

    def token_gaps(self, seconds: Mapping[float, int]) -> None:
        """Called after a step with the times since the last token of each stream that has one more, and how many
        streams have each."""
        ...

    def request_ended(self, stream: OutputStream, ended: Ended) -> None:
        """Called when a request has finished."""
        ...

    def pages_changed(self, pages: Pages) -> None:
        """Called with what has happened to cached pages, while they are watched."""
        ...


class EngineSupervisor:
    """Runs one engine after the other; all methods are for one event loop."""

    def __init__(
        self,
        make_engine: Callable[[], EngineHandle],
        observer: Observer,
        progress: Progress,
        *,
        silence: Callable[[EngineInfo | None], Silence | None] = lambda info: None,
    ) -> None:
        """Sets the supervisor up; `silence` limits how long an engine may say nothing, or its start (which has no
        information yet) make no progress. None: for ever."""
        self._make_engine = make_engine
        self._observer = observer
        self._progress = progress
        self._make_silence = silence
        self._silence: Silence | None = None
        self._engine: EngineHandle | None = None
        self._streams: dict[int, OutputStream] = {}
        self._commands: dict[int, asyncio.Future[Reply]] = {}
        self._serials = itertools.count(1)
        self._next_number = 1
        self._task: asyncio.Task[None] | None = None
        self._load_seconds = 0.0  # that the last start took
        self._down_since = 0.0
        self._pinged: int | None = None  # serial of the ping that is not answered
        self._stepped_at = 0.0
        self._watching = False
        self.info: EngineInfo | None = None  # of the last engine that was ready
        self.load = Load()
        self.restarts = 0

    async def start(self) -> EngineInfo:
        """Starts the first engine; raises EngineStartError."""
        engine = self._make_engine()
        info = await self._started(engine)
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
        self._fail_all(unavailable("the worker has stopped", reason="ENGINE_DIED"))

    def require_info(self) -> EngineInfo:
        """Returns what the running engine is; raises UNAVAILABLE without one."""
        self._require_engine()
        assert self.info is not None
        return self.info

    @property
    def running(self) -> bool:
        """Tells whether there is an engine now."""
        return self._engine is not None

    @property
    def engine_pid(self) -> int | None:
        """Returns the process id of the running engine; None without one, or where it is a thread."""
        return None if self._engine is None else self._engine.pid

    @property
    def step_age(self) -> float:
        """Returns the seconds since the last step, or since there is work if that is less; 0 without work."""
        return time.monotonic() - self._stepped_at if self._streams else 0.0

    @property
    def retry_after(self) -> float:
        """Returns the seconds after which an engine is likely to run: what the last start took, spread over callers."""
        left = self._load_seconds - (time.monotonic() - self._down_since)
        return spread(max(_SHORTEST_ADVICE, left))

    def take_numbers(self, count: int) -> int:
        """Returns the first of `count` numbers for the samples of the next request."""
        first, self._next_number = self._next_number, self._next_number + count
        return first

    def submit(self, submit: Submit, streams: Sequence[OutputStream]) -> None:
        """Hands a request to the engine; the results of its samples will come to `streams`. Raises UNAVAILABLE without
        an engine."""
        self._require_engine().send(submit)
        if not self._streams:
            self._stepped_at = time.monotonic()
        self._streams.update((stream.number, stream) for stream in streams)

    def abandon(self, streams: Sequence[OutputStream]) -> None:
        """Forgets streams that nobody reads any more; ends what still runs of their request."""
        known = [stream for stream in streams if self._streams.pop(stream.number, None) is not None]
        self.abort([stream for stream in known if stream.ended is None])

    def abort(self, streams: Sequence[OutputStream]) -> None:
        """Ends a request; its streams finish with CANCELLED."""
        if self._engine is not None and streams:
            self._engine.send(Abort([stream.number for stream in streams]))

    def send_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Tells the engine the bytes of its ids."""
        if self._engine is not None:
            self._engine.send(vocabulary)

    def watch_pages(self, wanted: bool) -> None:
        """Has this engine, and those that follow it, tell what happens to cached pages, or no more."""
        self._watching = wanted
        if self._engine is not None:
            self._engine.send(Watch(wanted))

    async def compile(self, guide: tuple[str, str], resumed: bytes, caller: str) -> Reply:
        """Has the engine compile a guide, as messages.py says. Raises UNAVAILABLE."""
        return await self._ask(lambda serial: Compile(serial, guide, resumed, caller), Forget)

    async def command(self, rpc: str, request: bytes) -> bytes:
        """Has the engine do what an RPC asks for, between two steps; request and response are serialized. Raises
        UNAVAILABLE without an engine, DEADLINE_EXCEEDED when it does not come to it within COMMAND_SECONDS."""
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                return (await self._ask(lambda serial: Command(serial, rpc, request))).response
        except TimeoutError:
            raise ServiceError(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"the engine did not come to the end of a step within {COMMAND_SECONDS:g} s",
                reason="ENGINE_BUSY",
            ) from None

    async def _ask(self, message: Callable[[int], Inbound], forget: Callable[[int], Inbound] | None = None) -> Reply:
        """Sends a message with a new serial and returns the answer; when cancelled, has the engine `forget` it."""
        serial = next(self._serials)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._require_engine().send(message(serial))
        self._commands[serial] = future
        try:
            return await future
        finally:
            self._commands.pop(serial, None)
            left = not future.done() or future.cancelled()
            if left and forget is not None and self._engine is not None:
                self._engine.send(forget(serial))

    def _require_engine(self) -> EngineHandle:
        if self._engine is None:
            raise unavailable("the engine is being restarted", reason="ENGINE_RESTARTING", retry_after=self.retry_after)
        return self._engine

    # --- the engine speaks

    def _receive(self, message: Outbound) -> None:
        if self._silence is not None:
            self._silence.heard()
        match message:
            case Busy():
                pass
            case Step():
                self._stepped_at = time.monotonic()
                self.load = message.load
                self._observer.engine_step(message)
                self._deliver(message)
            case Pages():
                self._observer.pages_changed(message)
            case Reply():
                self.load = message.load
                if message.serial == self._pinged:
                    self._pinged = None
                future = self._commands.get(message.serial)
                if future is not None and not future.done():
                    future.set_result(message)
            case _:
                raise AssertionError(f"unexpected from the engine: {type(message).__name__}")

    def _deliver(self, step: Step) -> None:
        now = time.monotonic()
        streams = self._streams
        numbers = np.frombuffer(step.numbers, dtype=np.uint64).tolist()
        ids = np.frombuffer(step.ids, dtype=np.int32).tolist()
        logprobs = np.frombuffer(step.logprobs, dtype=np.float32).tolist()
        ranks = np.frombuffer(step.ranks, dtype=np.int32).tolist()
        for part in step.prompts:
            stream = streams.get(part.number)
            if stream is not None:
                stream.prompt.logprobs.extend(np.frombuffer(part.logprobs, dtype=np.float32).tolist())
                stream.prompt.ranks.extend(np.frombuffer(part.ranks, dtype=np.int32).tolist())
                if part.others is not None:
                    stream.prompt.others.extend(part.others.each())
        none = itertools.repeat(None)
        others = step.others.each() if step.others is not None else none
        wholes = map(step.whole.get, itertools.count()) if step.whole else none  # nearly always empty
        latest: dict[float, int] = {}  # when the streams had their last token, and how many had it then
        every = zip(numbers, ids, logprobs, ranks, others, wholes, strict=False)
        for number, token, logprob, rank, other, whole in every:
            stream = streams.get(number)
            if stream is not None:  # else nobody reads it any more
                latest[stream.pushed_at] = latest.get(stream.pushed_at, 0) + 1
                stream.push(token, logprob, now, rank, other, whole)
        latest.pop(0.0, None)  # they have their first
        self._observer.token_gaps({now - at: count for at, count in latest.items()})
        for number, held in step.held:
            stream = streams.get(number)
            if stream is not None:
                stream.hold(held)
        for ended in step.ended:
            stream = streams.pop(ended.number, None)
            if stream is not None:
                stream.end(ended)
                self._observer.request_ended(stream, ended)

    # --- death and return

    async def _keep_running(self) -> None:
        try:
            while True:
                await self._run_until_down()
                if os.getpid() == 1:  # else the system's first process does it
                    bury_orphans()
                if not await self._restart():
                    break
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # also a panic in Rust code; nobody else would hear of it
            logger.critical("the engine's supervisor failed", exc_info=error)
            self._fail_all(unavailable("the worker stops because of an internal error", reason="ENGINE_DIED"))
            self._observer.engine_lost(f"unexpected {type(error).__name__} in the engine's supervisor")
        else:
            self._observer.engine_lost(f"the engine could not be started {MAX_FAILED_STARTS} times in a row")

    async def _run_until_down(self) -> None:
        """Waits until the engine is gone, however it ended, and all who waited for it know."""
        engine = self._engine
        assert engine is not None
        dead = asyncio.create_task(engine.wait_until_dead())
        stalled = asyncio.create_task(self._stalled(engine))
        try:
            either: set[asyncio.Future[Any]] = {dead, stalled}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            hung = not dead.done()
            if hung:
                stalled.result()  # or why that cannot be told any more
            why = self._hung() if hung else dead.result().why
            logger.error("the engine ended: %s; failing %d open streams", why, len(self._streams))
            self._engine, self._down_since = None, time.monotonic()
            if hung:
                self._observer.engine_stalled()
            self._observer.engine_down(why)
            if hung:
                engine.kill()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(KILL_SECONDS):
                        await asyncio.shield(dead)
            self._fail_all(self._died(), dead.result() if dead.done() else None)
            self.load, self._pinged = Load(), None
            await engine.stop()
        finally:
            for task in (dead, stalled):
                task.cancel()
            await asyncio.gather(dead, stalled, return_exceptions=True)

    async def _stalled(self, engine: EngineHandle) -> None:
        """Waits until the engine has stalled."""
        if self._silence is None:
            await asyncio.Event().wait()
            return

        def ping() -> None:
            if self._pinged is None:
                self._pinged = next(self._serials)
                engine.send(Ping(self._pinged))

        await until_stalled(self._silence, engine.work, ping)

    def _hung(self) -> str:
        assert self._silence is not None
        return f"it neither stepped nor answered for {self._silence.limit:g} s, and is killed"

    def _died(self) -> ServiceError:
        return unavailable(
            "the engine ended and is being restarted", reason="ENGINE_DIED", retry_after=self.retry_after
        )

    async def _started(self, engine: EngineHandle) -> EngineInfo:
        """Starts an engine; raises EngineStartError, also when the start makes no progress for too long."""
        began = time.monotonic()
        self._silence = self._make_silence(None)
        start = asyncio.create_task(engine.start(self._receive, self._start_progress))
        watch = asyncio.create_task(self._stuck(engine))
        either: set[asyncio.Future[Any]] = {start, watch}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not start.done():
                watch.result()
                assert self._silence is not None
                logger.error("the engine's start made no progress for %g s: killing it", self._silence.limit)
                engine.kill()
            info = await start
        finally:
            for task in (start, watch):
                task.cancel()
            await asyncio.gather(start, watch, return_exceptions=True)
        self._load_seconds = time.monotonic() - began
        self._silence = self._make_silence(info)
        return info

    async def _stuck(self, engine: EngineHandle) -> None:
        if self._silence is None:
            await asyncio.Event().wait()
            return
        await until_stalled(self._silence, engine.work, lambda: None)

    def _start_progress(self, done: int, total: int) -> None:
        if self._silence is not None:
            self._silence.heard()
        self._progress(done, total)

    def _set_engine(self, engine: EngineHandle, info: EngineInfo) -> None:
        self._engine, self.info = engine, info
        self.load = Load(pages_total=info.kv_cache_tokens // info.page_size)
        self.load.pages_free = self.load.pages_total
        if self._watching:
            engine.send(Watch(True))
        self._observer.engine_up(info)

    async def _restart(self) -> bool:
        pause = _FIRST_PAUSE
        for attempt in range(1, MAX_FAILED_STARTS + 1):
            try:
                engine = self._make_engine()
                info = await self._started(engine)
            except Exception as error:  # whatever it is: the next attempt may do
                if not isinstance(error, EngineStartError):
                    logger.exception("unexpected %s while starting an engine", type(error).__name__)
                logger.error("the engine could not be restarted (%d of %d): %s", attempt, MAX_FAILED_STARTS, error)
                self._observer.start_failed()
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE, 2 * pause)
                continue
            self.restarts += 1
            self._set_engine(engine, info)
            return True
        return False

    def _fail_all(self, error: ServiceError, death: EngineDeath | None = None) -> None:
        streams = list(self._streams.values())
        self._streams.clear()
        special: dict[OutputStream, ServiceError] = {}
        try:
            if death is not None:
                special = self._observer.lost_with(streams, death)
        finally:
            for stream in streams:
                stream.fail(special.get(stream, error))
        for future in self._commands.values():
            if not future.done():
                future.set_exception(error)

"""Starts an engine from the front, talks to it, and notices when it dies.

`ProcessEngine` runs it as a process of its own, `ThreadEngine` in a thread of this one (tests, notebooks). Both live on
an event loop, take the same messages and give the same ones back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import zmq
import zmq.asyncio

from tandem.common.cpu_time import Work, work_of
from tandem.worker.engine.process.child import EngineChild
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.process.messages import (
    EngineInfo,
    Inbound,
    Outbound,
    StartFailed,
    StartProgress,
    Stop,
)
from tandem.worker.engine.process.processes import crashed, describe_end

logger = logging.getLogger("tandem.worker.engine")

STOP_SECONDS = 5.0  # for an engine to leave by itself before it is killed
KILL_SECONDS = 10.0  # for a killed process to be gone: the system may be writing its memory to a disk

Receiver = Callable[[Outbound], None]
Progress = Callable[[int, int], None]


class EngineStartError(Exception):
    """The engine could not start; one line for the operator."""


@dataclass(frozen=True, slots=True)
class EngineDeath:
    """How an engine ended."""

    why: str
    crashed: bool  # by its own fault, and not because somebody killed it
    suspects: tuple[int, ...]  # numbers of the requests that had their first step when it died


class EngineHandle(Protocol):
    """An engine that may be started once."""

    async def start(self, receive: Receiver, progress: Progress) -> EngineInfo:
        """Starts it; afterwards `receive` is called on the event loop with every message. Raises EngineStartError."""
        ...

    def send(self, message: Inbound) -> None:
        """Sends it a message without blocking. What is sent to a dead engine is lost."""
        ...

    async def wait_until_dead(self) -> EngineDeath:
        """Returns when the engine has ended in any way, or can no longer be heard."""
        ...

    @property
    def pid(self) -> int | None:
        """Returns the process id of the running engine; None for a thread."""
        ...

    def work(self) -> Work:
        """Tells what its processes did and want to do."""
        ...

    def kill(self) -> None:
        """Ends it by force, where that is possible; `wait_until_dead` tells when it is dead."""
        ...

    async def stop(self) -> None:
        """Ends it and waits for that."""
        ...


class ProcessEngine:
    """Runs an engine in a process of its own."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        log_format: str = "human",
        log_level: str = "info",
        child: EngineChild | None = None,
    ) -> None:
        """`child`: a process of just such an engine that runs already."""
        self._config = config
        self._log_format, self._log_level = log_format, log_level
        self._child = child
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._reader: asyncio.Task[None] | None = None
        self._info: asyncio.Future[EngineInfo] | None = None

    @property
    def pid(self) -> int:
        """Returns the process id of the running engine."""
        assert self._child is not None
        return self._child.pid

    async def start(self, receive: Receiver, progress: Progress) -> EngineInfo:
        try:
            self._connect(receive, progress)
            return await self._started()
        except (OSError, zmq.ZMQError) as error:  # no descriptors, memory, processes or folder left
            await self.stop()
            raise EngineStartError(f"no engine process can be made: {error}") from error
        except BaseException:
            await self.stop()
            raise

    def _connect(self, receive: Receiver, progress: Progress) -> None:
        if self._child is None:
            self._child = EngineChild()
            self._child.begin(self._config, log_format=self._log_format, log_level=self._log_level)
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # bounded by admission, and the event loop must not block
        self._socket.bind(self._child.endpoint)
        self._info = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read(self._socket, self._info, receive, progress))

    async def _started(self) -> EngineInfo:
        assert self._info is not None
        assert self._child is not None
        dead = asyncio.create_task(self.wait_until_dead())
        either: set[asyncio.Future[Any]] = {self._info, dead}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not self._info.done():
                # The reason may still be on its way from a process that has just left.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await asyncio.shield(self._info)
            if not self._info.done():
                raise EngineStartError(f"the engine ended while it started: {dead.result().why}")
            info = self._info.result()
            self._child.connected()
            return info
        finally:
            dead.cancel()

    async def _read(
        self, socket: zmq.asyncio.Socket, info: asyncio.Future[EngineInfo], receive: Receiver, progress: Progress
    ) -> None:
        decoder = msgspec.msgpack.Decoder(Outbound)
        while True:
            message = decoder.decode(await socket.recv())
            match message:
                case StartProgress(done, total):
                    progress(done, total)
                case StartFailed(text):
                    if not info.done():
                        info.set_exception(EngineStartError(text))
                case EngineInfo():
                    if not info.done():
                        info.set_result(message)
                case _:
                    receive(message)

    def send(self, message: Inbound) -> None:
        assert self._socket is not None
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send(self._encoder.encode(message))

    async def wait_until_dead(self) -> EngineDeath:
        assert self._child is not None
        assert self._reader is not None
        ended = asyncio.create_task(self._child.ended())
        either: set[asyncio.Future[Any]] = {ended, self._reader}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        code = self._child.code
        if code is not None:
            return EngineDeath(describe_end(code), crashed(code), self._child.note.read())
        error = None if self._reader.cancelled() else self._reader.exception()
        logger.error("cannot read the engine's messages", exc_info=error)
        return EngineDeath(f"its messages cannot be read: {error!r}", False, self._child.note.read())

    def work(self) -> Work:
        return work_of(self.pid) if self._child is not None else Work(0.0, ready=False)

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    async def stop(self) -> None:
        child = self._child
        if child is not None:
            if child.code is None and self._socket is not None:
                self.send(Stop())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STOP_SECONDS):
                        await child.ended()
            child.kill()  # also what is left of an engine that has ended: ranks that were stopped cannot leave
            try:
                async with asyncio.timeout(KILL_SECONDS):
                    await child.ended()
            except TimeoutError:
                logger.error("engine process %d does not end after SIGKILL", child.pid)
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
        if self._context is not None:
            self._context.term()
        if child is not None:
            child.close()
        self._reader = self._socket = self._context = self._child = None


class ThreadEngine:
    """Runs an engine in a thread of this process."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._inbox: queue.SimpleQueue[Inbound] = queue.SimpleQueue()
        self._dead: asyncio.Future[EngineDeath] | None = None
        self._note: tuple[int, ...] = ()
        self.pid = None  # it is no process

    async def start(self, receive: Receiver, progress: Progress) -> EngineInfo:
        loop = asyncio.get_running_loop()
        self._dead = dead = loop.create_future()
        info: asyncio.Future[EngineInfo] = loop.create_future()

        def deliver(message: Outbound) -> None:
            match message:
                case StartProgress(done, total):
                    progress(done, total)
                case StartFailed(text):
                    info.set_exception(EngineStartError(text))
                case EngineInfo():
                    info.set_result(message)
                case _:
                    receive(message)

        def run() -> None:
            from tandem.worker.engine.process.loop import run_engine  # brings torch, which a front alone does not need

            death = EngineDeath("stopped", False, ())
            try:
                run_engine(self._config, _QueueTransport(self._inbox, loop, deliver), note=self._remember)
            except BaseException as error:  # a panic in Rust code too; the front treats it like a process that died
                logger.exception("the engine died")
                death = EngineDeath(f"{type(error).__name__}: {error}", True, self._note)
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody is left to tell
                loop.call_soon_threadsafe(dead.set_result, death)

        threading.Thread(target=run, name="engine", daemon=True).start()
        either: set[asyncio.Future[Any]] = {info, dead}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not info.done():
            raise EngineStartError(f"the engine ended while it started: {dead.result().why}")
        return info.result()

    def _remember(self, numbers: Sequence[int]) -> None:
        self._note = tuple(numbers)

    def send(self, message: Inbound) -> None:
        self._inbox.put(message)

    async def wait_until_dead(self) -> EngineDeath:
        assert self._dead is not None
        return await asyncio.shield(self._dead)

    def work(self) -> Work:
        return Work(time.process_time(), ready=True)

    def kill(self) -> None:
        """Does nothing: a thread cannot be ended."""

    async def stop(self) -> None:
        self._inbox.put(Stop())
        if self._dead is not None:
            await self.wait_until_dead()


class _QueueTransport:
    """The engine thread's side of a `ThreadEngine`."""

    def __init__(
        self, inbox: queue.SimpleQueue[Inbound], loop: asyncio.AbstractEventLoop, deliver: Callable[[Outbound], None]
    ) -> None:
        self._inbox, self._loop, self._deliver = inbox, loop, deliver

    def receive(self, *, wait: bool) -> list[Inbound]:
        messages: list[Inbound] = [self._inbox.get()] if wait else []
        with contextlib.suppress(queue.Empty):
            while True:
                messages.append(self._inbox.get_nowait())
        return messages

    def send(self, message: Outbound) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody is left to tell
            self._loop.call_soon_threadsafe(self._deliver, message)

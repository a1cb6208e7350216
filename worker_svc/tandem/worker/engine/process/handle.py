"""Starts an engine from the front, talks to it, and notices when it dies.

`ProcessEngine` runs it as a process of its own, `ThreadEngine` in a thread of this one (tests, notebooks). Both live on
an event loop, take the same messages and give the same ones back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import zmq
import zmq.asyncio

from tandem.common.cpu_time import cpu_seconds
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.process.messages import (
    EngineInfo,
    Inbound,
    Outbound,
    ProcessOptions,
    StartFailed,
    StartProgress,
    Stop,
)
from tandem.worker.engine.process.processes import crashed, describe_end, kill_group
from tandem.worker.engine.process.suspects import SuspectNote

logger = logging.getLogger("tandem.worker.engine")

STOP_SECONDS = 5.0  # for an engine to leave by itself before it is killed
KILL_SECONDS = 10.0  # for a killed process to be gone: the system may be writing its memory to a disk
_CACHED_SHAPES = 128  # of each kind of product
_LONGEST_FOLDER = 100  # bytes: a socket's path has 107 at most
_OTHER_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - where TMPDIR cannot be used; only names made by mkdtemp

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

    def cpu_seconds(self) -> float:
        """Returns the processor seconds that it has used."""
        ...

    def kill(self) -> None:
        """Ends it by force, where that is possible; `wait_until_dead` tells when it is dead."""
        ...

    async def stop(self) -> None:
        """Ends it and waits for that."""
        ...


class ProcessEngine:
    """Runs an engine in a process of its own."""

    def __init__(self, config: EngineConfig, *, log_format: str = "human", log_level: str = "info") -> None:
        self._config = config
        self._log_format, self._log_level = log_format, log_level
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._note: SuspectNote | None = None
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._info: asyncio.Future[EngineInfo] | None = None

    @property
    def pid(self) -> int:
        """Returns the process id of the running engine."""
        assert self._process is not None
        return self._process.pid

    async def start(self, receive: Receiver, progress: Progress) -> EngineInfo:
        try:
            await self._spawn(receive, progress)
            return await self._started()
        except (OSError, zmq.ZMQError) as error:  # no descriptors, memory, processes or folder left
            await self.stop()
            raise EngineStartError(f"no engine process can be made: {error}") from error
        except BaseException:
            await self.stop()
            raise

    async def _spawn(self, receive: Receiver, progress: Progress) -> None:
        self._note = SuspectNote()
        self._folder = socket_folder()
        endpoint = f"ipc://{Path(self._folder.name, 'engine')}"
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # bounded by admission, and the event loop must not block
        self._socket.bind(endpoint)
        note = self._note.descriptor
        options = ProcessOptions(endpoint, note, self._log_format, self._log_level, self._config.model_dump())
        self._info = asyncio.get_running_loop().create_future()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tandem.worker.engine.process.main",
            msgspec.json.encode(options).decode(),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(note,),
            start_new_session=True,  # the terminal's Ctrl-C is for the front, which drains first
            env=_engine_environment(),
        )
        self._reader = asyncio.create_task(self._read(self._socket, self._info, receive, progress))

    async def _started(self) -> EngineInfo:
        assert self._info is not None
        assert self._folder is not None
        dead = asyncio.create_task(self.wait_until_dead())
        either: set[asyncio.Future[Any]] = {self._info, dead}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not self._info.done():
                # The reason may still be on its way from a process that has just left.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(self._info), 0.5)
            if not self._info.done():
                raise EngineStartError(f"the engine ended while it started: {dead.result().why}")
            info = self._info.result()
            # Both ends are connected: the path has done its work. Whoever kills us now leaves nothing behind.
            self._folder.cleanup()
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
        assert self._process is not None
        assert self._reader is not None
        assert self._note is not None
        ended = asyncio.create_task(self._process.wait())
        either: set[asyncio.Future[Any]] = {ended, self._reader}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        code = self._process.returncode
        if code is not None:
            return EngineDeath(describe_end(code), crashed(code), self._note.read())
        error = None if self._reader.cancelled() else self._reader.exception()
        logger.error("cannot read the engine's messages", exc_info=error)
        return EngineDeath(f"its messages cannot be read: {error!r}", False, self._note.read())

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid) if self._process is not None else 0.0

    def kill(self) -> None:
        if self._process is not None:
            kill_group(self.pid)

    async def stop(self) -> None:
        process = self._process
        if process is not None:
            if process.returncode is None:
                self.send(Stop())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), STOP_SECONDS)
            self.kill()  # also what is left of an engine that has ended: ranks that were stopped cannot leave
            try:
                await asyncio.wait_for(process.wait(), KILL_SECONDS)
            except TimeoutError:
                logger.error("engine process %d does not end after SIGKILL", process.pid)
            if process.stdin is not None:
                process.stdin.close()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
        if self._context is not None:
            self._context.term()
        if self._note is not None:
            self._note.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._reader = self._socket = self._context = self._note = self._folder = None


def socket_folder() -> tempfile.TemporaryDirectory[str]:
    """Makes a folder that only we may enter, for a socket whose path the system allows: in the usual place for
    temporary files, or where that is missing, full or has too long a name, in another. Raises OSError."""
    first: OSError | None = None
    for place in (None, *_OTHER_FOLDERS):
        try:
            folder = tempfile.TemporaryDirectory(prefix="tandem-engine-", dir=place)
        except OSError as error:
            first = first or error
            continue
        if len(os.fsencode(folder.name)) <= _LONGEST_FOLDER:
            return folder
        folder.cleanup()
    raise first or OSError("no folder for temporary files has a short name")


def _engine_environment() -> dict[str, str]:
    """Returns the environment of an engine process; what the operator has set wins.

    Threads that sleep at once must be woken for each of a step's hundreds of operations: a decode step of a small model
    takes 1.4 times as long on idle cores. Threads that spin long hold on to cores that others need: with one busy
    process beside two threads on two cores, a step takes 8 times as long at 30,000 turns, twice as long at 3,000, and
    no longer at 1,000, which is some 20 us.

    oneDNN keeps what it has compiled for each shape of a product, and ideep, which torch puts before it, keeps a
    description of 260 KB beside it: 1,024 entries each by default, so that an engine grows by a gigabyte while prompts
    of all lengths come. What decodes need are few shapes; those stay.

    Huge pages help weights that are read in every step. An allocator that keeps what a step frees for the next one
    saves page faults: 6 % of a prefill with huge pages, more without.
    """
    return {
        "GOMP_SPINCOUNT": "1000",
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": str(_CACHED_SHAPES),
        "LRU_CACHE_CAPACITY": str(_CACHED_SHAPES),
        "THP_MEM_ALLOC_ENABLE": "1",
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
        **os.environ,
    }


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

    def cpu_seconds(self) -> float:
        return time.process_time()

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

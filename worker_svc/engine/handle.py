"""The front's end of an engine: start it, talk to it, notice when it dies.

`ProcessEngine` runs it as a process of its own, `ThreadEngine` in a thread of this one (tests, notebooks). Both live on
an event loop, take the same messages and give the same ones back.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import queue
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
import zmq
import zmq.asyncio

from worker_svc.engine.config import EngineConfig
from worker_svc.engine.messages import (
    EngineInfo,
    Inbound,
    Outbound,
    ProcessOptions,
    StartFailed,
    StartProgress,
    Stop,
)

logger = logging.getLogger("worker_svc.engine")

STOP_SECONDS = 5.0  # for an engine to leave by itself before it is killed
_LONGEST_FOLDER = 100  # bytes: a socket's path has 107 at most

Receiver = Callable[[Outbound], None]
Progress = Callable[[int, int], None]


class EngineStartError(Exception):
    """The engine could not start; one line for the operator."""


class EngineHandle(Protocol):
    """An engine that may be started once."""

    async def start(self, receive: Receiver, progress: Progress) -> EngineInfo:
        """Starts it; afterwards `receive` is called on the event loop with every message. Raises EngineStartError."""
        ...

    def send(self, message: Inbound) -> None:
        """Hands it a message; never blocks. What is sent to a dead engine is lost."""
        ...

    async def wait_until_dead(self) -> str:
        """Returns why, when the engine has ended in any way."""
        ...

    async def stop(self) -> None:
        """Ends it and waits for that."""
        ...


class ProcessEngine:
    """An engine in a process of its own."""

    def __init__(self, config: EngineConfig, *, log_format: str = "human", log_level: str = "info") -> None:
        self._config = config
        self._log_format, self._log_level = log_format, log_level
        self._folder = socket_folder()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._encoder = msgspec.msgpack.Encoder()
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._info: asyncio.Future[EngineInfo] | None = None

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    async def start(self, receive: Receiver, progress: Progress) -> EngineInfo:
        endpoint = f"ipc://{Path(self._folder.name, 'engine')}"
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # bounded by admission, and the event loop must not block
        self._socket.bind(endpoint)
        options = ProcessOptions(endpoint, self._log_format, self._log_level, dataclasses.asdict(self._config))
        self._info = asyncio.get_running_loop().create_future()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "worker_svc.engine.process",
            msgspec.json.encode(options).decode(),
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,  # the terminal's Ctrl-C is for the front, which drains first
            env=_engine_environment(),
        )
        self._reader = asyncio.create_task(self._read(receive, progress))
        dead = asyncio.create_task(self.wait_until_dead())
        either: set[asyncio.Future[Any]] = {self._info, dead}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not self._info.done():
                # The reason may still be on its way from a process that has just left.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(self._info), 0.5)
            if not self._info.done():
                raise EngineStartError(f"the engine ended while it started: {dead.result()}")
            info = self._info.result()
            # Both ends are connected: the path has done its work. Whoever kills us now leaves nothing behind.
            self._folder.cleanup()
            return info
        except BaseException:
            await self.stop()
            raise
        finally:
            dead.cancel()

    async def _read(self, receive: Receiver, progress: Progress) -> None:
        decoder = msgspec.msgpack.Decoder(Outbound)
        assert self._info is not None
        while True:
            message = decoder.decode(await self._socket.recv())
            match message:
                case StartProgress(done, total):
                    progress(done, total)
                case StartFailed(text):
                    if not self._info.done():
                        self._info.set_exception(EngineStartError(text))
                case EngineInfo():
                    if not self._info.done():
                        self._info.set_result(message)
                case _:
                    receive(message)

    def send(self, message: Inbound) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send(self._encoder.encode(message))

    async def wait_until_dead(self) -> str:
        assert self._process is not None
        code = await self._process.wait()
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    async def stop(self) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            self.send(Stop())
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
        if not self._socket.closed:
            self._socket.close()
            self._context.term()
        if process is not None and process.stdin is not None:
            process.stdin.close()
        self._folder.cleanup()


def socket_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that only we may enter, for a socket whose path the system allows."""
    folder = tempfile.TemporaryDirectory(prefix="tandem-engine-")
    if len(os.fsencode(folder.name)) > _LONGEST_FOLDER:
        folder.cleanup()
        folder = tempfile.TemporaryDirectory(prefix="tandem-engine-", dir="/tmp")
    return folder


def _engine_environment() -> dict[str, str]:
    """The environment of an engine process; what the operator has set wins.

    Threads that sleep at once must be woken for each of a step's hundreds of operations: a decode step of a small model
    takes 1.4 times as long on idle cores. Threads that spin long hold on to cores that others need: with one busy
    process beside two threads on two cores, a step takes 8 times as long at 30,000 turns, twice as long at 3,000, and
    no longer at 1,000, which is some 20 us.

    Huge pages help weights that are read in every step. An allocator that keeps what a step frees for the next one
    saves page faults: 6 % of a prefill with huge pages, more without.
    """
    return {
        "GOMP_SPINCOUNT": "1000",
        "THP_MEM_ALLOC_ENABLE": "1",
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
        **os.environ,
    }


class ThreadEngine:
    """An engine in a thread of this process."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._inbox: queue.SimpleQueue[Inbound] = queue.SimpleQueue()
        self._dead: asyncio.Future[str] | None = None

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
            from worker_svc.engine.serving import run_engine  # brings torch, which a front alone does not need

            why = "stopped"
            try:
                run_engine(self._config, _QueueTransport(self._inbox, loop, deliver))
            except Exception as error:  # the front treats it like a process that died
                logger.exception("the engine died")
                why = f"{type(error).__name__}: {error}"
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody is left to tell
                loop.call_soon_threadsafe(dead.set_result, why)

        threading.Thread(target=run, name="engine", daemon=True).start()
        either: set[asyncio.Future[Any]] = {info, dead}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not info.done():
            raise EngineStartError(f"the engine ended while it started: {dead.result()}")
        return info.result()

    def send(self, message: Inbound) -> None:
        self._inbox.put(message)

    async def wait_until_dead(self) -> str:
        assert self._dead is not None
        return await asyncio.shield(self._dead)

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

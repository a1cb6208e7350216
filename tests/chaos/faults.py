"""What is done to the processes, and how it is undone. All of it while streams run.

A fault gets a fleet and the number of its round, from which it chooses its victim, and answers what undoes it; what it
does to a process that ends needs no undoing, because the next one is new.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import shutil
import signal
from collections.abc import Awaitable, Callable

import psutil

from tests.chaos.fleet import Fleet, Member
from tests.chaos.proxy import Proxy

Undo = Callable[[], None]
Fault = Callable[[Fleet, int], Awaitable[Undo]]
ENGINE_MEMORY = 256 << 20  # bytes of address space; its libraries alone need more than that
OUT_OF_MEMORY = ("MemoryError", "Cannot allocate memory", "failed to map segment", "bad_alloc", "out of memory")
REFUSED_SECONDS = 60.0  # until an engine has said so, at most
HELD_SECONDS = 3.0  # for which a fault that ends by itself lasts

ENGINE = "tandem.worker.engine.process.main"
RENDERER = "tandem.tokenizer.chat.renderer_process"
GUIDES = "tandem.worker.engine.guides.fork_server"


def _nothing() -> None:
    pass


def _worker(fleet: Fleet, number: int) -> Member:
    return fleet.workers[number % len(fleet.workers)]


def _signal(name: signal.Signals, of: Callable[[Fleet, int], list[psutil.Process]]) -> Fault:
    async def fault(fleet: Fleet, number: int) -> Undo:
        for process in of(fleet, number):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(name)
        return _nothing

    return fault


PROCESSES: dict[str, Callable[[Fleet, int], list[psutil.Process]]] = {
    "engine": lambda fleet, number: _worker(fleet, number).children(ENGINE),
    "worker's front": lambda fleet, number: [_worker(fleet, number).front()],
    "tokenizer": lambda fleet, number: [fleet.tokenizer.front()],
    "renderers": lambda fleet, number: fleet.tokenizer.children(RENDERER),
    "guides": lambda fleet, number: _worker(fleet, number).children(GUIDES),
}


async def _tmpdir_vanishes(fleet: Fleet, number: int) -> Undo:
    worker = _worker(fleet, number)
    shutil.rmtree(worker.temporary)
    for engine in worker.children(ENGINE):
        engine.kill()
    return lambda: worker.temporary.mkdir(exist_ok=True)


async def _disk_full(fleet: Fleet, number: int) -> Undo:
    """Of the folder that has its log and its temporary files, while its engine is made again."""
    worker = _worker(fleet, number)
    filling = worker.folder / "filling"
    front = worker.front()
    before = front.rlimit(resource.RLIMIT_FSIZE)
    if worker.folder.is_mount():
        with contextlib.suppress(OSError), filling.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    else:  # nobody but root may make a file system; no file may grow beyond this
        front.rlimit(resource.RLIMIT_FSIZE, (65_536, before[1]))
    for engine in worker.children(ENGINE):
        engine.kill()
    await asyncio.sleep(HELD_SECONDS)

    def undo() -> None:
        filling.unlink(missing_ok=True)
        with contextlib.suppress(psutil.NoSuchProcess):
            front.rlimit(resource.RLIMIT_FSIZE, before)

    return undo


def _descriptors(of: Callable[[Fleet, int], Member], *, kill_engine: bool) -> Fault:
    """None are left of a process, for a while, in which it has to make its engine again."""

    async def fault(fleet: Fleet, number: int) -> Undo:
        member = of(fleet, number)
        front = member.front()
        before = front.rlimit(resource.RLIMIT_NOFILE)
        front.rlimit(resource.RLIMIT_NOFILE, (front.num_fds(), before[1]))
        if kill_engine:
            for engine in member.children(ENGINE):
                engine.kill()
        else:
            member.proxy.cut()  # everybody has to connect again
        await asyncio.sleep(HELD_SECONDS)

        def undo() -> None:
            with contextlib.suppress(psutil.NoSuchProcess):
                front.rlimit(resource.RLIMIT_NOFILE, before)

        return undo

    return fault


async def _memory_limit(fleet: Fleet, number: int) -> Undo:
    """The engine is made again with too little memory for its libraries, as the log must say, and later with enough.

    A limit for an engine that runs would refuse it nothing: what it frees is enough for what it takes.
    """
    worker = _worker(fleet, number)
    seen = len(worker.said())
    for engine in worker.children(ENGINE):
        engine.kill()
    async with asyncio.timeout(REFUSED_SECONDS):
        while not any(words in worker.said(seen) for words in OUT_OF_MEMORY):
            with contextlib.suppress(psutil.Error):
                for engine in worker.children(ENGINE):
                    engine.rlimit(resource.RLIMIT_AS, (ENGINE_MEMORY, resource.RLIM_INFINITY))
            await asyncio.sleep(0.02)
    return _nothing


def _network(of: Callable[[Fleet, int], Member], do: Callable[[Proxy], Undo]) -> Fault:
    async def fault(fleet: Fleet, number: int) -> Undo:
        undo = do(of(fleet, number).proxy)
        if undo is not _nothing:
            await asyncio.sleep(HELD_SECONDS)
        return undo

    return fault


def _delay(proxy: Proxy) -> Undo:
    proxy.delay = 0.2
    return lambda: setattr(proxy, "delay", 0.0)


def _cut(proxy: Proxy) -> Undo:
    proxy.cut()
    return _nothing


def _half_close(proxy: Proxy) -> Undo:
    proxy.half_close()
    return _nothing


def _hold(proxy: Proxy) -> Undo:
    proxy.hold(True)
    return lambda: proxy.hold(False)


def _tokenizer(fleet: Fleet, number: int) -> Member:
    return fleet.tokenizer


FAULTS: dict[str, Fault] = {
    **{f"SIGKILL {name}": _signal(signal.SIGKILL, of) for name, of in PROCESSES.items()},
    **{f"SIGSTOP {name}": _signal(signal.SIGSTOP, of) for name, of in PROCESSES.items()},
    **{f"SIGTERM {name}": _signal(signal.SIGTERM, of) for name, of in PROCESSES.items()},
    "TMPDIR vanishes, engine killed": _tmpdir_vanishes,
    "disk full, engine killed": _disk_full,
    "no descriptors, engine killed": _descriptors(_worker, kill_engine=True),
    "no descriptors, worker reconnected": _descriptors(_worker, kill_engine=False),
    "no descriptors, tokenizer reconnected": _descriptors(_tokenizer, kill_engine=False),
    "engine gets no more memory": _memory_limit,
    "worker's network slow": _network(_worker, _delay),
    "worker's network cut": _network(_worker, _cut),
    "worker's network half closed": _network(_worker, _half_close),
    "worker's network silent": _network(_worker, _hold),
    "tokenizer's network slow": _network(_tokenizer, _delay),
    "tokenizer's network cut": _network(_tokenizer, _cut),
    "tokenizer's network half closed": _network(_tokenizer, _half_close),
    "tokenizer's network silent": _network(_tokenizer, _hold),
}

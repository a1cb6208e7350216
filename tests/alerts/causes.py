"""What alerts are about, done to real services: entered, a cause is there, and left, it is not any more.

Windows are shortened and what happens in them is not: an engine that takes eight seconds to come back has been away for
a minute. So a cause also names the alerts that come with it, and no other may fire.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random

from tandem.client import StatusError
from tests.alerts.fleet import DEFECT, LEAK_OF_ENGINE, LEAK_OF_SERVICE, NO_ENGINES, Fleet, Service, crowd
from tests.integration.test_engine_faults import POISON

# What follows where a worker is away, or requests fail.
_LOST = frozenset({"TandemEngineDown", "TandemCapacityLost"})
_GONE = frozenset({"TandemTargetDown"})  # until discovery drops it, which takes up to five seconds
_FAILED = frozenset({"TandemObjectiveBurnsFast", "TandemObjectiveBurnsSlowly"})


@asynccontextmanager
async def _load(
    fleet: Fleet, worker: Service, callers: int, prompt_tokens: int = 8, tokens: int = 400
) -> AsyncIterator[None]:
    """Callers who want much of one worker, no two of them the same."""
    async with fleet.client(worker, timeout=300) as client:

        async def ask(number: int) -> None:
            prompt = Random(number).sample(range(100, 2000), prompt_tokens)
            await client.generate(prompt, max_tokens=tokens, ignore_eos=True, detokenize=False)

        async with crowd(callers, ask):
            yield


def _leak(file: str) -> Callable[[Fleet], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def leak(fleet: Fleet) -> AsyncIterator[None]:
        (fleet.defects / file).touch()
        yield
        (fleet.defects / file).unlink()

    return leak


@asynccontextmanager
async def _hanging_engine(fleet: Fleet) -> AsyncIterator[None]:
    fleet.small.engine().suspend()
    yield


@asynccontextmanager
async def _deadly_request(fleet: Fleet) -> AsyncIterator[None]:
    async with fleet.client(fleet.small) as client:
        with suppress(StatusError):
            await client.generate([1, *POISON], max_tokens=4, detokenize=False)
    yield


@asynccontextmanager
async def _no_engine(fleet: Fleet) -> AsyncIterator[None]:
    """Engines end as soon as they start, until the worker gives up."""
    (fleet.defects / NO_ENGINES).touch()
    fleet.small.engine().kill()
    yield
    (fleet.defects / NO_ENGINES).unlink()
    await fleet.small.kill()
    await fleet.small.start()


@asynccontextmanager
async def _hanging_front(fleet: Fleet) -> AsyncIterator[None]:
    fleet.small.front.suspend()
    yield
    fleet.small.front.resume()


@asynccontextmanager
async def _flood(fleet: Fleet) -> AsyncIterator[None]:
    async with _load(fleet, fleet.large, 120):
        yield


@asynccontextmanager
async def _slow_engine(fleet: Fleet) -> AsyncIterator[None]:
    """Stands still while dozens wait, who are answered then."""
    async with _load(fleet, fleet.large, 50, tokens=100):
        await asyncio.sleep(1)
        fleet.large.engine().suspend()
        await asyncio.sleep(11)
        fleet.large.engine().resume()
        yield


@asynccontextmanager
async def _drained(fleet: Fleet) -> AsyncIterator[None]:
    async with fleet.client(fleet.small) as client:
        await client.set_draining(True)
        yield
        await client.set_draining(False)


@asynccontextmanager
async def _defect(fleet: Fleet) -> AsyncIterator[None]:
    async with fleet.client() as client, crowd(1, lambda number: client.encode(f"{DEFECT} {number}"), 0.1):
        yield


@asynccontextmanager
async def _too_much_text(fleet: Fleet) -> AsyncIterator[None]:
    async with fleet.client() as client, crowd(12, lambda number: client.encode(f"{number} words of it " * 20_000)):
        yield


@asynccontextmanager
async def _small_cache(fleet: Fleet) -> AsyncIterator[None]:
    async with _load(fleet, fleet.small, 12):
        yield


@asynccontextmanager
async def _held_up_loop(fleet: Fleet) -> AsyncIterator[None]:
    """A throttled container: most of the time its front may not run."""

    async def throttle() -> None:
        while True:
            try:
                fleet.small.front.suspend()
                await asyncio.sleep(0.4)
            finally:
                fleet.small.front.resume()
            await asyncio.sleep(0.1)

    task = asyncio.create_task(throttle())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _no_tokenizer(fleet: Fleet) -> AsyncIterator[None]:
    await fleet.tokenizer.stop()
    yield
    await fleet.tokenizer.start()


@asynccontextmanager
async def _no_workers(fleet: Fleet) -> AsyncIterator[None]:
    workers = (fleet.small, fleet.large)
    await asyncio.gather(*(worker.kill() for worker in workers))
    yield
    await asyncio.gather(*(worker.start() for worker in workers))


@dataclass(frozen=True)
class Cause:
    """What is done, what must fire of it, and what may fire with it."""

    what: str
    fires: frozenset[str]
    also: frozenset[str]
    done: Callable[[Fleet], AbstractAsyncContextManager[None]]


_Done = Callable[[Fleet], AbstractAsyncContextManager[None]]


def _cause(what: str, done: _Done, *fires: str, also: frozenset[str] = frozenset()) -> Cause:
    return Cause(what, frozenset(f"Tandem{name}" for name in fires), also, done)


CAUSES = (
    # First: a process that was started lately is no case of it.
    _cause("the tokenizer service takes 768 MB more", _leak(LEAK_OF_SERVICE), "MemoryGrows"),
    _cause("engines take 768 MB more", _leak(LEAK_OF_ENGINE), "MemoryGrows"),
    _cause("an engine is stopped", _hanging_engine, "EngineStalls", also=_LOST | _FAILED),
    _cause("a request ends its engine", _deadly_request, "RequestQuarantined", also=_LOST | _FAILED),
    _cause("a front is stopped", _hanging_front, "TargetDown", also=_LOST | _FAILED),
    _cause("a worker is drained", _drained, "WorkerLeftDraining"),
    _cause("a text finds a defect", _defect, "InternalErrors"),
    _cause("a front is throttled", _held_up_loop, "EventLoopLag", also=_FAILED),
    _cause("twelve callers send long texts", _too_much_text, "TokenizerRefuses"),
    _cause("more runs than the KV cache holds", _small_cache, "Preempting"),
    _cause(
        "120 callers want two places", _flood,
        "RefusingRequests", "Queueing", "ObjectiveBurnsFast", "ObjectiveBurnsSlowly",
        also=frozenset({"TandemSlowFirstToken"}),
    ),
    _cause("an engine stands still for 11 s", _slow_engine, "SlowFirstToken", also=_FAILED | {"TandemQueueing"}),
    _cause("the tokenizer service is ended", _no_tokenizer, "NoTokenizer", also=_FAILED | _GONE),
    _cause(
        "an engine dies, and no other starts", _no_engine,
        "EngineDown", "EngineRestarts", "CapacityLost", also=_FAILED | _GONE,
    ),
    _cause("both workers are killed", _no_workers, "NoWorker", also=_LOST | _FAILED | _GONE),
)  # fmt: skip

"""The processes of guides: how many stay, what they hold, and that none outlives its engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tandem.inference.v1 import inference_pb2 as pb
from tandem.worker.engine.guides.limits import KEPT_GUIDES
from tests.integration.hostile_guides import SLOW, guides_processes, some_work
from tests.integration.worker_process import Worker, greedy, running_worker, service_process

DEMO = Path(__file__).parents[2] / "models" / "demo"
SECONDS = 60  # a bound for a machine under load, not an expectation
WARM_UP, GUIDES, LANES = 2 * KEPT_GUIDES, 300, 8

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def demo_worker(folder: Path, *flags: str) -> AsyncIterator[Worker]:
    async with (
        service_process("tandem.tokenizer", folder, f"--tokenizer=demo={DEMO}") as (address, _),
        running_worker(folder, f"--model={DEMO}", f"--tokenizer-address={address}", *flags) as worker,
    ):
        yield worker


def guided(max_tokens: int, **guide: Any) -> pb.GenerateRequest:
    return greedy([1, 494, 410, 1987], max_tokens, guided=pb.GuidedDecoding(**guide))


def different(number: int) -> dict[str, Any]:
    """A guide that no other number has."""
    schema = {"type": "object", "properties": {f"p{number}": {"type": "integer"}}, "additionalProperties": False}
    return (
        {"json_schema": json.dumps(schema)},
        {"regex": f"[a-z]{{1,{number + 1}}}"},
        {"choices": pb.ChoiceList(choices=["no", f"{number}"])},
        {"grammar": f'start: "a"{{1,{number + 1}}} "b"'},
    )[number % 4]


class Held(NamedTuple):
    """By the engine and the processes below it, once nothing runs."""

    descriptors: int  # of the engine
    processes: int
    zombies: int
    megabytes: float  # private, of the fork server and the guides


def below(worker: Worker) -> list[psutil.Process]:
    assert worker.process is not None
    return psutil.Process(worker.process.pid).children(recursive=True)


def engine_of(worker: Worker) -> psutil.Process:
    (engine,) = [each for each in below(worker) if "tandem.worker.engine.process.main" in each.cmdline()]
    return engine


async def held(worker: Worker) -> Held:
    await worker.settled()
    async with asyncio.timeout(60):
        while len(guides_processes(worker)) > KEPT_GUIDES:  # noqa: ASYNC110 - killed, they end with time
            await asyncio.sleep(0.05)
    engine = engine_of(worker)
    children = engine.children(recursive=True)
    processes = zombies = private = 0
    for each in children:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            zombie = each.status() == psutil.STATUS_ZOMBIE
            private += 0 if zombie else each.memory_full_info().uss
            processes, zombies = processes + 1, zombies + zombie
    return Held(engine.num_fds(), processes, zombies, private / 2**20)


async def test_hundreds_of_different_guides_leave_no_more_than_the_first_ones(tmp_path: Path):
    numbers = iter(range(GUIDES))

    async def lane(worker: Worker, until: int) -> None:
        while (number := next(numbers, until)) < until:
            assert (await worker.generate(guided(8, **different(number)))).finished is not None

    async with demo_worker(tmp_path, "--kv-cache-tokens=4096") as worker:
        await asyncio.gather(*(lane(worker, WARM_UP) for _ in range(LANES)))
        first = await held(worker)
        await asyncio.gather(*(lane(worker, GUIDES) for _ in range(LANES)))
        last = await held(worker)
        assert len(guides_processes(worker)) <= KEPT_GUIDES
        assert last.zombies == 0
        assert last.processes <= first.processes, (first, last)
        assert last.descriptors <= first.descriptors, (first, last)
        assert last.megabytes <= first.megabytes + 8, (first, last)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["the worker is stopped", "the worker is killed", "the engine is killed"])
async def test_no_process_outlives_its_engine(tmp_path: Path, who: str):
    """One guide is making a mask that takes very long, one has nothing to do."""
    async with demo_worker(tmp_path, "--kv-cache-tokens=4096", "--guide-mask-seconds=600") as worker:
        await worker.generate(guided(8, regex="[a-z]*"))
        slow = guided(8, **SLOW["powers"])
        slow.speculation.max_draft_tokens = 1
        call = worker.inference.Generate(slow, timeout=120)
        await call.read()
        while not some_work(worker):
            pass  # the worker has processes of its own: nothing here must run meanwhile
        assert worker.process is not None
        engine = engine_of(worker)
        processes = [engine, *engine.children(recursive=True)]
        assert len(processes) == 4  # engine, fork server, two guides
        match who:
            case "the worker is stopped":
                call.cancel()
                worker.process.terminate()
            case "the worker is killed":
                engine.children()[0].suspend()  # the fork server cannot see that its engine leaves
                worker.process.kill()
            case "the engine is killed":
                engine.kill()
        _, alive = await asyncio.to_thread(psutil.wait_procs, processes, SECONDS)
        assert not alive
        call.cancel()

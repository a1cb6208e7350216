"""Workers are asked for their loads before a prompt that begins something new goes to one, and no request suffers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from prometheus_client import CollectorRegistry

from tandem.client import AsyncClient, Client, ConnectionSettings
from tandem.client import worker as worker_module
from tandem.client.worker import Worker
from tests.client.byte_vocabulary import EOS, TEXT, ids_of_text
from tests.client.counting_worker import CountingWorker
from tests.client.fakes import ServersThread, serving_workers, start_worker

PATIENT = ConnectionSettings(probe_seconds=20)  # so that a busy machine changes nothing


class Fleet:
    """Workers, a client of theirs, and what it counts."""

    def __init__(self, workers: list[CountingWorker], client: AsyncClient, registry: CollectorRegistry) -> None:
        self.workers, self.client, self._registry = workers, client, registry

    async def ask(self, prompt: object, **options: object) -> str:
        """Returns the address of the worker that answered."""
        options = {"max_tokens": 1, "detokenize": False, **options}
        return (await self.client.generate(prompt, **options)).worker  # type: ignore[arg-type]

    @property
    def probes(self) -> list[int]:
        return [worker.load_calls for worker in self.workers]

    def counted(self, outcome: str) -> float:
        return self._registry.get_sample_value("tandem_client_probes_total", {"outcome": outcome}) or 0

    def known(self) -> list[Worker]:
        assert self.client._pool is not None
        return self.client._pool.workers


@asynccontextmanager
async def fleet(count: int = 3, connection: ConnectionSettings = PATIENT) -> AsyncIterator[Fleet]:
    workers = [CountingWorker([*ids_of_text(TEXT), EOS]) for _ in range(count)]
    registry = CollectorRegistry()
    async with (
        serving_workers(*workers) as addresses,
        AsyncClient(worker=addresses, connection=connection, registry=registry, timeout=60) as client,
    ):
        yield Fleet(workers, client, registry)


def prompt(number: int) -> list[int]:
    return [number + 1] * 100


@pytest.fixture
def nothing_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "FRESH_SECONDS", 0.0)


@pytest.mark.usefixtures("nothing_is_fresh")
async def test_a_new_prompt_goes_to_the_least_loaded_of_those_it_may_go_to() -> None:
    async with fleet() as it:
        for idle in (0, 1, 2):
            for place, worker in enumerate(it.workers):
                worker.held = 7 if place == idle else 10
            before = len(it.workers[idle].seen)
            for number in range(5):
                await it.ask([9] * 64 + [100 * idle + number] * 36)
            assert len(it.workers[idle].seen) == before + 5, "though its last word was of another load"
        assert it.counted("answered") == sum(it.probes) and it.counted("late") == it.counted("failed") == 0


async def test_who_told_its_load_of_late_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "FRESH_SECONDS", 3600.0)
    async with fleet() as it:
        for number in range(10):
            await it.ask(prompt(number))
        assert it.probes == [1, 1, 1]


@pytest.mark.usefixtures("nothing_is_fresh")
async def test_where_nothing_is_to_choose_nobody_is_asked() -> None:
    async with fleet() as it:
        first = await it.ask(prompt(0))
        asked = it.probes
        assert await it.ask([*prompt(0), *range(500)]) == first, "a conversation goes on where it was"
        assert len({await it.ask(prompt(number), routing_key="mine") for number in range(4)}) == 1
        assert it.probes == asked
    async with fleet(1) as it:
        await it.ask(prompt(0))
        assert it.probes == [0]
    async with fleet(connection=ConnectionSettings(probe_seconds=0)) as it:
        await it.ask(prompt(0))
        assert it.probes == [0, 0, 0]


@pytest.mark.usefixtures("nothing_is_fresh")
async def test_a_worker_that_is_late_gets_no_new_prompt_and_holds_none_up() -> None:
    async with fleet(2, ConnectionSettings(probe_seconds=0.2)) as it:
        slow, quick = it.workers
        slow.tell_load.clear()
        quick.held = 10
        for number in range(3):
            await it.ask(prompt(number))
        assert (len(slow.seen), len(quick.seen)) == (0, 3)
        assert slow.load_calls == 1, "one question at a time"
        slow.tell_load.set()
        probing = it.known()[0]._probing
        assert probing is not None
        await probing
        assert it.counted("late") == 1
        load = it.known()[0].load
        assert load is not None and load.others == 0, "what it says late is known later"
        quick.tell_load.clear()
        slow.tell_load.clear()
        await it.ask(prompt(9))
        quick.tell_load.set()
        slow.tell_load.set()


@pytest.mark.usefixtures("nothing_is_fresh")
@pytest.mark.parametrize("code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED])
async def test_workers_that_do_not_tell_their_load_work_as_before_and_are_left_alone(code: grpc.StatusCode) -> None:
    async with fleet() as it:
        for worker in it.workers:
            worker.load_fail = code
        for number in range(60):  # none is left out by chance
            await it.ask(prompt(number))
        assert it.probes == [1, 1, 1] and it.counted("failed") == 3
        assert all(worker.seen for worker in it.workers), "prompts still spread"
        assert all(worker.health.value == "serving" for worker in it.known())


@pytest.mark.usefixtures("nothing_is_fresh")
async def test_many_at_once_share_what_is_asked() -> None:
    async with fleet() as it:
        for worker in it.workers:
            worker.tell_load.clear()
        asking = [asyncio.create_task(it.ask(prompt(number))) for number in range(60)]
        for worker in it.workers:
            await worker.load_asked.wait()
        for worker in it.workers:
            worker.tell_load.set()
        await asyncio.gather(*asking)
        assert it.probes == [1, 1, 1]
        assert max(len(worker.seen) for worker in it.workers) <= 30, "their own requests count at once"


@pytest.mark.usefixtures("nothing_is_fresh")
async def test_a_worker_that_dies_while_it_is_asked_costs_no_request() -> None:
    async with fleet(2) as it:
        dying, address = await start_worker(CountingWorker([*ids_of_text(TEXT), EOS]))
        client = AsyncClient(worker=[address, it.known()[0].address], connection=PATIENT, timeout=60)
        async with client:
            await client.generate(prompt(0), max_tokens=1, detokenize=False)
            await dying.stop(0)
            for number in range(1, 5):
                answer = await client.generate(prompt(number), max_tokens=1, detokenize=False)
                assert answer.worker == it.known()[0].address


@pytest.mark.usefixtures("nothing_is_fresh")
async def test_a_worker_that_fails_all_at_once_is_not_the_one_with_most_room() -> None:
    async with fleet() as it:
        failing, *others = it.workers
        failing.fail = (grpc.StatusCode.UNAVAILABLE, "broken, and serving as its health says")
        for worker in others:
            worker.held = 5
        for number in range(30):
            assert await it.ask(prompt(number)) != it.known()[0].address
        assert 1 <= len(failing.seen) <= 6


@pytest.mark.usefixtures("nothing_is_fresh")
async def test_a_client_closes_while_it_asks() -> None:
    async with fleet() as it:
        for worker in it.workers:
            worker.tell_load.clear()
        asking = asyncio.create_task(it.ask(prompt(0)))
        for worker in it.workers:
            await worker.load_asked.wait()
        await it.client.close()
        with pytest.raises(Exception, match="closed"):
            await asking
        for worker in it.workers:
            worker.tell_load.set()


def test_the_synchronous_client_asks_too(servers: ServersThread) -> None:
    other = CountingWorker([*ids_of_text(TEXT), EOS])
    server, address = servers.run(start_worker(other))
    other.held = 30
    with Client(worker=[address, servers.worker_address], connection=PATIENT, timeout=60) as client:
        results = [client.generate(prompt(number), max_tokens=1, detokenize=False) for number in range(5)]
    assert {result.worker for result in results} == {servers.worker_address}
    servers.run(server.stop(0))

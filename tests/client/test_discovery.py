"""Workers behind a name: all of them are used, those that come are found, those that go take nothing along."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import grpc.aio
import pytest
from prometheus_client import CollectorRegistry

from tandem.client import (
    AsyncClient,
    ClientClosedError,
    ConfigurationError,
    ConnectionSettings,
    Credentials,
    DeadlineExceededError,
    FailoverSettings,
    UnavailableError,
    workers,
)
from tandem.client.cli import operate
from tandem.client.discovery import Target, WorkersName, expand, resolve
from tandem.inference.v1 import admin_pb2_grpc, inference_pb2_grpc
from tests.client.byte_vocabulary import EOS, TEXT, ids_of_text
from tests.client.counting_worker import CountingWorker
from tests.client.fakes import start_worker
from tests.svc_common.certificates import Authority

NAME = "workers.test"
QUICK = ConnectionSettings(resolve_seconds=0.02)
NO_FAILOVER = FailoverSettings(attempts=0)


class Names:
    """What this machine's resolver says of NAME; of other names, what it says anyhow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hosts: Sequence[str] | None = ()  # None: there is no such name
        self.lookups = 0
        self._resolver = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def _look_up(self, host: str, port: int, *arguments: object, **options: object) -> list[object]:
        if host != NAME:
            return self._resolver(host, port, *arguments, **options)  # type: ignore[arg-type, return-value]
        self.lookups += 1
        if self.hosts is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        families = [socket.AF_INET6 if ":" in one else socket.AF_INET for one in self.hosts]
        return [
            (family, socket.SOCK_STREAM, 6, "", (one, port)) for family, one in zip(families, self.hosts, strict=True)
        ]


class Fleet:
    """Workers on 127.0.0.1, 127.0.0.2, ... of this machine, all at one port."""

    def __init__(self) -> None:
        self.workers: dict[str, CountingWorker] = {}
        self.servers: dict[str, grpc.aio.Server] = {}
        self.port = 0

    async def start(self, host: str) -> CountingWorker:
        worker = self.workers[host] = CountingWorker([*ids_of_text(TEXT), EOS])
        self.servers[host], address = await start_worker(worker, f"{host}:{self.port}")
        self.port = int(address.rpartition(":")[2])
        return worker

    @property
    def address(self) -> str:
        return f"dns:///{NAME}:{self.port}"

    def counts(self) -> dict[str, int]:
        return {host: len(worker.seen) for host, worker in self.workers.items()}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    monkeypatch.setattr(workers, "LOOKUP_PAUSE_SECONDS", 0.01)
    return Names(monkeypatch)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    yield fleet
    for server in fleet.servers.values():
        await server.stop(0)


async def ask(client: AsyncClient, keys: Sequence[str]) -> list[str]:
    """Which worker answered the request with each routing key."""
    options = {"detokenize": False, "seed": 0, "max_tokens": 2}
    return [(await client.generate([5], routing_key=key, **options)).worker for key in keys]  # type: ignore[arg-type]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  (several of them have no event)
            await asyncio.sleep(0.005)


def known(client: AsyncClient) -> list[str]:
    return [] if client._pool is None else [worker.address for worker in client._pool.workers]


KEYS = [str(number) for number in range(24)]


async def test_all_workers_behind_a_name_get_requests(names: Names, fleet: Fleet) -> None:
    names.hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    for host in names.hosts:
        await fleet.start(host)
    registry = CollectorRegistry()
    async with AsyncClient(worker=fleet.address, registry=registry, timeout=30) as client:
        answered = await ask(client, KEYS)
        assert set(answered) == {f"{host}:{fleet.port}" for host in names.hosts}
        assert await ask(client, KEYS) == answered, "a prompt's worker stays the same"
        assert set(await client.get_models()) == set(answered)
        assert registry.get_sample_value("tandem_client_workers", {"health": "serving"}) == 3
    assert registry.get_sample_value("tandem_client_workers", {"health": "serving"}) == 0


async def test_a_worker_that_comes_is_found_and_one_that_goes_finishes_what_it_has(names: Names, fleet: Fleet) -> None:
    leaving = await fleet.start("127.0.0.1")
    await fleet.start("127.0.0.2")
    names.hosts = ["127.0.0.1"]
    leaving.pause_at = 3
    registry = CollectorRegistry()
    options = {"connection": QUICK, "failover": NO_FAILOVER, "registry": registry, "timeout": 30}
    async with AsyncClient(worker=fleet.address, **options) as client:  # type: ignore[arg-type]
        stream = client.stream([5], detokenize=False, seed=0, max_tokens=6)
        await anext(stream)
        await leaving.paused.wait()
        leaving.pause_at = None

        names.hosts = ["127.0.0.1", "127.0.0.2"]
        await until(lambda: len(known(client)) == 2)
        names.hosts = ["127.0.0.2"]
        await until(lambda: known(client) == [f"127.0.0.2:{fleet.port}"])
        assert set(await ask(client, KEYS)) == {f"127.0.0.2:{fleet.port}"}
        assert len(leaving.seen) == 1
        assert registry.get_sample_value("tandem_client_workers", {"health": "serving"}) == 1

        leaving.go.set()
        async for _ in stream:
            pass
        assert len(stream.result.output_ids) == 6 and stream.result.failovers == 0
        assert client._pool is not None
        pool = client._pool
        await until(lambda: not pool._leaving)


async def test_closing_ends_streams_of_workers_that_have_gone(names: Names, fleet: Fleet) -> None:
    worker = await fleet.start("127.0.0.1")
    names.hosts = ["127.0.0.1"]
    worker.pause_at = 1
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient(worker=fleet.address, connection=QUICK, timeout=30))
        stream = client.stream([5], detokenize=False, seed=0)
        await anext(stream)
        names.hosts = ["127.0.0.9"]
        assert client._pool is not None
        (gone,) = client._pool.workers
        await until(lambda: known(client) == [f"127.0.0.9:{fleet.port}"])
        assert gone.running == 1 and not gone.closed
    assert gone.closed
    await asyncio.wait_for(worker.seen[0].cancelled.wait(), 30)


async def test_a_lookup_that_fails_takes_no_worker_away(names: Names, fleet: Fleet) -> None:
    await fleet.start("127.0.0.1")
    names.hosts = ["127.0.0.1"]
    async with AsyncClient(worker=fleet.address, connection=QUICK, failover=NO_FAILOVER, timeout=30) as client:
        await ask(client, ["a"])
        names.hosts, before = None, names.lookups
        await until(lambda: names.lookups > before + 2)
        assert await ask(client, ["a"]) == [f"127.0.0.1:{fleet.port}"]


async def test_a_machine_without_room_for_a_thread_looks_again(
    names: Names, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    names.hosts = ["127.0.0.1"]
    await fleet.start("127.0.0.1")
    started, lookups = threading.Thread.start, 0

    def start(thread: threading.Thread) -> None:
        nonlocal lookups
        if thread.name.startswith("lookup"):
            lookups += 1
            if lookups == 1:
                raise RuntimeError("can't start new thread")
        started(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    async with AsyncClient(worker=fleet.address, connection=QUICK, timeout=30) as client:
        assert set(await ask(client, KEYS[:2])) == {f"127.0.0.1:{fleet.port}"}


async def test_a_name_without_addresses_is_unavailable_and_says_why_until_it_has_some(
    names: Names, fleet: Fleet
) -> None:
    await fleet.start("127.0.0.1")
    names.hosts = None
    async with AsyncClient(worker=fleet.address, connection=QUICK, failover=NO_FAILOVER, timeout=30) as client:
        with pytest.raises(UnavailableError, match=f"dns:///{NAME}:.* has no address .*not known") as caught:
            await ask(client, ["a"])
        assert (caught.value.reason, caught.value.service) == ("NO_WORKER", "worker")
        names.hosts = ["127.0.0.1"]
        await until(lambda: len(known(client)) == 1)
        assert await ask(client, ["a"]) == [f"127.0.0.1:{fleet.port}"]


async def test_a_lost_worker_is_followed_by_one_that_the_name_has_got_meanwhile(names: Names, fleet: Fleet) -> None:
    lost = await fleet.start("127.0.0.1")
    names.hosts = ["127.0.0.1"]
    lost.pause_at = 4
    patient = FailoverSettings(attempts=100, initial_backoff_seconds=0.01, max_backoff_seconds=0.05)
    slow = ConnectionSettings(resolve_seconds=3600)  # so that it is the loss that makes the client look again
    async with AsyncClient(worker=fleet.address, connection=slow, failover=patient, timeout=30) as client:
        stream = client.stream([5], detokenize=False, seed=0, max_tokens=9)
        await anext(stream)
        await lost.paused.wait()
        await fleet.start("127.0.0.2")
        names.hosts = ["127.0.0.2"]
        await fleet.servers["127.0.0.1"].stop(0)
        async for _ in stream:
            pass
        assert stream.result.output_ids == ids_of_text(TEXT)[:9]
        assert (stream.result.failovers, stream.result.worker) == (1, f"127.0.0.2:{fleet.port}")


async def test_an_address_that_is_given_and_found_is_one_worker(names: Names, fleet: Fleet) -> None:
    await fleet.start("127.0.0.1")
    await fleet.start("127.0.0.2")
    names.hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.2"]
    fixed = f"127.0.0.1:{fleet.port}"
    async with AsyncClient(worker=[fixed, fleet.address], connection=QUICK, timeout=30) as client:
        assert len(set(await ask(client, KEYS))) == len(known(client)) == 2
        names.hosts = []
        await until(lambda: known(client) == [fixed])


async def test_only_one_family_of_addresses_counts(names: Names) -> None:
    name = WorkersName(NAME, 1)
    names.hosts = ["::1", "127.0.0.1", "127.0.0.2"]
    assert await expand([str(name)], 30) == [Target(f"127.0.0.{n}:1", f"{NAME}:1") for n in (1, 2)]
    names.hosts = ["::1", "fd00::7"]
    assert [target.address for target in await expand([str(name)], 30)] == ["[::1]:1", "[fd00::7]:1"]
    names.hosts = None
    assert await expand(["host:1", str(name)], 30) == [Target("host:1"), Target(str(name))]


@pytest.mark.parametrize(
    "wrong",
    [
        "name",
        ":50052",
        "name:",
        "name:x",
        "name:0",
        "name:70000",
        "n/p:1",
        "u@n:1",
        "a..b:1",
        f"{'a' * 64}:1",
        "a\0b:1",
        "",
    ],
)
def test_a_name_needs_a_port(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="must be dns:///NAME:PORT"):
        AsyncClient(worker=f"dns:///{wrong}")


async def test_a_name_server_that_is_silent_holds_up_neither_a_call_nor_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answered.wait(60) and [])
    try:
        client = AsyncClient(worker=f"dns:///{NAME}:1")
        with pytest.raises(DeadlineExceededError):
            await client.get_models(timeout=0.05)
        with pytest.raises(DeadlineExceededError):
            await client.generate([5], detokenize=False, timeout=0.05)
        assert await expand([f"dns:///{NAME}:1"], 0.05) == [Target(f"dns:///{NAME}:1")]
        waiting = asyncio.create_task(client.get_loads(timeout=None))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ClientClosedError):
            await waiting
        lookups = [thread for thread in threading.enumerate() if thread.name == f"lookup of {NAME}"]
        assert lookups and all(thread.daemon for thread in lookups), "the interpreter does not wait for them"
    finally:
        answered.set()


async def test_a_client_whose_last_request_asked_for_another_lookup_closes_at_once(names: Names, fleet: Fleet) -> None:
    names.hosts = ["127.0.0.1"]
    await fleet.start("127.0.0.1")
    client = AsyncClient(worker=fleet.address, failover=NO_FAILOVER)
    await client.__aenter__()
    await ask(client, ["a"])
    assert client._pool is not None
    look_again = client._pool._look_again
    await until(lambda: bool(look_again._waiters))  # type: ignore[attr-defined]
    look_again.set()  # in the same turn of the event loop
    async with asyncio.timeout(20):
        await client.close()


async def test_a_file_that_cannot_be_read_is_told_before_any_lookup(names: Names) -> None:
    wrong = Credentials(root_certificates="/nowhere/ca.pem")
    async with AsyncExitStack() as stack:
        with pytest.raises(ConfigurationError, match=r"root_certificates: cannot read /nowhere/ca\.pem"):
            await stack.enter_async_context(AsyncClient(worker=f"dns:///{NAME}:1", credentials=wrong))
    assert not names.lookups


async def test_workers_that_come_need_no_file_that_has_gone(names: Names, fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(Authority("ours").certificate)
    names.hosts = ["127.0.0.1"]
    connection = ConnectionSettings(resolve_seconds=0.02)
    credentials = Credentials(root_certificates=file)
    async with AsyncClient(worker=f"dns:///{NAME}:1", connection=connection, credentials=credentials) as client:
        with pytest.raises(UnavailableError):
            await client.get_loads(timeout=30)
        file.unlink()
        names.hosts = ["127.0.0.2"]
        await until(lambda: known(client) == ["127.0.0.2:1"])


async def test_what_is_asked_of_all_workers_fails_where_there_is_none_and_names_who_failed(names: Names) -> None:
    names.hosts = None
    address = f"dns:///{NAME}:1"
    async with AsyncClient(worker=address) as client:
        for ask in (client.get_models, client.get_loads, client.clear_prefix_cache):
            with pytest.raises(UnavailableError, match=f"there is no worker: {address} has no address"):
                await ask()
    names.hosts = ["127.0.0.9"]
    async with AsyncClient(worker=address) as client:
        with pytest.raises(UnavailableError, match=r"UNAVAILABLE: 127\.0\.0\.9:1: "):
            await client.clear_prefix_cache()


def test_operators_commands_keep_to_the_workers_that_the_name_had(names: Names) -> None:
    """A platform takes a worker that drains out of its name; `drain --wait` must not take that for idle."""
    names.hosts = ["127.0.0.1"]
    rhythms: list[float] = []

    async def work(client: AsyncClient) -> None:
        with pytest.raises(UnavailableError):
            await client.get_loads(timeout=30)
        rhythms.append(client._connection.resolve_seconds)

    operate._with_workers(lambda: None, [f"dns:///{NAME}:1"], work)
    assert rhythms == [math.inf] and names.lookups == 1


async def test_an_order_that_turns_changes_nothing(names: Names) -> None:
    name = WorkersName(NAME, 1)
    names.hosts = ["127.0.0.2", "127.0.0.1", "127.0.0.2"]
    turned = await resolve(name)
    names.hosts = ["127.0.0.1", "127.0.0.2"]
    assert turned == await resolve(name) == ["127.0.0.1", "127.0.0.2"]


def test_a_literal_of_ipv6_keeps_its_brackets() -> None:
    name = WorkersName.parse("dns:///[::1]:7")
    assert name is not None and str(name) == "dns:///[::1]:7"
    assert name.targets(["::1"]) == [Target("[::1]:7", "[::1]:7")]


async def test_certificates_are_those_of_the_name(names: Names) -> None:
    authority = Authority("ours")
    names.hosts = ["127.0.0.1"]
    cases = [(NAME, None, True), ("another.test", None, False), ("another.test", "another.test", True)]
    for host, server_name, fits in cases:
        signed = authority.sign("worker", host)
        worker = CountingWorker([*ids_of_text(TEXT), EOS])
        server = grpc.aio.server()
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(worker, server)
        admin_pb2_grpc.add_WorkerAdminServiceServicer_to_server(worker, server)
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(signed.key, signed.certificate)]))
        await server.start()
        credentials = Credentials(root_certificates=authority.certificate, server_name=server_name)
        address = f"dns:///{NAME}:{port}"
        async with AsyncClient(worker=address, credentials=credentials, failover=NO_FAILOVER, timeout=30) as client:
            if fits:
                assert await ask(client, ["a"]) == [f"127.0.0.1:{port}"]
            else:
                with pytest.raises(UnavailableError):
                    await ask(client, ["a"])
        await server.stop(0)

"""Health tells the truth at once, and Watch tells it without being asked again."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from tandem.common.health import Health
from tandem.common.run_service import Lifecycle, RunningService, run_in_loop
from tandem.common.settings import ServiceSettings
from tests.svc_common.probe_client import ask, health_of, next_status, watch
from tests.svc_common.probe_service import ADMIN, KINDS, NAME, ProbeService


async def test_liveness_and_readiness_of_a_running_service(channel: grpc.aio.Channel) -> None:
    assert await health_of(channel, "") == "SERVING"
    assert await health_of(channel, NAME) == "SERVING"


async def test_check_of_an_unknown_name_is_not_found(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await health_of(channel, "nobody.v1.Service")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert NAME in (caught.value.details() or "")


async def test_watch_of_an_unknown_name_says_so_and_stays_open(probe: ProbeService, channel: grpc.aio.Channel) -> None:
    stream = watch(channel, "nobody.v1.Service")
    assert await next_status(stream) == "SERVICE_UNKNOWN"
    assert not stream.done()
    stream.cancel()


async def test_watch_pushes_every_lasting_change(probe: ProbeService, channel: grpc.aio.Channel) -> None:
    lifecycle = probe.lifecycle
    assert lifecycle is not None
    streams = [watch(channel, NAME) for _ in range(10)]
    alive = watch(channel, "")
    for expected, change in [
        ("SERVING", lambda: lifecycle.set_ready(False)),
        ("NOT_SERVING", lambda: lifecycle.set_ready(True)),
        ("SERVING", lambda: lifecycle.set_draining(True)),
        ("NOT_SERVING", lambda: lifecycle.set_draining(False)),
        ("SERVING", lambda: None),
    ]:
        assert await asyncio.gather(*map(next_status, streams)) == [expected] * len(streams)
        change()
    assert await next_status(alive) == "SERVING"
    assert not alive.done()
    for stream in (*streams, alive):
        stream.cancel()


async def test_a_change_while_a_watcher_is_still_sending_the_last_one_is_not_lost() -> None:
    health = Health([NAME])
    statuses = health.Watch(health_pb2.HealthCheckRequest(service=NAME), None)
    async with asyncio.timeout(60):
        assert (await anext(statuses)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        health.set_ready(True)
        assert (await anext(statuses)).status == health_pb2.HealthCheckResponse.SERVING
        health.set_ready(False)
        health.set_ready(True)
        health.close()
        assert (await anext(statuses)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert [status async for status in statuses] == []


async def test_a_watcher_that_leaves_is_forgotten(probe: ProbeService, channel: grpc.aio.Channel) -> None:
    running = RunningService(service := ProbeService(), ServiceSettings())
    await running.bind()
    async with grpc.aio.insecure_channel(running.address) as own:
        streams = [watch(own, NAME) for _ in range(5)]
        for stream in streams:
            assert await next_status(stream) == "NOT_SERVING"
        assert len(running.running) == 5
        for stream in streams:
            stream.cancel()
        assert await running.running.wait_until_empty(20)
    await running.stop()
    assert service.stopped


async def test_probes_are_answered_and_work_is_refused_while_the_service_starts() -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    async def start(lifecycle: Lifecycle) -> None:
        begun.set()
        await gate.wait()

    running = RunningService(ProbeService(start), ServiceSettings())
    await running.bind()
    starting = asyncio.create_task(running.start())
    await begun.wait()
    async with grpc.aio.insecure_channel(running.address) as channel:
        assert await health_of(channel, "") == "SERVING"
        stream = watch(channel, NAME)
        assert await next_status(stream) == "NOT_SERVING"
        for kind in KINDS:
            refused = await ask(channel, kind, "x")
            assert refused.code is grpc.StatusCode.UNAVAILABLE
            assert "starting" in refused.message
        assert (await ask(channel, "UnaryUnary", "admin", service=ADMIN)).words == ["admin"]
        gate.set()
        await starting
        assert await next_status(stream) == "SERVING"
        assert (await ask(channel, "UnaryUnary", "work")).words == ["work"]
        await running.stop()


async def test_a_service_that_is_not_ready_at_the_end_of_its_start_is_not_serving_until_it_says_so() -> None:
    async def start(lifecycle: Lifecycle) -> None:
        lifecycle.set_ready(False)

    service = ProbeService(start)
    async with run_in_loop(service, ServiceSettings()) as address, grpc.aio.insecure_channel(address) as channel:
        assert service.lifecycle is not None
        assert await health_of(channel, NAME) == "NOT_SERVING"
        assert service.metrics.registry.get_sample_value("tandem_ready") == 0
        service.lifecycle.set_ready(True)
        assert await health_of(channel, NAME) == "SERVING"
        assert service.metrics.registry.get_sample_value("tandem_ready") == 1


async def test_watchers_hear_the_end_and_then_their_stream_ends_well() -> None:
    running = RunningService(ProbeService(), ServiceSettings())
    await running.bind()
    await running.start()
    async with grpc.aio.insecure_channel(running.address) as channel:
        streams = [watch(channel, NAME) for _ in range(3)]
        alive = watch(channel, "")
        for stream in (*streams, alive):
            assert await next_status(stream) == "SERVING"
        await running.stop()
        for stream in streams:
            assert await next_status(stream) == "NOT_SERVING"
        for stream in (*streams, alive):
            assert await next_status(stream) == ""
            assert await stream.code() is grpc.StatusCode.OK

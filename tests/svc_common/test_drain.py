"""A drain surprises nobody: NOT_SERVING, then refusals, then the running RPCs' ends, then silence."""

from __future__ import annotations

import asyncio
import logging

import grpc
import grpc.aio
import httpx
import pytest
from google.rpc import error_details_pb2

from tandem.common.run_service import RunningService
from tandem.common.settings import ServiceSettings
from tests.svc_common.probe_client import ask, health_of, open_call, outcome
from tests.svc_common.probe_service import ADMIN, NAME, ProbeService


async def running_probe(**settings: object) -> tuple[RunningService, ProbeService]:
    service = ProbeService()
    running = RunningService(service, ServiceSettings.model_validate(settings))
    await running.bind()
    await running.start()
    return running, service


async def test_within_the_propagation_delay_health_says_no_and_work_is_still_let_in() -> None:
    running, _ = await running_probe()
    async with grpc.aio.insecure_channel(running.address) as channel:
        drain = asyncio.create_task(running.drain(propagation=3600, grace=0))
        await asyncio.sleep(0)  # the task takes its first step
        assert await health_of(channel, NAME) == "NOT_SERVING"
        assert await health_of(channel, "") == "SERVING"
        assert running.lifecycle.state == "draining"
        assert (await ask(channel, "UnaryUnary", "late")).words == ["late"]
        drain.cancel()
    await running.stop()


async def test_running_rpcs_finish_within_the_grace_while_new_ones_are_refused() -> None:
    running, service = await running_probe()
    async with grpc.aio.insecure_channel(running.address) as channel:
        call = open_call(channel, "UnaryStream", ["one", "wait", "two"], timeout=None)
        assert (await call.read()).value == "one"
        await service.entered.wait()
        refusing = asyncio.Event()
        running.lifecycle.on_change(lambda: None if running.lifecycle.accepting else refusing.set())
        drain = asyncio.create_task(running.drain(propagation=0, grace=3600))
        await refusing.wait()
        refused = await ask(channel, "UnaryUnary", "new")
        assert refused.detail(error_details_pb2.ErrorInfo).reason == "DRAINING"
        assert (await ask(channel, "UnaryUnary", "admin", service=ADMIN)).words == ["admin"]
        assert await health_of(channel, "") == "SERVING"
        assert not drain.done()
        service.release.set()
        rest = await outcome(call)
        assert (rest.code, rest.words) == (grpc.StatusCode.OK, ["wait", "two"])
        await drain
        await running.stop()
    assert service.stopped
    assert running.lifecycle.state == "stopped"


@pytest.mark.parametrize("kind", ["UnaryUnary", "UnaryStream", "StreamUnary", "StreamStream", "Writes"])
async def test_what_outlives_the_grace_ends_unavailable_so_that_clients_can_resume_elsewhere(kind: str) -> None:
    running, service = await running_probe()
    async with grpc.aio.insecure_channel(running.address) as channel:
        task = asyncio.create_task(ask(channel, kind, "wait", timeout=None, metadata=[("x-request-id", "cut-me")]))
        await service.entered.wait()
        await running.drain(propagation=0, grace=0)
        await running.stop()
        answer = await task
    assert service.left.is_set()
    assert answer.code is grpc.StatusCode.UNAVAILABLE
    assert answer.detail(error_details_pb2.ErrorInfo).reason == "SHUTTING_DOWN"
    assert answer.trailers["x-request-id"] == "cut-me"


async def test_a_stream_whose_reader_sleeps_cannot_hold_the_stop_up(caplog: pytest.LogCaptureFixture) -> None:
    running, service = await running_probe()
    async with grpc.aio.insecure_channel(running.address) as channel:
        call = open_call(channel, "UnaryStream", ["x" * (1 << 20)] * 8, timeout=None)
        await call.read()
        await running.drain(propagation=0, grace=0)
        await running.stop()
        assert service.left.is_set()
        code = (await outcome(call)).code
    assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_an_operators_drain_can_be_taken_back_and_a_stop_cannot() -> None:
    running, _ = await running_probe()
    lifecycle = running.lifecycle
    lifecycle.set_draining(True)
    assert (lifecycle.state, lifecycle.accepting, lifecycle.serving) == ("draining", False, False)
    lifecycle.set_draining(False)
    assert (lifecycle.state, lifecycle.accepting, lifecycle.serving) == ("serving", True, True)
    await running.drain(propagation=0, grace=0)
    lifecycle.set_draining(False)
    lifecycle.set_ready(True)
    assert (lifecycle.state, lifecycle.accepting, lifecycle.serving) == ("draining", False, False)
    await running.stop()


async def test_a_service_that_cannot_work_for_a_while_says_so() -> None:
    running, _ = await running_probe()
    running.lifecycle.set_ready(False)
    answer = await asyncio.to_thread(httpx.get, f"http://{running.metrics_address}/healthz?ready")
    assert (answer.status_code, answer.text) == (503, "not ready\n")
    running.lifecycle.set_ready(True)
    answer = await asyncio.to_thread(httpx.get, f"http://{running.metrics_address}/healthz?ready")
    assert (answer.status_code, answer.text) == (200, "serving\n")
    await running.stop()


async def test_a_service_whose_own_stop_fails_is_reported_and_the_rest_is_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(ProbeService):
        async def stop(self) -> None:
            raise RuntimeError("cannot let go")

    running = RunningService(Broken(), ServiceSettings())
    await running.bind()
    await running.start()
    await running.stop()
    assert "cannot let go" in caplog.text
    assert running.lifecycle.state == "stopped"


async def test_stopping_twice_stops_once() -> None:
    running, service = await running_probe()
    await running.stop()
    await running.stop()
    assert service.stopped


async def test_slow_protobuf_is_reported_loudly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running, _ = await running_probe()
    await running.stop()
    assert "instead of upb" not in caplog.text
    monkeypatch.setattr("tandem.common.server.api_implementation.Type", lambda: "python")
    running, _ = await running_probe()
    await running.stop()
    assert "instead of upb" in caplog.text

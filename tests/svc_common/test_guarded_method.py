"""However a handler ends, its client gets the right status, and the server's books agree: for all four RPC kinds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from random import Random

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tandem.common.run_service import RunningService, run_in_loop
from tandem.common.settings import ServiceSettings
from tests.svc_common.probe_client import ask, handled, open_call, outcome, sample
from tests.svc_common.probe_service import ADMIN, KINDS, NAME, ProbeService

ALL = (*KINDS, "Writes")
OUR_FAULTS = ("crash", "panic", "stray-cancel", "wrong-type")


@pytest.mark.parametrize("kind", ALL)
async def test_an_answer_passes_unchanged_and_is_counted(
    kind: str, probe: ProbeService, channel: grpc.aio.Channel
) -> None:
    answer = await ask(channel, kind, "one", "two")
    assert answer.code is grpc.StatusCode.OK
    assert ",".join(answer.words) == "one,two"
    assert handled(probe.metrics.registry, kind, "OK") == 1
    assert (
        sample(probe.metrics.registry, "tandem_grpc_server_handling_seconds_count", grpc_service=NAME, grpc_method=kind)
        == 1
    )


@pytest.mark.parametrize("kind", ALL)
async def test_a_service_error_arrives_with_its_details(
    kind: str, probe: ProbeService, channel: grpc.aio.Channel
) -> None:
    answer = await ask(channel, kind, "invalid")
    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
    assert answer.message == "sampling.temperature: must be at least 0, not -1"
    violation = answer.detail(error_details_pb2.BadRequest).field_violations[0]
    assert (violation.field, violation.description) == ("sampling.temperature", "must be at least 0, not -1")
    info = answer.detail(error_details_pb2.ErrorInfo)
    assert (info.domain, info.reason) == ("tandem", "INVALID_ARGUMENT")
    assert handled(probe.metrics.registry, kind, "INVALID_ARGUMENT") == 1


async def test_an_error_after_the_first_messages_ends_the_stream_with_its_status(channel: grpc.aio.Channel) -> None:
    for kind in ("UnaryStream", "StreamStream", "Writes"):
        answer = await ask(channel, kind, "one", "two", "full")
        assert answer.words == ["one", "two"]
        assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_the_public_library_reads_our_status(channel: grpc.aio.Channel) -> None:
    call = open_call(channel, "UnaryUnary", ["full"])
    with pytest.raises(grpc.aio.AioRpcError):
        await call
    status = await rpc_status.aio.from_call(call)
    assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert len(status.details) == 2


async def test_retry_advice_stands_in_details_and_in_metadata(channel: grpc.aio.Channel) -> None:
    answer = await ask(channel, "UnaryUnary", "full")
    assert answer.detail(error_details_pb2.RetryInfo).retry_delay.ToMilliseconds() == 1500
    assert answer.trailers["grpc-retry-pushback-ms"] == "1500"


@pytest.mark.parametrize("word", ["enormous", "surrogate"])
async def test_an_error_too_big_or_too_strange_for_the_wire_still_arrives(word: str, channel: grpc.aio.Channel) -> None:
    answer = await ask(channel, "UnaryUnary", word)
    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
    assert len(answer.detail(error_details_pb2.BadRequest).field_violations) >= 1


@pytest.mark.parametrize("word", OUR_FAULTS)
@pytest.mark.parametrize("kind", ALL)
async def test_a_fault_of_ours_is_internal_and_its_words_stay_with_us(
    kind: str, word: str, probe: ProbeService, channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await ask(channel, kind, word)
    assert answer.code is grpc.StatusCode.INTERNAL
    assert "secret" not in answer.message + repr(answer.status)
    error_id = answer.detail(error_details_pb2.ErrorInfo).metadata["error_id"]
    assert error_id in answer.message
    logged = [record for record in caplog.records if getattr(record, "error_id", None) == error_id]
    assert len(logged) == 1 and logged[0].exc_info and logged[0].levelno == logging.ERROR
    assert handled(probe.metrics.registry, kind, "INTERNAL") == 1
    assert (await ask(channel, kind, "fine")).words == ["fine"]


async def test_a_known_internal_error_keeps_its_words_and_is_logged(
    channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await ask(channel, "UnaryUnary", "internal")
    assert (answer.code, answer.message) == (grpc.StatusCode.INTERNAL, "the engine answered nonsense")
    assert "ENGINE_PROTOCOL" in caplog.text


async def until_handled(probe: ProbeService, kind: str, code: str) -> None:
    """A status that a handler sends by itself is counted when the handler ends: its client may know it before."""
    async with asyncio.timeout(60):
        while not (count := handled(probe.metrics.registry, kind, code)):  # noqa: ASYNC110  (it has no event)
            await asyncio.sleep(0)
    assert count == 1


async def test_what_a_handler_does_by_hand_is_left_alone_and_counted(
    probe: ProbeService, channel: grpc.aio.Channel
) -> None:
    for kind in ALL:
        aborted = await ask(channel, kind, "abort")
        assert (aborted.code, aborted.message) == (grpc.StatusCode.DATA_LOSS, "aborted by hand")
        await until_handled(probe, kind, "DATA_LOSS")
        by_code = await ask(channel, kind, "set-code")
        assert (by_code.code, by_code.message) == (grpc.StatusCode.NOT_FOUND, "set by hand")
        await until_handled(probe, kind, "NOT_FOUND")


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("raw", [b"\x0a\xff", b"\x0a\x02\xc3\x28", b"\xff" * 100], ids=["cut", "not UTF-8", "noise"])
async def test_a_message_that_cannot_be_parsed_is_the_clients_fault(
    kind: str, raw: bytes, probe: ProbeService, channel: grpc.aio.Channel
) -> None:
    answer = await ask(channel, kind, "x", raw=raw)
    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
    assert answer.detail(error_details_pb2.ErrorInfo).reason == "MALFORMED_MESSAGE"
    assert handled(probe.metrics.registry, kind, "INVALID_ARGUMENT") == 1


async def test_a_message_beyond_the_limit_is_refused_and_the_server_serves_on(channel: grpc.aio.Channel) -> None:
    answer = await ask(channel, "UnaryUnary", raw=b"\0" * (17 << 20))
    assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await ask(channel, "UnaryUnary", "fine")).words == ["fine"]


async def test_an_unknown_method_is_unimplemented_and_makes_no_label(
    probe: ProbeService, channel: grpc.aio.Channel
) -> None:
    for i in range(3):
        assert (await ask(channel, f"Nonsense{i}", "x")).code is grpc.StatusCode.UNIMPLEMENTED
    assert handled(probe.metrics.registry, "unknown", "UNIMPLEMENTED", service="unknown") == 3
    methods = {each.labels.get("grpc_method") for family in probe.metrics.registry.collect() for each in family.samples}
    assert not any(method and method.startswith("Nonsense") for method in methods)


@pytest.mark.parametrize("kind", ALL)
async def test_the_clients_request_id_is_known_to_the_handler_and_comes_back(
    kind: str, channel: grpc.aio.Channel
) -> None:
    answer = await ask(channel, kind, "request-id", metadata=[("x-request-id", "abc-123")])
    assert answer.words == ["abc-123"]
    assert answer.trailers["x-request-id"] == "abc-123"
    failed = await ask(channel, kind, "invalid", metadata=[("x-request-id", "abc-124")])
    assert failed.trailers["x-request-id"] == "abc-124"


@pytest.mark.parametrize("bad", [None, "", "two words", "x" * 129])
async def test_a_request_without_a_decent_id_gets_one(bad: str | None, channel: grpc.aio.Channel) -> None:
    metadata = [] if bad is None else [("x-request-id", bad)]
    answer = await ask(channel, "UnaryUnary", "request-id", metadata=metadata)
    assert re.fullmatch("[0-9a-f]{16}", answer.words[0])
    assert answer.trailers["x-request-id"] == answer.words[0]


async def test_a_handlers_own_request_id_and_trailers_come_back(channel: grpc.aio.Channel) -> None:
    renamed = await ask(channel, "UnaryUnary", "rename", metadata=[("x-request-id", "from-metadata")])
    assert renamed.trailers["x-request-id"] == "from-the-request-field"
    mixed = await ask(channel, "UnaryUnary", "trailers", metadata=[("x-request-id", "kept")])
    assert (mixed.trailers["x-mine"], mixed.trailers["x-request-id"]) == ("1", "kept")


async def test_log_lines_of_an_rpc_carry_its_ids(channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture) -> None:
    from tandem.common.logs import JsonFormatter

    lines: list[str] = []

    class Capture(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(JsonFormatter("tandem-probe").format(record))

    logger, handler = logging.getLogger("tandem.common.rpc"), Capture()
    logger.addHandler(handler)
    try:
        trace = "0af7651916cd43dd8448eb211c80319c"
        await ask(
            channel,
            "UnaryUnary",
            "crash",
            metadata=[("x-request-id", "abc"), ("traceparent", f"00-{trace}-b7ad6b7169203331-01")],
        )
    finally:
        logger.removeHandler(handler)
    assert any('"request_id": "abc"' in line and trace in line for line in lines)


@pytest.mark.parametrize("kind", ALL)
async def test_a_client_that_cancels_stops_its_handler_at_once(
    kind: str, probe: ProbeService, channel: grpc.aio.Channel
) -> None:
    call = open_call(channel, kind, ["wait"], timeout=None)
    reading = asyncio.create_task(call.read()) if hasattr(call, "read") else asyncio.ensure_future(call)
    await probe.entered.wait()
    assert sample(probe.metrics.registry, "tandem_grpc_server_in_flight", grpc_service=NAME, grpc_method=kind) == 1
    call.cancel()
    await probe.left.wait()
    await asyncio.gather(reading, return_exceptions=True)
    assert sample(probe.metrics.registry, "tandem_grpc_server_in_flight", grpc_service=NAME, grpc_method=kind) == 0
    assert handled(probe.metrics.registry, kind, "CANCELLED") == 1


@pytest.mark.parametrize("kind", ALL)
async def test_a_deadline_stops_the_handler_and_is_counted_as_such(
    kind: str, probe: ProbeService, channel: grpc.aio.Channel
) -> None:
    for timeout in (0.2, 1.0, 5.0, 25.0):  # on a machine so busy that the request is late, a longer one shows it
        answer = await ask(channel, kind, "wait", timeout=timeout)
        assert answer.code is grpc.StatusCode.DEADLINE_EXCEEDED
        if probe.entered.is_set():
            await probe.left.wait()
        if handled(probe.metrics.registry, kind, "DEADLINE_EXCEEDED"):
            return
    raise AssertionError("a deadline was never counted as one")


async def test_a_client_that_closes_its_connection_stops_its_handlers(probe: ProbeService) -> None:
    async with grpc.aio.insecure_channel(probe.address) as channel:
        call = open_call(channel, "UnaryStream", ["one", "wait"], timeout=None)
        assert (await call.read()).value == "one"
        await probe.entered.wait()
    await probe.left.wait()
    assert handled(probe.metrics.registry, "UnaryStream", "CANCELLED") == 1


async def test_a_generator_that_waits_for_a_slow_reader_is_closed_when_the_reader_leaves(
    probe: ProbeService, channel: grpc.aio.Channel
) -> None:
    big = "x" * (1 << 20)
    call = open_call(channel, "UnaryStream", [big] * 8, timeout=None)  # far more than a window of flow control
    assert (await call.read()).value == big
    call.cancel()
    await probe.left.wait()
    assert probe.counted_at_the_end == 0, "the generator is closed within its RPC, not by the garbage collector"
    assert handled(probe.metrics.registry, "UnaryStream", "CANCELLED") == 1


POLICY = """{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 3, "initialBackoff": "0.01s",
"maxBackoff": "0.02s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}"""


async def test_gRPCs_own_retries_work_because_no_headers_precede_an_error() -> None:  # noqa: N802
    service = ProbeService()
    async with run_in_loop(service, ServiceSettings()) as address:
        assert service.lifecycle is not None
        async with grpc.aio.insecure_channel(address, options=[("grpc.service_config", POLICY)]) as channel:
            service.lifecycle.set_draining(True)
            for kind in ("UnaryUnary", "UnaryStream"):
                answer = await ask(channel, kind, "x")
                assert answer.code is grpc.StatusCode.UNAVAILABLE
                assert handled(service.metrics.registry, kind, "UNAVAILABLE") == 3  # attempts


async def test_while_draining_work_is_refused_and_admin_health_and_exceptions_are_not() -> None:
    service = ProbeService()
    async with run_in_loop(service, ServiceSettings()) as address, grpc.aio.insecure_channel(address) as channel:
        assert service.lifecycle is not None
        service.lifecycle.set_draining(True)
        for kind in ALL:
            refused = await ask(channel, kind, "x")
            assert refused.code is grpc.StatusCode.UNAVAILABLE
            assert refused.detail(error_details_pb2.ErrorInfo).reason == "DRAINING"
        assert (await ask(channel, "UnaryUnary", "admin", service=ADMIN)).words == ["admin"]
        assert (await ask(channel, "Reachable", "abort it")).words == ["abort it"]
        service.lifecycle.set_draining(False)
        assert (await ask(channel, "UnaryUnary", "again")).words == ["again"]


async def test_a_refusal_does_not_wait_for_the_request(probe: ProbeService, channel: grpc.aio.Channel) -> None:
    assert probe.lifecycle is not None
    probe.lifecycle.set_draining(True)
    for make in (channel.stream_stream, channel.stream_unary):
        call = make(f"/{NAME}/UnaryUnary")()  # a client that never sends its message
        assert await call.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.slow
async def test_a_client_may_ping_during_a_long_silence(probe: ProbeService) -> None:
    """Pings are a matter of time, so this takes some: the default ends the connection at the fourth."""
    options = [("grpc.keepalive_time_ms", 400), ("grpc.http2.max_pings_without_data", 0)]
    async with grpc.aio.insecure_channel(probe.address, options) as channel:
        call = open_call(channel, "UnaryStream", ["one", "wait"], timeout=None)
        assert (await call.read()).value == "one"
        asyncio.get_running_loop().call_later(3.5, probe.release.set)
        assert (await outcome(call)).words == ["wait"]


async def test_after_any_mix_of_ends_nothing_is_left_running() -> None:
    service = ProbeService()
    running = RunningService(service, ServiceSettings())
    await running.bind()
    await running.start()
    random = Random(7)
    words = ("one", "invalid", "crash", "panic", "stray-cancel", "abort", "wait", "wait", "wait")
    async with grpc.aio.insecure_channel(running.address) as channel:

        async def one() -> None:
            call = open_call(
                channel, random.choice(ALL), [random.choice(words)], timeout=random.choice([0.05, 0.5, 60])
            )
            if random.random() < 0.5:
                asyncio.get_running_loop().call_later(random.random() / 4, call.cancel)
            with contextlib.suppress(asyncio.CancelledError):
                await outcome(call)

        async with asyncio.timeout(60):
            tasks = [asyncio.create_task(one()) for _ in range(200)]
            await asyncio.wait(tasks, timeout=1.0)
            await channel.close()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert await running.running.wait_until_empty(60)
    await running.stop()
    name = "tandem_grpc_server_in_flight"
    assert all(sample(service.metrics.registry, name, grpc_service=NAME, grpc_method=kind) == 0 for kind in ALL)

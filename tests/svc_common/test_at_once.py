"""A call that is answered at once looks from outside as one that its handler answers."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from google.rpc import error_details_pb2

from tandem.common import request_log, tracing
from tandem.common.at_once import AnsweredAtOnce
from tandem.common.errors import draining
from tandem.common.logs import request_id_var, trace_id_var
from tandem.common.metrics import ServiceMetrics
from tandem.common.request_log import tell
from tandem.common.run_service import run_in_loop
from tandem.common.settings import ServiceSettings
from tests.svc_common.probe_client import ask, handled, sample
from tests.svc_common.probe_service import NAME, ProbeService


class Shouts:
    """Answers words of capitals."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def answer(self, request: bytes) -> bytes | None:
        self.asked.append(request)
        word = request[2:].decode()
        if word == "CRASH":
            raise RuntimeError("secret prompt text")
        return StringValue(value=f"{word}!").SerializeToString() if word.isupper() else None

    def facts(self) -> dict[str, object]:
        return {"words": 1}


class Shouting(ProbeService):
    """Answers UnaryUnary at once where it can."""

    def __init__(self) -> None:
        super().__init__()
        self.shouts = Shouts()
        self.at_once = {f"/{NAME}/UnaryUnary": self.shouts}

    async def unary_unary(self, request: StringValue, context: object) -> StringValue:
        tell(words=1)
        return await super().unary_unary(request, context)


@pytest.fixture
async def probe() -> AsyncIterator[Shouting]:
    service = Shouting()
    async with run_in_loop(service, ServiceSettings()) as address:
        service.address = address
        yield service


async def test_what_is_not_answered_at_once_reaches_the_handler(probe: Shouting, channel: grpc.aio.Channel) -> None:
    assert (await ask(channel, "UnaryUnary", "HELLO")).words == ["HELLO!"]
    assert (await ask(channel, "UnaryUnary", "hello")).words == ["hello"]
    refused = await ask(channel, "UnaryUnary", "invalid")
    assert refused.detail(error_details_pb2.BadRequest).field_violations[0].field == "sampling.temperature"
    assert (await ask(channel, "UnaryStream", "HELLO")).words == ["HELLO"], "another method"
    assert (await ask(channel, "UnaryUnary", raw=b"\x0a\xff")).code is grpc.StatusCode.INVALID_ARGUMENT
    assert (await ask(channel, "UnaryUnary", raw=b"")).words == [""]


async def test_both_are_counted_alike(probe: Shouting, channel: grpc.aio.Channel) -> None:
    for word in ("HELLO", "hello", "WORLD"):
        await ask(channel, "UnaryUnary", word)
    assert handled(probe.metrics.registry, "UnaryUnary", "OK") == 3
    labels = {"grpc_service": NAME, "grpc_method": "UnaryUnary"}
    assert sample(probe.metrics.registry, "tandem_grpc_server_handling_seconds_count", **labels) == 3
    assert sample(probe.metrics.registry, "tandem_grpc_server_in_flight", **labels) == 0


@pytest.mark.parametrize("word", ["HELLO", "hello"])
async def test_the_request_id_comes_back(word: str, channel: grpc.aio.Channel) -> None:
    answer = await ask(channel, "UnaryUnary", word, metadata=[("x-request-id", "abc-123")])
    assert answer.trailers["x-request-id"] == "abc-123"
    for bad in ([], [("x-request-id", "two words")]):
        made = (await ask(channel, "UnaryUnary", word, metadata=bad)).trailers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{16}", str(made))


async def test_both_have_the_same_line_in_the_log(channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[str, str, dict[str, object]]] = []

    class Capture(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            ids = {"request_id": request_id_var.get(), "trace_id": trace_id_var.get()}
            told = {name: getattr(record, name) for name in ("code", "caller", "words")}
            lines.append((record.levelname, record.getMessage(), told | ids))

    handler = Capture()
    request_log.logger.addHandler(handler)
    trace = "0af7651916cd43dd8448eb211c80319c"
    metadata = [("x-request-id", "abc"), ("traceparent", f"00-{trace}-b7ad6b7169203331-01")]
    try:
        for level in (logging.DEBUG, logging.INFO):
            request_log.logger.setLevel(level)
            for word in ("HELLO", "hello"):
                await ask(channel, "UnaryUnary", word, metadata=metadata)
        monkeypatch.setattr(request_log, "_SHORT", 0.0)  # all calls are slow
        for word in ("HELLO", "hello"):
            await ask(channel, "UnaryUnary", word, metadata=metadata)
    finally:
        request_log.logger.removeHandler(handler)
        request_log.logger.setLevel(logging.NOTSET)
    told = {"code": "OK", "caller": "address:ipv4:127.0.0.1", "words": 1, "request_id": "abc", "trace_id": trace}
    assert lines == [(level, "UnaryUnary", told) for level in ("DEBUG", "DEBUG", "INFO", "INFO")]


async def test_a_server_that_drains_refuses_both(probe: Shouting, channel: grpc.aio.Channel) -> None:
    assert probe.lifecycle is not None
    probe.lifecycle.set_draining(True)
    for word in ("HELLO", "hello"):
        refused = await ask(channel, "UnaryUnary", word)
        assert refused.detail(error_details_pb2.ErrorInfo).reason == "DRAINING"
    assert probe.shouts.asked == []


def test_a_message_that_comes_while_it_drains_is_left_to_the_guard() -> None:
    shouts, metrics = Shouts(), ServiceMetrics("tandem-probe").method("s", "m")
    refusing = AnsweredAtOnce("/s/m", shouts, metrics, draining, lambda context, metadata: "")
    assert refusing.answer(b"\x0a\x05HELLO", None) is None  # type: ignore[arg-type]
    assert shouts.asked == []


async def test_a_fault_in_it_is_logged_and_the_handler_answers(
    channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await ask(channel, "UnaryUnary", "CRASH")).words == ["CRASH"]
    assert [record.levelno for record in caplog.records if "answered at once" in record.message] == [logging.ERROR]


async def test_where_spans_are_made_handlers_answer(
    probe: Shouting, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.common.at_once.is_tracing", lambda: True)
    assert not tracing.is_tracing()
    assert (await ask(channel, "UnaryUnary", "HELLO")).words == ["HELLO"]
    assert probe.shouts.asked == []

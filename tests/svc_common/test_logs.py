"""Log lines are whole, say who and when, and cannot be forged by what they report."""

from __future__ import annotations

import json
import logging
import math
import sys
from datetime import datetime

import grpc
import grpc.aio
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.common.logs import HumanFormatter, JsonFormatter, configure_logging, request_id_var, trace_id_var
from tests.svc_common.probe_service import ProbeService


def record(message: str, *args: object, error: BaseException | None = None, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "a.b", "levelno": logging.WARNING, "levelname": "WARNING", "msg": message})
    made.args = args
    if error is not None:
        made.exc_info = (type(error), error, error.__traceback__)
    vars(made).update(extra)
    return made


def as_json(made: logging.LogRecord) -> dict[str, object]:
    line = JsonFormatter("tandem-probe").format(made)
    assert "\n" not in line
    parsed: dict[str, object] = json.loads(line)
    return parsed


def test_a_json_line_has_its_fields() -> None:
    tokens = request_id_var.set("req"), trace_id_var.set("trace")
    try:
        line = as_json(record("%d tokens", 3, model="llama"))
    finally:
        request_id_var.reset(tokens[0])
        trace_id_var.reset(tokens[1])
    stamp = str(line.pop("ts"))
    assert datetime.fromisoformat(stamp).tzinfo is not None and stamp.endswith("Z")
    assert line == {
        "level": "warning",
        "service": "tandem-probe",
        "logger": "a.b",
        "message": "3 tokens",
        "request_id": "req",
        "trace_id": "trace",
        "model": "llama",
    }


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, {1, 2}, {1: [math.nan, (object(),)]}, object(), b"\xff", "\ud800", "line\nbreak \u2028"],
)
def test_any_extra_value_gives_one_valid_json_line(value: object) -> None:
    assert "extra" in as_json(record("m", extra=value))


def test_what_json_has_is_written_as_json() -> None:
    extra = {"settings": {"threads": 2, "names": ("a", "b"), "model": None}}
    assert as_json(record("m", extra=extra))["extra"] == {
        "settings": {"threads": 2, "names": ["a", "b"], "model": None}
    }


async def test_each_request_has_one_line_and_probes_are_not_told(
    channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="tandem.common.access")
    say = channel.unary_unary(f"/{ProbeService.name}/UnaryUnary", StringValue.SerializeToString, StringValue.FromString)
    await say(StringValue(value="hello"), metadata=[("x-request-id", "mine")])
    with pytest.raises(grpc.aio.AioRpcError):
        await say(StringValue(value="internal"))
    await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    lines = [vars(line) for line in caplog.records if line.name == "tandem.common.access" and line.msg != "Check"]
    assert [(line["msg"], line["code"]) for line in lines] == [("UnaryUnary", "OK"), ("UnaryUnary", "INTERNAL")]
    assert all(line["caller"] == "address:ipv4:127.0.0.1" and line["milliseconds"] >= 0 for line in lines)
    assert all("hello" not in str(line) for line in lines)
    assert lines[1]["levelname"] == "INFO", "what fails is told"
    probes = [line.levelname for line in caplog.records if line.name == "tandem.common.access" and line.msg == "Check"]
    assert probes == ["DEBUG"]


def test_an_extra_field_cannot_replace_one_of_ours() -> None:
    line = as_json(record("m", service="forged", level="forged"))
    assert (line["service"], line["extra_service"]) == ("tandem-probe", "forged")


def test_the_words_of_an_exception_are_cut_and_its_frames_are_not() -> None:
    try:
        raise ValueError("prompt " * 1000)
    except ValueError as error:
        text = str(as_json(record("failed", error=error))["exception"])
    assert "test_logs.py" in text
    assert len(text) < 1500 and "(7000 characters)" in text


def test_a_line_break_in_a_message_does_not_begin_a_new_human_line() -> None:
    line = HumanFormatter().format(record("user %s", "x\n12:00:00.000 error forged: all is lost"))
    assert all(each.startswith("    ") for each in line.splitlines()[1:])


@pytest.mark.parametrize(
    "part", ["x\n12:00:00.000 error forged", "\x1b[2J", "a\rb", "\0", "\u2028y", "\x9b0m", "\ud800"]
)
def test_nothing_that_a_caller_chose_begins_a_human_line_or_steers_a_terminal(part: str) -> None:
    told = HumanFormatter().format(record(part, error=ValueError(part), id=part))
    lines = told.split("\n")
    assert all(each.startswith("    ") for each in lines[1:])
    assert all(each.isprintable() for each in lines)


def test_a_human_line_shows_ids_and_extras() -> None:
    token = request_id_var.set("req")
    try:
        line = HumanFormatter().format(record("m", model="llama"))
    finally:
        request_id_var.reset(token)
    assert line.endswith("warning a.b: m (model=llama, request_id=req)")


@pytest.fixture
def root_logger() -> object:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def test_configuring_twice_prints_once(root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("json", "debug", "tandem-probe")
    configure_logging("human", "INFO", "tandem-probe")
    logging.getLogger("x").info("hello")
    logging.getLogger("x").debug("too fine")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].endswith("x: hello")
    assert sys.stdout is not sys.stderr


def test_at_debug_only_our_own_lines_are_fine_grained(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("human", "debug", "tandem-probe")
    logging.getLogger("grpc._cython.cygrpc").debug("loaded running loop")
    logging.getLogger("asyncio").debug("using selector")
    logging.getLogger("grpc._cython.cygrpc").error("a fault")
    logging.getLogger("tandem.worker").debug("ours")
    told = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[2] for line in told] == ["a fault", "ours"]

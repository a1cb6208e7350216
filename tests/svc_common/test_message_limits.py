"""Counting what a message holds, in C and in Python, against protobuf's own parser; and what a server does with it."""

from __future__ import annotations

import asyncio
import ctypes
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2
from hypothesis import given
from hypothesis import strategies as st

from tandem.common import message_limits
from tandem.common.message_limits import Limit, MalformedMessageError, MessageLimits
from tandem.common.run_service import run_in_loop
from tandem.common.settings import ServiceSettings
from tandem.inference.v1 import inference_pb2
from tandem.tokenizer.v1 import tokenizer_pb2
from tests.svc_common.probe_client import ask, health_of, open_call, outcome, sample
from tests.svc_common.probe_service import LONGEST, NAME, ProbeService


class _Everything(dict[str, Limit]):
    """Every field may have one element of one byte."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Limit:
        return Limit(1, 1)


REQUESTS: list[type[Message]] = [
    inference_pb2.GenerateRequest,
    tokenizer_pb2.BatchEncodeRequest,
    tokenizer_pb2.DecodeStreamRequest,
    tokenizer_pb2.EncodeChatRequest,
]


@pytest.fixture(params=["C", "Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "Python":
        monkeypatch.setattr(message_limits, "library", lambda: None)
    elif message_limits.library() is None:
        pytest.skip("no C compiler")
    return str(request.param)


def told(limits: MessageLimits, message: Message) -> dict[str, str]:
    return {each.field: each.description for each in limits.violations(message.SerializeToString())}


def test_elements_and_bytes_are_counted_over_the_whole_message(way: str) -> None:
    limits = MessageLimits(inference_pb2.GenerateRequest.DESCRIPTOR, _Everything())
    request = inference_pb2.GenerateRequest(prompt_ids=[1, 300, 70_000], request_id="abc", model="m")
    request.stopping.stop_sequences.extend([inference_pb2.TokenSequence(ids=[1, 2]), inference_pb2.TokenSequence()])
    assert told(limits, request) == {
        "request_id": "has 3 bytes; at most 1 are allowed",
        "prompt_ids": "has 3 entries in all; at most 1 are allowed",
        "stopping.stop_sequences": "has 2 entries in all; at most 1 are allowed",
        "stopping.stop_sequences.ids": "has 2 entries in all; at most 1 are allowed",
    }


def test_levels_of_a_message_within_itself_are_counted_together(way: str) -> None:
    limits = MessageLimits(tokenizer_pb2.DecodeStreamRequest.DESCRIPTOR, _Everything())
    inner = tokenizer_pb2.DecodeStreamRequest(ids=[1])
    outer = tokenizer_pb2.DecodeStreamRequest(ids=[1], batch=[tokenizer_pb2.DecodeStreamRequest(batch=[inner])])
    assert set(told(limits, outer)) == {"ids", "batch"}


@given(st.lists(st.sampled_from([0, 127, 128, 300, 70_000, 2**32 - 1]), min_size=1, max_size=3), st.integers(2, 9000))
def test_however_many_numbers_are_packed_and_of_whatever_widths_all_are_counted(widths: list[int], count: int) -> None:
    limits = MessageLimits(inference_pb2.GenerateRequest.DESCRIPTOR, _Everything())
    ids = (widths * count)[:count]
    assert told(limits, inference_pb2.GenerateRequest(prompt_ids=ids)) == {
        "prompt_ids": f"has {len(ids)} entries in all; at most 1 are allowed"
    }


def test_unpacked_numbers_count_as_packed_ones_do(way: str) -> None:
    limits = MessageLimits(inference_pb2.GenerateRequest.DESCRIPTOR, _Everything())
    [violation] = limits.violations(b"\x18\x05" * 3)
    assert (violation.field, violation.description[:13]) == ("prompt_ids", "has 3 entries")


def test_fields_that_nobody_knows_have_a_limit_too(way: str) -> None:
    limits = MessageLimits(inference_pb2.GenerateRequest.DESCRIPTOR, _Everything())
    assert not limits.violations(b"\xf8\x7f\x01" * message_limits.MAX_FIELDS)
    [violation] = limits.violations(b"\xf8\x7f\x01" * (message_limits.MAX_FIELDS + 1))
    assert violation.field == "request"


@given(st.data())
def test_both_ways_agree_on_any_bytes_and_refuse_no_message_that_protobuf_parses(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(REQUESTS))
    limits = MessageLimits(kind.DESCRIPTOR, _Everything())
    piece = st.sampled_from([b"\x0a", b"\x12", b"\x18", b"\x22", b"\x2a", b"\x00", b"\x01", b"\x02", b"\x05", b"\xff"])
    raw = b"".join(data.draw(st.lists(piece | st.binary(max_size=4), max_size=40)))

    def look() -> object:
        try:
            return limits.violations(raw)
        except MalformedMessageError:
            return "malformed"

    with pytest.MonkeyPatch.context() as patch:
        in_c = look()
        patch.setattr(message_limits, "library", lambda: None)
        assert look() == in_c
    try:
        kind.FromString(raw)
    except DecodeError:
        return
    groups = any(byte & 7 in (3, 4) for byte in raw)  # protobuf skips unknown groups; no message of ours has any
    assert in_c != "malformed" or groups


@pytest.fixture
async def small() -> AsyncIterator[Any]:
    service = ProbeService()
    settings = ServiceSettings(metrics_enabled=False, max_message_bytes=LONGEST + (1 << 20), max_concurrent_calls=8)
    async with run_in_loop(service, settings) as address, grpc.aio.insecure_channel(address) as channel:
        yield service, channel


@pytest.mark.parametrize("kind", ["UnaryUnary", "UnaryStream", "StreamUnary", "StreamStream"])
async def test_a_large_message_with_too_much_is_refused_by_field(kind: str, small: Any) -> None:
    answer = await ask(small[1], kind, "x" * (LONGEST + 1))
    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
    [violation] = answer.detail(error_details_pb2.BadRequest).field_violations
    assert violation.field == "value"
    assert (await ask(small[1], kind, "y" * 100_000)).words == ["y" * 100_000]


async def test_a_method_without_limits_takes_no_large_message(small: Any) -> None:
    answer = await ask(small[1], "UnaryUnary", "x" * 100_000, service="probe.v1.ProbeAdminService")
    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_calls_beyond_the_bound_are_refused_with_advice_and_counted_while_health_answers(small: Any) -> None:
    service, channel = small
    held = [open_call(channel, "UnaryUnary", ["wait"], timeout=60) for _ in range(8)]
    async with asyncio.timeout(60):
        labels = {"grpc_service": NAME, "grpc_method": "UnaryUnary"}
        while sample(service.metrics.registry, "tandem_grpc_server_in_flight", **labels) < 8:  # noqa: ASYNC110
            await asyncio.sleep(0)
    refused = await ask(channel, "UnaryUnary", "x")
    assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.detail(error_details_pb2.ErrorInfo).reason == "TOO_MANY_CALLS"
    assert float(refused.trailers["grpc-retry-pushback-ms"]) > 0
    assert sample(service.metrics.registry, "tandem_grpc_server_too_many_calls_total") == 1
    assert await health_of(channel, "") == "SERVING"
    assert (await ask(channel, "Reachable", "fine")).words == ["fine"]
    service.release.set()
    assert {(await outcome(each)).code for each in held} == {grpc.StatusCode.OK}
    assert (await ask(channel, "UnaryUnary", "fine")).words == ["fine"]


async def test_a_burst_of_thousands_is_served_and_none_of_it_cancelled(channel: grpc.aio.Channel) -> None:
    answers = await asyncio.gather(*(ask(channel, "UnaryUnary", "x", timeout=120) for _ in range(3000)))
    assert Counter(each.code for each in answers) == {grpc.StatusCode.OK: 3000}


def test_the_compiled_function_is_the_one_that_counts() -> None:
    """A machine with a compiler must not fall back to Python in silence."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler")
    assert isinstance(message_limits.library(), ctypes.CDLL)

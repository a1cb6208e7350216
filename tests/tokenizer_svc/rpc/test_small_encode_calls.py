"""Small Encode requests over the wire: answered at once as by the long way, which all texts go where none is inline."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.common.logs import request_id_var
from tandem.tokenizer.native.library import library
from tandem.tokenizer.rpc.small_encode_calls import SmallEncodeCalls
from tandem.tokenizer.rpc.small_encodes import LONGEST
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tests.tokenizer_svc.rpc.test_small_encodes import hostile

METHOD = "/tandem.tokenizer.v1.TokenizerService/Encode"


@pytest.fixture(autouse=True)
def _compiled() -> None:
    if library() is None:
        pytest.skip("no C compiler")


def asked(text: str, tokenizer: str = "", **fields: Any) -> bytes:
    message = pb.EncodeInput(segments=[pb.TextSegment(text=text)], **fields)
    return pb.EncodeRequest(tokenizer=tokenizer, input=message).SerializeToString()


REQUESTS = [
    asked("The quick brown fox"),
    asked("The quick brown fox", "llama3"),
    asked("The quick brown fox", "small"),
    asked("The quick brown fox", "no such"),
    asked("The quick brown fox", "n" * 200),
    asked("no BOS", add_special=False),
    asked("Grüße, 龘 \U0001f600"),
    asked("<|eot_id|>"),
    asked("a" * LONGEST),
    asked("a" * (LONGEST + 1)),
    asked("a" * 100_000),
    asked(""),
    asked("cut", truncation=pb.Truncation(max_tokens=1)),
    pb.EncodeRequest().SerializeToString(),
    pb.EncodeRequest(input=pb.EncodeInput()).SerializeToString(),
    pb.EncodeRequest(input=pb.EncodeInput(segments=[pb.TextSegment(text=word) for word in "ab"])).SerializeToString(),
    pb.EncodeRequest.FromString(asked("offsets")).SerializeToString() + b"\x18\x01",
    asked("text")[:-2],
    b"\x0a",
    b"\x0a\x80",
    b"\x0a\x01\xff" + asked("a name that is no UTF-8"),
    b"\x12\x05\x0a\x03\x0a\x01\xff",
    *(asked("the name behind it") + name for name in (b"\x0a\x06llama3", b"\x0a\x05small")),
    *(name + asked("an empty name") for name in (b"\x0a\x00", b"\x0a\x80\x00")),
]


async def outcome(channel: grpc.aio.Channel, request: bytes) -> tuple[object, ...]:
    """All that a client learns, but for ids that are made for the request."""
    call: Any = channel.unary_unary(METHOD)(request, metadata=(("x-request-id", "mine"),))
    try:
        answer = await call
    except grpc.aio.AioRpcError:
        answer = None
    return answer, await call.code(), await call.details(), tuple(await call.trailing_metadata())


def counted(service: Any) -> set[tuple[str, tuple[tuple[str, str], ...], float]]:
    """What the metrics tell of calls and of texts."""
    families = service.metrics.registry.collect()
    return {
        (sample.name, tuple(sorted(sample.labels.items())), sample.value)
        for family in families
        if family.name.startswith(("tandem_tokenizer_encoded", "tandem_tokenizer_input", "tandem_grpc_server_handled"))
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


async def both(start_service: Any, shared_data: Path) -> Sequence[Any]:
    names = (f"{shared_data}/formats/llama3", f"small={shared_data}/models/stories260K/meta")
    return [await start_service(tokenizer=names, inline_bytes=size) for size in (4096, 0)]


async def test_answers_errors_and_metrics_are_those_of_the_long_way(start_service: Any, shared_data: Path) -> None:
    quick, long = await both(start_service, shared_data)
    for request in REQUESTS:
        assert await outcome(quick.channel, request) == await outcome(long.channel, request), request[:60]
        assert counted(quick.service) == counted(long.service), request[:60]


async def test_it_is_really_this_way_that_answers(start_service: Any, shared_data: Path) -> None:
    for running, expected in zip(await both(start_service, shared_data), (True, False), strict=True):
        calls: SmallEncodeCalls = running.service.at_once[METHOD]
        for request in REQUESTS[:3]:
            assert (calls.answer(request) is not None) == expected


async def test_the_line_in_the_log_has_the_same_facts(
    start_service: Any, shared_data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="tandem.common.access")
    ids: list[str] = []
    caplog.handler.addFilter(lambda record: ids.append(request_id_var.get()) is None)
    for running in await both(start_service, shared_data):
        for request in (REQUESTS[0], REQUESTS[2]):
            await outcome(running.channel, request)
    lines = [vars(record) for record in caplog.records if record.name == "tandem.common.access"]
    told = [(line["msg"], line["code"], line["caller"], line["tokenizer"], line["tokens"]) for line in lines]
    assert told[:2] == told[2:]
    assert told[0] == ("Encode", "OK", "address:ipv4:127.0.0.1", "llama3", 5)
    assert set(ids) == {"mine"}


async def test_random_requests_have_the_same_outcome(start_service: Any, shared_data: Path) -> None:
    quick, long = await both(start_service, shared_data)
    loop = asyncio.get_running_loop()

    @given(
        st.lists(
            hostile() | st.builds(asked, st.text(max_size=30), st.sampled_from(["", "small", "llama3"])),
            min_size=1,
            max_size=5,
        )
    )
    def compare(requests: list[bytes]) -> None:
        async def outcomes(running: Any) -> list[tuple[object, ...]]:
            return [await outcome(running.channel, request) for request in requests]

        found = [asyncio.run_coroutine_threadsafe(outcomes(running), loop).result() for running in (quick, long)]
        assert found[0] == found[1]

    await asyncio.to_thread(compare)
    assert counted(quick.service) == counted(long.service)

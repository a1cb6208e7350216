"""Inputs that are meant to hold a tokenizer service up. Each function makes its calls and returns how many there were
of each status; none of them may take the service, or another caller's time, with it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio

from tandem.tokenizer.v1 import tokenizer_pb2 as pb

Stub = Any  # a TokenizerServiceStub of grpc.aio
Statuses = Counter[grpc.StatusCode]
AT_ONCE = 2
STREAMS = 10_000

ENDLESS_LOOP = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}"
    "{% endfor %}"
)


def text_input(text: str) -> pb.EncodeInput:
    return pb.EncodeInput(segments=[pb.TextSegment(text=text)])


async def statuses(calls: Iterable[Awaitable[Any]]) -> Statuses:
    """How the calls end."""
    found: Statuses = Counter()
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(outcome, grpc.aio.AioRpcError):
            found[outcome.code()] += 1
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            found[grpc.StatusCode.OK] += 1
    return found


async def encode(stub: Stub, text: str, **wanted: bool) -> Statuses:
    request = pb.EncodeRequest(input=text_input(text), **wanted)
    return await statuses(stub.Encode(request) for _ in range(AT_ONCE))


async def spaces_and_a_letter(stub: Stub) -> Statuses:
    return await encode(stub, " " * 2_000_000 + "a")


async def equal_characters(stub: Stub) -> Statuses:
    return await encode(stub, "a" * 1_000_000)


async def equal_characters_with_offsets(stub: Stub) -> Statuses:
    return await encode(stub, "é" * 1_000_000, include_offsets=True)


async def a_large_batch(stub: Stub) -> Statuses:
    request = pb.BatchEncodeRequest(inputs=[text_input("Some words, 123!\n" * 50)] * 4000)
    return await statuses(stub.BatchEncode(request) for _ in range(AT_ONCE))


async def endless_templates(stub: Stub) -> Statuses:
    request = pb.EncodeChatRequest(messages=[pb.ChatMessage(role="user")], chat_template=ENDLESS_LOOP)
    return await statuses(stub.EncodeChat(request) for _ in range(AT_ONCE))


async def a_request_of_100_mb(stub: Stub) -> Statuses:
    return await statuses([stub.Encode(pb.EncodeRequest(input=text_input("x" * 100_000_000)))])


async def many_ids(stub: Stub) -> Statuses:
    request = pb.DecodeRequest(input=pb.DecodeInput(ids=[300] * 1_000_000))
    return await statuses(stub.Decode(request) for _ in range(AT_ONCE))


async def ten_thousand_streams(stub: Stub) -> Statuses:
    """All open at once, in a few calls; each gets some ids, then all are left without an end."""
    share = STREAMS // AT_ONCE

    async def one() -> None:
        call = stub.DecodeStream()

        async def ask() -> None:
            opening = pb.DecodeStreamOpen(stop_strings=["never"])
            for key in range(share):
                await call.write(pb.DecodeStreamRequest(stream_key=str(key), open=opening, ids=[300] * 64))
            await call.done_writing()

        asking = asyncio.create_task(ask())
        received = 0
        async for _ in call:
            received += 1
        await asking
        assert received == share

    return await statuses(one() for _ in range(AT_ONCE))


KINDS: dict[str, Callable[[Stub], Awaitable[Statuses]]] = {
    "two million spaces and a letter": spaces_and_a_letter,
    "a million equal characters": equal_characters,
    "a million equal characters with offsets": equal_characters_with_offsets,
    "4,000 texts in a batch": a_large_batch,
    "endless templates": endless_templates,
    "a request of 100 MB": a_request_of_100_mb,
    "a million ids": many_ids,
    "10,000 open streams": ten_thousand_streams,
}

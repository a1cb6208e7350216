"""One call between the engine's steps and the readers of many requests."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from functools import partial

import pytest

from tandem.common.errors import ServiceError
from tandem.inference.v1 import inference_pb2 as pb
from tandem.worker.front import shared_deltas
from tandem.worker.front.shared_deltas import DeltaCall, DeltaCalls, request_number
from tandem.worker.front.streams import OutputStream, Tokens
from tandem.worker.front.validation import Delivery
from tests.worker_svc.front.test_streams import ended


def fill(delta: pb.Delta, stream: OutputStream, tokens: Tokens) -> None:
    delta.ids.extend(tokens.ids)


def carried(call: DeltaCall, count: int) -> list[OutputStream]:
    """So many outputs of as many requests, named by their number."""
    streams = [OutputStream(number, Delivery(1, None)) for number in range(count)]
    for stream in streams:
        call.carry(stream, str(stream.number), fill)
    return streams


def step(streams: list[OutputStream], token: int) -> None:
    for stream in streams:
        stream.push(token, 0.0, time.monotonic())


def told(message: pb.StreamDeltasResponse) -> dict[str, list[int]]:
    assert len({each.request_id for each in message.deltas}) == len(message.deltas)
    return {each.request_id: list(each.delta.ids) for each in message.deltas}


async def test_what_a_step_brings_is_one_message_and_what_piles_up_too():
    counts: list[int] = []
    call = DeltaCall(counts.append)
    messages = call.messages()
    streams = carried(call, 3)
    step(streams, 7)
    assert told(await anext(messages)) == {"0": [7], "1": [7], "2": [7]}
    for token in range(5):
        step(streams[:2], token)
    step(streams[2:], 9)
    assert told(await anext(messages)) == {"0": [0, 1, 2, 3, 4], "1": [0, 1, 2, 3, 4], "2": [9]}
    assert counts == [3, 3]
    waiting = asyncio.ensure_future(anext(messages))
    await asyncio.sleep(0)
    assert not waiting.done(), "no message without tokens"
    step(streams[1:2], 1)
    assert told(await waiting) == {"1": [1]}


async def test_ids_of_numbered_outputs_are_one_array():
    counts: list[int] = []
    begun: list[int] = []
    call = DeltaCall(counts.append)
    messages = call.messages()
    streams = [OutputStream(number, Delivery(1, None, scored=False)) for number in range(3)]
    for stream in streams:
        call.carry_ids(stream, 10 + stream.number, partial(begun.append, stream.number))
    (named,) = carried(call, 1)
    step(streams, 7)
    step([named], 8)
    message = await anext(messages)
    assert (list(message.numbers), list(message.counts), list(message.ids)) == ([10, 11, 12], [], [7, 7, 7])
    assert told(message) == {"0": [8]}
    step(streams[1:], 1)
    step(streams[1:], 2)
    streams[1].hold(1)
    streams[2].end(ended(trim=1))
    message = await anext(messages)
    assert (list(message.numbers), list(message.counts), list(message.ids)) == ([11, 12], [], [1, 1])
    streams[1].end(ended())
    step(streams[:1], 3)
    step(streams[:1], 4)
    message = await anext(messages)
    assert (list(message.numbers), list(message.counts), list(message.ids)) == ([11, 10], [1, 2], [2, 3, 4])
    assert begun == [0, 1, 2]
    assert counts == [4, 2, 2]
    assert [stream.sent for stream in streams] == [3, 3, 2]
    call.leave(streams[0])
    call.fail()
    assert [stream.error is None for stream in streams] == [True, False, False]


@pytest.mark.parametrize(
    ("told", "number"),
    [("0", 0), ("12", 12), ("2147483647", 2**31 - 1)]
    + [(text, None) for text in ("", "-1", "2147483648", "1e3", "x", "١", "0" * 11, "9" * 5000)],
)
def test_a_number_is_decimal_and_below_two_to_the_31(told: str, number: int | None):
    assert request_number(told) == number


async def test_a_message_takes_no_further_output_when_it_is_long():
    call = DeltaCall(lambda count: None)
    streams = carried(call, 3)
    for _ in range(shared_deltas.MESSAGE_TOKENS):
        step(streams[:2], 1)
    step(streams[2:], 1)
    messages = call.messages()
    assert [list(told(await anext(messages))) for _ in range(2)] == [["0"], ["1"]]
    assert told(await anext(messages)) == {"2": [1]}


async def test_a_request_is_due_when_its_last_token_was_taken_and_what_is_held_back_is_not():
    call = DeltaCall(lambda count: None)
    messages = call.messages()
    (stream,) = carried(call, 1)
    due = asyncio.ensure_future(stream.ready())
    step([stream], 1)
    step([stream], 2)
    stream.hold(1)
    assert told(await anext(messages)) == {"0": [1]}
    step([stream], 3)
    stream.hold(2)
    waiting = asyncio.ensure_future(anext(messages))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done() and not due.done()
    stream.end(ended(trim=1))
    await asyncio.sleep(0)
    assert told(await waiting) == {"0": [2]}
    await due
    assert (stream.sent, stream.pending) == (2, 0)


async def test_an_end_without_further_tokens_is_due_at_once():
    call = DeltaCall(lambda count: None)
    (stream,) = carried(call, 1)
    step([stream], 1)
    await anext(call.messages())
    stream.end(ended())
    await stream.ready()
    assert (stream.sent, stream.pending) == (1, 0)


async def test_requests_whose_call_ends_too_soon_fail_and_those_that_have_ended_do_not():
    calls = DeltaCalls(lambda count: None)
    with calls.opened("me", "key") as call:
        streams = carried(call, 3)
        step(streams, 1)
        await anext(call.messages())
        streams[0].end(ended())
        streams[0].told = True
        call.leave(streams[1])
    assert [stream.error is None for stream in streams] == [True, True, False]
    with pytest.raises(ServiceError) as caught:
        await streams[2].ready()
    assert (caught.value.code.name, caught.value.reason) == ("UNAVAILABLE", "DELTAS_LOST")
    assert calls.find("me", "key") is None


async def test_what_is_pending_of_a_request_that_failed_is_not_sent():
    call = DeltaCall(lambda count: None)
    streams = carried(call, 2)
    step(streams, 1)
    streams[0].fail(ServiceError(code=shared_deltas.unavailable("", reason="").code, message="", reason=""))
    assert told(await anext(call.messages())) == {"1": [1]}


def test_a_call_is_its_callers_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_deltas, "MOST_CALLS", 2)
    calls = DeltaCalls(lambda count: None)
    with ExitStack() as stack:
        call = stack.enter_context(calls.opened("me", "key"))
        assert calls.find("me", "key") is call
        assert calls.find("you", "key") is None
        assert calls.find("me", "") is None
        with pytest.raises(ServiceError, match="ALREADY_EXISTS"):
            stack.enter_context(calls.opened("me", "key"))
        stack.enter_context(calls.opened("you", "key"))
        with pytest.raises(ServiceError, match="RESOURCE_EXHAUSTED"):
            stack.enter_context(calls.opened("them", "key"))
    with calls.opened("me", "key") as call:
        assert calls.find("me", "key") is call

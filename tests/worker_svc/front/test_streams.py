"""One stream between the engine's steps and a reader of any speed."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from tandem.common.errors import ServiceError, unavailable
from tandem.worker.engine.account import FinishReason
from tandem.worker.engine.ends import End
from tandem.worker.engine.engine import Finish
from tandem.worker.engine.process.messages import Ended
from tandem.worker.front.streams import OutputStream, best_outputs
from tandem.worker.front.validation import Delivery
from tests.worker_svc.engine.counting import counting_request


def ended(trim: int = 0) -> Ended:
    request = counting_request(1, 0, 3, 3)
    return Ended.of(Finish.of(request, End(FinishReason.MAX_TOKENS, trim=trim)))


ENDED = ended()


def stream(interval: int = 1, delay: float | None = None) -> OutputStream:
    return OutputStream(1, Delivery(interval, delay))


async def test_what_piles_up_goes_out_as_one_message():
    output = stream()
    for token in range(100_000):
        output.push(token, 0.0, time.monotonic())
    await output.ready()
    taken = output.take()
    ids, logprobs = taken.ids, taken.logprobs
    assert ids == list(range(100_000))
    assert len(logprobs) == len(ids)
    assert output.pending == 0


async def test_a_message_has_no_more_than_fit_into_it():
    output = OutputStream(1, Delivery(1, None, most_tokens=2))
    for token in range(5):
        output.push(token, 0.0, time.monotonic(), whole=bytes([token]))
    output.hold(1)
    taken = []
    while output.pending > 1:
        await output.ready()
        tokens = output.take()
        assert tokens.whole == [bytes([token]) for token in tokens.ids]
        taken.append(tokens.ids)
    assert taken == [[0, 1], [2, 3]]
    output.end(ended(trim=1))
    assert (output.take().whole, output.pending) == ([], 0)


def test_the_total_logprob_is_the_same_bits_however_an_output_is_cut():
    logprobs = (-np.exp(np.random.default_rng(1).normal(-8, 6, 400))).astype(np.float32).tolist()
    totals = []
    for size in (1, 3, 7, 400):
        output = stream()
        for place, logprob in enumerate(logprobs, 1):
            output.push(5, logprob, 0.0)
            if place % size == 0:
                output.take()
        output.take()
        totals.append(output.total_logprob)
    assert totals == [totals[0]] * len(totals)


async def test_a_reader_wakes_for_the_interval_it_asked_for_and_not_before():
    output = stream(interval=3)
    reader = asyncio.create_task(output.ready())
    for token in range(2):
        output.push(token, 0.0, time.monotonic())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not reader.done()
    output.push(2, 0.0, time.monotonic())
    await reader
    assert output.take().ids == [0, 1, 2]


async def test_the_end_wakes_whatever_is_missing():
    output = stream(interval=100)
    reader = asyncio.create_task(output.ready())
    output.push(7, 0.0, time.monotonic())
    output.end(ENDED)
    await reader
    assert output.take().ids == [7]
    assert output.ended is ENDED


async def test_a_token_that_has_waited_long_enough_goes_alone():
    output = stream(interval=100, delay=0.5)
    output.push(7, 0.0, time.monotonic() - 1.0)
    await output.ready()
    assert output.take().ids == [7]


async def test_a_delay_begins_with_the_first_token_not_with_the_wait():
    output = stream(interval=100, delay=0.0)
    reader = asyncio.create_task(output.ready())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not reader.done()
    output.push(7, 0.0, time.monotonic())
    await reader


async def test_a_failure_reaches_the_reader():
    output = stream()
    reader = asyncio.create_task(output.ready())
    await asyncio.sleep(0)
    output.fail(unavailable("gone", reason="ENGINE_DIED"))
    with pytest.raises(ServiceError, match="gone"):
        await reader
    assert output.over


async def test_held_tokens_wait_and_trimmed_ones_are_never_sent():
    output = stream()
    for token in range(5):
        output.push(token, -1.0, time.monotonic())
    output.hold(2)
    await output.ready()
    assert output.take().ids == [0, 1, 2]
    waiting = asyncio.create_task(output.ready())
    await asyncio.sleep(0)
    assert not waiting.done()
    output.push(5, -1.0, time.monotonic())
    output.end(ended(trim=3))
    await waiting
    assert output.take().ids == []
    assert output.pending == 0
    assert output.sent == 3


async def test_outputs_are_ranked_by_total_logprob_over_a_power_of_their_length():
    wake = asyncio.Event()
    outputs = [OutputStream(number, Delivery(1, None), wake=wake) for number in range(4)]
    for output, logprobs in zip(outputs, [[-1.0, -1.0, -1.0], [-1.5], [], [-0.5, -1.9]], strict=True):
        for logprob in logprobs:
            output.push(7, logprob, 0.0)
    waiting = asyncio.create_task(best_outputs(outputs, 3, 1.0))
    for output in outputs:
        await asyncio.sleep(0)
        assert not waiting.done()
        output.end(ENDED)
    # Means: -1, -1.5, (empty), -1.2. Totals: -3, -1.5, (empty), -2.4.
    assert [output.number for output in await waiting] == [0, 3, 1]
    assert [output.number for output in await best_outputs(outputs, 4, 0.0)] == [1, 3, 0, 2]

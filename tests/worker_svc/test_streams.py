"""One stream between the engine's steps and a reader of any speed."""

from __future__ import annotations

import asyncio
import time

import pytest

from svc_common.errors import ServiceError, unavailable
from worker_svc.engine.messages import Ended
from worker_svc.streams import OutputStream
from worker_svc.validation import Delivery

ENDED = Ended(1, 1, None, 0, 1, 0, 1, 0.0, 0.0, 0.0, 0.0, "")


def stream(interval: int = 1, delay: float | None = None) -> OutputStream:
    return OutputStream(1, Delivery(interval, delay))


async def test_what_piles_up_goes_out_as_one_message():
    output = stream()
    for token in range(100_000):
        output.push(token, 0.0, time.monotonic())
    await output.ready()
    ids, logprobs = output.take()
    assert ids == list(range(100_000))
    assert len(logprobs) == len(ids)
    assert output.pending == 0


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
    assert output.take()[0] == [0, 1, 2]


async def test_the_end_wakes_whatever_is_missing():
    output = stream(interval=100)
    reader = asyncio.create_task(output.ready())
    output.push(7, 0.0, time.monotonic())
    output.end(ENDED)
    await reader
    assert output.take()[0] == [7]
    assert output.ended is ENDED


async def test_a_token_that_has_waited_long_enough_goes_alone():
    output = stream(interval=100, delay=0.5)
    output.push(7, 0.0, time.monotonic() - 1.0)
    await output.ready()
    assert output.take()[0] == [7]


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

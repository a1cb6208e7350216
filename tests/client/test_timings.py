"""What an answer's timings add up to, whatever it was asked with."""

from __future__ import annotations

import asyncio
import time
from itertools import product
from typing import Any

import pytest

from tandem.client import AsyncClient, Timings
from tests.client.counting_worker import CountingWorker

OPTIONS: list[dict[str, Any]] = [
    {"echo": echo, "stop": stop, "n": n, "graphemes": graphemes}
    for echo, stop, n, graphemes in product((False, True), ((), "re ", "never"), (1, 3), (False, True))
] + [{"detokenize": False}, {"max_tokens": 1, "echo": True}, {"max_tokens": 1}]


def check(timings: Timings) -> None:
    parts = [timings.encode_seconds, timings.decode_seconds]
    assert all(part is None or part >= 0 for part in (*parts, timings.time_to_first_token))
    assert sum(part for part in parts if part is not None) <= timings.total_seconds
    assert timings.time_to_first_token is not None
    assert (timings.encode_seconds or 0) <= timings.time_to_first_token <= timings.total_seconds
    worker = (timings.worker_queue_seconds, timings.worker_prefill_seconds, timings.worker_decode_seconds)
    if timings.worker_total_seconds is not None:
        assert sum(part or 0 for part in worker) <= timings.worker_total_seconds + 1e-9


@pytest.mark.parametrize("options", OPTIONS, ids=str)
async def test_no_duration_is_negative_and_parts_are_no_longer_than_the_whole(
    client: AsyncClient, options: dict[str, Any]
) -> None:
    prompt: Any = [5, 6] if options.get("detokenize") is False else "Hi"
    check((await client.generate(prompt, seed=0, **options)).timings)
    async with client.stream(prompt, seed=0, **options) as stream:
        async for _ in stream:
            pass
    check(stream.result.timings)


async def test_an_echo_is_no_first_token(client: AsyncClient, worker: CountingWorker) -> None:
    worker.pause_at = 0
    began = time.monotonic()
    async with client.stream("Hi", seed=0, echo=True) as stream:
        assert (await anext(stream)).text == "Hi"
        await worker.paused.wait()
        echoed = time.monotonic() - began
        worker.go.set()
        async for _ in stream:
            pass
    timings = stream.result.timings
    assert timings.time_to_first_token is not None and timings.time_to_first_token >= echoed - 0.001


async def test_text_that_is_made_at_the_end_counts_its_making_alone(
    client: AsyncClient, worker: CountingWorker
) -> None:
    worker.pause_at = 3
    began = time.monotonic()
    answer = client.generate("Hi", seed=0)
    task = asyncio.ensure_future(answer)
    await worker.paused.wait()
    waited = time.monotonic() - began
    worker.go.set()
    timings = (await task).timings
    assert timings.decode_seconds is not None
    assert timings.decode_seconds <= timings.total_seconds - waited + 0.001

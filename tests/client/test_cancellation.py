"""Whoever leaves, the work at both services ends; deadlines are one budget for all hops."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest

from tandem.client import (
    AsyncClient,
    CancelledError,
    ClientClosedError,
    ConfigurationError,
    DeadlineExceededError,
    ResultNotReadyError,
)
from tests.client.byte_tokenizer import ByteTokenizer
from tests.client.byte_vocabulary import TEXT
from tests.client.counting_worker import CountingWorker

LONGER_AND_LONGER = (0.3, 3, 30)  # seconds: the first chunks of a stream come late on a busy machine


async def _first_chunk(stream) -> None:
    assert (await anext(stream)).text


async def test_leaving_the_block_early_cancels_at_both_services(
    client: AsyncClient, worker: CountingWorker, tokenizer: ByteTokenizer
) -> None:
    worker.pause_at = 5
    async with client.stream("Hi", seed=0) as stream:
        async for _chunk in stream:
            break
    await worker.seen[0].cancelled.wait()
    assert stream.text and TEXT.startswith(stream.text)
    with pytest.raises(CancelledError):
        _ = stream.result
    await tokenizer.all_streams_closed.wait()


async def test_an_exception_in_the_block_cancels(client: AsyncClient, worker: CountingWorker) -> None:
    worker.pause_at = 5
    with pytest.raises(KeyError):  # noqa: PT012
        async with client.stream("Hi", seed=0) as stream:
            await _first_chunk(stream)
            raise KeyError
    await worker.seen[0].cancelled.wait()


async def test_cancelling_the_reading_task_cancels(client: AsyncClient, worker: CountingWorker) -> None:
    worker.pause_at = 5
    started = asyncio.Event()

    async def read() -> None:
        async with client.stream("Hi", seed=0) as stream:
            async for _ in stream:
                started.set()

    task = asyncio.create_task(read())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await worker.seen[0].cancelled.wait()


async def test_cancelling_a_generate_cancels(client: AsyncClient, worker: CountingWorker) -> None:
    worker.pause_at = 5
    task = asyncio.create_task(client.generate("Hi", seed=0))
    await worker.paused.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await worker.seen[0].cancelled.wait()


async def test_cancel_from_elsewhere_wakes_the_reader(client: AsyncClient, worker: CountingWorker) -> None:
    worker.pause_at = 0
    stream = client.stream("Hi", seed=0)
    reader = asyncio.create_task(anext(stream))
    await worker.paused.wait()
    stream.cancel()
    with pytest.raises(CancelledError) as caught:
        await reader
    assert caught.value.service == "client"
    assert caught.value.request_id == stream.request_id
    await worker.seen[0].cancelled.wait()


async def test_a_stream_that_nobody_holds_any_more_is_cancelled(client: AsyncClient, worker: CountingWorker) -> None:
    worker.pause_at = 5
    async for _chunk in client.stream("Hi", seed=0):
        break
    gc.collect()
    assert await worker.seen[0].cancelled.wait()


async def test_a_stream_that_was_never_read_never_calls(client: AsyncClient, worker: CountingWorker) -> None:
    stream = client.stream("Hi")
    with pytest.raises(ResultNotReadyError):
        _ = stream.result
    await stream.close()
    assert stream.text == ""
    assert not worker.seen


async def test_cancel_after_the_end_changes_nothing(client: AsyncClient) -> None:
    stream = client.stream("Hi", seed=0)
    result = await stream.collect()
    stream.cancel()
    await stream.close()
    assert stream.result is result


async def test_the_deadline_ends_a_stream_after_what_came(client: AsyncClient, worker: CountingWorker) -> None:
    worker.pause_at = 5
    for timeout in LONGER_AND_LONGER:
        text = ""
        with pytest.raises(DeadlineExceededError) as caught:  # noqa: PT012
            async with client.stream("Hi", seed=0, timeout=timeout) as stream:
                async for chunk in stream:
                    text += chunk.text
        if text == TEXT[:5]:
            break
    assert text == TEXT[:5]
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.service == "worker", "the tokenizer had nothing to do"
    assert caught.value.message == "the deadline passed while waiting for the worker"
    await worker.seen[0].cancelled.wait()


@pytest.mark.parametrize("stop", [[], ["never"]])
async def test_ids_that_come_at_the_deadline_do_not_blame_the_tokenizer(
    client: AsyncClient, worker: CountingWorker, tokenizer: ByteTokenizer, stop: list[str]
) -> None:
    """Without a stop string nothing is decoded before the end, for which no time is left."""
    worker.pause_at = 5
    for timeout in LONGER_AND_LONGER:
        with pytest.raises(DeadlineExceededError) as caught:
            await client.generate("Hi", seed=0, timeout=timeout, stop=stop)
        if worker.paused.is_set():
            break
    assert (caught.value.service, caught.value.code.name) == ("worker", "DEADLINE_EXCEEDED")
    assert tokenizer.open_streams == 0 or stop


@pytest.mark.parametrize(("patience", "blamed"), [(0.0, "tokenizer"), (1e9, "worker")])
async def test_of_two_that_are_late_the_tokenizer_is_blamed_where_it_was_waited_for_long(
    client: AsyncClient,
    worker: CountingWorker,
    tokenizer: ByteTokenizer,
    monkeypatch: pytest.MonkeyPatch,
    patience: float,
    blamed: str,
) -> None:
    monkeypatch.setattr("tandem.client.decode_calls.STUCK_SECONDS", patience)
    for timeout in LONGER_AND_LONGER:
        worker.pause_at = 5
        stream = client.stream("Hi", seed=0, timeout=timeout, stop=["never"])
        with contextlib.suppress(DeadlineExceededError):
            await _first_chunk(stream)
        before = tokenizer.decode_messages
        tokenizer.hold.clear()
        worker.pause_at = 10
        worker.go.set()
        worker.go = asyncio.Event()
        with pytest.raises(DeadlineExceededError) as caught:
            await stream.collect()
        asked = tokenizer.decode_messages > before
        tokenizer.hold.set()
        if asked:
            break
    assert caught.value.service == blamed


async def test_the_deadline_counts_the_hop_before(
    client: AsyncClient, worker: CountingWorker, tokenizer: ByteTokenizer
) -> None:
    tokenizer.hold.clear()
    with pytest.raises(DeadlineExceededError) as caught:
        await client.generate("Hi", timeout=0.2)
    assert caught.value.service == "tokenizer"
    assert not worker.seen
    tokenizer.hold.set()


async def test_a_tokenizer_that_hangs_in_the_middle_meets_the_deadline(
    client: AsyncClient, worker: CountingWorker, tokenizer: ByteTokenizer
) -> None:
    worker.pause_at = 5
    for timeout in LONGER_AND_LONGER:
        stream = client.stream("Hi", seed=0, timeout=timeout)
        with contextlib.suppress(DeadlineExceededError):
            await _first_chunk(stream)
            break
    tokenizer.hold.clear()
    worker.go.set()
    with pytest.raises(DeadlineExceededError):
        await stream.collect()
    tokenizer.hold.set()


async def test_closing_the_client_ends_what_runs(client: AsyncClient, worker: CountingWorker) -> None:
    worker.pause_at = 5
    stream = client.stream("Hi", seed=0)
    await _first_chunk(stream)
    task = asyncio.create_task(client.generate("Hi"))
    await worker.paused.wait()
    await client.close()
    await client.close()
    with pytest.raises(ClientClosedError):
        async for _ in stream:
            pass
    with pytest.raises(ClientClosedError):
        await task
    for call in (client.generate("Hi"), client.encode("Hi"), client.get_models()):
        with pytest.raises(ClientClosedError):
            await call
    with pytest.raises(ClientClosedError):
        client.stream("Hi")
    await worker.seen[0].cancelled.wait()


async def test_closing_the_client_ends_a_unary_call(client: AsyncClient, tokenizer: ByteTokenizer) -> None:
    tokenizer.hold.clear()
    task = asyncio.create_task(client.encode("Hi"))
    await tokenizer.called.wait()
    await client.close()
    with pytest.raises(ClientClosedError):
        await task
    tokenizer.hold.set()


async def test_a_failing_batch_leaves_nothing_behind(client: AsyncClient, worker: CountingWorker) -> None:
    worker.pause_at = 5
    with pytest.raises(DeadlineExceededError):
        await client.generate_batch(["a", "b", "c"], timeout=0.3)
    for seen in worker.seen:
        await seen.cancelled.wait()


def test_a_client_belongs_to_one_event_loop() -> None:
    client = AsyncClient("127.0.0.1:1", "127.0.0.1:2")

    async def use() -> None:
        async with client:
            pass

    async def touch() -> None:
        client._connect()

    asyncio.run(touch())
    for foreign in (use, client.close, client.with_options(seed=1).close):
        with pytest.raises(ConfigurationError, match="event loop"):
            asyncio.run(foreign())


async def test_a_batch_that_was_dropped_within_a_cycle_is_ended(client: AsyncClient, worker: CountingWorker) -> None:
    async def drop() -> None:
        events = client.stream_batch(["Hi", "Ho"], seed=0, concurrency=1)
        await anext(events)
        await worker.seen[0].ended.wait()  # and its answer waits for its reader
        cycle: list[object] = [events]
        cycle.append(cycle)

    await drop()
    gc.collect()
    while client._batch_tasks:
        await asyncio.wait(client._batch_tasks)
    assert len(worker.seen) == 1, "the second one never begins"

"""Requests share a StreamDeltas call for their tokens: none may lose one, and none may wait for another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from tandem.client import AsyncClient, DeadlineExceededError, FailoverSettings, GenerationResult
from tandem.client.worker import SHARED_FROM_REQUESTS
from tandem.inference.v1 import inference_pb2 as pb
from tests.client.byte_vocabulary import EOS, TEXT, ids_of_text
from tests.client.counting_worker import CountingWorker
from tests.client.fakes import serving_workers, start_worker
from tests.client.refusals import refuse

STREAMS = 16


class SharingWorker(CountingWorker):
    """Sends the deltas of requests in the StreamDeltas call that they name, if it is open."""

    def __init__(self) -> None:
        super().__init__([*ids_of_text(TEXT), EOS])
        self.calls: dict[str, asyncio.Queue[pb.RequestDelta]] = {}
        self.opened = self.shared = 0
        self.alone = 0  # requests that named no call
        self.lose_shared_after: int | None = None  # so many deltas; then the call ends, and what follows is lost
        self.flows = asyncio.Event()  # while clear, no delta comes out of a call
        self.flows.set()
        self.all_begun = asyncio.Event()
        self.all_closed = asyncio.Event()

    async def StreamDeltas(self, request, context):  # noqa: N802
        self.opened += 1
        self.all_closed.clear()
        self.calls[request.key] = queue = asyncio.Queue()
        try:
            while True:
                delta = await queue.get()
                await self.flows.wait()
                if self.lose_shared_after is not None:
                    if not self.lose_shared_after:
                        self.lose_shared_after = None
                        await refuse(context, grpc.StatusCode.UNAVAILABLE, "gone", reason="TEST")
                    self.lose_shared_after -= 1
                yield pb.StreamDeltasResponse(deltas=[delta])
                queue.task_done()
        finally:
            del self.calls[request.key]
            if not self.calls:
                self.all_closed.set()

    def called(self, request, context) -> str:
        return request.request_id

    async def Generate(self, request, context) -> AsyncIterator[pb.GenerateResponse]:  # noqa: N802
        key = dict(context.invocation_metadata()).get("x-deltas-key", "")
        self.alone += not key
        queue = None
        async for response in super().Generate(request, context):
            if len(self.seen) == STREAMS:
                self.all_begun.set()
            if response.HasField("delta") and (queue := queue or self.calls.get(key)) is not None:
                self.shared += 1
                queue.put_nowait(pb.RequestDelta(request_id=self.called(request, context), delta=response.delta))
            else:
                yield response


class NumberingWorker(SharingWorker):
    """Sends ids by the numbers that requests gave themselves, and those of several deltas together."""

    async def StreamDeltas(self, request, context):  # noqa: N802
        numbers, counts, ids = [], [], []
        async for message in super().StreamDeltas(request, context):
            for each in message.deltas:
                numbers.append(int(each.request_id))
                counts.append(len(each.delta.ids))
                ids += each.delta.ids
            if self.calls[request.key].empty() or numbers[-1] in numbers[:-1]:
                yield pb.StreamDeltasResponse(numbers=numbers, counts=counts if len(ids) > len(counts) else [], ids=ids)
                numbers, counts, ids = [], [], []

    def called(self, request, context) -> str:
        return str(int(dict(context.invocation_metadata())["x-deltas-number"]))


@pytest.fixture(params=[SharingWorker, NumberingWorker])
def worker(request) -> SharingWorker:
    return request.param()


async def answers(client: AsyncClient, count: int = STREAMS, **options) -> list[GenerationResult | BaseException]:
    streams = [client.stream("Hi", seed=0, **options) for _ in range(count)]
    return await asyncio.gather(*(stream.collect() for stream in streams), return_exceptions=True)


def texts(results: list[GenerationResult | BaseException]) -> set[str]:
    return {result.text if isinstance(result, GenerationResult) else repr(result) for result in results}


async def test_many_requests_have_one_call_for_their_tokens(client: AsyncClient, worker: SharingWorker) -> None:
    assert texts(await answers(client)) == {TEXT}
    assert worker.opened == 1
    assert worker.shared >= (STREAMS - SHARED_FROM_REQUESTS) * len(TEXT)
    await worker.all_closed.wait()  # with the last of them
    assert texts(await answers(client)) == {TEXT}
    assert worker.opened == 2


async def test_few_requests_open_nothing_more(client: AsyncClient, worker: SharingWorker) -> None:
    assert texts(await answers(client, SHARED_FROM_REQUESTS - 1)) == {TEXT}
    assert worker.opened == 0


async def test_the_first_of_the_next_crowd_shares_too(client: AsyncClient, worker: SharingWorker) -> None:
    assert texts(await answers(client, 1)) == {TEXT}
    assert worker.alone == 1
    assert texts(await answers(client)) == {TEXT}
    alone = worker.alone
    assert texts(await answers(client, 1)) == {TEXT}
    assert worker.alone == alone


async def test_an_end_that_overtakes_its_tokens_waits_for_them(client: AsyncClient, worker: SharingWorker) -> None:
    worker.flows.clear()
    running = asyncio.create_task(answers(client))
    await worker.all_begun.wait()
    await asyncio.gather(*(seen.finished.wait() for seen in worker.seen))
    assert not running.done()
    worker.flows.set()
    results = await running
    assert texts(results) == {TEXT}
    assert {result.failovers for result in results if isinstance(result, GenerationResult)} == {0}


async def test_the_deadline_holds_while_tokens_are_waited_for(client: AsyncClient, worker: SharingWorker) -> None:
    worker.flows.clear()
    # Of ids, so that a busy machine has nothing to be late with before the worker is asked.
    streams = [client.stream(ids_of_text("Hi"), seed=0, timeout=2.0) for _ in range(STREAMS)]
    results = await asyncio.gather(*(stream.collect() for stream in streams), return_exceptions=True)
    assert {type(result) for result in results} <= {GenerationResult, DeadlineExceededError}
    late = [result for result in results if isinstance(result, DeadlineExceededError) and result.service == "worker"]
    assert len(late) > STREAMS - SHARED_FROM_REQUESTS
    worker.flows.set()
    await worker.all_closed.wait()


@pytest.mark.parametrize("after", [0, 5, STREAMS * 20])
async def test_tokens_that_are_lost_with_their_call_are_made_again(
    client: AsyncClient, worker: SharingWorker, after: int
) -> None:
    worker.lose_shared_after = after
    results = await answers(client)
    assert texts(results) == {TEXT}
    assert any(result.failovers for result in results if isinstance(result, GenerationResult))
    assert worker.lose_shared_after is None, "it was lost"


async def test_a_request_that_is_cancelled_takes_no_other_with_it(client: AsyncClient, worker: SharingWorker) -> None:
    worker.pause_at = 6
    streams = [client.stream("Hi", seed=0) for _ in range(STREAMS)]
    await asyncio.gather(*(anext(stream) for stream in streams))
    await asyncio.gather(*(stream.close() for stream in streams[STREAMS // 2 :]))
    worker.go.set()
    assert {(await stream.collect()).text for stream in streams[: STREAMS // 2]} == {TEXT}
    assert worker.opened == 1


async def test_a_worker_that_does_not_know_the_call_is_asked_once(tokenizer_address: str) -> None:
    class Earlier(CountingWorker):
        asked = 0

        async def StreamDeltas(self, request, context):  # noqa: N802
            self.asked += 1
            await refuse(context, grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            yield

    worker = Earlier([*ids_of_text(TEXT), EOS])
    async with serving_workers(worker) as addresses, AsyncClient(tokenizer_address, addresses, timeout=30) as client:
        for _ in range(2):
            assert texts(await answers(client)) == {TEXT}
        assert worker.asked == 1


async def test_a_worker_that_goes_takes_no_answer_with_it(tokenizer_address: str) -> None:
    lost, left = SharingWorker(), SharingWorker()
    lost.pause_at = left.pause_at = 6
    patient = FailoverSettings(attempts=20, initial_backoff_seconds=0.05)
    server, address = await start_worker(lost)
    async with (
        serving_workers(left) as addresses,
        AsyncClient(tokenizer_address, [address, *addresses], timeout=60, failover=patient) as client,
    ):
        streams = [client.stream(f"Hi {number}", seed=0) for number in range(STREAMS)]
        await asyncio.gather(*(anext(stream) for stream in streams))
        assert lost.shared and left.shared
        await server.stop(0)
        left.pause_at = None
        left.go.set()
        results = await asyncio.gather(*(stream.collect() for stream in streams), return_exceptions=True)
    assert texts(results) == {TEXT}


class OvertakingWorker(SharingWorker):
    """Sends ids before it accepts a request, and is lost."""

    lost = 0

    async def Generate(self, request, context) -> AsyncIterator[pb.GenerateResponse]:  # noqa: N802
        queue = self.calls.get(dict(context.invocation_metadata()).get("x-deltas-key", ""))
        if queue is not None and not request.request_id.endswith("-r1"):
            self.lost += 1
            delta = pb.Delta(ids=ids_of_text("other"))
            queue.put_nowait(pb.RequestDelta(request_id=request.request_id, delta=delta))
            await queue.join()
            await refuse(context, grpc.StatusCode.UNAVAILABLE, "gone", reason="TEST")
        async for response in super().Generate(request, context):
            yield response


async def test_ids_that_overtake_the_acceptance_of_a_lost_request_are_not_kept(tokenizer_address: str) -> None:
    worker = OvertakingWorker()
    async with serving_workers(worker) as addresses, AsyncClient(tokenizer_address, addresses, timeout=30) as client:
        assert texts(await answers(client)) == {TEXT}
    assert worker.lost

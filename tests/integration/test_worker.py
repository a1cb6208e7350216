"""The worker over the wire: concurrent, cancelled, expired, aborted and crashing callers."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from tandem.inference.v1 import admin_pb2, inference_pb2_grpc
from tandem.inference.v1 import inference_pb2 as pb
from tests.integration.worker_process import Worker, greedy, rest

# How many callers end in one way or another; a release is tried with 10,000.
STORM = int(os.environ.get("TANDEM_STORM", "100"))

pytestmark = pytest.mark.asyncio(loop_scope="module")


def varied_request(number: int) -> pb.GenerateRequest:
    """One of many: lengths, seeds, samplers and shared prefixes differ."""
    draw = random.Random(number)
    prompt = [1] + [draw.randrange(3, 300) for _ in range(draw.choice([0, 1, 15, 16, 17, 40, 120]))]
    if number % 3 == 0:
        prompt = [1] + [7] * 40 + prompt
    sampling = pb.SamplingParams(seed=number)
    if number % 4:
        sampling.temperature = draw.choice([0.5, 1.0, 1.5])
        sampling.top_k = draw.choice([0, 5, 50])
        sampling.top_p = draw.choice([1.0, 0.9])
        sampling.min_p = draw.choice([0.0, 0.05])
        sampling.repetition_penalty = draw.choice([1.0, 1.2])
    else:
        sampling.temperature = 0.0
    return pb.GenerateRequest(
        prompt_ids=prompt,
        sampling=sampling,
        stopping=pb.StoppingParams(max_tokens=draw.choice([1, 2, 40, 120]), ignore_eos=number % 2 == 0),
        output=pb.OutputOptions(logprobs=True),
    )


def peak_memory(pid: int) -> int:
    """The most bytes that a process has had, as the kernel tells it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


async def test_64_streams_get_what_each_gets_alone_in_a_cache_too_small_for_them(worker: Worker):
    requests = [varied_request(number) for number in range(64)]
    together = await asyncio.gather(*(worker.generate(request) for request in requests))
    load = await worker.settled()
    assert load.pages_referenced == 0
    assert load.preemptions > 0, "the cache was meant to be too small"
    # Every fifth: alone, each takes as many steps as it has tokens. The histories of the engine compare all of theirs.
    for request, crowded in list(zip(requests, together, strict=True))[::5]:
        await worker.admin.ClearPrefixCache(admin_pb2.ClearPrefixCacheRequest())
        alone = await worker.generate(request)
        assert crowded.ids == alone.ids
        assert crowded.logprobs == alone.logprobs, "not the same bits"
        assert crowded.finished.reason == alone.finished.reason


async def test_an_answer_that_is_resumed_elsewhere_goes_on_as_if_nothing_had_happened(worker: Worker):
    request = varied_request(7)
    request.stopping.max_tokens = 30
    request.stopping.ignore_eos = True
    whole = await worker.generate(request)
    for cut in (1, 13, 29, 30):
        resumed = pb.GenerateRequest()
        resumed.CopyFrom(request)
        resumed.resumed_output_ids.extend(whole.ids[:cut])
        rest = await worker.generate(resumed)
        assert whole.ids[:cut] + rest.ids == whole.ids
        assert rest.finished.reason == pb.FINISH_REASON_MAX_TOKENS


async def test_the_end_tells_the_most_memory_that_the_engine_has_had(worker: Worker):
    usage = (await worker.generate(greedy([1, 5, 9], 2))).finished.usage
    assert worker.process is not None
    peaks = [peak_memory(each.pid) for each in psutil.Process(worker.process.pid).children(recursive=True)]
    assert any(0 <= peak - usage.peak_process_bytes < 16 << 20 for peak in peaks), (peaks, usage)
    assert usage.peak_device_bytes == 0


async def test_an_absent_seed_is_drawn_and_reported_and_repeats_the_answer(worker: Worker):
    request = pb.GenerateRequest(prompt_ids=[1, 5, 9], stopping=pb.StoppingParams(max_tokens=20, ignore_eos=True))
    first, second = await worker.generate(request), await worker.generate(request)
    assert first.accepted.sampling.seed != second.accepted.sampling.seed
    request.sampling.CopyFrom(first.accepted.sampling)
    assert (await worker.generate(request)).ids == first.ids


async def test_a_second_request_with_the_same_prompt_computes_only_the_rest(worker: Worker):
    prompt = [1] + [11] * 100
    await worker.generate(greedy(prompt, 1))
    assert (await worker.generate(greedy(prompt, 1))).finished.usage.cached_prompt_tokens == 100
    salted = greedy(prompt, 1, cache=pb.CacheParams(salt="another tenant"))
    assert (await worker.generate(salted)).finished.usage.cached_prompt_tokens == 0
    bypassing = greedy(prompt, 1, cache=pb.CacheParams(bypass=True))
    assert (await worker.generate(bypassing)).finished.usage.cached_prompt_tokens == 0


async def test_stop_ids_end_the_answer_with_and_without_them(worker: Worker):
    whole = (await worker.generate(greedy([1, 5, 9], 20))).ids
    stop = whole[6]
    first = whole.index(stop)
    request = greedy([1, 5, 9], 20)
    request.stopping.stop_token_ids.append(stop)
    answer = await worker.generate(request)
    assert answer.ids == whole[:first]
    assert answer.finished.reason == pb.FINISH_REASON_STOP_TOKEN
    assert answer.finished.matched_stop_token == stop
    request.stopping.include_stop = True
    assert (await worker.generate(request)).ids == whole[: first + 1]
    request.stopping.min_tokens = first + 3
    assert stop not in (await worker.generate(request)).ids[: first + 3]


async def test_deltas_are_as_large_as_asked_for(worker: Worker):
    request = greedy([1, 5, 9], 20, output=pb.OutputOptions(stream_interval_tokens=8))
    answer = await worker.generate(request)
    assert len(answer.ids) == 20
    assert answer.deltas <= 3
    # A delay of nothing sends whatever is there.
    request.output.stream_max_delay_ms = 0
    assert (await worker.generate(request)).ids == answer.ids


async def test_aborted_requests_finish_as_cancelled(worker: Worker):
    request = greedy([1, 5, 9], 500, request_id="to-be-aborted")
    answers = worker.inference.Generate(request)
    first = await answers.read()
    assert first.accepted.request_id == "to-be-aborted"
    response = await worker.inference.Abort(pb.AbortRequest(request_ids=["to-be-aborted", "unknown", "to-be-aborted"]))
    assert response.aborted_ids == ["to-be-aborted"]
    messages = await rest(answers)
    assert messages[-1].finished.reason == pb.FINISH_REASON_CANCELLED


async def test_a_request_id_can_be_used_again_once_its_request_is_over(worker: Worker):
    running = worker.inference.Generate(greedy([1, 5], 500, request_id="mine"))
    await running.read()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.generate(greedy([1, 5], 1, request_id="mine"))
    assert caught.value.code() == grpc.StatusCode.ALREADY_EXISTS
    running.cancel()
    await worker.settled()
    assert (await worker.generate(greedy([1, 5], 1, request_id="mine"))).accepted.request_id == "mine"


_CRASHING_CLIENT = """
import asyncio, os, sys, grpc
from tandem.inference.v1 import inference_pb2 as pb, inference_pb2_grpc
async def main():
    channel = grpc.aio.insecure_channel(sys.argv[1])
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    calls = [stub.Generate(pb.GenerateRequest(prompt_ids=[1, 5, 9 + i], stopping=pb.StoppingParams(
        max_tokens=400, ignore_eos=True))) for i in range(8)]
    for call in calls:
        await call.read()
    os._exit(9)
asyncio.run(main())
"""


async def test_any_mix_of_ends_returns_every_page_and_alters_no_other_answer(worker: Worker):
    generator = np.random.default_rng(0)
    witness = varied_request(5)
    witness.stopping.max_tokens = 90
    expected = await worker.generate(witness)

    codes: set[grpc.StatusCode] = set()

    async def one(number: int) -> None:
        request = varied_request(number)
        request.request_id = f"mixed-{number}"
        kind = number % 5
        try:
            if kind == 0:
                await worker.generate(request)
            elif kind == 1:
                await worker.generate(request, timeout=float(generator.uniform(0, 0.3)))
            else:
                call = worker.inference.Generate(request)
                for _ in range(int(generator.integers(0, 5))):
                    if await call.read() is grpc.aio.EOF:
                        return
                if kind == 2:
                    call.cancel()
                elif kind == 3:
                    await worker.inference.Abort(pb.AbortRequest(request_ids=[request.request_id]))
                    await rest(call)
                else:
                    # Closing the channel is what a client that goes away looks like.
                    async with grpc.aio.insecure_channel(worker.address) as channel:
                        stub = inference_pb2_grpc.InferenceServiceStub(channel)
                        again = varied_request(number)
                        again.request_id = f"mixed-{number}-again"
                        await stub.Generate(again).read()
                    call.cancel()
        except grpc.aio.AioRpcError as error:
            codes.add(error.code())
        except asyncio.CancelledError:
            codes.add(grpc.StatusCode.CANCELLED)

    crashing = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CRASHING_CLIENT, worker.address, env=dict(os.environ)
    )
    witnesses = [asyncio.create_task(worker.generate(witness)) for _ in range(3)]
    gate = asyncio.Semaphore(100)

    async def next_one(number: int) -> None:
        async with gate:
            await one(number)

    await asyncio.gather(*(next_one(number) for number in range(STORM)))
    assert await crashing.wait() == 9
    for answer in await asyncio.gather(*witnesses):
        assert answer.ids == expected.ids
        assert answer.logprobs == expected.logprobs
    assert codes <= {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
    load = await worker.settled()
    assert load.pages_referenced == 0
    assert load.pages_free + load.pages_cached == load.pages_total


async def test_a_slow_reader_gets_everything_in_few_messages(worker: Worker):
    expected = await worker.generate(greedy([1, 5, 9], 400))
    call = worker.inference.Generate(greedy([1, 5, 9], 400))
    ids: list[int] = []
    first = await call.read()
    assert first.HasField("accepted")
    # Another request of the same length passes by while nobody reads.
    assert (await worker.generate(greedy([1, 5, 9], 400))).ids == expected.ids
    for message in await rest(call):
        ids += message.delta.ids
    assert ids == expected.ids


async def test_get_model_and_get_server_tell_what_is_served(worker: Worker):
    model = await worker.admin.GetModel(admin_pb2.GetModelRequest())
    assert (model.name, model.vocabulary_size, model.context_length) == ("random", 300, 512)
    assert list(model.eos_ids) == [2]
    assert model.bos_id == 1
    assert (model.layers, model.attention_heads, model.kv_heads, model.head_dim) == (2, 4, 2, 12)
    server = await worker.admin.GetServer(admin_pb2.GetServerRequest())
    assert server.state == admin_pb2.SERVER_STATE_SERVING
    assert server.kv_cache_tokens == 640
    assert server.kv_bytes_per_token == 2 * 2 * 2 * 12 * 4
    assert server.row_invariant
    assert (await worker.load()).pages_total == 40


_SHARED = [greedy([1, 5, 9 + number], 12, request_id=f"shared-{number}") for number in range(8)]


class SharedDeltas:
    """What a StreamDeltas call has brought, by request."""

    def __init__(self, worker: Worker, key: str) -> None:
        self.key = key
        self.deltas: dict[str, pb.Delta] = {}  # joined
        self.numbered: dict[int, list[int]] = {}  # ids by number
        self.messages = 0
        self.more = asyncio.Event()
        self.call = worker.inference.StreamDeltas(pb.StreamDeltasRequest(key=key))
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self.call:
            self.messages += 1
            for each in message.deltas:
                joined = self.deltas.setdefault(each.request_id, pb.Delta())
                joined.MergeFrom(each.delta)
            ids = iter(message.ids)
            for number, count in zip(message.numbers, message.counts or [1] * len(message.numbers), strict=True):
                self.numbered.setdefault(number, []).extend(itertools.islice(ids, count))
            assert next(ids, None) is None
            self.more.set()

    async def has(self, request_id: str, count: int) -> None:
        """Waits until so many ids of a request are there."""
        while len(self.deltas.get(request_id, pb.Delta()).ids) < count:
            self.more.clear()
            await self.more.wait()


async def own(worker: Worker, request: pb.GenerateRequest, key: str, number: str = "") -> list[pb.GenerateResponse]:
    """What comes in Generate itself."""
    metadata = (("x-deltas-key", key), ("x-deltas-number", number))
    call = worker.inference.Generate(request, timeout=120, metadata=metadata)
    return [message async for message in call]


async def test_the_tokens_of_many_requests_come_in_one_call_and_are_the_same(worker: Worker) -> None:
    requests = [*_SHARED[:-1], greedy([1, 2], 12, request_id="probable", output=pb.OutputOptions(logprobs=True))]
    expected = await asyncio.gather(*(worker.generate(request) for request in requests))
    shared = SharedDeltas(worker, "a-key")
    answers = await asyncio.gather(*(own(worker, request, "a-key") for request in requests))
    for request, messages, whole in zip(requests, answers, expected, strict=True):
        assert [message.WhichOneof("event") for message in messages] == ["accepted", "finished"]
        finished = messages[-1].finished
        await shared.has(request.request_id, finished.usage.completion_tokens)
        joined = shared.deltas[request.request_id]
        assert (list(joined.ids), list(joined.logprobs)) == (whole.ids, whole.logprobs)
        assert finished.reason == whole.finished.reason
    assert shared.messages < sum(len(whole.ids) for whole in expected)
    shared.call.cancel()
    load = await worker.settled()
    assert load.running_requests == 0


async def test_requests_that_gave_themselves_a_number_get_their_ids_by_it(worker: Worker) -> None:
    two = greedy([1, 3], 12, request_id="two", n=2)
    probable = greedy([1, 2], 12, request_id="probable", output=pb.OutputOptions(logprobs=True))
    requests = [*_SHARED, two, probable]
    expected = await asyncio.gather(*(worker.generate(request) for request in (*_SHARED, greedy([1, 3], 12))))
    shared = SharedDeltas(worker, "numbered")
    sent = [own(worker, request, "numbered", str(10 * place)) for place, request in enumerate(requests)]
    answers = await asyncio.gather(*sent)
    await shared.has("probable", 12)
    while len(shared.numbered) < len(_SHARED) + 2 or any(len(ids) < 12 for ids in shared.numbered.values()):
        shared.more.clear()
        await shared.more.wait()
    for place, whole in enumerate(expected[:-1]):
        assert [message.WhichOneof("event") for message in answers[place]] == ["accepted", "finished"]
        assert shared.numbered.pop(10 * place) == whole.ids
    first = 10 * len(_SHARED)
    assert sorted(shared.numbered) == [first, first + 1]
    assert shared.numbered[first] == shared.numbered[first + 1] == expected[-1].ids
    assert list(shared.deltas) == ["probable"]
    shared.call.cancel()
    await worker.settled()


async def test_requests_that_name_no_open_call_or_ask_for_more_send_their_own(worker: Worker) -> None:
    shared = SharedDeltas(worker, "open")
    interval = greedy([1, 5], 8, output=pb.OutputOptions(stream_interval_tokens=4))
    others = greedy([1, 5], 8, output=pb.OutputOptions(top_logprobs=2))
    echo = greedy([1, 5], 8, output=pb.OutputOptions(echo=True))
    best = greedy([1, 5], 8, n=1, best_of=2)
    cases = [(greedy([1, 5], 8), "closed"), (interval, "open"), (others, "open"), (echo, "open"), (best, "open")]
    for request, key in cases:
        messages = await own(worker, request, key)
        assert sum(len(message.delta.ids) for message in messages) == 8
    assert not shared.deltas
    shared.call.cancel()


async def test_a_call_that_goes_ends_its_requests_so_that_they_can_be_sent_again(worker: Worker) -> None:
    before = (await worker.load()).steps
    shared = SharedDeltas(worker, "going")
    running = asyncio.create_task(own(worker, greedy([1, 5], 400, request_id="carried"), "going"))
    other = asyncio.create_task(worker.generate(greedy([1, 6], 24)))
    await shared.has("carried", 1)
    shared.call.cancel()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert len((await other).ids) == 24
    assert (await worker.settled()).steps - before < 200, "what nobody reads is not computed"


async def test_a_request_that_is_cancelled_leaves_the_others_their_call(worker: Worker) -> None:
    shared = SharedDeltas(worker, "kept")
    leaving = asyncio.create_task(own(worker, greedy([1, 5], 400, request_id="leaving"), "kept"))
    staying = asyncio.create_task(own(worker, greedy([1, 6], 30, request_id="staying"), "kept"))
    await shared.has("leaving", 1)
    leaving.cancel()
    assert (await staying)[-1].finished.usage.completion_tokens == 30
    await shared.has("staying", 30)
    shared.call.cancel()
    await worker.settled()


@pytest.mark.parametrize("key", ["", "k" * 129])
async def test_a_key_that_is_none_is_refused(worker: Worker, key: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await SharedDeltas(worker, key).task
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "key" in (caught.value.details() or "")

"""The contract of vLLM's gRPC engine, served beside ours by a real worker: the same answers, what a gateway reads."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

pytest.importorskip(
    "smg_grpc_proto", reason="the gateway's contract is not installed: pip install 'tandem-llm[gateway]'"
)

from smg_grpc_proto import vllm_engine_pb2 as vllm
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2 as common

from tandem.inference.v1 import admin_pb2
from tandem.inference.v1 import inference_pb2 as pb
from tests.integration.worker_process import Worker, failed_start, rest, threaded_worker

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = 16
PROMPT = [1, *range(20, 60)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(random_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Worker]:
    flags = ("--model-name=random", "--gateway", "--kv-cache-tokens=2048", f"--page-size={PAGE}")
    async with threaded_worker(tmp_path_factory.mktemp("w"), "--model", str(random_llama), *flags) as worker:
        yield worker


def stub(worker: Worker) -> Any:
    return vllm_engine_pb2_grpc.VllmEngineStub(worker.channel)


def request(ids: list[int] = PROMPT, *, stream: bool = False, **params: Any) -> vllm.GenerateRequest:
    plain = {"top_p": 1.0, "repetition_penalty": 1.0, "n": 1, "max_tokens": 12, "ignore_eos": True}
    return vllm.GenerateRequest(
        tokenized=vllm.TokenizedInput(input_ids=ids),
        sampling_params=vllm.SamplingParams(**plain | params),
        stream=stream,
    )


async def answer(worker: Worker, asked: vllm.GenerateRequest) -> tuple[list[Any], list[Any]]:
    """The chunks and the completes."""
    chunks, completes = [], []
    async for message in stub(worker).Generate(asked, timeout=120):
        kind = message.WhichOneof("response")
        (chunks if kind == "chunk" else completes).append(getattr(message, kind))
    return chunks, completes


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 11, "top_k": 50, "top_p": 0.5}]
)
async def test_answers_have_the_bits_of_our_own_contract(worker: Worker, sampling: dict[str, Any]):
    ours = await worker.generate(
        pb.GenerateRequest(
            prompt_ids=PROMPT,
            sampling=pb.SamplingParams(**sampling),
            stopping=pb.StoppingParams(max_tokens=12, ignore_eos=True),
            output=pb.OutputOptions(logprobs=True, top_logprobs=3),
        )
    )
    _, (whole,) = await answer(worker, request(**sampling, logprobs=3))
    chunks, (end,) = await answer(worker, request(**sampling, logprobs=3, stream=True))
    assert ours.ids == list(whole.output_ids) == [token for chunk in chunks for token in chunk.token_ids]
    assert ours.logprobs == list(whole.output_logprobs.token_logprobs)
    assert ours.logprobs == [value for chunk in chunks for value in chunk.output_logprobs.token_logprobs]
    assert [list(each.ids) for each in ours.others] == [
        list(each.token_ids) for each in whole.output_logprobs.top_logprobs
    ]
    assert (whole.prompt_tokens, whole.completion_tokens, whole.finish_reason) == (len(PROMPT), 12, "length")
    assert list(end.output_ids) == ours.ids and end.finish_reason == "length"
    assert end.cached_tokens > 0


async def test_several_outputs_prompt_logprobs_and_what_stopped(worker: Worker):
    _, completes = await answer(worker, request(n=3, temperature=1.0, seed=3))
    assert sorted(each.index for each in completes) == [0, 1, 2]
    first = next(each for each in completes if each.index == 0)
    stop = first.output_ids[4]
    _, (stopped,) = await answer(
        worker, request(temperature=1.0, seed=3, stop_token_ids=[stop], prompt_logprobs=2, logprobs=0)
    )
    assert (stopped.finish_reason, stopped.matched_token_id) == ("stop", stop)
    assert list(stopped.input_logprobs.token_ids) == PROMPT
    values = stopped.input_logprobs.token_logprobs
    assert not values[0].HasField("value") and all(each.HasField("value") for each in values[1:])
    assert [len(each.token_ids) for each in stopped.input_logprobs.top_logprobs] == [0] + [2] * (len(PROMPT) - 1)
    assert not stopped.output_logprobs.top_logprobs


async def test_wrong_requests_are_told_apart(worker: Worker):
    for asked, code, word in (
        (vllm.GenerateRequest(text="hi"), grpc.StatusCode.INVALID_ARGUMENT, "text"),
        (request([]), grpc.StatusCode.INVALID_ARGUMENT, "prompt_ids"),
        (request([300]), grpc.StatusCode.INVALID_ARGUMENT, "prompt_ids"),
        (request([5] * 600), grpc.StatusCode.INVALID_ARGUMENT, "prompt_ids"),
        (request(top_p=float("nan")), grpc.StatusCode.INVALID_ARGUMENT, "top_p"),
        (request(logprobs=100), grpc.StatusCode.INVALID_ARGUMENT, "top_logprobs"),
        (request([5] * (3 << 20)), grpc.StatusCode.INVALID_ARGUMENT, "input_ids"),
        (request(regex="a"), grpc.StatusCode.FAILED_PRECONDITION, "tokenizer_address"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answer(worker, asked)
        assert caught.value.code() is code and word in caught.value.details()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub(worker).Embed(vllm.EmbedRequest())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_an_abort_ends_a_request_and_leaves_nothing(worker: Worker):
    asked = request(max_tokens=400, stream=True)
    asked.request_id = "long"
    call = stub(worker).Generate(asked)
    await call.read()
    await stub(worker).Abort(vllm.AbortRequest(request_ids=["long", "unknown"]))
    messages = await rest(call)
    assert messages[-1].complete.finish_reason == "abort"
    load = await worker.settled()
    assert load.pages_referenced == 0


async def test_what_is_told_of_the_worker(worker: Worker):
    gateway = stub(worker)
    model = await gateway.GetModelInfo(vllm.GetModelInfoRequest())
    assert (model.served_model_name, model.vocab_size, model.max_context_length) == ("random", 300, 512)
    assert list(model.eos_token_ids) == [2] and model.bos_token_id == 1
    server = await gateway.GetServerInfo(vllm.GetServerInfoRequest())
    assert (server.server_type, server.block_size, server.data_parallel_size) == ("vllm-grpc", PAGE, 1)
    (load,) = (await gateway.GetLoads(vllm.GetLoadsRequest(include=["core"]))).loads
    assert (load.num_running_reqs, load.max_total_num_tokens, load.max_running_requests) == (0, 2048, 64)
    assert not (await gateway.GetLoads(vllm.GetLoadsRequest(dp_rank=1))).loads
    assert (await gateway.HealthCheck(vllm.HealthCheckRequest())).healthy


class Mirror:
    """What a subscriber knows, by the rules of the contract."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int, ...]] = {}
        self.parents: dict[int, int] = {}
        self.number = 0
        self.loads: list[common.EngineLoad] = []

    def take(self, batch: common.KvEventBatch) -> None:
        self.loads.append(batch.load)
        if batch.load.load_only:
            assert not batch.events and batch.sequence_number in (0, self.number)
            return
        if not (batch.HasField("snapshot") and batch.snapshot.index == 0):
            assert batch.sequence_number == self.number + 1, "numbers follow each other"
        self.number = batch.sequence_number
        for event in batch.events:
            match event.WhichOneof("data"):
                case "cleared":
                    self.blocks.clear()
                case "removed":
                    for block in event.removed.block_hashes:
                        del self.blocks[block]
                case "stored":
                    parent = event.stored.parent_block_hash
                    assert not parent or parent in self.blocks
                    for block in event.stored.blocks:
                        assert len(block.token_ids) == block.block_size == PAGE
                        self.blocks[block.block_hash] = tuple(block.token_ids)
                        self.parents[block.block_hash], parent = parent, block.block_hash

    def chain(self, ids: list[int]) -> int:
        """How many pages of a prompt are there."""
        parent, found = 0, 0
        for start in range(0, len(ids) - PAGE + 1, PAGE):
            wanted = tuple(ids[start : start + PAGE])
            known = [hash_ for hash_, block in self.blocks.items() if block == wanted and self.parents[hash_] == parent]
            if not known:
                break
            (parent,) = known
            found += 1
        return found


async def follow(call: Any, mirror: Mirror, until: Any) -> None:
    async with asyncio.timeout(60):
        while not until():
            mirror.take(await call.read())


async def test_a_subscriber_knows_which_prefixes_are_cached_and_how_loaded_the_engine_is(worker: Worker):
    gateway = stub(worker)
    await worker.admin.ClearPrefixCache(admin_pb2.ClearPrefixCacheRequest())
    before, after = [1, *([7] * 50)], [1, *([9] * 50)]
    await answer(worker, request(before))
    mirror = Mirror()
    call = gateway.SubscribeKvEvents(common.SubscribeKvEventsRequest(load_records_before_first_batch=True))
    await follow(call, mirror, lambda: mirror.chain(before) == 3)  # of before the subscription, by the snapshot
    await answer(worker, request(after))
    await follow(call, mirror, lambda: mirror.chain(after) == 3)
    resumed = mirror.number + 1
    flushed = await gateway.FlushCache(common.FlushCacheRequest())
    assert flushed.success
    await follow(call, mirror, lambda: not mirror.blocks)
    await follow(call, mirror, lambda: mirror.loads[-1].running_requests == 0)
    samples = [each.sample for each in mirror.loads]
    assert samples == sorted(set(samples)) and all(each.engine_reports_steps for each in mirror.loads)
    # Who comes back with a number that is kept misses nothing and gets nothing twice.
    again = Mirror()
    again.number, again.blocks, again.parents = resumed - 1, {}, {}
    replay = gateway.SubscribeKvEvents(common.SubscribeKvEventsRequest(start_sequence_number=resumed))
    first = await replay.read()
    assert first.sequence_number == resumed and not first.HasField("snapshot")
    # A number that was never there begins with a snapshot.
    lost = gateway.SubscribeKvEvents(common.SubscribeKvEventsRequest(start_sequence_number=5))
    first = await lost.read()
    assert first.HasField("snapshot") and first.snapshot.blocks == 0
    for each in (call, replay, lost):
        each.cancel()


async def test_the_tokenizer_comes_as_an_archive_with_its_digest(repository: Path, tmp_path: Path):
    demo = tmp_path / "demo"
    shutil.copytree(repository / "models" / "demo", demo)
    recommended = json.loads((demo / "generation_config.json").read_text()) | {"repetition_penalty": 1.05}
    (demo / "generation_config.json").write_text(json.dumps(recommended))
    async with threaded_worker(tmp_path, "--model", str(demo), "--gateway", "--kv-cache-tokens=512") as worker:
        chunks = [chunk async for chunk in stub(worker).GetTokenizer(common.GetTokenizerRequest(), timeout=120)]
        data = b"".join(chunk.data for chunk in chunks)
        assert [chunk.sha256 for chunk in chunks] == [""] * (len(chunks) - 1) + [hashlib.sha256(data).hexdigest()]
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert {"tokenizer.json", "tokenizer_config.json", "config.json"} <= set(archive.namelist())
            assert len(json.loads(archive.read("tokenizer.json"))["model"]["vocab"]) == 2048
        model = await stub(worker).GetModelInfo(vllm.GetModelInfoRequest())
        defaults = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "repetition_penalty": 1.05}
        assert json.loads(model.default_sampling_params_json) == defaults


async def test_a_model_without_a_tokenizer_says_so(worker: Worker):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub(worker).GetTokenizer(common.GetTokenizerRequest(), timeout=120).read()
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "neither tokenizer.json nor tokenizer.model" in caught.value.details()


async def test_a_draining_worker_is_not_healthy_and_takes_nothing_new(worker: Worker):
    gateway = stub(worker)
    running = gateway.Generate(request(max_tokens=300, stream=True))
    await running.read()
    await worker.admin.SetDraining(admin_pb2.SetDrainingRequest(draining=True))
    try:
        health = await gateway.HealthCheck(vllm.HealthCheckRequest())
        assert not health.healthy and "draining" in health.message
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answer(worker, request())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await gateway.GetServerInfo(vllm.GetServerInfoRequest())).is_paused
        messages = await rest(running)
        assert messages[-1].complete.completion_tokens == 300, "what ran goes on"
    finally:
        await worker.admin.SetDraining(admin_pb2.SetDrainingRequest(draining=False))


async def test_nothing_is_served_unless_it_is_asked_for(random_llama: Path, tmp_path: Path):
    async with threaded_worker(tmp_path, "--model", str(random_llama), "--kv-cache-tokens=512") as plain:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub(plain).HealthCheck(vllm.HealthCheckRequest())
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    code, stderr = failed_start("--model", str(random_llama), "--page-events")
    assert code and "page_events needs gateway" in stderr

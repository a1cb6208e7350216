"""Several processes that share one model: the same answers, one life."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import torch

from tandem.inference.v1 import admin_pb2
from tandem.inference.v1 import inference_pb2 as pb
from tandem.worker.engine.request import Drafting, Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tests.integration.hostile_guides import SLOW, guides_processes
from tests.integration.worker_process import ENVIRONMENT, Worker, greedy, rest, running_worker, service_process
from tests.worker_svc.engine.test_own_head import answers, built
from tests.worker_svc.model.heads import save_with_head
from tests.worker_svc.model.llama_folders import some_ids
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.tiny_models import MODELS

pytestmark = pytest.mark.slow

DEMO = Path(__file__).parents[2] / "models" / "demo"


def model_of(shared_data: Path) -> Path:
    return shared_data / "models/stories260K"


def ranks_of(worker: Worker) -> list[psutil.Process]:
    """The processes that follow rank 0."""
    assert worker.process is not None
    below = psutil.Process(worker.process.pid).children(recursive=True)
    return [process for process in below if "tandem.worker.engine.process.tensor_parallel" in process.cmdline()]


@contextmanager
def another_machine(ranks: list[int], of: int, environment: pytest.MonkeyPatch) -> Iterator[None]:
    """These ranks run by hand, as on a second machine; the worker to come starts the others."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    for name, value in {**shared, "LOCAL_WORLD_SIZE": str(of - len(ranks))}.items():
        environment.setitem(ENVIRONMENT, name, value)
    places = {"WORLD_SIZE": str(of), "LOCAL_WORLD_SIZE": str(len(ranks))}
    command = [sys.executable, "-m", "tandem.worker.engine.process.tensor_parallel"]
    processes = [
        subprocess.Popen(command, env=ENVIRONMENT | shared | places | {"RANK": str(rank), "LOCAL_RANK": str(place)})
        for place, rank in enumerate(ranks)
    ]
    try:
        yield
        assert [process.wait(60) for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()


@pytest.mark.parametrize(
    ("layout", "ranks", "elsewhere", "tokens", "draft"),
    [("hf", 2, [], 32, "meta"), ("meta-2-shards", 2, [1], 8, None), ("meta-2-shards", 4, [2, 3], 8, None)],
    ids=["two ranks and a draft model", "two ranks on two machines", "four ranks on two machines"],
)
async def test_ranks_answer_as_transformers_recorded(
    layout: str,
    ranks: int,
    elsewhere: list[int],
    tokens: int,
    draft: str | None,
    shared_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    folder = model_of(shared_data)
    with another_machine(elsewhere, ranks, monkeypatch) if elsewhere else nullcontext():
        await assert_answers(folder, layout, ranks, len(elsewhere), tokens, draft, tmp_path)


@pytest.mark.parametrize("name", ["deepseek v3", "deepseek v3.2"])
async def test_ranks_that_share_heads_over_latents_answer_as_transformers(name: str, tmp_path: Path):
    kind, changes = MODELS[name]
    theirs = saved(kind, tmp_path / "model", **changes | {"attention_bias": False})
    prompts = [some_ids(97, length) for length in (9, 30)]
    theirs.generation_config.eos_token_id = None
    settings = {"do_sample": False, "max_new_tokens": 24, "pad_token_id": 0}
    expected = []
    for ids in prompts:
        prompt = torch.tensor([ids])
        answer = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
        expected.append(answer[0, len(ids) :].tolist())
    async with running_worker(tmp_path, "--model", str(tmp_path / "model"), "--tensor-parallel=2") as worker:
        server = await worker.admin.GetServer(admin_pb2.GetServerRequest())
        assert server.row_invariant
        requests = [greedy(ids, 24) for ids in prompts]
        answers = await asyncio.gather(*map(worker.generate, requests))
    assert [answer.ids for answer in answers] == expected


async def assert_answers(
    folder: Path, layout: str, ranks: int, elsewhere: int, tokens: int, draft: str | None, tmp_path: Path
) -> None:
    flags = ["--model", str(folder / layout), f"--tensor-parallel={ranks}"]
    if draft:
        flags += ["--draft-model", str(folder / draft)]
    async with running_worker(tmp_path, *flags) as worker:
        assert len(ranks_of(worker)) == ranks - 1 - elsewhere
        server = await worker.admin.GetServer(admin_pb2.GetServerRequest())
        assert server.row_invariant
        assert server.tensor_parallel_ranks == ranks
        cases = json.loads((folder / "expected_greedy.json").read_text())
        expected = [case["output_ids"][:tokens] for case in cases]

        async def together() -> list[list[int]]:
            requests = [greedy(case["prompt_ids"], len(ids)) for case, ids in zip(cases, expected, strict=True)]
            return [answer.ids for answer in await asyncio.gather(*map(worker.generate, requests))]

        assert await together() == expected
        # An abort and a command reach every rank between the same steps: if not, the next sums would not meet.
        call = worker.inference.Generate(greedy([1, 5, 9], 400))
        await call.read()
        call.cancel()
        assert (await worker.admin.ClearPrefixCache(admin_pb2.ClearPrefixCacheRequest())).pages_cleared
        assert await together() == expected
        load = await worker.settled()
        assert load.pages_referenced == 0
        assert (load.draft_tokens_accepted > 0) == (draft is not None)


SHARED = ["qwen3.5", "lfm2 moe", "nemotron h", "falcon h1, norm before the gate"]
# Biases of what is added up are added once.
SHARED += ["nemotron 3, latents, biases, dense layers too, sizes that are not compiled", "llama, biases everywhere"]


@pytest.mark.parametrize("name", SHARED)
async def test_ranks_share_layers_with_states(name: str, tmp_path: Path):
    kind, changes = MODELS[name]
    sizes: dict[str, Any] = {"num_attention_heads": 4, "eos_token_id": None}
    if name == "qwen3.5":
        sizes["linear_num_value_heads"] = 4
    theirs = saved(kind, tmp_path / "model", **changes | sizes)
    prompts = [some_ids(97, length, seed) for seed, length in enumerate((9, 30, 2))]
    settings = {"do_sample": False, "max_new_tokens": 24, "pad_token_id": 0, "eos_token_id": None}
    theirs.generation_config.eos_token_id = None
    with torch.inference_mode():
        expected = [theirs.generate(torch.tensor([ids]), **settings)[0, len(ids) :].tolist() for ids in prompts]
    flags = (f"--model={tmp_path / 'model'}", "--tensor-parallel=2", "--dtype=float32")
    async with running_worker(tmp_path, *flags) as worker:
        server = await worker.admin.GetServer(admin_pb2.GetServerRequest())
        assert (server.tensor_parallel_ranks, server.row_invariant) == (2, True)
        for _ in range(2):  # once more, with what is cached
            answers = await asyncio.gather(*(worker.generate(greedy(ids, 24)) for ids in prompts))
            assert [answer.ids for answer in answers] == expected


@pytest.mark.parametrize("name", ["qwen3.5", "deepseek v3"])
async def test_ranks_divide_the_models_own_head_and_guess_as_one(name: str, tmp_path: Path):
    kind, changes = MODELS[name]
    heads = "linear_num_value_heads" if name == "qwen3.5" else "num_key_value_heads"
    sizes = {"num_attention_heads": 4, heads: 4, "vocab_size": 7}  # so few ids that some guesses are right
    save_with_head(kind, tmp_path / "model", **changes | sizes)
    prompts = [some_ids(7, length, seed) for seed, length in enumerate((9, 30, 2))]
    one, expected = built(tmp_path / "model"), []
    for number, ids in enumerate(prompts):
        request = Request.make(number, np.array(ids), Sampling(temperature=0.0), Stopping(24))
        request.drafting = Drafting(4, ngram=0)
        expected.append([token for token, _ in answers(one, [request])[number]])
    flags = ("--tensor-parallel=2", "--dtype=float32", "--page-size=8", "--draft-model=mtp", "--speculate=always")
    async with running_worker(tmp_path, f"--model={tmp_path / 'model'}", *flags) as worker:
        assert [(await worker.generate(greedy(ids, 24))).ids for ids in prompts] == expected
        load, alone = await worker.settled(), one.engine.scheduler.statistics
        guessed = (load.draft_tokens_proposed, load.draft_tokens_accepted)
        assert guessed == (alone.draft_tokens_proposed, alone.draft_tokens_accepted)
        assert alone.draft_tokens_accepted > 0


async def test_an_engine_whose_rank_is_killed_ends_and_is_started_again(shared_data: Path, tmp_path: Path):
    folder = model_of(shared_data)
    case = json.loads((folder / "expected_greedy.json").read_text())[0]
    async with running_worker(tmp_path, "--model", str(folder / "hf"), "--tensor-parallel=2") as worker:
        call = worker.inference.Generate(greedy([1, 5, 9], 480))
        await call.read()
        (follower,) = ranks_of(worker)
        follower.send_signal(signal.SIGKILL)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(rest(call), 60)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        async with asyncio.timeout(120):
            while not (await worker.admin.GetServer(admin_pb2.GetServerRequest())).engine_restarts:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert (await worker.generate(greedy(case["prompt_ids"], 10))).ids == case["output_ids"][:10]
        remaining = ranks_of(worker)
        assert len(remaining) == 1 and remaining != [follower]
    assert not psutil.wait_procs(remaining, timeout=30)[1]


async def test_ranks_agree_on_guided_rows_whose_masks_are_late_and_whose_processes_end(tmp_path: Path):
    request = greedy([1, 494, 410, 1987], 300, guided=pb.GuidedDecoding(regex=r"([a-z]{3} ){60}the end"))
    speculating = pb.GenerateRequest()
    speculating.CopyFrom(request)
    speculating.speculation.max_draft_tokens = 6
    slow = greedy([1, 5], 12, guided=pb.GuidedDecoding(**SLOW["counted"]))
    async with (
        service_process("tandem.tokenizer", tmp_path, f"--tokenizer=demo={DEMO}") as (address, _),
        running_worker(tmp_path, f"--model={DEMO}", f"--tokenizer-address={address}", "--tensor-parallel=2") as worker,
    ):
        alone = (await worker.generate(request)).ids
        tasks = [asyncio.create_task(worker.generate(each)) for each in (request, slow, speculating, request, slow)]
        while not (below := guides_processes(worker)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for process in below:
            process.kill()
        first, slow_one, drafted, second, slow_other = await asyncio.gather(*tasks)
        assert first.ids == second.ids == drafted.ids == alone
        assert slow_one.ids == slow_other.ids
        assert (await worker.settled()).pages_referenced == 0

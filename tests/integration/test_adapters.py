"""Over the wire: adapters beside a model are asked for by name, each with a cache of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from copy import deepcopy
from pathlib import Path

import grpc
import peft
import pytest
import pytest_asyncio
import torch
from transformers import LlamaForCausalLM

from tandem.inference.v1 import admin_pb2
from tandem.inference.v1 import inference_pb2 as pb
from tests.integration.worker_process import Answer, Worker, failed_start, greedy, running_worker

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = [1] + [11, 23, 35, 7] * 12
NAMES = "poems", "code"
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="module")
def adapters(random_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two adapters of random numbers."""
    folder = tmp_path_factory.mktemp("adapters")
    for number, name in enumerate(NAMES):
        torch.manual_seed(number)
        config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=MODULES)
        adapted = peft.get_peft_model(LlamaForCausalLM.from_pretrained(random_llama), config)
        for parameter in (each for key, each in adapted.named_parameters() if "lora_" in key):
            torch.nn.init.normal_(parameter, 0, 0.2)
        adapted.save_pretrained(folder / name)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(random_llama: Path, adapters: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Worker]:
    flags = [f"--lora={name}={adapters / name}" for name in NAMES]
    async with running_worker(
        tmp_path_factory.mktemp("worker"),
        *("--model", str(random_llama), "--model-name=random", "--kv-cache-tokens=2048", "--page-size=16", *flags),
    ) as worker:
        yield worker


def scored(prompt: list[int], **fields: object) -> pb.GenerateRequest:
    return greedy(prompt, output=pb.OutputOptions(logprobs=True, prompt_logprobs=True), **fields)


def of(answer: Answer) -> tuple[list[int], list[float], list[float]]:
    return answer.ids, answer.logprobs, list(answer.prompt.logprobs)[1:]


async def test_an_adapter_answers_as_the_merged_model(worker: Worker, random_llama: Path, adapters: Path) -> None:
    base = LlamaForCausalLM.from_pretrained(random_llama)
    seen = set()
    for name in ("", "random", *NAMES):
        model = deepcopy(base)
        if name in NAMES:
            model = peft.PeftModel.from_pretrained(model, adapters / name).merge_and_unload()
        with torch.inference_mode():
            expected = model.generate(
                torch.tensor([PROMPT]), max_new_tokens=16, min_new_tokens=16, do_sample=False, eos_token_id=None
            )
        answer = await worker.generate(greedy(PROMPT, model=name))
        assert answer.ids == expected[0, len(PROMPT) :].tolist()
        assert answer.accepted is not None and answer.accepted.model == (name or "random")
        seen.add(tuple(answer.ids))
    assert len(seen) == 3


async def test_each_answer_is_the_same_in_any_company_and_whatever_was_cached(worker: Worker) -> None:
    alone = {}
    for name in ("random", *NAMES):
        await worker.admin.ClearPrefixCache(admin_pb2.ClearPrefixCacheRequest())
        alone[name] = await worker.generate(scored(PROMPT, model=name))
    await worker.admin.ClearPrefixCache(admin_pb2.ClearPrefixCacheRequest())
    names = ["random", *NAMES] * 4
    prompts = [PROMPT if place < 6 else [*PROMPT, 5 + place] for place in range(len(names))]
    together = await asyncio.gather(
        *(worker.generate(scored(prompt, model=name)) for prompt, name in zip(prompts, names, strict=True))
    )
    for name, prompt, answer in zip(names, prompts, together, strict=True):
        if prompt is PROMPT:
            assert of(answer) == of(alone[name])
        assert of(answer) == of(await worker.generate(scored(prompt, model=name, cache=pb.CacheParams(bypass=True))))
    assert (await worker.settled()).pages_referenced == 0


async def test_pages_are_shared_within_an_adapter_alone(worker: Worker) -> None:
    await worker.admin.ClearPrefixCache(admin_pb2.ClearPrefixCacheRequest())
    cached = []
    for name in ("random", "poems", "code", "poems", "", "code"):
        answer = await worker.generate(greedy(PROMPT, model=name))
        assert answer.finished is not None
        cached.append(answer.finished.usage.cached_prompt_tokens)
    assert cached == [0, 0, 0, 48, 48, 48]
    # Salts of requests cannot reach them.
    for salt in ("5:poems", "poems", "4:code", "0:"):
        answer = await worker.generate(greedy(PROMPT, cache=pb.CacheParams(salt=salt)))
        assert answer.finished is not None and not answer.finished.usage.cached_prompt_tokens


async def test_names_are_told_and_others_refused(worker: Worker) -> None:
    for name in ("", "random", *NAMES):
        told = await worker.admin.GetModel(admin_pb2.GetModelRequest(model=name))
        assert (told.name, list(told.adapters)) == (name or "random", list(NAMES))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.generate(greedy(PROMPT, model="prose"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert all(name in (caught.value.details() or "") for name in ("random", *NAMES))


async def test_samples_and_speculation_of_an_adapter_are_its_own(worker: Worker) -> None:
    def asked(**fields: object) -> pb.GenerateRequest:
        return pb.GenerateRequest(
            prompt_ids=PROMPT, model="code", stopping=pb.StoppingParams(max_tokens=12, ignore_eos=True),
            sampling=pb.SamplingParams(seed=3, temperature=0.7), **fields,  # type: ignore[arg-type]
        )  # fmt: skip

    plain = await worker.generate(asked())
    drafted = await worker.generate(asked(speculation=pb.SpeculationParams(max_draft_tokens=4, prompt_lookup_ngram=1)))
    assert drafted.ids == plain.ids
    both: dict[int, list[int]] = {0: [], 1: []}
    async for message in worker.inference.Generate(asked(n=2)):
        both[message.delta.index] += message.delta.ids
    assert both[0] == plain.ids
    assert both[1] not in ([], plain.ids)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--lora=poems"], "NAME=FOLDER is expected"),
        (["--lora==x"], "NAME=FOLDER is expected"),
        (["--lora=a b=x"], "NAME=FOLDER is expected"),
        (["--lora=a=x", "--lora=a=y"], "the name 'a' is given twice"),
        (["--lora=random=x", "--model-name=random"], "is the model's own"),
        ([f"--lora=a{number}=x" for number in range(257)], "at most 256 adapters are served"),
        (["--lora=a=x", "--tensor-parallel=2"], "lora is not served with tensor_parallel"),
        (["--lora=a=/nowhere"], "/nowhere/adapter_config.json: no such file"),
    ],
)
async def test_wrong_settings_end_the_start_with_their_name(flags: list[str], problem: str, random_llama: Path) -> None:
    code, told = await asyncio.to_thread(failed_start, "--engine=thread", "--model", str(random_llama), *flags)
    assert code and problem in told

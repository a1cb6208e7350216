"""The whole engine on a card: against transformers, against the CPU, with graphs and without, in storms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.random_llama import RandomCheckpoint, llama
from tandem.worker.engine.process.build import BuiltEngine, build_engine
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.request import Drafting, Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.model.cuda import products as cuda_products
from tandem.worker.model.cuda.graphs import GraphedRunner
from tandem.worker.model.operations import Products
from tandem.worker.model.work import Work
from tests.worker_svc.model.cuda.kernels.test_states import MODELS as STATES
from tests.worker_svc.model.llama_folders import random_llama, some_ids
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.tiny_models.latents import DEEPSEEK_V3

GREEDY = Sampling(temperature=0.0)


def built(model: Path, **fields: object) -> BuiltEngine:
    options = {
        "device": "cuda",
        "dtype": "float32",
        "max_running_requests": 16,
        "kv_cache_tokens": 8192,
        "page_size": 16,
    }
    return build_engine(EngineConfig(model=str(model), **(options | fields)))  # type: ignore[arg-type]


def answers(engine: BuiltEngine, requests: list[Request]) -> dict[int, list[int]]:
    """Every request's ids; checks the bookkeeping at each step and that nothing is held in the end."""
    ids: dict[int, list[int]] = {request.number: [] for request in requests}
    for request in requests:
        engine.engine.submit(request)
    while engine.engine.has_work:
        result = engine.engine.step()
        for number, token in zip(result.numbers.tolist(), result.sampled.ids.tolist(), strict=True):
            ids[number].append(token)
        engine.engine.check()
    assert engine.engine.table.referenced == 0
    return ids


def some_requests(vocabulary: int, count: int, sampling: Sampling, longest: int = 90) -> list[Request]:
    draw = np.random.default_rng(count)
    return [
        Request.make(
            number,
            draw.integers(3, vocabulary, draw.integers(1, longest)),
            replace(sampling, seed=number),
            Stopping(max_tokens=int(draw.integers(2, 40))),
        )
        for number in range(count)
    ]


def test_the_demo_model_writes_what_it_writes_on_a_cpu(repository: Path) -> None:
    model = repository / "models/demo"
    on_cpu, on_card = built(model, device="cpu"), built(model)
    requests = [some_requests(on_cpu.config.vocab_size, 12, GREEDY) for _ in range(2)]
    assert answers(on_card, requests[0]) == answers(on_cpu, requests[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_logits_equal_transformers(dtype: torch.dtype, tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    reference = random_llama(**sizes, intermediate_size=512, vocab_size=1000)
    reference.save_pretrained(tmp_path)
    engine = built(tmp_path, dtype=str(dtype).removeprefix("torch."))
    ids = np.array(some_ids(1000, 200), dtype=np.int32)
    ours = engine.engine._runner.forward([Work(ids, 0, np.arange(13), 200)])[:200]
    with torch.inference_mode():
        exact = reference.double()(torch.from_numpy(ids).long()[None]).logits[0]
        theirs = reference.to(dtype).cuda()(torch.from_numpy(ids).long()[None].cuda()).logits[0]
    our_error = ((ours.cpu().double() - exact).norm() / exact.norm()).item()
    their_error = ((theirs.cpu().double() - exact).norm() / exact.norm()).item()
    assert our_error < max(1.5 * their_error, 1e-5)


@pytest.mark.parametrize("name", STATES)
def test_models_with_states_answer_as_on_a_cpu_recorded_or_not_whatever_was_cached(name: str, tmp_path: Path) -> None:
    kind, changes = STATES[name]
    saved(kind, tmp_path, **changes, max_position_embeddings=256)
    on_cpu, on_card = built(tmp_path, device="cpu", state_slots=24), built(tmp_path, state_slots=24)
    launched = built(tmp_path, cuda_graphs=False, state_slots=24)
    assert isinstance(on_card.engine._runner, GraphedRunner) and on_card.row_invariant
    vocabulary = on_cpu.config.vocab_size
    expected = answers(on_cpu, some_requests(vocabulary, 12, GREEDY))
    for engine in (on_card, launched, on_card):  # the last time out of the cache
        assert answers(engine, some_requests(vocabulary, 12, GREEDY)) == expected
    assert on_card.engine.scheduler.statistics.cached_prompt_tokens


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8", "int8", "int6", "int4"])
def test_a_model_with_latents_answers_alike_recorded_and_not(kv_cache_dtype: str, tmp_path: Path) -> None:
    saved("DeepseekV3", tmp_path, **DEEPSEEK_V3 | {"kv_lora_rank": 64, "qk_rope_head_dim": 16})
    fields = {"dtype": "bfloat16", "kv_cache_dtype": kv_cache_dtype, "context_length": 96}
    engines = [built(tmp_path, cuda_graphs=graphs, **fields) for graphs in (True, False)]
    assert engines[0].row_invariant and isinstance(engines[0].engine._runner, GraphedRunner)
    requests = [some_requests(engines[0].config.vocab_size, 12, GREEDY, longest=50) for _ in range(2)]
    recorded, launched = (answers(engine, each) for engine, each in zip(engines, requests, strict=True))
    assert recorded == launched


def test_a_model_with_latents_writes_what_it_writes_on_a_cpu(tmp_path: Path) -> None:
    saved("DeepseekV3", tmp_path, **DEEPSEEK_V3 | {"kv_lora_rank": 64, "qk_rope_head_dim": 16})
    on_cpu, on_card = built(tmp_path, device="cpu"), built(tmp_path)
    requests = [some_requests(on_cpu.config.vocab_size, 12, GREEDY, longest=50) for _ in range(2)]
    assert answers(on_card, requests[0]) == answers(on_cpu, requests[1])


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8", "int8", "int6", "int4"])
def test_graphs_on_and_off_give_the_same_answers(kv_cache_dtype: str, repository: Path) -> None:
    model = repository / "models/demo"
    for sampling in (GREEDY, Sampling(temperature=0.9, top_p=0.95)):
        with_graphs = built(model, dtype="bfloat16", kv_cache_dtype=kv_cache_dtype)
        without = built(model, dtype="bfloat16", kv_cache_dtype=kv_cache_dtype, cuda_graphs=False)
        assert isinstance(with_graphs.engine._runner, GraphedRunner)
        assert not isinstance(without.engine._runner, GraphedRunner)
        requests = [some_requests(with_graphs.config.vocab_size, 20, sampling) for _ in range(2)]
        assert answers(with_graphs, requests[0]) == answers(without, requests[1])


@pytest.mark.parametrize("reproducible", [True, False], ids=["reproducible", "fast"])
@pytest.mark.parametrize(
    "sampling", [GREEDY, Sampling(temperature=0.9), Sampling(temperature=0.9, top_p=0.95)], ids=str
)
def test_overlap_on_and_off_give_the_same_answers(sampling: Sampling, reproducible: bool, repository: Path) -> None:
    model = repository / "models/demo"
    fields = {"dtype": "bfloat16", "reproducible": reproducible}
    engines = [built(model, overlap=overlap, **fields) for overlap in ("on", "off")]
    vocabulary = engines[0].config.vocab_size
    requests = [some_requests(vocabulary, 24, sampling) for _ in range(2)]
    for request in (*requests[0], *requests[1]):  # most end before anybody could know
        request.stopping = replace(request.stopping, stop_ids=frozenset(range(request.number % 5, vocabulary, 5)))
        if request.number % 8 == 0:  # who sits steps out, for the others' sake
            request.drafting = Drafting(4, ngram=1)
    with_overlap, without = (answers(engine, each) for engine, each in zip(engines, requests, strict=True))
    if reproducible:  # else a step's company, which overlap may change, may decide about the last bit
        assert with_overlap == without
    assert with_overlap.keys() == without.keys()
    statistics = engines[0].engine.scheduler.statistics
    assert statistics.overlapped_steps > statistics.steps // 2
    assert statistics.overlap_wasted_tokens > 0
    assert engines[1].engine.scheduler.statistics.overlapped_steps == 0


@pytest.mark.parametrize("quantize", ["none", "fp8", "int8", "int4"])
def test_bits_do_not_depend_on_the_batch(quantize: str) -> None:
    engine = build_engine(
        EngineConfig(
            model="random",
            device="cuda",
            dtype="bfloat16",
            max_running_requests=256,
            kv_cache_tokens=1 << 16,
            quantize=quantize,
        ),
        checkpoint=RandomCheckpoint(llama("1b", 2048), "cuda", torch.bfloat16),
    )
    assert engine.row_invariant
    draw = np.random.default_rng(0)
    prompts = [draw.integers(0, 100_000, 65).astype(np.int32) for _ in range(200)]
    runner = engine.engine._runner
    held = [np.array([2 * i, 2 * i + 1], dtype=np.int64) for i in range(200)]
    runner.forward([Work(ids[:64], 0, pages, 0) for ids, pages in zip(prompts, held, strict=True)])
    decodes = [Work(ids[64:], 64, pages, 1) for ids, pages in zip(prompts, held, strict=True)]
    alone = torch.stack([runner.forward([decode])[0].clone() for decode in decodes[:4]])
    for batch in (2, 8, 33, 64, 200):
        assert torch.equal(runner.forward(decodes[:batch])[: min(4, batch)], alone[: min(4, batch)]), batch
    whole = runner.forward([Work(prompts[0], 0, held[0], 1)])[0]
    assert torch.equal(whole, alone[0])


def test_bits_do_not_depend_on_the_batch_where_the_library_lets_them(
    monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    usual = torch.nn.functional.linear

    def dependent(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        half = x.shape[1] // 2 if len(x) <= 64 else x.shape[1]  # a sum in two parts where there are few rows
        return usual(x[:, :half], weight[:, :half]) + usual(x[:, half:], weight[:, half:])

    monkeypatch.setattr(cuda_products, "LIBRARY", Products(dependent))
    assert built(repository / "models/demo", dtype="bfloat16").row_invariant
    assert not built(repository / "models/demo", dtype="bfloat16", reproducible=False).row_invariant


def test_storms_of_cancellations_and_preemptions_leak_nothing(repository: Path) -> None:
    # So few pages that running requests are preempted all the time.
    engine = built(repository / "models/demo", dtype="bfloat16", kv_cache_tokens=512)
    draw = np.random.default_rng(0)
    vocabulary, number = engine.config.vocab_size, 0
    for _ in range(400):
        if draw.random() < 0.5 and number < 150:
            prompt, output = draw.integers(3, vocabulary, draw.integers(1, 60)), int(draw.integers(1, 60))
            engine.engine.submit(Request.make(number, prompt, Sampling(seed=number), Stopping(max_tokens=output)))
            number += 1
        if number and draw.random() < 0.1:
            engine.engine.abort(int(draw.integers(0, number)))
        if engine.engine.has_work:
            engine.engine.step()
        engine.engine.check()
    while engine.engine.has_work:
        engine.engine.step()
        engine.engine.check()
    assert engine.engine.table.referenced == 0

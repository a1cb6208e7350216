"""What a cache of fewer bits costs, in perplexity and in bytes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch

from tandem.worker.checkpoints.model_parts.heads import KVHeads
from tandem.worker.engine.process.build import BuiltEngine, build_engine
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.process.loop import describe
from tandem.worker.engine.request import Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.model.attention import Segment
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import FEW_BITS, Float8, Int4, Int6, Int8, KVFormat, Plain

FORMATS: list[KVFormat] = [Plain(torch.float32), Plain(torch.bfloat16), *FEW_BITS]


def built(model: Path, kv_cache_dtype: str) -> BuiltEngine:
    return build_engine(
        EngineConfig(model=str(model), device="cpu", threads=1, dtype="float32", kv_cache_dtype=kv_cache_dtype)
    )


def written_by(model: Path, sequences: int, tokens: int) -> list[list[int]]:
    """What the model writes from nothing, at temperature 1."""
    engine = built(model, "auto").engine
    text = {seed: [1] for seed in range(sequences)}
    for seed in text:
        engine.submit(Request.make(seed, [1], Sampling(seed=1000 + seed), Stopping(max_tokens=tokens)))
    while engine.has_work:
        result = engine.step()
        for number, token in zip(result.numbers.tolist(), result.sampled.ids.tolist(), strict=True):
            text[number].append(token)
    return list(text.values())


def perplexity(model: Path, kv_cache_dtype: str, texts: list[list[int]]) -> float:
    """Of all tokens but the first, each text read in one piece through the cache."""
    engine = built(model, kv_cache_dtype)
    runner = engine.engine._runner
    cache = runner.cache  # type: ignore[attr-defined]
    loss, count = 0.0, 0
    for ids in texts:
        length, padded = len(ids), -(-len(ids) // 4) * 4
        place = np.arange(padded)
        pages = np.arange(-(-padded // cache.shape.page_size))
        slots = torch.from_numpy(np.stack([pages[place // cache.shape.page_size], place % cache.shape.page_size]))
        (kind,) = set(engine.config.attention_kinds)
        plan = runner.model.operations.plan(  # type: ignore[attr-defined]
            [Segment(0, length, 0, pages)], cache, engine.config.num_heads, kind
        )
        rows = torch.from_numpy(np.array(ids + [0] * (padded - length)))
        with torch.inference_mode():
            logits = runner.model(  # type: ignore[attr-defined]
                rows, torch.from_numpy(place), cache, slots, {kind: plan}, torch.from_numpy(place)
            )
        logprobs = torch.log_softmax(logits[: length - 1].double(), dim=-1)
        loss -= logprobs.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).sum().item()
        count += length - 1
    return math.exp(loss / count)


def test_perplexity_of_a_real_model_holds_with_fewer_bits(shared_data: Path):
    model = shared_data / "models/stories260K/meta"
    texts = written_by(model, 8, 250)
    exact = perplexity(model, "auto", texts)
    assert perplexity(model, "int8", texts) < 1.005 * exact
    assert perplexity(model, "int6", texts) < 1.005 * exact
    assert perplexity(model, "int4", texts) < 1.03 * exact
    assert perplexity(model, "fp8", texts) < 1.02 * exact


def test_perplexity_of_the_demo_model_holds_with_fewer_bits(repository: Path, shared_data: Path):
    model = repository / "models/demo"
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(model / "tokenizer.model"))
    ids = tokenizer.encode((shared_data / "corpus/tinyshakespeare.txt").read_text()[-15_000:])
    texts = [[1, *ids[start : start + 400]] for start in range(0, len(ids) - 400, 1000)]
    exact = perplexity(model, "auto", texts)
    assert perplexity(model, "int8", texts) < 1.005 * exact
    assert perplexity(model, "int6", texts) < 1.005 * exact
    assert perplexity(model, "int4", texts) < 1.03 * exact
    assert perplexity(model, "fp8", texts) < 1.005 * exact


@pytest.mark.parametrize("stored", FORMATS, ids=lambda stored: stored.name)
@pytest.mark.parametrize("head_dim", [8, 12, 64, 128])
def test_the_stated_bytes_are_the_allocated_ones(stored: KVFormat, head_dim: int):
    shape = CacheShape((KVHeads(2, head_dim),) * 3, 5, 16, stored)
    assert KVCache(shape, "cpu").allocated_bytes == shape.bytes
    assert shape.bytes == shape.bytes_per_token * 16 * 6


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8", "int8", "int6", "int4"])
@pytest.mark.parametrize("with_draft_model", [False, True])
def test_what_the_server_states_is_what_the_caches_take(repository: Path, kv_cache_dtype: str, with_draft_model: bool):
    model = str(repository / "models/demo")
    engine = build_engine(
        EngineConfig(
            model=model,
            device="cpu",
            threads=1,
            kv_cache_dtype=kv_cache_dtype,
            kv_cache_tokens=640,
            context_length=32,  # so that what is learnt of the keys at start takes few steps
            draft_model=model if with_draft_model else "",
        )
    )
    runners = [engine.engine._runner, *([engine.engine._draft_runner] if with_draft_model else [])]
    allocated = sum(runner.cache.allocated_bytes for runner in runners)  # type: ignore[union-attr]
    info = describe(engine)
    assert info.kv_cache_tokens == 640
    assert info.kv_cache_bytes == allocated
    assert info.kv_bytes_per_token * (640 + info.page_size) == allocated  # each cache has one page that pads steps
    assert info.kv_cache_dtype == (info.dtype if kv_cache_dtype == "auto" else kv_cache_dtype)


def test_float8_rounds_to_three_bits_and_saturates():
    x = torch.randn(4096, 8, generator=torch.Generator().manual_seed(0)) * torch.logspace(-1, 1, 4096).unsqueeze(1)
    decoded = Float8().decode(Float8().encode(x), torch.empty_like(x))
    assert ((decoded - x).abs() <= (x.abs() / 16).clamp_min(2.0**-10)).all()
    beyond = torch.tensor([[1e9, -1e9, 449.0, float("inf")]])
    largest = Float8().decode(Float8().encode(beyond), torch.empty_like(beyond))
    assert torch.equal(largest, torch.tensor([[448.0, -448.0, 448.0, 448.0]]))


@pytest.mark.parametrize(("stored", "steps"), [(Int8(), 254), (Int6(), 62), (Int4(), 15)], ids=["int8", "int6", "int4"])
@pytest.mark.parametrize("head_dim", [8, 32, 64, 96])
def test_a_vector_comes_back_within_half_a_step_whatever_its_company(stored: KVFormat, steps: int, head_dim: int):
    x = torch.randn(33, 2, head_dim, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 33).view(
        -1, 1, 1
    )
    x[5] = 0
    decoded = stored.decode(stored.encode(x), torch.empty_like(x))
    span = 2 * x.abs().amax(-1, keepdim=True) if steps > 15 else x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)
    assert ((decoded - x).abs() <= span / steps / 2 * 1.001 + 1e-30).all()
    alone = stored.decode(stored.encode(x[7:8]), torch.empty(1, 2, head_dim))
    assert torch.equal(alone, decoded[7:8])


@pytest.mark.parametrize("stored", FORMATS, ids=lambda stored: stored.name)
def test_copies_read_everything_before_they_write(stored: KVFormat):
    cache = KVCache(CacheShape((KVHeads(1, 8),) * 2, 4, 4, stored), "cpu")
    for layer in (*cache.keys, *cache.values):
        for part in layer:
            part.copy_(torch.arange(part.numel()).view(part.shape) % 100)
    before = [part.to(torch.float32, copy=True) for layer in (*cache.keys, *cache.values) for part in layer]
    cache.copy([0, 1, 2], [1, 2, 0])
    after = [part.float() for layer in (*cache.keys, *cache.values) for part in layer]
    for old, new in zip(before, after, strict=True):
        assert torch.equal(new[[1, 2, 0, 3]], old[[0, 1, 2, 3]])
    cache.zero([1])
    assert not any(part[1].float().any() for layer in (*cache.keys, *cache.values) for part in layer)

"""Attention over latents: heads' matrices in one call, one store for keys and values, and the formats of the cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.checkpoints.grouped import Quantization
from tandem.worker.checkpoints.model_parts.heads import AttentionKind, KVHeads
from tandem.worker.model.attention import AttentionPlan, Scores, Segment
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.heads import CompiledHeads
from tandem.worker.model.cpu.operations import NativePlan
from tandem.worker.model.kv_cache import CacheShape, KeyChannels, KVCache
from tandem.worker.model.kv_formats import kv_format
from tandem.worker.model.linear import HeadLinear
from tandem.worker.model.loading import load_transformer
from tests.worker_svc.model.llama_folders import logits_in_chunks, some_ids
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.test_compiled_experts import KINDS, give_weight
from tests.worker_svc.model.tiny_models.latents import DEEPSEEK_V3

HEADS = KVHeads(1, 40, 32)


@pytest.fixture(autouse=True)
def _compiled() -> None:
    if not native.available():
        pytest.skip("no AVX2, or no C compiler")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_heads_in_one_call_have_the_bits_of_heads_one_by_one(kind: str | Quantization) -> None:
    torch.manual_seed(0)
    linear = HeadLinear(5, 48, 24, torch.float32)
    for _ in range(5):
        one = HeadLinear(1, 48, 24, torch.float32)
        give_weight(one, kind)
        linear.weights.append(one.weights[0])
    rows = torch.randn(70, 5, 48)
    apart = linear(rows)
    together = CompiledHeads(linear)
    assert torch.equal(together(rows), apart)
    for row in (0, 7, 69):
        assert torch.equal(together(rows[row : row + 1]), apart[row : row + 1])
    exact = torch.cat([torch.nn.functional.linear(rows[:, head], plain(linear, head)) for head in range(5)], dim=1)
    assert (apart - exact).norm() < 0.02 * exact.norm()


def plain(linear: HeadLinear, head: int) -> torch.Tensor:
    """A head's matrix, by what it makes of the rows of one."""
    weight: Any = linear.weights[head]
    return torch.cat([weight(row[None]) for row in torch.eye(linear.in_features)]).t()


@pytest.fixture(params=[True, False], ids=["bf16", "without bf16"])
def rounds(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether attention rounds queries and weights to bf16, by instructions that are there or not used."""
    serve = native.limit_bf16("twos")
    if request.param and not serve:
        native.limit_bf16("amx")
        pytest.skip("no instructions for bf16")
    native.limit_bf16("amx" if request.param else "shifts")
    yield request.param
    native.limit_bf16("amx")


@pytest.mark.parametrize("heads", [3, 16, 20])
@pytest.mark.parametrize("stored", ["auto", "fp8", "int8", "int6", "int4"])
def test_attention_over_latents_has_one_store_and_the_numbers_of_torch(stored: str, heads: int, rounds: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    form = kv_format(stored, torch.float32)
    channels = [KeyChannels(torch.randn(1, 40, generator=generator), torch.rand(1, 40, generator=generator) + 0.5)]
    cache = KVCache(CacheShape((HEADS,), 9, 8, form), "cpu", channels if form.normalizes_keys else None)
    assert cache.keys[0][0].data_ptr() == cache.values[0][0].data_ptr()
    assert cache.allocated_bytes == cache.shape.bytes == cache.shape.layer_bytes(HEADS) * 80
    tokens = torch.arange(56)
    latents = torch.randn(56, 1, 40, generator=generator)
    cache.write(0, torch.stack([tokens // 8, tokens % 8]), latents, None)
    queries = cache.scale_queries(0, torch.randn(56, heads, 40, generator=generator))
    plans = [Segment(0, 55, 0, np.arange(7)), Segment(55, 1, 55, np.arange(7))]
    kind, scores = AttentionKind(0, HEADS), Scores(0.2)

    def attended(segments: list[Segment], rows: torch.Tensor, made: Any) -> torch.Tensor:
        given = made(segments, cache, heads, kind).attend(cache.keys[0], cache.values[0], rows, scores)
        return cache.values_of(0, given)

    ours = attended(plans, queries, NativePlan)
    # Queries and weights have 16 bits, or those of bf16.
    within = 2e-2 if rounds and stored in ("fp8", "int8", "int4") else {"int8": 3e-4, "int6": 3e-4}.get(stored, 1e-5)
    torch.testing.assert_close(ours, attended(plans, queries, AttentionPlan), atol=within, rtol=1e-5)
    alone = attended([Segment(0, 1, 30, np.arange(7))], queries[30:31], NativePlan)
    assert torch.equal(alone, ours[30:31])
    if stored == "auto":  # what stands in the cache is what was written
        lower = torch.tril(torch.ones(56, 56, dtype=torch.bool))
        weights = (torch.einsum("nhd,md->hnm", queries, latents[:, 0]) * 0.2).masked_fill(~lower, -torch.inf)
        exact = torch.einsum("hnm,md->nhd", weights.softmax(-1), latents[:, 0, :32])
        torch.testing.assert_close(ours, exact, atol=1e-5, rtol=1e-5)


def test_copied_pages_are_copied_once_though_keys_are_values() -> None:
    cache = KVCache(CacheShape((HEADS,), 3, 8, kv_format("auto", torch.float32)), "cpu")
    cache.keys[0][0][:] = torch.arange(4.0).view(-1, 1, 1, 1)
    cache.copy([0, 1], [1, 2])
    assert cache.keys[0][0][:, 0, 0, 0].tolist() == [0, 0, 1, 3]


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_heads_matrices_are_quantized_at_load_where_that_is_asked_for(kind: str, tmp_path: Path) -> None:
    saved("DeepseekV3", tmp_path, **DEEPSEEK_V3)
    checkpoint, ids = open_checkpoint(tmp_path), some_ids(97, 40)
    quantization = Quantization(8, 0) if kind == "int8" else Quantization(4, 32)
    plain = logits_in_chunks(load_transformer(checkpoint, "cpu", torch.float32), ids, [40])
    model = load_transformer(checkpoint, "cpu", torch.float32, quantization=quantization)
    heads = [module for module in model.modules() if isinstance(module, HeadLinear)]
    assert {type(weight).__name__ for module in heads for weight in module.weights} == {"QuantizedWeight"}
    assert {len(module.weights) for module in heads} == {6}
    assert all(isinstance(module.joined, CompiledHeads) for module in heads)
    whole = logits_in_chunks(model, ids, [40])
    assert (whole - plain).norm() < (0.05 if kind == "int8" else 0.5) * plain.norm()
    assert torch.equal(logits_in_chunks(model, ids, [17, 1]), whole)

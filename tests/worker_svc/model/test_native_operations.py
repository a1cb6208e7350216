"""The compiled operations of a layer against torch's, and against themselves in other company. Attention:
`test_attention.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.random_llama import RandomCheckpoint, llama
from tandem.worker.checkpoints.grouped import Quantization
from tandem.worker.checkpoints.model_config import KVHeads
from tandem.worker.model.cpu import layer as native_layer
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.operations import NativeOperations
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import Plain, kv_format
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.operations import TorchOperations
from tandem.worker.model.runner import ModelRunner, Work

OURS, TORCH = NativeOperations(), TorchOperations()


@pytest.fixture(autouse=True, params=[1, 3])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    if not native.available():
        pytest.skip("no AVX2, or no C compiler")
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("size", [8, 72, 2048])
def test_a_norm_is_that_in_float64_and_the_same_bits_in_any_company(size: int) -> None:
    x, delta, weight = numbers(40, size), numbers(40, size + 3)[:, :size], numbers(size)
    changed = x.clone()
    together = OURS.add_norm(changed, delta, weight, 1e-5)
    assert torch.equal(changed, x + delta)
    exact = torch.nn.functional.rms_norm(changed.double(), (size,), weight.double(), 1e-5)
    torch.testing.assert_close(together.double(), exact, atol=1e-6, rtol=1e-6)
    assert torch.equal(OURS.add_norm(changed, None, weight, 1e-5), together)
    for rows in (slice(0, 1), slice(5, 12)):
        assert torch.equal(OURS.add_norm(x[rows].clone(), delta[rows], weight, 1e-5), together[rows])


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16", "int8", "int4"])
@pytest.mark.parametrize("head_dim", [8, 40])
def test_rotating_and_storing_has_the_bits_of_torch(head_dim: int, stored: str) -> None:
    plain = getattr(torch, stored, None) if "float" in stored else None
    form = Plain(plain) if plain else kv_format(stored, torch.float32)
    heads, kv_heads, rows = 6, 2, 600  # so many that threads share them
    qkv = numbers(rows, heads + 2 * kv_heads, head_dim)
    qkv[7, heads:] = torch.tensor([float("nan"), float("inf"), -float("inf"), 3.39e38] * (head_dim // 4))
    turned = numbers(rows, 1, head_dim)
    places = torch.randperm(640, generator=torch.Generator().manual_seed(1))[:rows]
    slots = torch.stack([places // 16, places % 16])
    caches = [KVCache(CacheShape((KVHeads(kv_heads, head_dim),), 40, 16, form), "cpu") for _ in range(2)]
    queries = [
        operations.rotate_and_store(qkv.clone(), (turned.cos(), turned.sin()), cache, 0, slots)
        for operations, cache in zip((OURS, TORCH), caches, strict=True)
    ]
    assert torch.equal(*queries)
    for ours, theirs in zip(*((*cache.keys[0], *cache.values[0]) for cache in caches), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_what_a_row_computes_does_not_depend_on_what_others_hold() -> None:
    gate_up = numbers(33, 1232)
    together = OURS.swiglu(gate_up, 616)
    gate_up[4] = float("nan")
    spoilt = OURS.swiglu(gate_up, 616)
    assert spoilt[4].isnan().all()
    assert torch.equal(spoilt[5:], together[5:])


MULTIPLIERS = {"embedding_multiplier": 6.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3}


@pytest.mark.parametrize(
    "described",
    [
        {},
        {"windows": (20, 0)},
        {"unrotated_layers": (1,), **MULTIPLIERS},
        {"windows": (20, 0), "window_rope_theta": 99.0},
    ],
    ids=["plain", "window", "multipliers, a layer that does not rotate", "window with a theta of its own"],
)
@pytest.mark.parametrize("kind", [None, Quantization(8, 0), Quantization(4, 32)], ids=str)
def test_a_layer_in_one_call_has_the_bits_of_one_in_pieces(
    kind: Quantization | None, described: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(llama("tiny", 128), num_layers=2, **described)
    half = torch.bfloat16
    checkpoint = RandomCheckpoint(config, "cpu", half)
    model = load_transformer(checkpoint, "cpu", half, quantization=kind, operations=OURS)
    assert all(layer.compiled is not None for layer in model.layers)  # type: ignore[union-attr]
    shape = CacheShape(config.cache_heads, 8, 16, Plain(half))
    tokens = np.arange(1, 60, dtype=np.int32)
    answers = []
    for most in (0, native_layer.MOST_ROWS):
        monkeypatch.setattr(native_layer, "MOST_ROWS", most)
        monkeypatch.setattr(native_layer, "MOST_WIDE_ROWS", most)
        runner = ModelRunner(model, KVCache(shape, "cpu"))
        whole = runner.forward([Work(tokens, 0, np.arange(4), 3)])
        runner.forward([Work(tokens[:17], 0, np.arange(4, 8), 0)])
        steps = [runner.forward([Work(tokens[i : i + 1], i, np.arange(4, 8), 1)]) for i in range(17, 59)]
        assert torch.equal(torch.cat([step[:1] for step in steps[-3:]]), whole[:3])
        answers.append(whole[:3])
    assert torch.equal(*answers)


@pytest.mark.parametrize("kind", [Quantization(8, 0), Quantization(4, 32)], ids=str)
def test_quantized_layers_are_compiled_also_where_the_processor_computes_in_bf16(kind: Quantization) -> None:
    config = replace(llama("tiny", 128), num_layers=2)
    checkpoint = RandomCheckpoint(config, "cpu", torch.bfloat16)
    model = load_transformer(checkpoint, "cpu", torch.bfloat16, quantization=kind, operations=OURS)
    assert model.dtype == torch.float32
    assert all(layer.compiled is not None for layer in model.layers)  # type: ignore[union-attr]

"""The compiled operations of a layer against torch's, and against themselves in other company. Attention:
`test_attention.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from worker_svc.model import native
from worker_svc.model.kv_cache import CacheShape, KVCache
from worker_svc.model.kv_formats import Plain, kv_format
from worker_svc.model.native_operations import NativeOperations
from worker_svc.model.operations import TorchOperations

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
    caches = [KVCache(CacheShape(1, 40, 16, kv_heads, head_dim, form), "cpu") for _ in range(2)]
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

"""The kernel stores, bit for bit, what the torch operations store, and nothing else."""

from __future__ import annotations

import pytest
import torch

from tandem.worker.model.cuda.operations import TritonOperations
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.kv_formats import Float8, Int4, Int8, KVFormat, Plain
from tandem.worker.model.operations import TorchOperations
from tests.worker_svc.model.cuda.kernels.conftest import DEVICE
from tests.worker_svc.model.cuda.kernels.scenes import Scene, poison

FORMATS: list[KVFormat] = [Plain(torch.float32), Plain(torch.float16), Int8(), Int4()]


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """The same numbers, NaN included, on a CPU; a card may contract a rotation's product and sum."""
    if DEVICE.type == "cpu":
        return torch.equal(ours.float().nan_to_num(nan=1e9), theirs.float().nan_to_num(nan=1e9))
    return torch.allclose(ours.float(), theirs.float(), rtol=2e-2, atol=1.1, equal_nan=True)


@pytest.mark.parametrize("stored", FORMATS, ids=lambda stored: stored.name)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "page_size"), [(4, 2, 64, 16), (3, 3, 80, 5), (6, 1, 96, 32), (2, 2, 8, 4)]
)
@pytest.mark.parametrize("channels", [False, True], ids=["as they are", "normalized"])
def test_what_is_stored_and_the_queries_are_the_bits_of_torch(
    stored: KVFormat, heads: int, kv_heads: int, head_dim: int, page_size: int, channels: bool
) -> None:
    dtype = stored.dtype if isinstance(stored, Plain) else torch.float16
    scene = Scene.make(
        [1, page_size, 2 * page_size + 1], stored, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        page_size=page_size, dtype=dtype, channels=channels,
    )  # fmt: skip
    scene.qkv[2, heads] = 0  # a key without a scale of its own
    ours, theirs = (KVCache(scene.cache.shape, DEVICE, scene.cache.key_channels) for _ in range(2))
    poison(ours)
    poison(theirs)
    q = TritonOperations(4).rotate_and_store(scene.qkv, scene.rotation, ours, 0, scene.slots)
    expected = TorchOperations().rotate_and_store(scene.qkv.clone(), scene.rotation, theirs, 0, scene.slots)
    assert same(q, expected.contiguous())
    for mine, other in zip((*ours.keys, *ours.values), (*theirs.keys, *theirs.values), strict=True):
        for a, b in zip(mine, other, strict=True):
            assert same(a, b)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="the interpreter rounds float8 wrongly")
def test_a_float8_cache_stores_rounded_numbers() -> None:
    stored = Float8()
    scene = Scene.make([3, 9], stored)
    q = TritonOperations(4).rotate_and_store(scene.qkv, scene.rotation, scene.cache, 0, scene.slots)
    assert torch.isfinite(q).all()
    page, place = scene.slots
    kept = scene.cache.values[0][0].float()[page, :, place]
    torch.testing.assert_close(kept, scene.qkv[:, -2:], rtol=0.07, atol=2e-3)


class CountingCache(KVCache):
    """Does more than store, as the one that learns what keys look like."""

    written = 0

    def write(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        super().write(layer, slots, k, v)
        self.written += len(k)


def test_a_cache_that_looks_at_what_it_stores_is_not_passed_by() -> None:
    scene = Scene.make([3, 9], Plain(torch.float32))
    cache = CountingCache(scene.cache.shape, DEVICE)
    q = TritonOperations(4).rotate_and_store(scene.qkv, scene.rotation, cache, 0, scene.slots)
    assert cache.written == 12
    assert q.is_contiguous() and same(q, scene.q)

"""The kernel stores, bit for bit, what the torch operations store, and nothing else."""

from __future__ import annotations

import pytest
import torch

from tandem.worker.model.cuda.operations import TritonOperations
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.kv_formats import Float8, Int4, Int6, Int8, KVFormat, Plain
from tandem.worker.model.operations import TorchOperations
from tandem.worker.model.unfinished import Unfinished
from tests.worker_svc.model.cuda.kernels.conftest import DEVICE
from tests.worker_svc.model.cuda.kernels.scenes import Scene, poison

FORMATS: list[KVFormat] = [Plain(torch.float32), Plain(torch.float16), Int8(), Int6(), Int4()]


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


@pytest.mark.parametrize("stored", [Plain(torch.float32), Plain(torch.float16), Int4()], ids=lambda stored: stored.name)
@pytest.mark.parametrize("head_dim", [48, 64])
@pytest.mark.parametrize("normed", [0, 2, 3])
def test_a_bias_and_norms_of_heads_come_first(stored: KVFormat, head_dim: int, normed: int) -> None:
    dtype = stored.dtype if isinstance(stored, Plain) else torch.float16
    scene = Scene.make([5, 9, 19], stored, heads=6, kv_heads=3, head_dim=head_dim, dtype=dtype)
    bias, weights = torch.randn(12 * head_dim).to(DEVICE, dtype), torch.rand(3, head_dim).to(DEVICE, dtype) + 0.5
    first = Unfinished(bias, tuple(weights[:normed]), 1e-5)
    done = scene.qkv + bias.view(12, -1)
    for part, weight in zip(done.split((6, 3, 3), 1), first.norms, strict=False):
        wide = part.double()
        part.copy_(wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight)
    ours, theirs = (KVCache(scene.cache.shape, DEVICE) for _ in range(2))
    before = scene.qkv.clone()
    q = TritonOperations(4).rotate_and_store(scene.qkv, scene.rotation, ours, 0, scene.slots, first)
    expected = TritonOperations(4).rotate_and_store(done, scene.rotation, theirs, 0, scene.slots)
    assert torch.equal(scene.qkv, before)
    within = {torch.float32: 1e-5, torch.float16: 4e-3}[dtype]
    assert (q - expected).abs().max() < within
    page, place = scene.slots
    digit = 0.5 if isinstance(stored, Int4) else within  # a number between two digits may become either
    for mine, exact in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
        a, b = (
            stored.decode(tuple(part[page, :, place] for part in parts[0]), torch.empty_like(done[:, :3]).float())
            for parts in (mine, exact)
        )
        assert (a - b).abs().max() < digit
    queries = Unfinished(bias[: 6 * head_dim], first.norms[:1], 1e-5)  # of a layer that stores nothing
    assert torch.equal(
        TritonOperations(4).rotate_and_store(scene.qkv[:, :6], scene.rotation, ours, 0, None, queries), q
    )
    rotation = scene.rotation[0][4:5], scene.rotation[1][4:5]
    alone = TritonOperations(4).rotate_and_store(
        scene.qkv[4:5], rotation, ours, 0, scene.slots[:, 4:5].contiguous(), first
    )
    assert torch.equal(alone, q[4:5])


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

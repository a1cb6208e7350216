"""The attention kernels at the sizes that only a card computes."""

from __future__ import annotations

import pytest
import torch

from tandem.worker.model.cuda.operations import TritonOperations
from tandem.worker.model.kv_formats import FEW_BITS, Float8, Int4, Int6, Int8, KVFormat, Plain
from tests.worker_svc.model.cuda.kernels.scenes import Scene

BF16 = torch.bfloat16
MODES = [pytest.param(True, id="reproducible"), pytest.param(False, id="fast")]
ERRORS = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 1e-5}  # of the largest number of the result


def operations(reproducible: bool, dtype: torch.dtype = BF16) -> TritonOperations:
    return TritonOperations.on(torch.device("cuda"), reproducible=reproducible, float32=dtype == torch.float32)


def error(ours: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """NaN is as wrong as can be."""
    worst = [((a.double() - b).norm() / b.norm()).nan_to_num(nan=1e9).item() for a, b in zip(ours, exact, strict=True)]
    return max(worst)


# heads, kv heads, head dim, page size, dtype, window: each is compiled, float32 for 5 to 20 s.
SHAPES = [
    (8, 2, 64, 16, BF16, 0),
    (4, 4, 80, 32, BF16, 130),
    (12, 1, 96, 48, BF16, 0),
    (32, 8, 128, 64, BF16, 0),
    (32, 8, 128, 16, BF16, 130),
    (12, 1, 256, 256, BF16, 130),
    (32, 8, 128, 64, torch.float16, 0),
    (8, 2, 64, 16, torch.float32, 0),
    (12, 1, 128, 64, torch.float32, 130),
]


@pytest.mark.parametrize("reproducible", MODES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "page_size", "dtype", "window"), SHAPES, ids=str)
def test_it_equals_float64(
    heads: int, kv_heads: int, head_dim: int, page_size: int, dtype: torch.dtype, window: int, reproducible: bool
) -> None:
    lengths = [1, page_size - 1, page_size, page_size + 1, 700, 1900]
    scene = Scene.make(
        lengths, Plain(dtype), heads=heads, kv_heads=kv_heads, head_dim=head_dim, page_size=page_size, dtype=dtype
    )
    parts = [(0, 0, 1), (1, 0, page_size - 1), (2, page_size - 1, page_size), (3, 2, page_size + 1), (4, 0, 700)]
    parts.append((5, 1890, 1900))
    ours = scene.attend(operations(reproducible, dtype), parts, window)
    assert error(ours, scene.exact(parts, window)) < ERRORS[dtype]


@pytest.mark.parametrize("reproducible", MODES)
@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)
@pytest.mark.parametrize("stored", [Int8(), Int6(), Int4(), Float8()], ids=lambda stored: stored.name)
@pytest.mark.parametrize("page_size", [16, 64])
def test_it_equals_float64_over_what_is_stored(
    page_size: int, stored: KVFormat, dtype: torch.dtype, reproducible: bool
) -> None:
    scene = Scene.make([900, 65, 1], stored, heads=8, kv_heads=2, head_dim=128, page_size=page_size, dtype=dtype)
    parts = [(0, 899, 900), (1, 0, 65), (2, 0, 1), (0, 500, 880)]
    assert error(scene.attend(operations(reproducible, dtype), parts), scene.exact(parts)) < ERRORS[dtype]


# heads, latent, rotated, what is stored: DeepSeek V3 on one card and on eight, MiniCPM3.
LATENTS = [
    *((128, 512, 64, stored) for stored in (Plain(BF16), *FEW_BITS)),
    (16, 512, 64, Plain(BF16)),
    (16, 512, 64, Plain(torch.float32)),
    (40, 256, 32, Plain(BF16)),
]


@pytest.mark.parametrize("reproducible", MODES)
@pytest.mark.parametrize(
    ("heads", "latent", "rotated", "stored"), LATENTS, ids=lambda value: getattr(value, "name", str(value))
)
def test_attention_over_latents_equals_float64(
    heads: int, latent: int, rotated: int, stored: KVFormat, reproducible: bool
) -> None:
    dtype = torch.float32 if stored.name == "float32" else BF16
    scene = Scene.make(
        [900, 65, 1], stored, heads=heads, kv_heads=1, head_dim=latent + rotated, page_size=64, dtype=dtype,
        latent=latent,
    )  # fmt: skip
    ours = operations(reproducible, dtype)
    parts = [(0, 899, 900), (1, 0, 65), (2, 0, 1), (0, 700, 880)]
    together = scene.attend(ours, parts)
    assert error(together, scene.exact(parts)) < ERRORS[dtype]
    if reproducible:  # the last token of the first in a prefill, alone, and beside others
        assert torch.equal(scene.attend(ours, [(0, 850, 900)])[0][-1:], together[0])
        assert torch.equal(scene.attend(ours, parts[:1])[0], together[0])


@pytest.mark.parametrize("reproducible", MODES)
def test_long_contexts_equal_float64(reproducible: bool) -> None:
    scene = Scene.make([32768, 5000], Plain(BF16), heads=8, kv_heads=2, head_dim=128, page_size=64, dtype=BF16)
    parts = [(0, 32767, 32768), (1, 4000, 5000), (0, 32000, 32016)]
    assert error(scene.attend(operations(reproducible), parts), scene.exact(parts)) < ERRORS[BF16]


@pytest.mark.parametrize("stored", [Plain(BF16), Int8(), Int6(), Int4()], ids=lambda stored: stored.name)
def test_the_bits_are_the_same_alone_in_chunks_and_in_company(stored: KVFormat) -> None:
    scene = Scene.make([3000, 700, 64], stored, heads=8, kv_heads=2, head_dim=128, page_size=64, dtype=BF16)
    ours = operations(True)
    whole = [scene.attend(ours, [(i, 0, n)])[0] for i, n in enumerate(scene.lengths)]
    together = scene.attend(ours, [(0, 2999, 3000), (1, 690, 700), (2, 0, 64)])
    assert torch.equal(together[0], whole[0][2999:])
    assert torch.equal(together[1], whole[1][690:])
    assert torch.equal(together[2], whole[2])
    assert torch.equal(scene.attend(ours, [(0, 2999, 3000)])[0], whole[0][2999:])  # alone: in parts that are merged
    chunked = scene.attend(ours, [(0, 0, 1000), (0, 1000, 1077), (0, 1077, 3000)])
    assert torch.equal(torch.cat(chunked), whole[0])

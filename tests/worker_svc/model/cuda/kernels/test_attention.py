"""The attention kernels equal float64 on ragged batches, and a query's bits depend on its own sequence alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tandem.worker.checkpoints.model_parts.heads import AttentionKind
from tandem.worker.model.cuda.kernels.paged_attention import matrix_rows
from tandem.worker.model.cuda.operations import FLOAT32_ROWS, KernelPlan, PagedLaunch, TritonOperations
from tandem.worker.model.kv_formats import FEW_BITS, Int4, Int6, Int8, KVFormat, Plain
from tests.worker_svc.model.cuda.kernels.conftest import DEVICE, DTYPES
from tests.worker_svc.model.cuda.kernels.scenes import Scene

ERRORS = {torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}
MODES = [pytest.param(True, id="reproducible"), pytest.param(False, id="fast")]
# heads, kv heads, head dim, page size
SHAPES = [
    (4, 2, 64, 16),
    (3, 3, 80, 16),
    (5, 1, 96, 32),
    (8, 2, 128, 64),
    (2, 1, 256, 128),
    (4, 4, 8, 5),
    (130, 1, 16, 16),
]


def operations(programs: int, *, reproducible: bool = True, float32: bool = False) -> TritonOperations:
    """With splits so small that short sequences have several."""
    return TritonOperations(programs, reproducible=reproducible, float32=float32, split=64)


def close(ours: list[torch.Tensor], exact: list[torch.Tensor], error: float) -> bool:
    """NaN is never close."""
    return all(bool((a.double() - b).abs().max() < error) for a, b in zip(ours, exact, strict=True))


@pytest.mark.parametrize("reproducible", MODES)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [*((shape, DTYPES[0]) for shape in SHAPES), *((SHAPES[3], dtype) for dtype in DTYPES[1:])],
    ids=str,
)
def test_it_equals_float64_at_the_edges_of_pages(
    shape: tuple[int, int, int, int], dtype: torch.dtype, reproducible: bool
) -> None:
    heads, kv_heads, head_dim, size = shape
    lengths = [1, size - 1, size, size + 1, 130]
    scene = Scene.make(
        lengths, Plain(dtype), heads=heads, kv_heads=kv_heads, head_dim=head_dim, page_size=size, dtype=dtype
    )
    ours_by = operations(5, reproducible=reproducible)
    parts = [(0, 0, 1), (1, 0, size - 1), (2, size - 1, size), (3, size - 3, size + 1), (4, 100, 130)]
    assert close(scene.attend(ours_by, parts), scene.exact(parts), ERRORS[dtype])


@pytest.mark.parametrize("reproducible", MODES)
@pytest.mark.parametrize("stored", [Plain(torch.float32), *FEW_BITS], ids=lambda stored: stored.name)
@pytest.mark.parametrize("float32", [True, False], ids=["tiles of float32", "usual tiles"])
def test_it_equals_float64_over_what_is_stored(stored: KVFormat, float32: bool, reproducible: bool) -> None:
    scene = Scene.make([70, 33, 1], stored, head_dim=96)
    ours_by = operations(5, reproducible=reproducible, float32=float32)
    parts = [(0, 69, 70), (1, 0, 33), (2, 0, 1)]
    assert close(scene.attend(ours_by, parts), scene.exact(parts), 3e-6)


@pytest.mark.parametrize("reproducible", MODES)
@pytest.mark.parametrize("stored", [Plain(torch.float32), *FEW_BITS], ids=lambda stored: stored.name)
def test_blocks_of_a_float32_model_fit_into_registers_whatever_is_stored(stored: KVFormat, reproducible: bool) -> None:
    ours = TritonOperations(5, reproducible=reproducible, float32=True)
    ours.float32_rows = FLOAT32_ROWS  # as on a card
    scene = Scene.make([70, 33, 9], stored, heads=8)
    segments, _ = scene.batch([(0, 69, 70), (1, 0, 33), (2, 0, 9)])
    plan = ours.plan(segments, scene.cache, scene.heads, AttentionKind(0, scene.cache.shape.heads[0]))
    assert isinstance(plan, KernelPlan) and len(plan.launches) == (1 if reproducible else 2)
    for launch in plan.launches:
        rows = matrix_rows(launch.queries, 4) if isinstance(launch, PagedLaunch) else launch.rows
        assert rows == FLOAT32_ROWS
        assert isinstance(launch, PagedLaunch) or launch.sizes.prefill_tile == launch.sizes.tile


@pytest.mark.parametrize("reproducible", MODES)
@pytest.mark.parametrize("window", [1, 40, -40])
@pytest.mark.parametrize("stored", [Plain(torch.float32), Int8()], ids=lambda stored: stored.name)
def test_a_window_hides_what_is_older(stored: KVFormat, window: int, reproducible: bool) -> None:
    scene = Scene.make([150, 20], stored)
    ours_by = operations(5, reproducible=reproducible)
    parts = [(0, 149, 150), (1, 0, 20), (0, 90, 140)]
    ours = scene.attend(ours_by, parts, window)
    assert close(ours, scene.exact(parts, window), 3e-6)


@pytest.mark.usefixtures("_rows_alike")
@pytest.mark.parametrize("reproducible", MODES)
@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("stored", [Plain(torch.float32), Int8(), Int4()], ids=lambda stored: stored.name)
def test_scores_are_capped(stored: KVFormat, window: int, reproducible: bool) -> None:
    scene = Scene.make([150, 20], stored)
    parts = [(0, 149, 150), (1, 0, 20), (0, 90, 140)]
    ours = scene.attend(operations(5, reproducible=reproducible), parts, window, 0.8)
    assert close(ours, scene.exact(parts, window, 0.8), 3e-6)
    if reproducible:
        assert torch.equal(ours[2][-1:], scene.attend(operations(3), [(0, 139, 140)], window, 0.8)[0])


@pytest.mark.usefixtures("_rows_alike")
@pytest.mark.parametrize("reproducible", MODES)
@pytest.mark.parametrize("window", [0, 40])
def test_a_sink_takes_its_part(window: int, reproducible: bool) -> None:
    scene = Scene.make([150, 20], Plain(torch.float32))
    parts = [(0, 149, 150), (1, 0, 20), (0, 90, 140)]
    sinks = torch.tensor([-20.0, 0.5, 3.0, 40.0], device=DEVICE)
    ours = scene.attend(operations(5, reproducible=reproducible), parts, window, 0.0, sinks)
    assert close(ours, scene.exact(parts, window, 0.0, sinks), 3e-6)
    if reproducible:
        for programs in (1, 40):  # splits by one program, and by several
            alone = scene.attend(operations(programs), [(0, 139, 140)], window, 0.0, sinks)[0]
            assert torch.equal(ours[2][-1:], alone)


@pytest.mark.parametrize("reproducible", MODES)
@pytest.mark.parametrize("seed", range(2))
def test_it_equals_float64_on_random_batches(seed: int, reproducible: bool) -> None:
    generator = np.random.default_rng(seed)
    kv_heads, size = int(generator.choice([1, 2, 3])), int(generator.choice([4, 16, 48, 256]))
    heads = kv_heads * int(generator.choice([1, 2, 5]))
    lengths = generator.integers(1, 200, 4).tolist()
    scene = Scene.make(
        lengths, Plain(torch.float32), heads=heads, kv_heads=kv_heads, head_dim=int(generator.choice([16, 40, 64])),
        page_size=size, seed=seed,
    )  # fmt: skip
    parts = [(i, int(generator.integers(max(0, n - 40), n)), n) for i, n in enumerate(lengths)]
    window = int(generator.choice([0, 30]))
    ours_by = operations(int(generator.integers(1, 12)), reproducible=reproducible)
    assert close(scene.attend(ours_by, parts, window), scene.exact(parts, window), 3e-6)


@pytest.mark.usefixtures("_rows_alike")
@pytest.mark.parametrize(
    ("stored", "window"),
    [(Plain(torch.float32), 0), (Plain(torch.float32), 70), (Int8(), 0), (Int6(), 70)],
    ids=["plain", "window", "int8", "int6"],
)
def test_the_bits_are_the_same_alone_in_chunks_and_in_company(stored: KVFormat, window: int) -> None:
    scene = Scene.make([140, 90, 17], stored, heads=2, kv_heads=1)
    whole = [scene.attend(operations(4), [(i, 0, n)], window)[0] for i, n in enumerate(scene.lengths)]
    for programs in (1, 40):
        ours_by = operations(programs)
        together = scene.attend(ours_by, [(0, 139, 140), (1, 60, 90), (2, 0, 17)], window)
        assert torch.equal(together[0], whole[0][139:])
        assert torch.equal(together[1], whole[1][60:])
        assert torch.equal(together[2], whole[2])
    chunked = scene.attend(operations(7), [(0, 0, 37), (0, 37, 101), (0, 101, 140)], window)
    assert torch.equal(torch.cat(chunked), whole[0])


@pytest.mark.usefixtures("_rows_alike")
def test_without_reproducibility_a_decode_still_does_not_depend_on_its_company() -> None:
    scene = Scene.make([200, 90, 17], Plain(torch.float32), heads=2, kv_heads=1)
    ends = [(i, n - 1, n) for i, n in enumerate(scene.lengths)]
    together = scene.attend(operations(40, reproducible=False), ends)
    for part, result in zip(ends, together, strict=True):
        assert torch.equal(scene.attend(operations(3, reproducible=False), [part])[0], result)

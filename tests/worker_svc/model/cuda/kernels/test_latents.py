"""Attention over latents on a card: the kernels equal float64 and torch, and a token's bits are its own in any company;
whole models equal transformers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.checkpoints.grouped import Quantization
from tandem.worker.checkpoints.model_parts.heads import KVHeads
from tandem.worker.model.cuda.graphs import GraphedRunner
from tandem.worker.model.cuda.heads import JoinedHeads
from tandem.worker.model.cuda.operations import TritonOperations
from tandem.worker.model.kv_cache import CacheShape, KeyChannels, KVCache
from tandem.worker.model.kv_formats import Float8, Int4, Int6, Int8, KVFormat, Plain
from tandem.worker.model.linear import HeadLinear, PlainWeight
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.operations import TorchOperations
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.weights import WeightFiller
from tandem.worker.model.work import Work
from tests.exhaustive import some
from tests.worker_svc.model.cuda.kernels.conftest import DEVICE, DTYPES
from tests.worker_svc.model.cuda.kernels.scenes import Scene, poison
from tests.worker_svc.model.cuda.kernels.test_attention import ERRORS, MODES, close, operations
from tests.worker_svc.model.cuda.kernels.test_store import same
from tests.worker_svc.model.cuda.kernels.test_whole_model import operations_for
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.tiny_models import MODELS

APART, FOURS = "groups of int4 in both parts", "fours of int6 in both parts"
# heads, latent, rotated, page size
SHAPES = {
    "deepseek": (16, 512, 64, 64),
    "minicpm3": (40, 256, 32, 16),
    "more heads than a matrix has rows": (70, 32, 16, 16),
    "odd": (3, 24, 10, 5),
    APART: (5, 40, 24, 16),
    FOURS: (3, 22, 10, 16),
    "few heads": (1, 256, 32, 16),
}
FORMATS: list[KVFormat] = [Plain(torch.float32), Int8(), Int4(), Int6(), Float8()]
_, INT8, INT4, INT6, FLOAT8 = FORMATS
FLOAT16 = Plain(torch.float16)


def cases(formats: Sequence[KVFormat], *names: str) -> list[tuple[KVFormat, str, bool]]:
    """Each of them in two ways, but for vectors of 6 bits a number that have no fours of them."""
    every = itertools.product(formats, names, (True, False))
    return [each for each in every if each[0] is not INT6 or each[1] != "odd"]


def latent_scene(name: str, lengths: list[int], stored: KVFormat, **options: Any) -> Scene:
    heads, latent, rotated, page_size = SHAPES[name]
    return Scene.make(
        lengths, stored, heads=heads, kv_heads=1, head_dim=latent + rotated, page_size=page_size, latent=latent,
        **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "reproducible"),
    some(itertools.product(SHAPES, (True, False)), ("deepseek", True), ("odd", False), (APART, True)),
)
def test_it_equals_float64_at_the_edges_of_pages(name: str, reproducible: bool) -> None:
    size = SHAPES[name][3]
    scene = latent_scene(name, [1, size - 1, size, size + 1, 130], Plain(torch.float32))
    parts = [(0, 0, 1), (1, 0, size - 1), (2, size - 1, size), (3, size - 3, size + 1), (4, 125, 130)]
    ours = scene.attend(operations(5, reproducible=reproducible), parts)
    assert close(ours, scene.exact(parts), 3e-6)
    assert ours[0].shape == (1, *SHAPES[name][:2])


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_it_equals_float64_in_16_bits(dtype: torch.dtype) -> None:
    scene = latent_scene("odd", [70, 17], Plain(dtype), dtype=dtype)
    parts = [(0, 66, 70), (1, 0, 17)]
    for reproducible in (True, False):
        assert close(scene.attend(operations(5, reproducible=reproducible), parts), scene.exact(parts), ERRORS[dtype])


@pytest.mark.parametrize(
    ("stored", "name", "reproducible"),
    some(
        cases(FORMATS[1:], "odd", APART, FOURS),
        (INT4, "odd", True), (INT4, APART, False), (FLOAT8, "odd", False), (INT6, FOURS, False),
    ),
)  # fmt: skip
def test_it_equals_float64_over_what_is_stored(stored: KVFormat, name: str, reproducible: bool) -> None:
    scene = latent_scene(name, [70, 33, 1], stored)
    parts = [(0, 69, 70), (1, 10, 33), (2, 0, 1)]
    for float32 in (True, False):
        ours = operations(5, reproducible=reproducible, float32=float32)
        assert close(scene.attend(ours, parts), scene.exact(parts), 3e-6)


@pytest.mark.parametrize("reproducible", MODES)
def test_scores_as_far_apart_as_can_be_leave_no_nan(reproducible: bool) -> None:
    scene = latent_scene("odd", [90], Plain(torch.float32))
    scene.q[80:84] *= 1e4
    scene.q[84:] = 0
    parts = [(0, 60, 90)]
    ours, exact = scene.attend(operations(5, reproducible=reproducible), parts), scene.exact(parts)
    assert close([ours[0][24:]], [exact[0][24:]], 3e-6)  # every latent weighs the same
    assert close([ours[0][:20]], [exact[0][:20]], 3e-6)
    assert close(ours, exact, 1e-2)


@pytest.mark.usefixtures("_rows_alike")
@pytest.mark.parametrize("stored", some(FORMATS[:4], INT4))
def test_the_bits_are_the_same_alone_in_chunks_and_in_company(stored: KVFormat) -> None:
    scene = Scene.make([40, 12], stored, heads=18, kv_heads=1, head_dim=24, latent=16)

    def attend(programs: int, *parts: tuple[int, int, int]) -> list[torch.Tensor]:
        ours = TritonOperations(programs, split=32)
        ours.float32_rows = 16  # two groups of heads
        return scene.attend(ours, parts)

    whole = attend(4, *((i, 0, n) for i, n in enumerate(scene.lengths)))
    for programs in (1, 40):  # splits by one program, and by several
        together = attend(programs, (0, 39, 40), (1, 8, 12))
        assert torch.equal(together[0], whole[0][39:])
        assert torch.equal(together[1], whole[1][8:])
    assert torch.equal(torch.cat(attend(7, (0, 25, 38), (0, 38, 40))), whole[0][25:])


@pytest.mark.parametrize(
    ("stored", "name", "channels"),
    some(
        cases((*FORMATS[:4], FLOAT16), "odd", APART, FOURS, "few heads"),
        (INT4, "odd", True), (INT4, APART, True), (INT8, APART, False), (INT6, FOURS, True),
        (FLOAT16, "few heads", True),
    ),
)  # fmt: skip
def test_what_is_stored_and_the_queries_are_those_of_torch(stored: KVFormat, name: str, channels: bool) -> None:
    heads, rank, rotated, size = SHAPES[name]
    torch.manual_seed(0)
    dtype = stored.dtype if isinstance(stored, Plain) else torch.float16
    rows, pages = 9, 9 // size + 2
    shape = CacheShape((KVHeads(1, rank + rotated, rank),), pages, size, stored)
    normalized = [KeyChannels(*(torch.randn(2, 1, rank + rotated).to(DEVICE).abs() + 0.5))] if channels else None
    ours, theirs = (KVCache(shape, DEVICE, normalized) for _ in range(2))
    poison(ours)
    poison(theirs)
    places = torch.randperm(pages * size)[:rows].to(DEVICE)
    slots = torch.stack([places // size, places % size])
    latent, absorbed = torch.randn(rows, rank + rotated), torch.randn(rows, heads, rank)
    queries, weight = torch.randn(rows, heads, 12 + rotated), torch.rand(rank) + 0.5
    latent[2, rank:] = 0
    latent, absorbed, queries, weight = (x.to(DEVICE, dtype) for x in (latent, absorbed, queries, weight))
    angle = torch.rand(rows, 1, rotated // 2, device=DEVICE) * 6
    rotation = torch.cat([angle.cos()] * 2, -1), torch.cat([-angle.sin(), angle.sin()], -1)

    def stored_by(made: Any, cache: KVCache, some: slice = slice(None)) -> torch.Tensor:
        turned = rotation[0][some].contiguous(), rotation[1][some].contiguous()
        of = latent[some], (weight, 1e-6), queries[some].contiguous(), absorbed[some].contiguous(), turned
        looking: torch.Tensor = made.store_latents(*of, cache, 0, slots[:, some].contiguous())
        return looking

    looking = stored_by(TritonOperations(4), ours)
    assert same(looking, stored_by(TorchOperations(), theirs).contiguous())
    page, place = slots
    for mine, other in zip(ours.keys[0], theirs.keys[0], strict=True):  # nothing else was touched
        rest = torch.ones(mine.shape[:3], dtype=torch.bool, device=DEVICE)
        rest[page, 0, place] = False
        assert same(mine[rest], other[rest])
    decoded = [
        stored.decode(
            tuple(part[page, 0, place] for part in cache.keys[0]), torch.empty(rows, rank + rotated).to(DEVICE)
        )
        for cache in (ours, theirs)
    ]
    within = {torch.float32: 1e-5, torch.float16: 4e-3}[dtype]  # a norm's last bit
    # A number between two digits may become either.
    digit = {"int8": 0.06, "int6": 0.3, "int4": 0.7}.get(stored.name, within)
    differs = (decoded[0] - decoded[1]).abs()
    assert differs.max() < digit and (differs > within).float().mean() < 0.01
    kept = ours.keys[0][0].clone()
    assert same(stored_by(TritonOperations(4), ours, slice(4, 5)), looking[4:5])
    assert same(ours.keys[0][0], kept)


@pytest.mark.usefixtures("_rows_alike")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "columns", "outputs"), some([(5, 12, 24), (2, 512, 128), (3, 70, 9)], (3, 70, 9)))
def test_heads_are_multiplied_together_and_a_row_has_its_bits_in_any_company(
    heads: int, columns: int, outputs: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    for reproducible in (True, False):
        linear, matrices = HeadLinear(heads, columns, outputs, dtype), torch.randn(heads, outputs, columns)
        matrices = (matrices / columns**0.5).to(DEVICE, dtype)
        linear.weights.extend(PlainWeight(matrix) for matrix in matrices)
        joined = JoinedHeads(linear, reproducible=reproducible)
        assert not len(linear.weights) and linear.row_multiple == 1
        x = torch.randn(67, heads, columns + 8).to(DEVICE, dtype)[..., :columns]  # a part of longer rows
        together = joined(x)
        exact = torch.einsum("nhi,hoi->nho", x.double(), matrices.double()).flatten(1)
        assert close([together], [exact], max(ERRORS[dtype], 1e-5))
        if reproducible:
            for rows in (slice(0, 1), slice(50, 67)):
                assert torch.equal(joined(x[rows]), together[rows])


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_matrices_of_heads_that_are_stored_in_few_bits_are_made_plain(kind: str) -> None:
    torch.manual_seed(0)
    made: Any = {"int8": Quantization(8, 0), "int4": Quantization(4, 32), "fp8": "fp8"}[kind]
    linear, matrix = HeadLinear(3, 40, 32, torch.float32), torch.randn(96, 40)
    filler = WeightFiller(DEVICE, torch.float32, made, TritonOperations(4).quantized_weight)
    filler.fill(linear, 0, matrix, lambda source: None)
    assert len(linear.weights) == 3 and not any(isinstance(each, PlainWeight) for each in linear.weights)
    joined = JoinedHeads(linear, reproducible=True)
    assert joined.weight.dtype == torch.float32
    worst = (joined.weight.cpu().reshape(96, 40) - matrix).norm() / matrix.norm()
    assert 0 < worst < {"int8": 0.01, "int4": 0.1, "fp8": 0.04}[kind]


WHOLE = (
    "deepseek v2, groups, no latent of queries", "deepseek v3", "deepseek v3, halves, not normalized", "glm4 moe lite",
    "youtu", "minicpm3", "mistral4",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "reproducible", "layers"),
    some(itertools.product(WHOLE, (True, False), (1, 2)), ("deepseek v3", True, 1)),
)
def test_a_model_equals_transformers(name: str, reproducible: bool, layers: int, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    theirs = saved(kind, tmp_path, **changes | {"num_hidden_layers": layers})
    ours_by = operations_for(reproducible, split=32)
    model = load_transformer(open_checkpoint(tmp_path), DEVICE, torch.float32, operations=ours_by)
    shape = CacheShape(model.config.cache_heads, 6, 16, Plain(torch.float32))
    runner = ModelRunner(model, KVCache(shape, DEVICE))
    ids, pages = np.random.default_rng(0).integers(0, 97, 21).astype(np.int32), np.array([4, 1], dtype=np.int64)
    with torch.inference_mode():
        expected = theirs(torch.from_numpy(ids).long()[None]).logits[0].float()
        whole = runner.forward([Work(ids, 0, pages, 21)])[:21].clone()
        torch.testing.assert_close(whole.cpu(), expected, atol=1e-4, rtol=0)
        runner.forward([Work(ids[:17], 0, pages, 0)])
        chunk = runner.forward([Work(ids[17:20], 17, pages, 3)])[:3].clone()
        decode = runner.forward([Work(ids[20:], 20, pages, 1)])[:1]
    torch.testing.assert_close(torch.cat((chunk, decode)).cpu(), expected[17:], atol=1e-4, rtol=0)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_rows_alike")
def test_decodes_in_fixed_places_have_the_bits_of_any_other_step(tmp_path: Path) -> None:
    saved("Youtu", tmp_path, **MODELS["youtu"][1] | {"num_hidden_layers": 1})
    model = load_transformer(
        open_checkpoint(tmp_path), DEVICE, torch.float32, operations=operations_for(True, split=32)
    )
    cache = KVCache(CacheShape(model.config.cache_heads, 12, 16, Plain(torch.float32)), DEVICE)
    usual, fixed = ModelRunner(model, cache), GraphedRunner(model, cache, most_rows=6)
    fixed.prepare()
    pages = [np.arange(5, dtype=np.int64), np.array([9, 8], dtype=np.int64)]
    prompts = [np.arange(length, dtype=np.int32) % 97 for length in (70, 17)]
    usual.forward([Work(prompt, 0, held, 0) for prompt, held in zip(prompts, pages, strict=True)])
    decodes = [Work(np.array([7 + i]), len(p), held, 1) for i, (p, held) in enumerate(zip(prompts, pages, strict=True))]
    expected = usual.forward(decodes)[:2]
    assert torch.isfinite(expected).all()
    assert torch.equal(fixed.forward(decodes)[:2], expected)
    assert torch.equal(fixed.forward(decodes[1:])[:1], expected[1:])
    drafts = [decodes[1], Work(np.array([7, 1, 2, 3]), 70, pages[0], 4)]
    assert torch.equal(fixed.forward(drafts)[:5], usual.forward(drafts)[:5])

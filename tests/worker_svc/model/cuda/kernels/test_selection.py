"""Which tokens an indexer chooses, on a card: those that a plain sort chooses, for a row alone as among others; and a
whole model of such layers computes what transformers does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")

import torch

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.model.cuda.graphs import GraphedRunner
from tandem.worker.model.cuda.kernels import selection
from tandem.worker.model.cuda.kernels.selection import Rows, choose_places
from tandem.worker.model.cuda.operations import TritonOperations
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import Plain
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.work import Work
from tests.exhaustive import some
from tests.worker_svc.model.cuda.kernels.conftest import DEVICE, DTYPES
from tests.worker_svc.model.cuda.kernels.test_latents import operations_for
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.tiny_models import MODELS

PAGES, SIZE = 40, 8


def chosen(
    keys: torch.Tensor, queries: torch.Tensor, weights: torch.Tensor, most: int, positions: list[int], programs: int = 7
) -> list[list[int]]:
    """Positions of a sequence's tokens that are chosen for tokens at `positions`; -1: nobody's row."""
    pages = np.random.default_rng(1).permutation(PAGES).astype(np.int32)
    stored = torch.full((PAGES + 1, 1, SIZE, keys.shape[1]), torch.nan, dtype=keys.dtype)
    places = torch.arange(len(keys))
    stored[torch.from_numpy(pages).long()[places // SIZE], 0, places % SIZE] = keys
    # Two tables: that of nobody's pages comes first.
    tables = torch.from_numpy(np.concatenate([np.zeros(3, dtype=np.int32), pages])).to(DEVICE)
    rows = torch.tensor([[position, 3] for position in positions], dtype=torch.int32, device=DEVICE)
    scores = torch.zeros((len(positions), PAGES * SIZE), dtype=torch.int32, device=DEVICE)
    out = torch.full((len(positions), most), -7, dtype=torch.int32, device=DEVICE)
    these = Rows(rows, tables)
    choose_places(queries.to(DEVICE), weights.to(DEVICE), stored.to(DEVICE), these, scores, out, programs)
    found, order = out.cpu(), np.argsort(pages)
    return [[int(order[place // SIZE]) * SIZE + place % SIZE for place in row.tolist() if place != -7] for row in found]


def whole_numbers(draw: np.random.Generator, *shape: int) -> torch.Tensor:
    """Numbers whose products are exact, and often equal."""
    return torch.from_numpy(draw.integers(-2, 3, shape).astype(np.float32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", some([1, 5, 16, 40], 5))
def test_the_highest_scores_are_chosen_and_of_equal_ones_the_first(
    heads: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_BLOCK", 128)  # a row's scores are several
    draw, size, positions = np.random.default_rng(heads), 10, [150, 299, -1, 71, 70, 3, 0]
    keys, queries = whole_numbers(draw, 300, size), whole_numbers(draw, len(positions), heads, size)
    weights = whole_numbers(draw, len(positions), heads)
    products = torch.einsum("nhd,md->nhm", queries, keys).clamp(min=0)
    scores = torch.einsum("nh,nhm->nm", weights, products).tolist()
    for most in (1, 7, 70):
        found = chosen(keys.to(dtype), queries.to(dtype), weights, most, positions)
        for row, position in enumerate(positions):
            order = sorted(range(position + 1), key=lambda place: (-scores[row][place], place))
            assert found[row] == sorted(order[:most])


def test_a_row_chooses_the_same_alone_and_with_other_programs() -> None:
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(150, 16, generator=generator).repeat_interleave(2, 0)
    keys[1::2] *= 1 + 2**-22  # neighbours whose order is that of their last bits
    queries, weights = torch.randn(3, 6, 16, generator=generator), torch.randn(3, 6, generator=generator)
    together = chosen(keys, queries, weights, 91, [299, 250, 200])
    alone = [
        chosen(keys, queries[row : row + 1].contiguous(), weights[row : row + 1].contiguous(), 91, [position], 1)[0]
        for row, position in enumerate([299, 250, 200])
    ]
    assert together == alone


def test_scores_that_are_not_finite_are_the_highest_or_the_lowest_that_there_are() -> None:
    keys, queries, weights = torch.ones(20, 8), torch.ones(1, 2, 8), torch.tensor([[1.0, -1.0]])
    queries[0, 1] = 0
    keys[3], keys[5], keys[7], keys[9] = torch.nan, torch.inf, 2.0, -1.0
    order = [7, 0, 1, 2, 4, 6, 8, *range(10, 20), 9, 3, 5]
    for most in (1, 4, 18, 19):
        assert chosen(keys, queries, weights, most, [19])[0] == sorted(order[:most])


WHOLE = ("deepseek v3.2", "glm moe dsa", "glm moe dsa, what is chosen is shared")


@pytest.mark.usefixtures("_rows_alike")
@pytest.mark.parametrize(
    ("name", "reproducible"), some([(name, same) for name in WHOLE for same in (True, False)], (WHOLE[2], True))
)
def test_a_model_equals_transformers_and_a_token_has_its_bits_in_any_step(
    name: str, reproducible: bool, tmp_path: Path
) -> None:
    kind, changes = MODELS[name]
    kinds = {"indexer_types": ["full", "shared"]} if "indexer_types" in changes else {}
    theirs = saved(kind, tmp_path, **changes | {"num_hidden_layers": 2} | kinds)
    ours_by: TritonOperations = operations_for(reproducible, split=32)
    model = load_transformer(open_checkpoint(tmp_path), DEVICE, torch.float32, operations=ours_by)
    cache = KVCache(CacheShape(model.config.cache_heads, 6, 16, Plain(torch.float32)), DEVICE)
    runner, fixed = ModelRunner(model, cache), GraphedRunner(model, cache, most_rows=4)
    fixed.prepare()
    ids, pages = np.random.default_rng(0).integers(0, 97, 21).astype(np.int32), np.array([4, 1], dtype=np.int64)
    with torch.inference_mode():
        expected = theirs(torch.from_numpy(ids).long()[None]).logits[0].float()
        whole = runner.forward([Work(ids, 0, pages, 21)])[:21].clone()
        torch.testing.assert_close(whole.cpu(), expected, atol=1e-4, rtol=0)
        runner.forward([Work(ids[:17], 0, pages, 0), Work(ids[:3], 0, np.array([2]), 0)])
        chunk = runner.forward([Work(ids[17:20], 17, pages, 3)])[:3].clone()
        decode = fixed.forward([Work(ids[2:3], 2, np.array([2]), 1), Work(ids[20:], 20, pages, 1)])[1:2]
    if reproducible:
        assert torch.equal(torch.cat((chunk, decode)), whole[17:])
    torch.testing.assert_close(torch.cat((chunk, decode)).cpu(), expected[17:], atol=1e-4, rtol=0)

"""Attention to tokens that an indexer chooses: which these are, what is seen of them, and that nothing else matters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tandem.worker.checkpoints.model_parts.heads import AttentionKind, KVHeads
from tandem.worker.model.attention import Scores, Segment
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.native import layers
from tandem.worker.model.cpu.operations import cpu_operations
from tandem.worker.model.cpu.selection import NativeSelectingPlan
from tandem.worker.model.kv_cache import CacheShape, KVCache, TileReader
from tandem.worker.model.kv_formats import kv_format
from tandem.worker.model.operations import Operations, TorchOperations
from tandem.worker.model.selection import Selecting, highest, scores_ignore_company

SIZE, HEADS, RANK, MOST, LENGTH = 40, 3, 32, 11, 60  # MOST fills no page
INDEX_HEADS, INDEX_SIZE = 5, 10
KIND = AttentionKind(0, KVHeads(1, SIZE, RANK), MOST)
SCORES = Scores(0.2)
PAGES = np.random.default_rng(0).permutation(16)


def test_the_highest_scores_are_chosen_and_of_equal_ones_the_first() -> None:
    draw = np.random.default_rng(0)
    for count in (1, 5, 30):
        scores = draw.integers(-2, 3, (40, 30)).astype(np.float32)
        chosen = highest(torch.from_numpy(scores), count).tolist()
        expected = [sorted(sorted(range(30), key=lambda place: (-row[place], place))[:count]) for row in scores]
        assert chosen == expected


def chosen_by_the_library(
    keys: torch.Tensor, queries: torch.Tensor, weights: torch.Tensor, most: int, positions: list[int], size: int = 8
) -> torch.Tensor:
    """Positions `[rows, most]` of a sequence's tokens that compiled code chooses for tokens at `positions`."""
    shape = CacheShape((KIND.heads._replace(index_size=keys.shape[1]),), 64, size, kv_format("auto", keys.dtype))
    cache, pages = KVCache(shape, "cpu"), np.random.default_rng(1).permutation(64)
    places = torch.arange(len(keys))
    cache.write_index_keys(0, torch.stack([torch.from_numpy(pages)[places // size], places % size]), keys)
    segments = [Segment(row, 1, position, pages) for row, position in enumerate(positions)]
    plan = cpu_operations().plan(segments, cache, HEADS, KIND._replace(most=most))
    assert isinstance(plan, NativeSelectingPlan)
    plan.choose(cache.index_keys[0], queries, weights)
    found = torch.from_numpy(plan.chosen).long()
    return torch.from_numpy(np.argsort(pages))[found // size] * size + found % size


@pytest.mark.skipif(not native.available(), reason="no compiled library")
@pytest.mark.parametrize("heads", [1, 5, 16, 40, 64, 72, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_compiled_code_chooses_the_highest_and_of_equal_ones_the_first(heads: int, dtype: torch.dtype) -> None:
    draw = np.random.default_rng(heads)
    size, positions = 10, [150, 299, 71, 70]

    def whole(low: int, high: int, *shape: int) -> torch.Tensor:  # whose scores are exact, and often equal
        return torch.from_numpy(draw.integers(low, high, shape).astype(np.float32))

    keys, queries = whole(-2, 3, 300, size), whole(-2, 3, len(positions), heads, size)
    weights = whole(-2, 3, len(positions), heads)
    products = torch.einsum("nhd,md->nhm", queries, keys).clamp(min=0)
    scores = torch.einsum("nh,nhm->nm", weights, products).tolist()
    for most in (1, 7, 70):
        chosen = chosen_by_the_library(keys.to(dtype), queries, weights, most, positions)
        for row, position in enumerate(positions):
            order = sorted(range(position + 1), key=lambda place: (-scores[row][place], place))
            assert chosen[row].tolist() == sorted(order[:most])


@pytest.mark.skipif(not native.available() or not layers.allow_wide_scores(True), reason="no AVX-512")
@pytest.mark.parametrize("heads", [5, 32, 64, 72])
def test_the_same_tokens_are_chosen_by_eight_and_by_sixteen_lanes(heads: int) -> None:
    generator = torch.Generator().manual_seed(heads)
    keys = torch.randn(150, 128, generator=generator).repeat_interleave(2, 0)
    keys[1::2] *= 1 + 2**-22  # neighbours whose order is that of their last bits
    queries, weights = torch.randn(4, heads, 128, generator=generator), torch.randn(4, heads, generator=generator)
    chosen = []
    for wide in (False, True):
        layers.allow_wide_scores(wide)
        each = [chosen_by_the_library(keys, queries, weights, most, [299, 250, 200, 180]) for most in range(1, 100)]
        chosen.append(torch.cat(each, 1))
    assert torch.equal(*chosen)


@pytest.mark.skipif(not native.available(), reason="no compiled library")
def test_scores_that_are_not_finite_are_the_highest_or_the_lowest_that_there_are() -> None:
    keys, queries, weights = torch.ones(20, 8), torch.ones(1, 2, 8), torch.tensor([[1.0, -1.0]])
    queries[0, 1] = 0
    keys[3], keys[5], keys[7], keys[9] = torch.nan, torch.inf, 2.0, -1.0
    # Beside a query of zeros, infinity is not a number either.
    order = [7, 0, 1, 2, 4, 6, 8, *range(10, 20), 9, 3, 5]
    for most in (1, 4, 17, 18, 19):
        assert chosen_by_the_library(keys, queries, weights, most, [19])[0].tolist() == sorted(order[:most])


class Sequences:
    """A cache with a sequence of `LENGTH` tokens in the first half of its pages, and another in the other half."""

    def __init__(self, operations: Operations, stored: str = "auto") -> None:
        generator = torch.Generator().manual_seed(0)
        self.operations = operations
        heads = KIND.heads._replace(index_size=INDEX_SIZE)
        self.cache = KVCache(CacheShape((heads,), 16, 8, kv_format(stored, torch.float32)), "cpu")
        self.cache.index_keys[0].fill_(torch.nan)  # stale
        self.latents = torch.randn(2, LENGTH, 1, SIZE, generator=generator)
        self.keys = torch.randn(2, LENGTH, INDEX_SIZE, generator=generator)
        self.queries = torch.randn(2, LENGTH, HEADS, SIZE, generator=generator)
        self.index_queries = torch.randn(2, LENGTH, INDEX_HEADS, INDEX_SIZE, generator=generator)
        self.weights = torch.randn(2, LENGTH, INDEX_HEADS, generator=generator)
        self.pages = PAGES.reshape(2, 8)
        for sequence in range(2):
            self.store(sequence)

    def store(self, sequence: int) -> None:
        places = torch.arange(LENGTH)
        slots = torch.stack([torch.from_numpy(self.pages[sequence])[places // 8], places % 8])
        self.cache.write(0, slots, self.latents[sequence], None)
        self.cache.write_index_keys(0, slots, self.keys[sequence])

    def attended(self, *works: tuple[int, int, int], chooses: bool = True) -> torch.Tensor:
        """What tokens of sequences see, by (sequence, first, end), each work behind the one before it."""
        rows: list[tuple[int, int]] = []
        segments: list[Segment] = []
        for sequence, first, end in works:
            segments.append(Segment(len(rows), end - first, first, self.pages[sequence]))
            rows += [(sequence, place) for place in range(first, end)]
        some = tuple(torch.tensor(rows).t())
        kind = KIND if chooses else KIND._replace(most=0)
        plan = self.operations.plan(segments, self.cache, HEADS, kind)
        if chooses:
            assert isinstance(plan, Selecting)
            if plan.chooses:
                plan.choose(self.cache.index_keys[0], self.index_queries[some], self.weights[some])
        seen = plan.attend(self.cache.keys[0], self.cache.keys[0], self.queries[some], SCORES)
        return seen[..., :RANK]

    def exact(self, sequence: int) -> torch.Tensor:
        """The same of a whole sequence in float64, by a mask."""
        products = torch.einsum("nhd,md->nhm", self.index_queries[sequence].double(), self.keys[sequence].double())
        scores = torch.einsum("nh,nhm->nm", self.weights[sequence].double(), products.clamp(min=0))
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        order = scores.masked_fill(later, -torch.inf).argsort(dim=-1, descending=True, stable=True)
        hidden = torch.ones_like(later).scatter(1, order[:, :MOST], False) | later
        latents = self.latents[sequence, :, 0].double()
        attention = torch.einsum("nhd,md->nhm", self.queries[sequence].double(), latents) * SCORES.scale
        attention = attention.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
        return torch.einsum("nhm,md->nhd", attention, latents[:, :RANK])


@pytest.fixture(params=[cpu_operations, TorchOperations], ids=["compiled", "torch"])
def sequences(request: pytest.FixtureRequest) -> Sequences:
    return Sequences(request.param())


@pytest.fixture(params=[True, False], ids=["AVX-512", "AVX2"])
def wide(request: pytest.FixtureRequest) -> Iterator[bool]:
    if not native.available() or (not native.allow_wide_attention(True) and request.param):
        pytest.skip("no such code, or no such instructions")
    native.allow_wide_attention(request.param)
    yield request.param
    native.allow_wide_attention(True)


@pytest.mark.parametrize("stored", ["auto", "fp8", "int8", "int6", "int4"])
def test_compiled_code_sees_of_chosen_tokens_what_torch_does(stored: str, wide: bool) -> None:
    ours, theirs = (
        torch.cat([made.attended((1, 3, 50), (0, 0, 40)), made.attended((0, 59, 60))])
        for made in (Sequences(cpu_operations(), stored), Sequences(TorchOperations(), stored))
    )
    # Of int8 and int4 only by AVX-512, with instructions for bf16, are queries and weights rounded to it.
    rounds = stored in ("int8", "int4") and wide
    torch.testing.assert_close(ours, theirs, atol=4e-2 if stored == "fp8" else 2e-2 if rounds else 2e-4, rtol=0)


def test_a_token_attends_to_those_of_the_highest_scores(sequences: Sequences) -> None:
    for sequence in range(2):
        ours = sequences.attended((sequence, 0, LENGTH))
        torch.testing.assert_close(ours.double(), sequences.exact(sequence), atol=1e-5, rtol=0)


def test_what_a_token_sees_does_not_depend_on_chunks_or_company(
    sequences: Sequences, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sequences.attended((0, 0, LENGTH))
    assert torch.equal(torch.cat([sequences.attended((0, place, place + 1)) for place in range(LENGTH)]), whole)
    chunked = [sequences.attended((1, 3, 50), (0, first, end)) for first, end in ((0, 7), (7, 30), (30, LENGTH))]
    assert torch.equal(torch.cat([each[47:] for each in chunked]), whole)
    for limit in ("_SLAB_FLOATS", "_COPIED_BYTES"):
        monkeypatch.setattr(f"tandem.worker.model.selection.{limit}", 1 << 13)
    monkeypatch.setattr("tandem.worker.model.cpu.selection._MOST_SCORES", 200)
    assert torch.equal(sequences.attended((1, 3, 50), (0, 0, LENGTH))[47:], whole)


@pytest.mark.parametrize("stored", ["auto", "int8", "int4"])
def test_the_first_tokens_of_a_sequence_have_the_bits_of_attention_to_all(stored: str) -> None:
    both = Sequences(cpu_operations(), stored)
    everything, ours = (both.attended((0, 0, LENGTH), chooses=chooses) for chooses in (False, True))
    assert torch.equal(ours[:MOST], everything[:MOST])
    assert not torch.isclose(ours[MOST:], everything[MOST:]).flatten(1).all(1).any()


def test_numbers_that_are_not_finite_stay_in_their_own_sequence(sequences: Sequences) -> None:
    whole = sequences.attended((0, 0, LENGTH))
    sequences.keys[1, 20], sequences.index_queries[1, 30], sequences.latents[1, 40] = torch.nan, torch.inf, torch.nan
    sequences.store(1)
    assert torch.equal(sequences.attended((1, 0, LENGTH), (0, 0, LENGTH))[LENGTH:], whole)
    assert torch.equal(sequences.attended((0, 0, LENGTH)), whole)


def test_scores_that_depend_on_other_pages_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Sequences(cpu_operations()).cache
    assert scores_ignore_company(cache, INDEX_HEADS)
    usual = TileReader.times_keys

    def dependent(self: TileReader, rows: torch.Tensor, *keys: Any) -> torch.Tensor:
        return usual(self, rows, *keys) * (1 + 1e-6 * (len(rows) > 7))

    monkeypatch.setattr(TileReader, "times_keys", dependent)
    assert not scores_ignore_company(cache, INDEX_HEADS)


def test_index_keys_are_copied_and_cleared_with_their_pages() -> None:
    cache = Sequences(cpu_operations()).cache
    cache.index_keys[0][:] = torch.arange(17.0).view(-1, 1, 1, 1)
    cache.copy([0, 1], [1, 2])
    assert cache.index_keys[0][:4, 0, 0, 0].tolist() == [0, 0, 1, 3]
    cache.zero([3])
    assert not cache.index_keys[0][3].any()
    assert cache.allocated_bytes == cache.shape.bytes == 17 * 8 * 4 * (SIZE + INDEX_SIZE)

"""Logprobs and ranks that the compiled library tells, beside a distribution in fp64 and torch's operations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tandem.worker.engine.request import LogprobOptions
from tandem.worker.engine.sampler import logprobs
from tandem.worker.engine.sampler.draw import Distribution
from tandem.worker.engine.sampler.logprobs import MOST_PROBABLE, Told
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.native import choice
from tests.worker_svc.model.test_largest import kinds

pytestmark = pytest.mark.skipif(not native.available(), reason="no compiled library")

Numbers = npt.NDArray[np.float64]
NOTHING = -np.inf


def in_fp64(logits: Numbers, by: Numbers | None) -> Numbers:
    """The logprobs of one row."""
    low, high, temperature, mass = (NOTHING, logits.max(), 1.0, None) if by is None else by
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        shifted = (logits - high) / temperature
        mass = np.exp(shifted).sum() if mass is None else mass
        return np.where((logits >= low) & (logits <= high) & (logits > NOTHING), shifted - np.log(mass), NOTHING)


def distributions(x: torch.Tensor) -> dict[str, Numbers | None]:
    """Bounds by which all may be told, by what they mean: `[4, rows]`."""
    rows = x.double().numpy()
    top = rows.max(axis=1)
    middle = np.sort(rows, axis=1)[:, -(x.shape[1] // 3 + 1)]
    one = np.ones(len(rows))
    return {
        "own": None,
        "all": np.array([NOTHING * one, top, 0.7 * one, 3 * one]),
        "largest": np.array([top, top, 1e-30 * one, one]),
        "from some on": np.array([middle, top, 2 * one, 5 * one]),
        "up to some": np.array([NOTHING * one, middle, one, 1.5 * one]),
        "between": np.array([np.sort(rows, axis=1)[:, x.shape[1] // 4], middle, one, 7 * one]),
    }


@pytest.mark.parametrize("size", [1, 31, 32, 33, 513, 4_000, 32_001])
def test_logprobs_and_ranks_are_those_of_a_distribution_in_fp64(size: int) -> None:
    for name, x in kinds(3, size).items():
        for way, by in distributions(x).items():
            ids = [np.array([0, size // 2, size - 1, 0], np.int32)[: row + 2] for row in range(len(x))]
            tops = np.array([1, 7, MOST_PROBABLE], np.int32)
            told = choice.report(x, np.arange(len(x)), ids, tops, by)
            starts = np.cumsum([0, *map(len, ids)])
            for row in range(len(x)):
                about = (name, way, size, row)
                mine = slice(starts[row], starts[row + 1])
                if not bool(torch.isfinite(x[row].amax())):
                    assert np.isnan(told.logprobs[mine]).all() and told.tops[row] == 0, about
                    continue
                logits = x[row].double().numpy()
                true = in_fp64(logits, None if by is None else by[:, row])
                np.testing.assert_allclose(
                    told.logprobs[mine], true[ids[row]], rtol=3e-7, atol=2e-6, err_msg=str(about)
                )
                possible = np.where(true > NOTHING, logits, NOTHING)
                ranks = (possible > possible[ids[row], None]).sum(axis=1) + 1
                assert told.ranks[mine].tolist() == ranks.tolist(), about
                best = np.argsort(-possible, kind="stable")[: tops[row]]
                best = best[possible[best] > NOTHING]
                assert told.top_ids[row, : told.tops[row]].tolist() == best.tolist(), about
                its_ranks = [int((possible > possible[id_]).sum()) + 1 for id_ in best]
                assert told.top_ranks[row, : told.tops[row]].tolist() == its_ranks, about
                np.testing.assert_allclose(
                    told.top_logprobs[row, : told.tops[row]], true[best], rtol=3e-7, atol=2e-6, err_msg=str(about)
                )


def test_broken_rows_are_no_numbers_and_harm_no_other() -> None:
    x = torch.randn(4, 1_000, generator=torch.Generator().manual_seed(1))
    alone = choice.report(x, np.array([2]), [np.array([5], np.int32)], np.array([3], np.int32))
    x[0, 999], x[1, 3], x[3] = float("nan"), float("inf"), float("-inf")
    told = choice.report(x, np.arange(4), [np.array([5], np.int32)] * 4, np.full(4, 3, np.int32))
    assert np.isnan(told.logprobs).tolist() == [True, True, False, True] and told.tops.tolist() == [0, 0, 3, 0]
    assert told.logprobs[2] == alone.logprobs[0] and np.array_equal(told.top_logprobs[2], alone.top_logprobs[0])


def test_rows_that_lie_apart_are_told_as_alone_by_any_number_of_threads() -> None:
    wide = torch.randn(9, 50_000, generator=torch.Generator().manual_seed(2)) * 3
    x, places = wide[:, 1_000:33_001], np.array([7, 0, 3, 3])
    ids = [np.arange(row, dtype=np.int32) * 1_000 for row in range(4)]
    tops = np.array([5, 0, MOST_PROBABLE, 1], np.int32)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(choice.report(x, places, ids, tops))
    finally:
        torch.set_num_threads(before)
    starts = np.cumsum([0, *map(len, ids)])
    for told in found:
        for row, place in enumerate(places):
            alone = choice.report(x[place : place + 1].clone(), np.array([0]), [ids[row]], tops[row : row + 1])
            mine, count = slice(starts[row], starts[row + 1]), tops[row]
            assert np.array_equal(told.logprobs[mine], alone.logprobs) and np.array_equal(told.ranks[mine], alone.ranks)
            assert np.array_equal(told.top_ids[row, :count], alone.top_ids[0])
            assert np.array_equal(told.top_logprobs[row, :count], alone.top_logprobs[0])


def test_reports_are_those_of_torchs_operations() -> None:
    x = torch.randn(6, 2_000, generator=torch.Generator().manual_seed(3)) * 2
    some, every = LogprobOptions(sampled=True), np.arange(6)
    options = [some, LogprobOptions(top=3), LogprobOptions(ids=(4, 4, 0)), LogprobOptions(top=64, ids=(1,)), some, some]
    chosen = np.array([5, 0, 1_999, 17, 3, 2], np.int32)
    high = x.amax(dim=-1).double()
    shares = torch.softmax(x.double() / 0.8, dim=-1)
    drawn_from = Distribution.plain(high - 4, high, torch.full_like(high, 0.8), (1 / shares.amax(dim=-1)))
    for told in (Told(every, x, every), Told(every, x, every, drawn_from)):
        ours = logprobs.report(told, chosen, options)
        theirs = logprobs._by_torch(told.logprobs(), chosen, options)
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, rtol=1e-6, atol=2e-6)
        assert np.array_equal(ours.ranks, theirs.ranks)
        for name in ("counts", "ids", "ranks"):
            assert np.array_equal(getattr(ours.alternatives, name), getattr(theirs.alternatives, name)), name
        np.testing.assert_allclose(ours.alternatives.logprobs, theirs.alternatives.logprobs, rtol=1e-6, atol=2e-6)


def test_the_whole_vocabulary_is_told_by_the_same_numbers() -> None:
    x = torch.randn(3, 5_000, generator=torch.Generator().manual_seed(4)) * 5
    x[1, 7], x[2, 9] = float("-inf"), float("nan")
    ids = tuple(range(0, 5_000, 40))
    high = x[:, 5].double()  # what is larger was cut
    warm = Distribution.plain(high - 9, high, torch.full_like(high, 0.7), torch.full_like(high, 2.5))
    cold = Distribution.plain(high, high, torch.full_like(high, 1e-30), torch.ones_like(high))
    for drawn_from in (None, warm, cold):
        told = Told(np.arange(3), x, np.arange(3), drawn_from)
        report = logprobs.report(told, np.array([7, 7, 7], np.int32), [LogprobOptions(ids=ids)] * 3)
        for row, others in enumerate(report.alternatives.logprobs.reshape(3, -1)):
            every = logprobs.whole(told, row)
            np.testing.assert_array_equal(every[list(ids)], others)
            np.testing.assert_array_equal(every[7], report.logprobs[row])

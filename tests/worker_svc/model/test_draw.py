"""Tokens that the compiled library draws, beside torch's operations and a distribution in fp64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tandem.worker.engine.request import Request, Stopping
from tandem.worker.engine.sampler import on_cpu, ordered, pipeline
from tandem.worker.engine.sampler.draw import Distribution
from tandem.worker.engine.sampler.table import Parameters, SamplingTable
from tandem.worker.engine.sampling import Sampling
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.native import choice
from tests.worker_svc.model.test_largest import kinds

pytestmark = pytest.mark.skipif(not native.available(), reason="no compiled library")

SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.2),
    Sampling(temperature=1e-35),
    Sampling(temperature=40.0),
    Sampling(top_k=1),
    Sampling(top_k=40, temperature=0.7),
    Sampling(top_k=700),
    Sampling(top_k=1 << 40),
    Sampling(top_p=0.0),
    Sampling(top_p=1e-9),
    Sampling(top_p=0.5, temperature=2.0),
    Sampling(top_p=0.95),
    Sampling(top_p=1 - 1e-9),
    Sampling(top_k=50, top_p=0.9),
    Sampling(top_k=3000, top_p=0.9),
    Sampling(min_p=1.0),
    Sampling(min_p=0.02, temperature=1.5),
    Sampling(top_p=0.99, min_p=1e-5),
    Sampling(top_n_sigma=1.5),
    Sampling(top_n_sigma=2.0, top_k=200, top_p=0.9, min_p=0.01, temperature=0.9),
)


def parameters_of(samplings: list[Sampling]) -> Parameters:
    requests = [
        Request.make(number, [0], replace(each, seed=11 * number), Stopping(4)) for number, each in enumerate(samplings)
    ]
    return SamplingTable(len(requests)).gather(requests)


def share_before(logits: npt.NDArray[np.float64], of: Distribution, row: int, id_: int, by_value: bool) -> list[float]:
    """The shares of what is drawn from at which the id begins and ends."""
    low, high = float(of.low[row]), float(of.high[row])
    kept = np.flatnonzero((logits >= low) & (logits <= high))
    if by_value:
        kept = kept[np.argsort(-logits[kept], kind="stable")]
    weights = np.exp((logits[kept] - high) / float(of.temperature[row]))
    ends = np.cumsum(weights) / weights.sum()
    place = int(np.flatnonzero(kept == id_)[0])
    return [float(ends[place - 1]) if place else 0.0, float(ends[place])]


@pytest.mark.parametrize("size", [1, 31, 32, 33, 512, 513, 4_000, 32_001])
def test_ids_and_bounds_are_those_of_torchs_operations(size: int) -> None:
    rounded = 0
    for name, rows in kinds(len(SAMPLINGS), size).items():
        sound = torch.isfinite(rows.amax(dim=-1)).numpy()
        if not sound.any():
            continue
        rows, parameters = rows[sound], parameters_of(list(SAMPLINGS))[sound]
        positions = np.arange(5, 5 + len(rows))
        ids, ours = on_cpu.draw_from(rows, parameters, positions)
        others, theirs = pipeline._draw_by_torch(rows.clone(), parameters, positions)
        for row, logits in enumerate(rows):
            about = (name, size, row)
            same = (logits >= float(ours.low[row])) == (logits >= float(theirs.low[row]))
            same |= logits == -torch.inf  # what is impossible has no weight
            assert bool(same.all()) or parameters["top_p"][row] not in (0.0, 1.0), about
            weights = torch.softmax(logits.double(), dim=-1)
            assert float(weights[~same].sum()) < 1e-6, about  # where sums reach a share is a matter of rounding
            assert float(ours.high[row]) == float(theirs.high[row]), about
            assert float(ours.mass[row]) == pytest.approx(float(theirs.mass[row]), rel=1e-5), about
            if ids[row] == others[row]:
                continue
            # Then the number fell between both of them, in either order of ids.
            numbers, both = logits.double().numpy(), ((ours, int(ids[row])), (theirs, int(others[row])))
            ends = [[share_before(numbers, of, row, id_, way) for of, id_ in both] for way in (False, True)]
            assert any(abs(a[1] - b[0]) < 1e-5 or abs(b[1] - a[0]) < 1e-5 for a, b in ends), about
            rounded += 1
    assert rounded <= 3


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=range(len(SAMPLINGS)))
def test_ids_are_drawn_as_often_as_they_weigh(sampling: Sampling) -> None:
    size, draws = 2_000, 4_000
    logits = 3 * torch.randn(size, generator=torch.Generator().manual_seed(5))
    rows = logits.expand(draws, size)
    uniforms = (np.arange(draws) + 0.5) / draws
    asked = parameters_of([sampling] * draws)
    drawn = choice.draw(
        rows,
        np.maximum(asked["temperature"], 1e-30),
        uniforms,
        ordered.CANDIDATES,
        top_n_sigma=asked["top_n_sigma"],
        top_k=asked["top_k"],
        top_p=asked["top_p"],
        min_p=asked["min_p"],
    )
    assert len(set(drawn.low)) == 1 and drawn.finite.all()
    kept = np.where(logits.numpy() >= drawn.low[0], logits.double().numpy(), -np.inf)
    weights = np.exp((kept - kept.max()) / max(sampling.temperature, 1e-30))
    often = np.bincount(drawn.ids, minlength=size)
    # Numbers that lie evenly fall into each interval as often as it is long, to within one.
    assert np.abs(often - draws * weights / weights.sum()).max() <= 1 + 1e-3


def test_a_row_is_drawn_alike_alone_in_company_and_by_any_threads() -> None:
    rows = kinds(len(SAMPLINGS), 40_000)["normal"]
    parameters, positions = parameters_of(list(SAMPLINGS)), np.arange(len(rows))
    wider = torch.nn.functional.pad(rows, (0, 64), value=float("nan"))[:, :40_000]  # rows lie apart
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            together = on_cpu.draw(wider, parameters, positions)
            for row in range(len(rows)):
                one = slice(row, row + 1)
                alone = on_cpu.draw(rows[one], parameters[one], positions[one])
                for mine, its in zip(alone, together, strict=True):
                    assert mine[0] == its[row]
    finally:
        torch.set_num_threads(threads)


def test_broken_rows_say_so_and_leave_the_others_alone() -> None:
    rows = torch.randn(6, 1_000, generator=torch.Generator().manual_seed(2))
    samplings = [Sampling(top_p=0.9)] * 6
    sound = on_cpu.draw(rows, parameters_of(samplings), np.arange(6))
    rows[1, 7], rows[2, 999], rows[3], rows[4, 500] = float("nan"), float("inf"), float("-inf"), float("nan")
    broken = on_cpu.draw(rows, parameters_of(samplings), np.arange(6))
    assert broken.finite.tolist() == [True, False, False, False, False, True]
    assert broken.ids[[1, 2, 4]].tolist() == [7, 999, 500]
    assert broken.ids[[0, 5]].tolist() == sound.ids[[0, 5]].tolist()

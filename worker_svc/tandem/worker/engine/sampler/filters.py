"""Filters: each keeps an interval of the ordered logits, of what the one before it has kept.

    top_n_sigma  what is at most n standard deviations of all logits below the largest (Tang et al. 2024)
    top_k        the k largest
    tail_free_z  up to where the curvature of the ordered probabilities has spent z of its sum (Phénix and Egan 2019)
    typical_p    those whose surprise is nearest to the entropy, until their sum reaches p (Meister et al. 2022)
    top_p        the most probable, until their sum reaches p (Holtzman et al. 2020)
    min_p        what has at least p times the probability of the most probable (Nguyen et al. 2024)
    top_a        what has at least a times the square of the probability of the most probable
    xtc          where at least two reach the threshold, all of these but the least probable go; with a probability
                 (p-e-w 2024, as in llama.cpp)

At least one token always stays. `use` is whether a row has the filter, `[rows]` bool; other tensors are `[rows]`
float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.engine.randomness import Stage, uniform
from tandem.worker.engine.sampler.ordered import Ordered
from tandem.worker.engine.sampler.sums import row_sums
from tandem.worker.engine.sampler.table import Parameters
from tandem.worker.engine.sampling import Sampling

_LEAST_CURVATURE = 1e-6  # below, llama.cpp takes every second derivative for equal


def top_n_sigma(o: Ordered, use: torch.Tensor, n: torch.Tensor) -> None:
    """Keeps what is at most n standard deviations of all logits below the largest."""
    logits = o.logits.double()
    there = logits > float("-inf")
    count = there.sum(dim=-1)
    mean = row_sums(torch.where(there, logits, 0.0)) / count
    variance = row_sums(torch.where(there, (logits - mean.unsqueeze(1)) ** 2, 0.0)) / count
    _at_least(o, use, o.top - n * variance.sqrt())


def top_k(o: Ordered, use: torch.Tensor, k: torch.Tensor) -> None:
    """Keeps the k largest."""
    use = use & (k < o.count())
    o.exact &= ~(use & (k > o.values.shape[1]))
    o.keep_to(k.clamp_max(o.values.shape[1]), use)


def tail_free(o: Ordered, use: torch.Tensor, z: torch.Tensor) -> None:
    """Keeps the tokens up to where the curvature has spent z of its sum."""
    use = use & (o.count() > 2)
    if o.values.shape[1] < 3:
        return
    probabilities = torch.where(o.kept, o.weights, 0.0) / o.total().unsqueeze(1)
    slopes = probabilities[:, :-1] - probabilities[:, 1:]
    curvature = (slopes[:, :-1] - slopes[:, 1:]).abs()
    size = (o.end - 2).unsqueeze(1)
    curvature = torch.where(o.places[:-2] < size, curvature, 0.0)
    spent = curvature.cumsum(dim=-1)
    total = spent[:, -1]
    # What lies beyond the candidates adds at most the two slopes that lead there.
    more = torch.where(o.open, 2 * probabilities[:, -2], 0.0)
    even = torch.where(o.places[:-2] < size, (o.places[:-2] + 1) / size.clamp_min(1), float("inf"))
    flat = (total <= _LEAST_CURVATURE) & ~o.open
    share = torch.where(flat.unsqueeze(1), even, spent)
    certain = _first_above(share, torch.where(flat, z, z * total), o.end)
    latest = _first_above(share, torch.where(flat, z, z * (total + more)), o.end)
    o.exact &= ~(use & o.open & ((certain != latest) | (latest >= o.values.shape[1] - 2) | (total <= _LEAST_CURVATURE)))
    o.keep_to(certain.clamp_min(1), use)


def _first_above(increasing: torch.Tensor, bound: torch.Tensor, none: torch.Tensor) -> torch.Tensor:
    above = increasing > bound.unsqueeze(1)
    return torch.where(above.any(dim=-1), above.int().argmax(dim=-1), none)


def typical(o: Ordered, use: torch.Tensor, p: torch.Tensor) -> None:
    """Keeps what is as surprising as the entropy says, with a mass of p."""
    total = o.total()
    entropy = o.entropy()
    surprise = total.log().unsqueeze(1) - (o.values - o.values[:, :1])
    distance = torch.where(o.kept, (surprise - entropy.unsqueeze(1)).abs(), float("inf"))
    nearest, order = distance.sort(dim=-1, stable=True)
    reached = torch.where(o.kept, o.weights, 0.0).gather(1, order).cumsum(dim=-1) >= (p * total).unsqueeze(1)
    enough = reached.any(dim=-1)
    place = torch.where(enough, reached.int().argmax(dim=-1), o.end - o.first - 1)
    limit = nearest.gather(1, place.unsqueeze(1))
    inside = distance <= limit
    # Whatever lies beyond is more surprising than the last candidate.
    o.exact &= ~(use & o.open & ~(enough & (surprise[:, -1] - entropy > limit.squeeze(1))))
    first = inside.int().argmax(dim=-1)
    end = first + inside.sum(dim=-1)
    o.keep_to(end, use)
    o.keep_from(first, use)


def top_p(o: Ordered, use: torch.Tensor, p: torch.Tensor) -> None:
    """Keeps the most probable, with a mass of p."""
    target = p * o.total() + o.mass_before(o.first)
    reached = o.kept & (o.mass >= target.unsqueeze(1))
    enough = reached.any(dim=-1)
    o.exact &= ~(use & o.open & ~enough)
    o.keep_to(torch.where(enough, reached.int().argmax(dim=-1) + 1, o.end), use)


def min_p(o: Ordered, use: torch.Tensor, p: torch.Tensor) -> None:
    """Keeps what has p times the probability of the most probable."""
    _at_least(o, use, o.top + p.log())


def top_a(o: Ordered, use: torch.Tensor, a: torch.Tensor) -> None:
    """Keeps what has a times the square of the probability of the most probable."""
    top = o.top
    _at_least(o, use, top + a.log() + (top - o.values[:, 0]) - o.total().log())


def _at_least(o: Ordered, use: torch.Tensor, value: torch.Tensor) -> None:
    o.keep_to((o.values >= value.unsqueeze(1)).sum(dim=-1), use)


def exclude_top(o: Ordered, use: torch.Tensor, threshold: torch.Tensor) -> None:
    """Removes those that reach the threshold, but for the least probable of them."""
    likely = o.kept & (o.weights >= (threshold * o.total()).unsqueeze(1))
    count = likely.sum(dim=-1)
    o.exact &= ~(use & o.open & (count >= o.values.shape[1] - o.first))
    o.keep_from(o.first + (count - 1).clamp_min(0), use)


@dataclass(frozen=True, slots=True)
class Filter:
    """One stage of the chain: the parameter that switches it on, and the one that it reads."""

    parameter: str
    keep: Callable[[Ordered, torch.Tensor, torch.Tensor], None]
    reads: str = ""  # if not `parameter`
    coin: Stage | None = None  # `parameter` is a probability, and a number of this stage decides

    def used(self, parameters: Parameters) -> npt.NDArray[np.bool_]:
        """Tells which rows use it."""
        used: npt.NDArray[np.bool_] = parameters[self.parameter] != getattr(_OFF, self.parameter)
        return used

    def runs(self, parameters: Parameters, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Tells in which rows it runs at these positions."""
        runs = self.used(parameters)
        if self.coin is not None and runs.any():
            runs &= uniform(parameters["seed"], positions.astype(np.uint64), self.coin) < parameters[self.parameter]
        return runs


_OFF = Sampling()
# In the order in which they run.
CHAIN = (
    Filter("top_n_sigma", top_n_sigma),
    Filter("top_k", top_k),
    Filter("tail_free_z", tail_free),
    Filter("typical_p", typical),
    Filter("top_p", top_p),
    Filter("min_p", min_p),
    Filter("top_a", top_a),
    Filter("xtc_probability", exclude_top, reads="xtc_threshold", coin=Stage.XTC),
)

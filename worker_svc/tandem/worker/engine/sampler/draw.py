"""Draws one token from what is kept: inverts the cumulative distribution with one uniform number a row.

A `Distribution` says what the token was drawn from: logits from `low` to `high` have the probability
p = exp((logit - high) / temperature) / mass, all others none. Where it aims (adaptive_p), the token was drawn by
weights of p instead, whose sum is `aimed_mass`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.worker.engine.sampler.adaptive_p import log_weights
from tandem.worker.engine.sampler.ordered import Ordered
from tandem.worker.engine.sampler.sums import invert

_BLOCK = 1 << 20  # logits that are worked on at once: they stay in the processor's cache


@dataclass(slots=True)
class Distribution:
    """The distribution that each row is drawn from, `[rows]` float64 each."""

    low: torch.Tensor
    high: torch.Tensor
    temperature: torch.Tensor
    mass: torch.Tensor
    aim: torch.Tensor  # NaN: none
    aimed_mass: torch.Tensor

    @classmethod
    def plain(
        cls, low: torch.Tensor, high: torch.Tensor, temperature: torch.Tensor, mass: torch.Tensor
    ) -> Distribution:
        """Makes a distribution that aims at nothing."""
        return cls(low, high, temperature, mass, torch.full_like(mass, float("nan")), torch.ones_like(mass))

    @classmethod
    def of_largest(cls, largest: torch.Tensor) -> Distribution:
        """Makes a distribution with all of its mass on the largest logit."""
        one = torch.ones_like(largest, dtype=torch.float64)
        return cls.plain(largest.to(torch.float64, copy=True), largest.to(torch.float64, copy=True), one, one.clone())

    def put(self, rows: torch.Tensor, other: Distribution) -> None:
        """Replaces some rows."""
        for mine, its in zip(self._columns, other._columns, strict=True):
            mine[rows] = its

    def select(self, rows: torch.Tensor) -> Distribution:
        """Returns some of the rows."""
        return Distribution(*(each[rows] for each in self._columns))

    @property
    def _columns(self) -> tuple[torch.Tensor, ...]:
        return self.low, self.high, self.temperature, self.mass, self.aim, self.aimed_mass

    @property
    def aims(self) -> torch.Tensor:
        """Tells which rows aim at a probability, `[rows]` bool."""
        return ~self.aim.isnan()

    def logprobs(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the logprobs of every token: `[rows, vocabulary] -> [rows, vocabulary]` float32."""
        values = self._before_aiming(logits)
        aims = self.aims
        if bool(aims.any()):
            weights = log_weights(values[aims].double(), self.aim[aims]) - self.aimed_mass[aims].log().unsqueeze(1)
            values[aims] = weights.float()
        return values

    def before_aiming(self, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Returns the logprob of one token a row before adaptive_p, `[rows]` float64."""
        chosen = logits.gather(1, ids.unsqueeze(1)).squeeze(1).double()
        return (chosen - self.high) / self.temperature - self.mass.log()

    def _before_aiming(self, logits: torch.Tensor) -> torch.Tensor:
        low, high = self.low.float().unsqueeze(1), self.high.float().unsqueeze(1)
        values = ((logits - high).double() / self.temperature.unsqueeze(1) - self.mass.log().unsqueeze(1)).float()
        return values.masked_fill_((logits < low) | (logits > high), float("-inf"))


def draw_kept(o: Ordered, temperature: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, Distribution]:
    """Draws an index into the ordered values, `[rows]`, of which none may be `open`."""
    high = o.top
    shifted = (o.values - high.unsqueeze(1)) / temperature.unsqueeze(1)
    weights = torch.where(o.kept, torch.exp(shifted.clamp_max(0.0)), 0.0)
    cumulative = weights.cumsum(dim=-1)
    mass = cumulative[:, -1]
    places = torch.searchsorted(cumulative, (uniforms * mass).unsqueeze(1), right=True).squeeze(1)
    return torch.minimum(places, o.end - 1), Distribution.plain(o.at(o.end - 1), high, temperature, mass)


def has_kernel(logits: torch.Tensor) -> bool:
    """Tells whether our kernel chooses among them."""
    return logits.is_cuda


def draw_wide(
    logits: torch.Tensor, low: torch.Tensor, high: torch.Tensor, temperature: torch.Tensor, uniforms: torch.Tensor
) -> tuple[torch.Tensor, Distribution]:
    """Draws ids from the logits `[rows, vocabulary]` that lie between two bounds, in the order of the vocabulary."""
    if has_kernel(logits):
        # Triton is not installed where there is no CUDA.
        from tandem.worker.model.cuda.kernels.choose import choose, rules_of

        rules = rules_of(temperature.clamp_min(1e-38), uniforms, low, high)
        chosen = choose(logits.contiguous(), rules, bounded=True)
        return chosen.ids, Distribution.plain(low, high, temperature, chosen.mass)
    ids, masses = [], []
    size = max(1, _BLOCK // logits.shape[1])
    for start in range(0, len(logits), size):
        rows = slice(start, start + size)
        block, top = logits[rows], high[rows].float().unsqueeze(1)
        weights = (block - top).div_(temperature[rows].float().clamp_min(1e-38).unsqueeze(1)).exp_()
        bottom = low[rows].float().unsqueeze(1)
        if bool((bottom > float("-inf")).any()):
            weights.masked_fill_(block < bottom, 0.0)
        # What was cut at the upper end is larger than `top`.
        weights.masked_fill_(block > top, 0.0)
        place, mass = invert(weights, uniforms[rows])
        ids.append(place)
        masses.append(mass)
    return torch.cat(ids), Distribution.plain(low, high, temperature, torch.cat(masses))


def draw_aimed(
    logits: torch.Tensor, of: Distribution, aim: torch.Tensor, uniforms: torch.Tensor
) -> tuple[torch.Tensor, Distribution]:
    """Draws ids from the logits `[rows, vocabulary]` by the weights that adaptive_p gives to the probabilities of
    `of`, in the order of the vocabulary."""
    weights = log_weights(of._before_aiming(logits).double(), aim).exp_()
    ids, mass = invert(weights, uniforms)
    return ids, Distribution(of.low, of.high, of.temperature, of.mass, aim, mass)

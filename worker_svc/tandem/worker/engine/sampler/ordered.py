"""Keeps the largest logits of each row in order, and the interval of them that is still kept.

Every filter keeps an interval of the ordered logits: it cuts the small ones, or the large ones, and equal logits stay
together. So a few hundred candidates answer for the whole vocabulary, as long as the cut lies among them. What each
decision needs of the rest (its mass, its entropy) is known exactly; where a decision could turn on the order of the
rest, the row says so (`exact`) and is ordered as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tandem.worker.engine.sampler.sums import row_sums
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.native import choice

CANDIDATES = 512
_GROUP = 32  # the largest of so many logits stands for them while candidates are looked for


@dataclass(slots=True)
class Ordered:
    """Rows of descending logits, of which `first` to `end` (exclusive) are kept; `[rows, n]` and `[rows]`, float64."""

    logits: torch.Tensor  # [rows, vocabulary] float32: where they come from
    values: torch.Tensor
    weights: torch.Tensor  # exp(values - the largest)
    mass: torch.Tensor  # the cumulative sum of weights
    first: torch.Tensor  # int64
    end: torch.Tensor  # int64
    open: torch.Tensor  # bool: what is kept goes on beyond the values
    exact: torch.Tensor  # bool: false once a decision could not be made from the values
    _rest: torch.Tensor | None = None

    @classmethod
    def of(cls, logits: torch.Tensor, values: torch.Tensor) -> Ordered:
        """Takes the largest `values` of each row of `logits`, in descending order; each row has a finite one."""
        values = values.double()
        weights = torch.exp(values - values[:, :1])
        count = (values > float("-inf")).sum(dim=-1)
        return cls(
            logits=logits,
            values=values,
            weights=weights,
            mass=weights.cumsum(dim=-1),
            first=torch.zeros_like(count),
            end=count,
            open=(count == values.shape[1]) & (values.shape[1] < logits.shape[1]),
            exact=torch.ones_like(count, dtype=torch.bool),
        )

    @property
    def places(self) -> torch.Tensor:
        """Returns the indices `[n]`: 0, 1, 2..."""
        return torch.arange(self.values.shape[1], device=self.values.device)

    @property
    def kept(self) -> torch.Tensor:
        """Tells which values are kept, `[rows, n]` bool."""
        return (self.places >= self.first.unsqueeze(1)) & (self.places < self.end.unsqueeze(1))

    @property
    def top(self) -> torch.Tensor:
        """Returns the largest logit that is kept, `[rows]`."""
        return self.at(self.first)

    def at(self, places: torch.Tensor) -> torch.Tensor:
        """Returns the values at one place a row, `[rows]`."""
        return self.values.gather(1, places.unsqueeze(1)).squeeze(1)

    def mass_before(self, places: torch.Tensor) -> torch.Tensor:
        """Returns the sum of the weights before one place a row, `[rows]`."""
        before = self.mass.gather(1, (places - 1).clamp_min(0).unsqueeze(1)).squeeze(1)
        return torch.where(places > 0, before, 0.0)

    def total(self) -> torch.Tensor:
        """Returns the mass of what is kept, `[rows]`."""
        inside = self.mass_before(self.end) - self.mass_before(self.first)
        return torch.where(self.open, inside + self._mass_beyond(), inside) if bool(self.open.any()) else inside

    def entropy(self) -> torch.Tensor:
        """Returns the entropy of what is kept, in nats, `[rows]`."""
        total = self.total()
        shifted = torch.where(self.kept, self.values - self.values[:, :1], 0.0)
        moment = (torch.where(self.kept, self.weights, 0.0) * shifted).cumsum(dim=-1)[:, -1]
        if bool(self.open.any()):
            moment = torch.where(self.open, moment + self._moment_beyond(), moment)
        return (total.log() - moment / total).clamp_min(0.0)

    def count(self) -> torch.Tensor:
        """Counts the tokens that are kept, `[rows]`."""
        size = self.end - self.first
        if not bool(self.open.any()):
            return size
        beyond = (self.logits > float("-inf")).sum(dim=-1) - self.values.shape[1]
        return torch.where(self.open, size + beyond, size)

    def _mass_beyond(self) -> torch.Tensor:
        """Returns the mass of the logits that are not among the values, `[rows]`."""
        if self._rest is None:
            weights = (self.logits - self.values[:, :1].float()).exp_()
            self._rest = (row_sums(weights) - self.mass[:, -1]).clamp_min(0.0)
        return self._rest

    def _moment_beyond(self) -> torch.Tensor:
        """Sums weight times logit (the largest is 0) over the logits that are not among the values, `[rows]`."""
        shifted = self.logits - self.values[:, :1].float()
        # What is forbidden has no weight, and no logit that could be multiplied.
        whole = row_sums(shifted.exp().mul_(shifted.clamp_min_(-1e4)))
        inside = (self.weights * (self.values - self.values[:, :1])).nan_to_num(0.0).cumsum(dim=-1)[:, -1]
        return (whole - inside).clamp_max(0.0)

    def keep_to(self, end: torch.Tensor, use: torch.Tensor) -> None:
        """Cuts the rows `use` behind the place `end` - 1 (`[rows]`, at least `first`) and those equal to it."""
        end = torch.minimum(torch.maximum(end, self.first + 1), self.end)
        last = self.at(end - 1)
        end = torch.minimum((self.values >= last.unsqueeze(1)).sum(dim=-1), self.end)
        # Equal logits may go on beyond the candidates.
        self.exact &= ~(use & self.open & (end == self.values.shape[1]))
        self.open &= ~(use & (end < self.values.shape[1]))
        self.end = torch.where(use, end, self.end)

    def keep_from(self, first: torch.Tensor, use: torch.Tensor) -> None:
        """Cuts the rows `use` before the place `first` and those equal to it."""
        value = self.at(torch.minimum(first, self.end - 1))
        first = torch.maximum((self.values > value.unsqueeze(1)).sum(dim=-1), self.first)
        self.first = torch.where(use, first, self.first)

    def select(self, rows: torch.Tensor) -> Ordered:
        """Returns some of the rows."""
        return Ordered(
            self.logits,
            *(
                each[rows]
                for each in (self.values, self.weights, self.mass, self.first, self.end, self.open, self.exact)
            ),
        )


def candidates(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the CANDIDATES largest of each row (or all, where there are fewer) in descending order, and their ids."""
    rows, vocabulary = logits.shape
    if logits.device.type == "cpu" and native.available():
        return choice.largest(logits, min(CANDIDATES, vocabulary))
    groups = vocabulary // _GROUP
    if groups <= 2 * CANDIDATES:
        values, ids = logits.topk(min(CANDIDATES, vocabulary), dim=-1)
        return values, ids
    # The n largest lie in the n groups with the largest maxima: a sixth of the time of one topk over the row.
    whole = groups * _GROUP
    maxima = logits[:, :whole].view(rows, groups, _GROUP).amax(dim=-1)
    best = maxima.topk(CANDIDATES, dim=-1, sorted=False).indices
    inside = (best.unsqueeze(-1) * _GROUP + torch.arange(_GROUP, device=logits.device)).view(rows, -1)
    rest = torch.arange(whole, vocabulary, device=logits.device).expand(rows, -1)
    ids = torch.cat([inside, rest], dim=1)
    values, places = logits.gather(1, ids).topk(CANDIDATES, dim=-1)
    return values, ids.gather(1, places)


def in_order(logits: torch.Tensor) -> torch.Tensor:
    """Returns all logits of each row, descending."""
    if logits.device.type == "cpu":  # a tenth of the time of torch.sort, which orders the places too
        return torch.from_numpy(-np.sort(-logits.numpy(), axis=-1))
    return logits.sort(dim=-1, descending=True).values

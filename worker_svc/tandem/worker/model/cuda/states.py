"""Moves states by our own kernels: one launch of each for all sequences of a step, prefills and decodes mixed.

What a step does is described by arrays on the device, so that a recording reads from fixed places whose states move.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from tandem.worker.model.cuda.kernels import recurrences, state_rows
from tandem.worker.model.cuda.kernels.state_rows import AFTER_GATE, BEFORE_GATE, NO_NORM, FactorRule
from tandem.worker.model.delta_rule import DeltaRule
from tandem.worker.model.kimi_delta_rule import KimiDeltaRule
from tandem.worker.model.lightning import LightningRule
from tandem.worker.model.mamba_rule import MambaRule
from tandem.worker.model.recurrence import Rule
from tandem.worker.model.short_convolution import ConvolutionRule
from tandem.worker.model.states import StateCache

_NORMS = {"none": NO_NORM.value, "after": AFTER_GATE.value, "before": BEFORE_GATE.value}


class StateArrays(NamedTuple):
    """A step's `StatePlan` on the device, int32."""

    works: torch.Tensor  # [works, 9]; those without tokens are nothing to do
    saves: torch.Tensor  # [saves, 2]
    tokens: torch.Tensor  # [tokens]: whose work each is, replayed ones included; -1: nobody's


@dataclass(slots=True)
class KernelMoves:
    """Moves a step's states; see `operations.StateMoves`. All layers use the same room, and write to the same place:
    what a layer gets holds until the next."""

    arrays: StateArrays
    cache: StateCache | None
    room: torch.Tensor | None = None  # [tokens, channels + factors] float32
    _given: torch.Tensor | None = field(init=False, default=None)

    def recur(self, rule: Rule, layer: int, mixed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        if isinstance(rule, ConvolutionRule):
            return self._convolve(rule, layer, mixed, gates)
        assert isinstance(rule, DeltaRule | KimiDeltaRule | MambaRule | LightningRule)
        sizes, (works, saves, tokens) = rule.sizes, self.arrays
        if self.room is None:
            self.room = mixed.new_empty((len(tokens), sizes.channels + sizes.factors), dtype=torch.float32)
        tails, journals, journal = kept = self._kept(layer)
        states = self.room if self.cache is None else self.cache.recurrent[layer]
        given = self._place(len(mixed), sizes.size, mixed, torch.float32)
        skip, groups, z_by, filter_bias = None, rule.sizes.groups, 1.0, None
        if isinstance(rule, DeltaRule):
            keys = 2 * rule.sizes.key_heads, rule.sizes.key_dim
            by = rule.sizes.beta_multiplier
            factors = FactorRule(rule.decay_rate, rule.bias, keys, rule.sizes.value_dim, gate_by=by)
            norm, norms = BEFORE_GATE.value, rule.sizes.value_heads
        elif isinstance(rule, KimiDeltaRule):
            heads, size = rule.sizes.heads, rule.sizes.head_dim
            keys = 2 * heads, size
            factors = FactorRule(rule.decay_rate, rule.bias, keys, size, rows=size, least=rule.sizes.least)
            norm, norms = BEFORE_GATE.value, heads
        elif isinstance(rule, LightningRule):
            factors = FactorRule(rule.rate, rule.skip, constant=True)
            gates, skip, norm, norms = mixed, rule.skip, BEFORE_GATE.value, 1
        else:
            least, most = rule.sizes.least_dt, rule.sizes.most_dt
            z_by, *_, gate_by = rule.sizes.multipliers
            factors = FactorRule(rule.rate, rule.bias, gate_by=gate_by, least=least, most=most)
            skip, filter_bias = rule.skip, rule.filter_bias
            norm, norms = _NORMS[rule.sizes.norm], groups
        state_rows.enter(mixed, gates, kept, rule.filter_rows, filter_bias, factors, self.room, works, tokens)
        by_row = isinstance(rule, KimiDeltaRule)
        recurrences.recur(self.room, states, given, works, saves, skip, sizes.state, groups, by_row=by_row)
        if self.cache is not None:
            of = sizes.channels, sizes.kernel, sizes.factors
            state_rows.keep(mixed, tails, journals, self.room, works, saves, of, journal)
        sigmoid = by_row or isinstance(rule, LightningRule)
        return state_rows.leave(given, mixed, sizes.channels, rule.norm, norms, norm, rule.eps, z_by, sigmoid=sigmoid)

    def _convolve(self, rule: ConvolutionRule, layer: int, mixed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        works, saves, tokens = self.arrays
        tails, journals, journal = self._kept(layer)
        out = self._place(len(mixed), rule.sizes.channels, mixed, mixed.dtype)
        state_rows.gated_convolution(
            mixed, gates, tails, rule.filter_rows, rule.filter_bias, works, tokens, journal, out
        )
        if self.cache is not None:
            of = rule.sizes.channels, rule.sizes.kernel, 0
            state_rows.keep(mixed, tails, journals, tails, works, saves, of, journal)
        return out

    def _kept(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Returns tails, journals, and how many tokens a journal has; work without slots looks at none of it."""
        if self.cache is None:
            somewhere = self.arrays.works.view(torch.float32)
            return somewhere, somewhere, 0
        return self.cache.tails[layer], self.cache.journals[layer], self.cache.shape.journal

    def _place(self, rows: int, size: int, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Returns the place for what layers give; rows of no work stay zero."""
        if self._given is None:
            self._given = like.new_zeros((rows, size), dtype=dtype)
        return self._given

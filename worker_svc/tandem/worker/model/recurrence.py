"""Layers with states in torch's operations: where they are not compiled, and the reference of what is.

One sequence and one token after the other, so that torch always computes in the same shapes, and a row's bits depend on
nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from tandem.worker.checkpoints.model_parts.recurrences import Recurrence
from tandem.worker.model.states import StatePlan


class Rule(Protocol):
    """How a layer's state goes from token to token, and the weights for it, in float32."""

    @property
    def sizes(self) -> Recurrence:
        """The sizes of the layer."""
        ...

    @property
    def filter_rows(self) -> torch.Tensor:
        """The filter of the convolution, `[kernel, channels]`."""
        ...

    def convolve(self, inputs: torch.Tensor) -> torch.Tensor:
        """Computes a token's `[channels]` of the last inputs `[kernel, channels]`."""
        ...

    def factors(self, gates: torch.Tensor) -> torch.Tensor:
        """Computes `[factors]` of a token's row of gates."""
        ...

    def step(self, state: torch.Tensor, x: torch.Tensor, factors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the state after a token, of what `convolve` and `factors` gave, and what is read from it."""
        ...

    def leave(self, given: torch.Tensor, mixed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """Computes a token's `[size]` of what was read, and of its rows of `mixed` and `gates`."""
        ...


@dataclass(frozen=True, slots=True)
class TorchMoves:
    """Moves a step's states by torch; see `operations.StateMoves`."""

    plan: StatePlan

    def recur(self, rule: Rule, layer: int, mixed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        out = torch.zeros((len(mixed), rule.sizes.size), device=mixed.device)
        for line in self.plan.lines():
            row, length = line[2], line[3]
            rows = slice(row, row + length)
            out[rows] = _one(rule, layer, mixed[rows].float(), gates[rows].float(), self.plan, line)
        return out.to(mixed.dtype)


def _one(
    rule: Rule, layer: int, mixed: torch.Tensor, gates: torch.Tensor, plan: StatePlan, line: list[int]
) -> torch.Tensor:
    sizes, cache = rule.sizes, plan.cache
    slot, fresh, _, length, replayed, commit, _, first_save, last_save = line
    tail = sizes.kernel - 1
    state = torch.zeros(sizes.state, device=mixed.device)
    inputs = torch.zeros((tail, sizes.channels), device=mixed.device)
    factors = [rule.factors(gates[token]) for token in range(length)]
    if slot >= 0:
        assert cache is not None
        if not fresh:
            state.copy_(cache.recurrent[layer][slot])
            inputs.copy_(cache.tails[layer][slot, :tail])
        inputs = torch.cat((inputs, cache.tails[layer][slot, tail : tail + replayed]))
        factors = [*cache.journals[layer][slot, :replayed].clone().unbind(), *factors]
    inputs = torch.cat((inputs, mixed[:, : sizes.channels]))
    saves = [*plan.saves[first_save:last_save].tolist(), (commit, slot)]
    out = []
    for token in range(replayed + length + 1):
        for count, target in saves:
            if count == token and target >= 0:
                assert cache is not None
                cache.recurrent[layer][target].copy_(state)
        if token == replayed + length:
            break
        state, given = rule.step(state, rule.convolve(inputs[token : token + sizes.kernel]), factors[token])
        if token >= replayed:
            out.append(rule.leave(given, mixed[token - replayed], gates[token - replayed]))
    for count, target in saves:
        if target < 0:
            continue
        assert cache is not None
        kept = inputs[count : count + tail] if target != slot else inputs[count:]
        cache.tails[layer][target, : len(kept)] = kept
    if slot >= 0 and factors[commit:]:
        assert cache is not None
        cache.journals[layer][slot, : len(factors) - commit] = torch.stack(factors[commit:])
    return torch.stack(out)


def silu(x: torch.Tensor) -> torch.Tensor:
    """Computes `x / (1 + exp(-x))`, whose bits do not depend on the place of a number as `F.silu`'s do."""
    return x / (1 + (-x).exp())

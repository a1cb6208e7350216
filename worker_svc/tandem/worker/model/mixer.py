"""What a layer with states has instead of attention, but for the output matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.recurrences import Recurrence
from tandem.worker.model.linear import Bias, Linear
from tandem.worker.model.recurrence import Rule


class Constants(torch.nn.Module):
    """Numbers that are no matrix, in float32."""

    weight: torch.nn.Parameter

    def __init__(self, *size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size, dtype=torch.float32), requires_grad=False)


Filled: TypeAlias = Linear | Bias | Constants


class Mixer(torch.nn.Module):
    """The projections before a state, and what its rule computes with. Most have two matrices."""

    __call__: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    sizes: Recurrence
    mixed: Linear
    gates: Linear
    name: str  # what canonical names of its tensors begin with

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self._eps = config.norm_eps

    def forward(self, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the `mixed` and the `gates` of rows `[N, hidden]` that the rule is given."""
        return self.mixed(normed), self.gates(normed)

    @property
    def rule(self) -> Rule:
        """Returns what the states move by, once the numbers are there."""
        raise NotImplementedError

    @property
    def first(self) -> Linear:
        """Returns the matrix of what the rule is given as `mixed`, or of all that it is given."""
        return self.mixed

    @property
    def beside(self) -> Linear | None:
        """Returns the matrix of `gates`, if they have one of their own."""
        return self.gates

    @property
    def output_bias(self) -> bool:
        """Tells whether the output matrix has a bias."""
        return False

    def destinations(self) -> dict[str, tuple[Filled, int]]:
        """Returns where each tensor goes, by its name behind `name`: a module's weight, from one of its rows on."""
        raise NotImplementedError

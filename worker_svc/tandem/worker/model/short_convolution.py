"""A convolution over the last tokens, between two gates, in the place of attention (LFM2).

    b, c, x = W u
    y       = c * (convolution of the last `kernel` rows of b * x, each channel for itself)

A sequence's state is the `kernel - 1` last rows of `b * x`, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.recurrences import ShortConvolution
from tandem.worker.model.linear import Linear
from tandem.worker.model.mixer import Constants, Filled, Mixer


@dataclass(frozen=True, slots=True)
class ConvolutionRule:
    """What a layer computes with, float32; see `recurrence.Rule`. `mixed` is `b * x`, `gates` are `c`."""

    sizes: ShortConvolution
    filter_rows: torch.Tensor  # [kernel, channels]
    filter_bias: torch.Tensor | None  # [channels]

    def convolve(self, inputs: torch.Tensor) -> torch.Tensor:
        given = (inputs * self.filter_rows).sum(0)
        return given if self.filter_bias is None else given + self.filter_bias

    def factors(self, gates: torch.Tensor) -> torch.Tensor:
        return gates[:0]

    def step(self, state: torch.Tensor, x: torch.Tensor, factors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return state, x

    def leave(self, given: torch.Tensor, mixed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        return given * gates


class ShortConvolutionMixer(Mixer):
    """See `Mixer`."""

    name = "short_convolution"

    def __init__(self, config: ModelConfig, sizes: ShortConvolution, dtype: torch.dtype) -> None:
        super().__init__(config)
        self.sizes: ShortConvolution = sizes
        self.projection = Linear(config.hidden_size, 3 * sizes.channels, dtype, bias=sizes.biases)  # b, c, x
        self.filter = Constants(sizes.channels, sizes.kernel)
        self.filter_bias = Constants(sizes.channels) if sizes.biases else None

    def forward(self, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        b, c, x = self.projection(normed).chunk(3, dim=1)
        return b * x, c

    @property
    def first(self) -> Linear:
        return self.projection

    @property
    def beside(self) -> None:
        return None

    @cached_property
    def rule(self) -> ConvolutionRule:
        bias = None if self.filter_bias is None else self.filter_bias.weight
        return ConvolutionRule(self.sizes, self.filter.weight.t().contiguous(), bias)

    @property
    def output_bias(self) -> bool:
        return self.sizes.biases

    def destinations(self) -> dict[str, tuple[Filled, int]]:
        places: dict[str, tuple[Filled, int]] = {
            "gates_and_input": (self.projection, 0),
            "filter": (self.filter, 0),
        }
        if self.filter_bias is not None and self.projection.bias is not None:
            places["gates_and_input_bias"] = (self.projection.bias, 0)
            places["filter_bias"] = (self.filter_bias, 0)
        return places

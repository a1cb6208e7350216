"""Lightning attention in the place of attention (MiniMax-01, MiniMax-M1; Qin et al. 2024,
https://arxiv.org/abs/2401.04658): linear attention whose past fades.

A sequence has a state `S [head_dim, head_dim]` in each head, and every token changes it:

    q, k, v = silu(x Wqkv)
    S       = exp(-slope) S + k v          slope: of the head and the layer, the same for all tokens
    y       = norm(q S) * sigmoid(x Wz)    the norm is over all heads

It is Mamba-2's recurrence (`mamba.py`) with decays that are constants, and is computed token by token as that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.recurrences import Lightning
from tandem.worker.model.linear import Linear
from tandem.worker.model.mixer import Constants, Filled, Mixer
from tandem.worker.model.recurrence import silu


@dataclass(frozen=True, slots=True)
class LightningRule:
    """What a layer's rule computes with, float32; see `recurrence.Rule`. There are no gates of the state."""

    sizes: Lightning
    eps: float
    filter_rows: torch.Tensor  # [1, channels], ones: there is no convolution
    rate: torch.Tensor  # [heads], minus the slopes
    skip: torch.Tensor  # [heads], zeros: nothing passes the state by
    norm: torch.Tensor  # [size]

    def convolve(self, inputs: torch.Tensor) -> torch.Tensor:
        return silu(inputs[0])

    def factors(self, gates: torch.Tensor) -> torch.Tensor:
        """Returns a decay a head, and by how much what is given counts."""
        return torch.cat((self.rate.exp(), torch.ones_like(self.rate)))

    def step(self, state: torch.Tensor, x: torch.Tensor, factors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        given, write, read = x.view(3, self.sizes.heads, -1)
        state = state * factors[: self.sizes.heads, None, None] + write.unsqueeze(-1) * given.unsqueeze(1)
        return state, (state * read.unsqueeze(-1)).sum(1)

    def leave(self, given: torch.Tensor, mixed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        y = given.flatten()
        y = y * torch.rsqrt(y.square().mean() + self.eps) * self.norm
        return y / (1 + (-mixed[self.sizes.channels :]).exp())


class LightningMixer(Mixer):
    """See `Mixer`."""

    name = "lightning"

    def __init__(self, config: ModelConfig, sizes: Lightning, dtype: torch.dtype, layer: int) -> None:
        super().__init__(config)
        self.sizes: Lightning = sizes
        self._slopes = sizes.slopes(layer, config.num_layers)
        self.mixed = Linear(config.hidden_size, sizes.channels + sizes.size, dtype)  # v, k, q, z
        self.norm = Constants(sizes.size)

    def forward(self, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Mixer.forward`."""
        mixed = self.mixed(normed)
        return mixed, mixed[:, :0]

    @property
    def beside(self) -> None:
        return None

    @cached_property
    def rule(self) -> LightningRule:
        norm = self.norm.weight
        rate = torch.tensor(self._slopes, dtype=torch.float32, device=norm.device).neg()
        ones = norm.new_ones((1, self.sizes.channels))
        return LightningRule(self.sizes, self.sizes.norm_eps, ones, rate, torch.zeros_like(rate), norm)

    def destinations(self) -> dict[str, tuple[Filled, int]]:
        return {"channels": (self.mixed, 0), "z": (self.mixed, self.sizes.channels), "norm_weight": (self.norm, 0)}

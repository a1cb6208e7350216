"""Kimi's delta rule: how a state goes from token to token (`kimi_delta.py`), in torch's operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tandem.worker.checkpoints.model_parts.recurrences import KimiDelta
from tandem.worker.model.delta_rule import moved, normed, unit
from tandem.worker.model.recurrence import silu


@dataclass(frozen=True, slots=True)
class KimiDeltaRule:
    """What a layer's rule computes with, float32; see `recurrence.Rule`. `gates` are those of betas, then of decays."""

    sizes: KimiDelta
    eps: float
    filter_rows: torch.Tensor  # [kernel, channels]
    decay_rate: torch.Tensor  # [heads], -exp(A)
    bias: torch.Tensor  # [heads * head_dim], of what decays are made of
    norm: torch.Tensor  # [head_dim]

    def convolve(self, inputs: torch.Tensor) -> torch.Tensor:
        return silu((inputs * self.filter_rows).sum(0))

    def factors(self, gates: torch.Tensor) -> torch.Tensor:
        """Computes a decay of each channel of the keys, and a beta a head, of a token's gates."""
        b, a = torch.split(gates, [self.sizes.heads, self.sizes.size])
        rate = self.decay_rate.repeat_interleave(self.sizes.head_dim)
        if self.sizes.least:
            decays = (self.sizes.least / (1 + (rate * (a + self.bias)).exp())).exp()
        else:
            decays = (rate * F.softplus(a + self.bias)).exp()
        return torch.cat((decays, 1 / (1 + (-b).exp())))

    def step(self, state: torch.Tensor, x: torch.Tensor, factors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sizes = self.sizes
        q, k, v = x.view(3, sizes.heads, sizes.head_dim)
        decay, beta = torch.split(factors, [sizes.size, sizes.heads])
        return moved(state, unit(q), unit(k), v, decay.view(sizes.heads, -1), beta.unsqueeze(-1))

    def leave(self, given: torch.Tensor, mixed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        z = mixed[self.sizes.channels :].view(given.shape)
        return (normed(given, self.eps, self.norm) / (1 + (-z).exp())).flatten()

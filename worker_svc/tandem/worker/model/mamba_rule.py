"""Mamba-2's state space: how a state goes from token to token (`mamba.py`), in torch's operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tandem.worker.checkpoints.model_parts.recurrences import Mamba
from tandem.worker.model.recurrence import silu


@dataclass(frozen=True, slots=True)
class MambaRule:
    """What a layer's rule computes with, float32; see `recurrence.Rule`."""

    sizes: Mamba
    eps: float
    filter_rows: torch.Tensor  # [kernel, channels], with what channels are multiplied by
    filter_bias: torch.Tensor | None  # [channels]
    rate: torch.Tensor  # [heads], -exp(A)
    bias: torch.Tensor  # [heads], of dt
    skip: torch.Tensor  # [heads], D
    norm: torch.Tensor  # [size]; without one, ones

    def convolve(self, inputs: torch.Tensor) -> torch.Tensor:
        given = (inputs * self.filter_rows).sum(0)
        return silu(given if self.filter_bias is None else given + self.filter_bias)

    def factors(self, gates: torch.Tensor) -> torch.Tensor:
        """Computes a decay and a dt a head of a token's gates."""
        dt = F.softplus(gates * self.sizes.multipliers[4] + self.bias).clamp(self.sizes.least_dt, self.sizes.most_dt)
        return torch.cat(((self.rate * dt).exp(), dt))

    def step(self, state: torch.Tensor, x: torch.Tensor, factors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sizes, group = self.sizes, self.sizes.groups * self.sizes.state_size
        given, write, read = torch.split(x, [sizes.size, group, group])
        share = sizes.heads // sizes.groups
        write, read = (each.view(sizes.groups, -1).repeat_interleave(share, 0).unsqueeze(-1) for each in (write, read))
        decay, dt = factors.view(2, sizes.heads, 1)
        given = given.view(sizes.heads, sizes.head_dim)
        state = state * decay.unsqueeze(-1) + write * (given * dt).unsqueeze(1)
        return state, (state * read).sum(1) + self.skip.unsqueeze(-1) * given

    def leave(self, given: torch.Tensor, mixed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        gate = silu(mixed[self.sizes.channels :] * self.sizes.multipliers[0])
        y = given.flatten()
        if self.sizes.norm == "none":
            return y * gate * self.norm
        y = (y * gate if self.sizes.norm == "after" else y).view(self.sizes.groups, -1)
        y = (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)).flatten() * self.norm
        return y if self.sizes.norm == "after" else y * gate

"""The gated delta rule: how a state goes from token to token (`delta_net.py`), in torch's operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tandem.worker.checkpoints.model_parts.recurrences import DeltaNet
from tandem.worker.model.recurrence import silu


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """What a layer's rule computes with, float32; see `recurrence.Rule`."""

    sizes: DeltaNet
    eps: float
    filter_rows: torch.Tensor  # [kernel, channels]
    decay_rate: torch.Tensor  # [value_heads], -exp(A)
    bias: torch.Tensor  # [value_heads], of what decays are made of
    norm: torch.Tensor  # [value_dim]

    def convolve(self, inputs: torch.Tensor) -> torch.Tensor:
        return silu((inputs * self.filter_rows).sum(0))

    def factors(self, gates: torch.Tensor) -> torch.Tensor:
        """Computes a decay and a beta a head of a token's gates b and a."""
        b, a = gates.chunk(2)
        return torch.cat(
            ((self.decay_rate * F.softplus(a + self.bias)).exp(), self.sizes.beta_multiplier / (1 + (-b).exp()))
        )

    def step(self, state: torch.Tensor, x: torch.Tensor, factors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sizes, heads, keys = self.sizes, self.sizes.value_heads, self.sizes.key_dim
        q, k, v = torch.split(x, [sizes.key_size, sizes.key_size, sizes.size])
        q, k = (unit(part.view(-1, keys)).repeat_interleave(heads // sizes.key_heads, 0) for part in (q, k))
        decay, beta = factors.view(2, heads, 1)
        return moved(state, q, k, v.view(heads, -1), decay, beta)

    def leave(self, given: torch.Tensor, mixed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        z = mixed[self.sizes.channels :].view(given.shape)
        return (normed(given, self.eps, self.norm) * silu(z)).flatten()


def unit(x: torch.Tensor) -> torch.Tensor:
    """Makes vectors of unit length."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def moved(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a state `[heads, rows, columns]` behind a token, and what q reads of it. q and k `[heads, rows]` are of
    unit length; decays are one a head, or one of each of its rows, `[heads, 1 or rows]`; betas `[heads, 1]`."""
    state = state * decay.unsqueeze(-1)
    delta = (v - (state * k.unsqueeze(-1)).sum(1)) * beta
    state = state + k.unsqueeze(-1) * delta.unsqueeze(1)
    return state, (state * (q * q.shape[-1] ** -0.5).unsqueeze(-1)).sum(1)


def normed(x: torch.Tensor, eps: float, weight: torch.Tensor) -> torch.Tensor:
    """Returns the RMS norm of each head of `x` `[heads, size]`."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

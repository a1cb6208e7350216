"""Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864) on halves.

Coordinates i and i + head_dim / 2 of a head are a pair, which position p rotates by p * frequency[i]:

    frequency[i] = theta ^ (-2 i / head_dim)          (stretched by RopeScaling)
    x'[i]        = x[i] cos - x[i + d/2] sin
    x'[i + d/2]  = x[i + d/2] cos + x[i] sin
"""

from __future__ import annotations

import math

import torch

from worker_svc.model.config import ModelConfig, RopeScaling

_BLOCK = 8192  # positions whose angles are worked out at once


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> torch.Tensor:
    """The rotation of each pair per position, radians `[head_dim / 2]`, float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    base = theta**-exponents
    if scaling is None:
        return base.float()
    stretched = base / scaling.factor
    if scaling.kind == "linear":
        return stretched.float()
    # How often a pair turns within the original context decides: rarely, stretched; often, kept.
    turns = scaling.original_context_length * base / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (blend * base + (1 - blend) * stretched).float()


class RotaryTable(torch.nn.Module):
    """Cosines and sines of every position up to the context length, float32.

    Angles are float32 products, as in the reference implementations that the weights were trained with; their cosines
    are taken in float64 and rounded, so that an entry's bits do not depend on its place in the table.
    """

    table: torch.Tensor  # [context_length, head_dim]: cosines, then sines

    def __init__(self, config: ModelConfig, device: torch.device | str) -> None:
        super().__init__()
        half = config.head_dim // 2
        turning = frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        table = torch.empty((config.context_length, config.head_dim), dtype=torch.float32)
        for start in range(0, config.context_length, _BLOCK):
            block = table[start : start + _BLOCK]
            positions = torch.arange(start, start + len(block), dtype=torch.float32)
            angles = torch.outer(positions, turning).double()
            block[:, :half] = angles.cos()
            block[:, half:] = angles.sin()
        self.register_buffer("table", table.to(device), persistent=False)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What `rotate` needs for rows at `positions` `[N]`: cosines and signed sines, each `[N, 1, head_dim]`."""
        cos, sin = self.table.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """Rotates each head of `x` `[N, heads, head_dim]`; computed in float32, given back in x's dtype."""
    wide = x.float()
    rotated = wide * cos
    rotated += wide.roll(x.shape[-1] // 2, -1).mul_(signed_sin)  # not a fused multiply-add: its rounding would vary
    return rotated.to(x.dtype)

"""Quantized matrices as every kind of checkpoint gives them: small integers, and scales by groups of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

GROUPS = (32, 64, 128)  # numbers that share a scale
DEFAULT_INT4_GROUP = 64


@dataclass(frozen=True, slots=True)
class Quantization:
    """How weights are quantized; `group` 0: one scale an output channel (int8 only)."""

    bits: Literal[4, 8]
    group: int

    def __post_init__(self) -> None:
        if self.group not in (GROUPS if self.bits == 4 else (0, *GROUPS)):
            raise ValueError(f"int{self.bits} has no groups of {self.group}")


@dataclass(frozen=True, slots=True)
class Grouped:
    """Rows of a quantized matrix, not yet packed.

    q: `[rows, columns]`, int8 or, for 4 bits, uint8 from 0 to 15.
    scale, least: `[rows, groups]`, one column where a channel has one scale; float16 or float32.
    """

    kind: Quantization
    q: torch.Tensor
    scale: torch.Tensor
    least: torch.Tensor | None

    def dequantize(self) -> torch.Tensor:
        """Returns the numbers, `[rows, columns]` float32."""
        rows, columns = self.q.shape
        group = self.kind.group or columns
        groups = self.scale.shape[1]
        numbers = F.pad(self.q.float(), (0, groups * group - columns)).view(rows, groups, group)
        numbers = numbers * self.scale.float().unsqueeze(-1)
        if self.least is not None:
            numbers += self.least.float().unsqueeze(-1)
        return numbers.view(rows, groups * group)[:, :columns]

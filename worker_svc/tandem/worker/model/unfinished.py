"""What a projection to queries, keys and values still needs before they are rotated."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Unfinished(NamedTuple):
    """A bias, then norms."""

    bias: torch.Tensor | None = None  # [(heads + 2 kv_heads) * head_dim]
    norms: tuple[torch.Tensor, ...] = ()  # weights of each head of queries, of keys, and of values, or of the first
    eps: float = 0.0


FINISHED = Unfinished()

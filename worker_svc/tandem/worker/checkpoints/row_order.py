"""Converts between two orders of the rows of q and k within a head: RoPE pairs half a head apart, or next to each
other.

Ours and transformers' is halves: rows i and i + head_dim / 2 are a pair. Meta's files and llama.cpp's `llama`
architecture have neighbours: rows 2 i and 2 i + 1 are.
"""

from __future__ import annotations

import torch


def halves_order(heads: int, head_dim: int) -> torch.Tensor:
    """Returns indices `[heads * head_dim]` that bring rows from neighbours to halves."""
    return torch.arange(heads * head_dim).view(heads, head_dim // 2, 2).transpose(1, 2).reshape(-1)


def neighbours_order(heads: int, head_dim: int) -> torch.Tensor:
    """Returns indices `[heads * head_dim]` that bring rows from halves to neighbours."""
    return torch.arange(heads * head_dim).view(heads, 2, head_dim // 2).transpose(1, 2).reshape(-1)

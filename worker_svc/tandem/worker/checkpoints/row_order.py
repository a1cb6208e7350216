"""Converts between orders of the rows of q and k within a head: RoPE pairs half a head apart, or next to each other, or
among the first rows only.

Ours and transformers' is halves: rows i and i + head_dim / 2 are a pair. Meta's files and llama.cpp's `llama`
architecture have neighbours: rows 2 i and 2 i + 1 are. Where only the first `rotated` rows of a head turn, ours has the
pairs of the others behind those, in both halves: what does not turn is a pair that turns by nothing.
"""

from __future__ import annotations

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.latents import Latents

_ROTATED = tuple(f"attention.{part}{kind}" for part in "qk" for kind in ("", "_bias", "_norm"))


def heads_order(config: ModelConfig, name: str, rows: int, *, neighbours: bool) -> torch.Tensor | None:
    """Returns the order that makes rows of a canonical tensor ours whose pairs are `neighbours`, or halves of what
    turns; None: they are."""
    alike = config.full_heads is None or config.full_heads.size == config.head_dim
    if not name.endswith(_ROTATED):
        return None
    rotated = config.rotated_in(int(name.split(".")[1]))
    in_part = rotated != config.head_dim and alike and not config.in_proportion
    if not (neighbours or in_part):
        return None
    return halves_order(rows // config.head_dim, config.head_dim, rotated, neighbours=neighbours)


def halves_order(heads: int, head_dim: int, rotated: int | None = None, *, neighbours: bool = True) -> torch.Tensor:
    """Returns indices `[heads * head_dim]` that bring rows to halves: from neighbours or from halves of the first
    `rotated` rows, an even number."""
    turning = torch.arange(head_dim if rotated is None else rotated)
    pairs = turning.view(-1, 2).t() if neighbours else turning.view(2, -1)
    rest = torch.arange(len(turning), head_dim).view(2, -1)
    order = torch.cat((pairs, rest), dim=1).reshape(-1)
    return (torch.arange(heads)[:, None] * head_dim + order).reshape(-1)


def neighbours_order(heads: int, head_dim: int) -> torch.Tensor:
    """Returns indices `[heads * head_dim]` that bring rows from halves to neighbours."""
    return torch.arange(heads * head_dim).view(heads, 2, head_dim // 2).transpose(1, 2).reshape(-1)


def latents_order(latents: Latents, name: str, rows: int) -> torch.Tensor | None:
    """Returns the order that makes rows of a canonical tensor ours whose pairs of RoPE are neighbours, the last ones of
    each head's query and of what is kept of a token; None: they are."""
    sizes = {"q": latents.query, "query_up": latents.query, "latent": latents.size, "latent_bias": latents.size}
    size = sizes.get(name.rpartition("attention.")[2])
    if size is None:
        return None
    kept = torch.arange(size - latents.rotated)
    pairs = torch.arange(size - latents.rotated, size).view(-1, 2).t().reshape(-1)
    return (torch.arange(rows // size)[:, None] * size + torch.cat((kept, pairs))).reshape(-1)


def index_order(size: int, rotated: int, name: str, rows: int) -> torch.Tensor | None:
    """Returns the order that makes rows of an indexer's canonical tensor ours whose pairs of RoPE are neighbours, the
    first `rotated` of each query of `size` numbers and of the key; None: they are."""
    if name.endswith("index_weights"):
        return None
    order = torch.cat((torch.arange(rotated).view(-1, 2).t().reshape(-1), torch.arange(rotated, size)))
    return (torch.arange(rows // size)[:, None] * size + order).reshape(-1)

"""Attention over latents (`model_parts/latents.py`): what stands around the attention itself, which looks at one vector
a token that is its key and, but for the last numbers, its value."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.latents import NORM_EPS, Latents
from tandem.worker.model.linear import Bias, HeadLinear, Linear, Rows
from tandem.worker.model.norms import RMSNorm
from tandem.worker.model.operations import Operations

Part = tuple[Linear | RMSNorm | Bias, int]  # a module's weight, from one of its rows on


class Projected(NamedTuple):
    """What attention over latents is given of N rows."""

    latent: torch.Tensor  # [N, size], neither normed nor rotated
    queries: torch.Tensor  # [N, heads, query]
    absorbed: torch.Tensor  # [N, heads, rank], what queries without their rotated part became
    from_: Rows  # [N, ...] what queries are made of


class LatentProjections(torch.nn.Module):
    """The matrices of a layer before and behind attention, but for the output's."""

    __call__: Callable[..., Projected]

    def __init__(self, config: ModelConfig, latents: Latents, dtype: torch.dtype, operations: Operations) -> None:
        super().__init__()
        self._sizes, self._heads = latents, config.num_heads
        hidden, heads, bias = config.hidden_size, config.num_heads, config.qkv_bias
        self.query_latent: Linear | None = None
        self.query_norm: RMSNorm | None = None
        if latents.query_rank:
            self.query_latent = Linear(hidden, latents.query_rank, dtype, bias=bias)
            self.query_norm = RMSNorm(latents.query_rank, NORM_EPS, operations)
        self.query = Linear(latents.query_rank or hidden, heads * latents.query, dtype)
        self.latent = Linear(hidden, latents.size, dtype, bias=bias)
        self.latent_norm = RMSNorm(latents.rank, NORM_EPS, operations)
        self.key_up = HeadLinear(heads, latents.unrotated, latents.rank, dtype)
        self.value_up = HeadLinear(heads, latents.rank, latents.value, dtype)

    def forward(self, normed: Rows, growth: torch.Tensor | None = None) -> Projected:
        """Projects rows `[N, hidden]`, whose queries are multiplied by `growth` `[N, 1, 1]`, if at all."""
        sizes = self._sizes
        from_: Rows = normed
        if self.query_latent is not None and self.query_norm is not None:
            from_ = self.query_norm(self.query_latent(normed))
        queries = self.query(from_).view(-1, self._heads, sizes.query)
        if growth is not None:
            queries = (queries * growth).to(queries.dtype)
        absorbed = self.key_up(queries[..., : sizes.unrotated]).view(-1, self._heads, sizes.rank)
        return Projected(self.latent(normed), queries, absorbed, from_)

    def values(self, attended: torch.Tensor) -> torch.Tensor:
        """Returns the heads' answers `[N, heads * value]` of their sums of latents `[N, heads, rank]`."""
        return self.value_up(attended)

    def destinations(self) -> dict[str, Part]:
        """Returns where each tensor goes, by its name within the layer."""
        query = "query_up" if self._sizes.query_rank else "q"
        places: dict[str, Part] = {
            f"attention.{query}": (self.query, 0),
            "attention.latent": (self.latent, 0),
            "attention.latent_norm": (self.latent_norm, 0),
            "attention.key_up": (self.key_up, 0),
            "attention.value_up": (self.value_up, 0),
        }
        if self.latent.bias is not None:
            places["attention.latent_bias"] = (self.latent.bias, 0)
        if self.query_latent is not None and self.query_norm is not None:
            places["attention.query_latent"] = (self.query_latent, 0)
            places["attention.query_norm"] = (self.query_norm, 0)
            if self.query_latent.bias is not None:
                places["attention.query_latent_bias"] = (self.query_latent.bias, 0)
        return places

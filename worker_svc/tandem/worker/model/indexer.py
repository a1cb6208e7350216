"""What of a layer chooses the tokens that it looks at (`model_parts/indexer.py`)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tandem.worker.checkpoints.model_parts.indexer import INDEX_NORM_EPS, Indexer
from tandem.worker.checkpoints.model_parts.latents import Latents
from tandem.worker.model.cpu.layer_parts import Choosing
from tandem.worker.model.destinations import Destination, of_norm
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.linear import Linear, Router
from tandem.worker.model.norms import LayerNorm
from tandem.worker.model.operations import Operations
from tandem.worker.model.rope import Rotation, rotate
from tandem.worker.model.selection import Selecting


class LightningIndexer(torch.nn.Module):
    """The matrices of a layer that make index keys, queries, and what these weigh."""

    __call__: Callable[..., None]

    def __init__(
        self, hidden: int, latents: Latents, sizes: Indexer, dtype: torch.dtype, operations: Operations
    ) -> None:
        super().__init__()
        self._sizes, self._turning = sizes, latents.rotated
        self._scale = sizes.size**-0.5 * sizes.heads**-0.5
        self.query = Linear(latents.query_rank, sizes.heads * sizes.size, dtype)
        self.key = Linear(hidden, sizes.size, dtype)
        self.norm = LayerNorm(sizes.size, INDEX_NORM_EPS, operations, bias=True)
        self.weights = Router(hidden, sizes.heads, dtype)

    def forward(
        self,
        normed: torch.Tensor,
        query_latents: torch.Tensor,
        rotation: Rotation,
        cache: KVCache,
        layer: int,
        slots: torch.Tensor,
        plan: Selecting,
    ) -> None:
        """Stores the index keys of rows `normed` `[N, hidden]` at `slots` `[2, N]`, and lets the plan choose by them.
        `query_latents` `[N, query_rank]` are what queries are made of; `layer` is that of the cache."""
        cache.write_index_keys(layer, slots, self._rotated(self.norm(self.key(normed)).unsqueeze(1), rotation)[:, 0])
        if not plan.chooses:
            return
        queries = self.query(query_latents).view(-1, self._sizes.heads, self._sizes.size)
        weights = self.weights(normed).float() * self._scale
        plan.choose(cache.index_keys[layer], self._rotated(queries, rotation), weights)

    def _rotated(self, x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        """Rotates the first numbers of each head of `x` `[N, heads, size]`."""
        return torch.cat((rotate(x[..., : self._turning], *rotation), x[..., self._turning :]), dim=-1)

    def choosing(self) -> Choosing:
        """Returns this as a call of whole layers has it."""
        norm = self.norm.vectors
        return Choosing(self.query, self.key, self.weights, norm, INDEX_NORM_EPS, self._sizes, self._scale)

    def destinations(self) -> dict[str, Destination]:
        """Returns where each tensor goes, by its name within the layer."""
        return {
            "attention.index_query": Destination(self.query, 0),
            "attention.index_key": Destination(self.key, 0),
            "attention.index_weights": Destination(self.weights, 0),
            **of_norm("attention.index_norm", self.norm),
        }

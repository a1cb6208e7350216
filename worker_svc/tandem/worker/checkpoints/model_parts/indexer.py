"""The sizes of what chooses the tokens that attention over latents looks at (DeepSeek Sparse Attention, DeepSeek-V3.2,
https://arxiv.org/abs/2512.02556).

Of each token one more key is kept, an *index key*. A token scores all up to itself by a few small queries, and attends
to those of the highest scores alone; of equal ones to the earliest.

    index key   k = rotate(LayerNorm(x Wk))            of which the first numbers are rotated
    query h     q_h = rotate(c Wq_h)                   of the latent c that queries are made of
    score       sum over h of (x Ww)_h max(q_h . k, 0)

A layer may have no indexer and attend to what the last layer before it that has one has chosen (GLM-5.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.worker.checkpoints.model_parts.latents import Latents
from tandem.worker.checkpoints.model_parts.limits import LIMITS, ConfigError, require_size

INDEX_NORM_EPS = 1e-6  # whatever a model says of its other norms


@dataclass(frozen=True, slots=True)
class Indexer:
    """How many numbers, queries and tokens there are."""

    heads: int  # queries of a token
    size: int  # numbers of each, and of a key
    most: int  # tokens that are chosen
    layers: tuple[int, ...]  # that choose, in order

    def __post_init__(self) -> None:
        require_size("indexer.heads", self.heads, LIMITS["num_heads"])
        require_size("indexer.size", self.size, LIMITS["head_dim"])
        require_size("indexer.most", self.most, LIMITS["context_length"])
        if not self.layers or self.layers[0] != 0:
            raise ConfigError("indexer.layers", "must begin with the first layer, before which nothing is chosen")

    def require_place(self, latents: Latents | None, num_layers: int) -> None:
        """Raises ConfigError for a model that it is not of."""
        if latents is None or not latents.query_rank:
            raise ConfigError("latents.query_rank", "must be at least 1 where tokens are chosen by latents of queries")
        if self.size < latents.rotated:
            problem = f"{self.size} is less than the {latents.rotated} numbers that are rotated"
            raise ConfigError("indexer.size", problem)
        if self.layers[-1] >= num_layers:
            raise ConfigError("indexer.layers", f"has layer {self.layers[-1]}, but there are {num_layers}")

    def tensor_shapes(self, hidden: int, query_rank: int) -> dict[str, tuple[int, ...]]:
        """Returns canonical names within a layer that chooses, and shapes."""
        return {
            "attention.index_query": (self.heads * self.size, query_rank),
            "attention.index_key": (self.size, hidden),
            "attention.index_norm": (self.size,),
            "attention.index_norm_bias": (self.size,),
            "attention.index_weights": (self.heads, hidden),
        }

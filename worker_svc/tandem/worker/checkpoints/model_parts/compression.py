"""The sizes of attention to a window and to what lies before it, compressed (DeepSeek-V4).

Of a token one key is made, which is its value too, and the same for all heads. It is rotated, and what is attended to
is rotated back by the position of the query. A layer attends to the keys of a window, and most layers to *entries* as
well, each made of `every` tokens that follow each other, once all of them are there:

    heavy    entry = sum of softmax(gates + bias) * keys            over its tokens, each number for itself
    sparse   the same over its tokens and those of the entry before, of which other keys and gates are made

    keys = x Wk, gates = x Wg; the entry is normed, and rotated by the position of its first token

A sparse layer looks at the entries of the highest scores alone. They are those of an indexer (`indexer.py`) whose keys
are smaller entries of the same tokens.

What a token's page keeps are its key and what entries are made of it, vectors of one size behind each other: a window's
key, then keys and then gates. Nobody looks at some of the last token's any more once its entry is there, which is
written over these: all that is kept of a token is made of that token and those before it, and a page is nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tandem.worker.checkpoints.model_parts.limits import LIMITS, ConfigError, require_size

LayerKind: TypeAlias = Literal["window", "sparse", "heavy"]


@dataclass(frozen=True, slots=True)
class Compression:
    """How many numbers, heads and tokens there are, and what each layer attends to."""

    kinds: tuple[LayerKind, ...]  # by layer
    window: int  # tokens, with the query's own
    sparse_every: int  # tokens that an entry is made of
    heavy_every: int
    rotated: int  # the last numbers of a head
    query_rank: int  # of what queries are made of
    groups: int  # of heads, each of which is multiplied by a matrix of its own before the output's
    group_rank: int  # numbers that come out of that
    index_heads: int
    index_size: int  # numbers of an index key
    most: int  # entries that a token looks at in a sparse layer

    def __post_init__(self) -> None:
        for name in ("window", "sparse_every", "heavy_every", "most"):
            require_size(f"compression.{name}", getattr(self, name), LIMITS["context_length"])
        for name in ("rotated", "index_size"):
            require_size(f"compression.{name}", getattr(self, name), LIMITS["head_dim"])
        for name in ("query_rank", "group_rank"):
            require_size(f"compression.{name}", getattr(self, name), LIMITS["hidden_size"])
        for name in ("groups", "index_heads"):
            require_size(f"compression.{name}", getattr(self, name), LIMITS["num_heads"])
        if self.rotated % 2:
            raise ConfigError("compression.rotated", f"{self.rotated} is odd, but RoPE rotates pairs")
        if self.index_size < self.rotated:
            problem = f"{self.index_size} is less than the {self.rotated} numbers that are rotated"
            raise ConfigError("compression.index_size", problem)

    def require_place(self, *, num_layers: int, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        """Raises ConfigError for a model that it is not of."""
        if len(self.kinds) != num_layers:
            raise ConfigError("compression.kinds", f"are {len(self.kinds)} for {num_layers} layers")
        if num_kv_heads != 1:
            raise ConfigError("num_kv_heads", f"must be 1 where attention is compressed, but is {num_kv_heads}")
        if self.rotated > head_dim:
            raise ConfigError("compression.rotated", f"must be at most {head_dim}, but is {self.rotated}")
        if num_heads % self.groups:
            raise ConfigError("compression.groups", f"{self.groups} do not share the {num_heads} heads")

    def every(self, layer: int) -> int:
        """Returns how many tokens a layer's entries are made of; 0 if it has none."""
        return {"window": 0, "sparse": self.sparse_every, "heavy": self.heavy_every}[self.kinds[layer]]

    def series(self, layer: int) -> int:
        """Returns how many entries a token is a part of."""
        return {"window": 0, "sparse": 2, "heavy": 1}[self.kinds[layer]]

    def chooses(self, layer: int) -> bool:
        """Tells whether a layer looks at some entries alone."""
        return self.kinds[layer] == "sparse"

    def vectors(self, layer: int) -> int:
        """Returns how many vectors are kept of a token."""
        return 1 + 2 * self.series(layer)

    def tensor_shapes(self, layer: int, hidden: int, heads: int, head_dim: int) -> dict[str, tuple[int, ...]]:
        """Returns canonical names within a layer and shapes."""
        shapes: dict[str, tuple[int, ...]] = {
            "attention.query_latent": (self.query_rank, hidden),
            "attention.query_norm": (self.query_rank,),
            "attention.query_up": (heads * head_dim, self.query_rank),
            "attention.key": (head_dim, hidden),
            "attention.key_norm": (head_dim,),
            "attention.sinks": (heads,),
        }
        if self.series(layer):
            shapes |= self._compressor("attention.compressed", layer, hidden, head_dim)
        if self.chooses(layer):
            shapes |= self._compressor("attention.index", layer, hidden, self.index_size)
            shapes["attention.index_query"] = (self.index_heads * self.index_size, self.query_rank)
            shapes["attention.index_weights"] = (self.index_heads, hidden)
        shapes["attention.grouped"] = (self.groups * self.group_rank, heads * head_dim // self.groups)
        shapes["attention.output"] = (hidden, self.groups * self.group_rank)
        return shapes

    def _compressor(self, name: str, layer: int, hidden: int, size: int) -> dict[str, tuple[int, ...]]:
        rows = self.series(layer) * size
        return {
            f"{name}_keys": (rows, hidden),
            f"{name}_gates": (rows, hidden),
            f"{name}_bias": (self.every(layer), rows),
            f"{name}_norm": (size,),
        }

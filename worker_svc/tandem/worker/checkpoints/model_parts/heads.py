"""The heads of layers with attention, and what is kept of a token for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tandem.worker.checkpoints.model_parts.compression import Compression
from tandem.worker.checkpoints.model_parts.indexer import Indexer
from tandem.worker.checkpoints.model_parts.latents import Latents
from tandem.worker.checkpoints.model_parts.layers import LayersConfig
from tandem.worker.checkpoints.model_parts.limits import LIMITS, ConfigError, require_size


class KVHeads(NamedTuple):
    """The heads of keys and values in a layer, and how many numbers each has."""

    number: int
    size: int
    latent: int = 0  # unless it is 0, values are the first so many numbers of keys, and are not stored apart
    index_size: int = 0  # numbers of a key that is kept beside them, by which tokens are chosen (`indexer.py`)
    vectors: int = 1  # of `size` numbers that a head keeps of a token, of which the first is its key (`compression.py`)
    index_vectors: int = 1  # the same of index keys


class AttentionKind(NamedTuple):
    """What layers whose attention is planned together have in common."""

    window: int  # 0: none; less: tokens are in chunks of `-window`, and see what is before them in their own
    heads: KVHeads
    # Unless it is 0, a token sees so many of those that its window has, which are chosen for it; or so many entries.
    most: int = 0
    every: int = 0  # unless it is 0, a token sees entries of so many tokens each beside its window (`compression.py`)
    query_heads: int = 0  # unless it is 0, theirs instead of the model's


@dataclass(frozen=True, kw_only=True)
class HeadsConfig(LayersConfig):
    """The fields of `ModelConfig` that say it."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    full_heads: KVHeads | None = None  # of layers without a window; None: as those of all
    query_heads: tuple[int, ...] = ()  # by layer, `num_heads` being the first one's; empty: all have as many
    values_are_keys: bool = False  # layers without a window project no values: these are the keys before all else
    latents: Latents | None = None  # what is stored of a token instead of each head's key and value, in all layers
    indexer: Indexer | None = None  # what chooses the tokens that are looked at; None: all are
    compression: Compression | None = None  # of what layers attend to beside a window

    def _check_heads(self) -> None:
        for prefix, heads in (("", KVHeads(self.num_kv_heads, self.head_dim)), ("full_heads.", self._full_heads)):
            require_size(f"{prefix}num_kv_heads", heads.number, LIMITS["num_kv_heads"])
            require_size(f"{prefix}head_dim", heads.size, LIMITS["head_dim"])
            if not self.query_heads and self.num_heads % heads.number:
                raise ConfigError(f"{prefix}num_kv_heads", f"{heads.number} does not divide the {self.num_heads} heads")
            if heads.size % 2:
                raise ConfigError(f"{prefix}head_dim", f"{heads.size} is odd, but RoPE rotates pairs")
        if self.latents is not None and (self.num_kv_heads, self.head_dim) != (1, self.latents.size):
            raise ConfigError("head_dim", f"must be that of one latent of {self.latents.size} numbers")
        if self.indexer is not None:
            self.indexer.require_place(self.latents, self.num_layers)
        if self.compression is not None:
            self.compression.require_place(
                num_layers=self.num_layers,
                num_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_dim,
            )
        if self.query_heads:
            self._check_query_heads()

    def _check_query_heads(self) -> None:
        if len(self.query_heads) != self.num_layers:
            raise ConfigError("query_heads", f"are {len(self.query_heads)} for {self.num_layers} layers")
        if self.query_heads[0] != self.num_heads or self.latents is not None or self.values_are_keys:
            raise ConfigError("query_heads", "must begin with num_heads, of layers with keys and values")
        for number, (queries, heads) in enumerate(zip(self.query_heads, self.layer_heads, strict=True)):
            require_size("query_heads", queries, LIMITS["num_heads"])
            if queries % heads.number:
                problem = f"has {queries} in layer {number}, which cannot share {heads.number} heads of keys"
                raise ConfigError("query_heads", problem)

    @property
    def q_size(self) -> int:
        """Returns the rows of the query projection, in layers with a window if they differ."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Returns the rows of the key projection, and of the value projection, in layers with a window if they
        differ."""
        return self.num_kv_heads * self.head_dim

    def queries(self, layer: int) -> int:
        """Returns how many heads of queries a layer with attention has."""
        return self.query_heads[layer] if self.query_heads else self.num_heads

    def projects_values(self, layer: int) -> bool:
        """Tells whether a layer that stores has a projection for values."""
        return not self.values_are_keys or (bool(self.windows) and self.windows[layer] > 0)

    @property
    def _full_heads(self) -> KVHeads:
        latent = 0 if self.latents is None else self.latents.rank
        return self.full_heads or KVHeads(self.num_kv_heads, self.head_dim, latent)

    @property
    def layer_heads(self) -> tuple[KVHeads, ...]:
        """Returns each layer's heads of keys and values."""
        heads = KVHeads(self.num_kv_heads, self.head_dim)
        if (compression := self.compression) is not None:
            one = heads._replace(latent=self.head_dim)
            return tuple(one._replace(vectors=compression.vectors(layer)) for layer in range(self.num_layers))
        windows = self.windows or (0,) * self.num_layers
        return tuple(heads if window else self._full_heads for window in windows)

    @property
    def cache_heads(self) -> tuple[KVHeads, ...]:
        """Returns the heads of each layer that has keys and values of its own, in order."""
        heads, indexer = self.layer_heads, self.indexer
        choosing = {} if indexer is None else dict.fromkeys(indexer.layers, indexer.size)
        if (compression := self.compression) is not None:
            index = {"index_size": compression.index_size, "index_vectors": 4}
            return tuple(
                each._replace(**index) if compression.chooses(layer) else each for layer, each in enumerate(heads)
            )
        return tuple(heads[layer]._replace(index_size=choosing.get(layer, 0)) for layer in self._storing_layers)

    @property
    def attention_kinds(self) -> tuple[AttentionKind, ...]:
        """Returns how each layer attends, if it does."""
        both = zip(self.layer_windows, self.layer_heads, strict=True)
        most = 0 if self.indexer is None else self.indexer.most
        if (compression := self.compression) is not None:
            return tuple(
                AttentionKind(
                    min(compression.window, self.context_length),
                    heads,
                    compression.most if compression.chooses(layer) else 0,
                    compression.every(layer),
                )
                for layer, heads in enumerate(self.layer_heads)
            )
        kinds = (AttentionKind(-window if self.chunked else window, heads, most) for window, heads in both)
        return tuple(
            kind._replace(query_heads=self.query_heads[layer] if self.query_heads else 0)
            for layer, kind in enumerate(kinds)
        )

"""A layer of several streams whose attention is to a window and to entries before it (`model_parts/compression.py`,
`model_parts/hyper_connections.py`)."""

from __future__ import annotations

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.model.attention import Scores
from tandem.worker.model.compressed_plan import CompressedPlan
from tandem.worker.model.compressor import Compressor, Ended, turned
from tandem.worker.model.cpu.layer_parts import Attending, AttendingLatents, Carried
from tandem.worker.model.destinations import Destination, of_norm
from tandem.worker.model.hyper_connections import HyperPart
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.layer import Layer, Step, added
from tandem.worker.model.linear import Bias, HeadLinear, Linear, Router, Rows
from tandem.worker.model.moe import MixtureOfExperts
from tandem.worker.model.norms import RMSNorm
from tandem.worker.model.rope import Rotation


class _EntryIndexer(torch.nn.Module):
    """The matrices of a layer that choose entries."""

    def __init__(self, config: ModelConfig, layer: int, dtype: torch.dtype, compressor: Compressor) -> None:
        super().__init__()
        assert config.compression is not None
        sizes = self._sizes = config.compression
        self._scale = sizes.index_size**-0.5 * sizes.index_heads**-0.5
        self.compressor = compressor
        self.query = Linear(sizes.query_rank, sizes.index_heads * sizes.index_size, dtype)
        self.weights = Router(config.hidden_size, sizes.index_heads, dtype)

    def choose(
        self, normed: torch.Tensor, latents: torch.Tensor, rotation: Rotation, keys: torch.Tensor, plan: CompressedPlan
    ) -> None:
        """Lets the plan choose for rows `normed` `[N, hidden]`, by queries that are made of `latents`
        `[N, query_rank]`, and what is kept of all places."""
        queries = self.query(latents).view(-1, self._sizes.index_heads, self._sizes.index_size)
        plan.choose(keys, turned(queries, rotation), self.weights(normed).float() * self._scale)

    def destinations(self) -> dict[str, Destination]:
        """Returns where each tensor goes, by its canonical name within the layer."""
        return {
            **self.compressor.destinations("attention.index"),
            "attention.index_query": Destination(self.query, 0),
            "attention.index_weights": Destination(self.weights, 0),
        }


class CompressedLayer(Layer):
    """See above."""

    _goes_on = False

    def _make_mixing(self, config: ModelConfig, index: int, dtype: torch.dtype) -> None:
        sizes, streams, operations = config.compression, config.hyper, self._operations
        assert sizes is not None and streams is not None
        self._index = config.cache_places[index]
        hidden, heads, head_dim = config.hidden_size, config.num_heads, config.head_dim
        self._sizes, self._head_dim = sizes, head_dim
        self.attention_hyper = HyperPart(config, streams, dtype, operations, self._device)
        self.mlp_hyper = HyperPart(config, streams, dtype, operations, self._device)
        self.query_latent = Linear(hidden, sizes.query_rank, dtype)
        self.query_norm = RMSNorm(sizes.query_rank, config.norm_eps, operations)
        self.query = Linear(sizes.query_rank, heads * head_dim, dtype)
        self.key = Linear(hidden, head_dim, dtype)
        self.key_norm = RMSNorm(head_dim, config.norm_eps, operations)
        self._ones = torch.ones(head_dim, device=self._device)  # of queries, whose norm has no weights
        self.sinks = Bias(heads, torch.float32)

        def compressor(size: int) -> Compressor:
            return Compressor(sizes, index, hidden, size, dtype, operations, config.norm_eps)

        self.compressor = compressor(head_dim) if sizes.series(index) else None
        self.indexer: _EntryIndexer | None = None
        if sizes.chooses(index):
            self.indexer = _EntryIndexer(config, index, dtype, compressor(sizes.index_size))
        self.grouped = HeadLinear(sizes.groups, heads * head_dim // sizes.groups, sizes.group_rank, dtype)
        self.attention_output = Linear(sizes.groups * sizes.group_rank, hidden, dtype)

    def forward(
        self, x: torch.Tensor, delta: torch.Tensor | None, step: Step, wanted: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Layer.forward`; streams lie beside each other, `[N, count * hidden]`."""
        assert isinstance(self.feed_forward, MixtureOfExperts) and self.mlp_norm is not None
        x, ids = added(x, delta), step.ids
        mixed = self.attention_hyper(x)
        attended = self._attend(self.attention_norm(mixed.given), step)
        if wanted is not None:
            x, attended, ids = (each.index_select(0, wanted) for each in (x, attended, ids))
            mixed = mixed.of(wanted)
        x = added(*mixed.added(x, self.attention_output(attended)))
        mixed = self.mlp_hyper(x)
        return mixed.added(x, self.feed_forward(self.mlp_norm(mixed.given), ids=ids))

    @property
    def _takes_float8(self) -> bool:
        return False

    def _attend(self, normed: Rows, step: Step) -> torch.Tensor:
        assert isinstance(normed, torch.Tensor)
        plan, rotation, cache = step.plans[self._attention], step.rotations[self._rope], step.cache
        latents = self.query_norm(self.query_latent(normed))
        queries = self.query(latents).reshape(-1, self._head_dim)
        queries = self._operations.add_norm(queries, None, self._ones, self._config.norm_eps)
        queries = turned(queries.view(len(normed), -1, self._head_dim), rotation)
        vectors = [turned(self.key_norm(self.key(normed)).unsqueeze(1), rotation)]
        if self.compressor is not None:
            vectors.append(self.compressor(normed))
        kept, places = self._vectors(cache.keys[self._index][0], cache), _places(step.slots, cache)
        kept[places] = torch.cat(vectors, dim=1).to(kept.dtype)
        if self.compressor is not None:
            assert isinstance(plan, CompressedPlan)
            self._end(self.compressor, kept, 1, plan)
        if self.indexer is not None:
            assert isinstance(plan, CompressedPlan)
            keys = self._vectors(cache.index_keys[self._index], cache)
            keys[places] = self.indexer.compressor(normed).to(keys.dtype)
            self._end(self.indexer.compressor, keys, 0, plan)
            if plan.chooses:
                self.indexer.choose(normed, latents, rotation, keys, plan)
        pages, sinks = cache.keys[self._index], self.sinks
        assert sinks is not None
        attended = plan.attend(pages, pages, queries, Scores(self._config.attention_scale, sinks=sinks.weight))
        attended = turned(attended.view(len(normed), -1, self._head_dim), rotation, back=True)
        return self.grouped(attended.view(len(normed), self._sizes.groups, -1))

    @staticmethod
    def _vectors(pages: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """Returns what is kept of all places, `[places, vectors, size]`."""
        return pages.view(len(pages) * cache.shape.page_size, -1, pages.shape[-1])

    @staticmethod
    def _end(compressor: Compressor, kept: torch.Tensor, first: int, plan: CompressedPlan) -> None:
        """Makes the entries that end in this step of vectors from `first` on, and writes them over one each."""
        assert plan.rotation is not None
        if len(plan.tokens):
            ended = Ended(plan.tokens, plan.before, plan.first, plan.rotation)
            made = compressor.entries(kept, first, ended)
            kept[plan.tokens[:, -1], first + compressor.place] = made.to(kept.dtype)

    def _mixing(self) -> tuple[Attending | AttendingLatents | None, Carried | None]:
        return None, None

    def _mixing_destinations(self, config: ModelConfig) -> dict[str, Destination]:
        assert self.sinks is not None
        places = self.attention_hyper.destinations("attention.hyper")
        places |= self.mlp_hyper.destinations("mlp.hyper")
        places |= {
            "attention.query_latent": Destination(self.query_latent, 0),
            "attention.query_up": Destination(self.query, 0),
            "attention.key": Destination(self.key, 0),
            "attention.sinks": Destination(self.sinks, 0),
            "attention.grouped": Destination(self.grouped, 0),
            "attention.output": Destination(self.attention_output, 0),
        }
        places |= of_norm("attention.query_norm", self.query_norm) | of_norm("attention.key_norm", self.key_norm)
        if self.compressor is not None:
            places |= self.compressor.destinations("attention.compressed")
        if self.indexer is not None:
            places |= self.indexer.destinations()
        return places


def _places(slots: torch.Tensor, cache: KVCache) -> torch.Tensor:
    """Returns the places of rows at `slots` `[2, N]`."""
    return slots[0] * cache.shape.page_size + slots[1]

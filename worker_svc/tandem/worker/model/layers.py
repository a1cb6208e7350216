"""Layers that are made otherwise than most, and which one a model has where."""

from __future__ import annotations

import math

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.latents import NORM_EPS
from tandem.worker.checkpoints.model_parts.recurrences import Lightning, Mamba
from tandem.worker.model.attention import Scores
from tandem.worker.model.compressed_layer import CompressedLayer
from tandem.worker.model.cpu.heads import CompiledHeads
from tandem.worker.model.cpu.layer_parts import Attending, AttendingLatents, Carried
from tandem.worker.model.destinations import Destination, of_mixer
from tandem.worker.model.indexer import LightningIndexer
from tandem.worker.model.latent_attention import LatentProjections
from tandem.worker.model.layer import Layer, Step
from tandem.worker.model.linear import Linear, Rows
from tandem.worker.model.mixers import make_mixer
from tandem.worker.model.operations import Operations
from tandem.worker.model.parallel import Ranks
from tandem.worker.model.selection import Selecting
from tandem.worker.model.streams import AltUp, Laurel, with_given


class RecurrentLayer(Layer):
    """A layer with a state in the place of attention."""

    def _make_mixing(self, config: ModelConfig, index: int, dtype: torch.dtype) -> None:
        sizes = config.recurrence
        assert sizes is not None
        self._state_index = sizes.layers.index(index)
        self.mixer = make_mixer(config, sizes, dtype, index)
        if isinstance(sizes, Lightning):
            self._mixing_by = sizes.output_multiplier
        self.attention_output = Linear(sizes.size, config.hidden_size, dtype, bias=self.mixer.output_bias)

    @property
    def _takes_float8(self) -> bool:
        return False

    def _attend(self, normed: Rows, step: Step) -> torch.Tensor:
        assert step.states is not None, "a step of a model with states says where they are"
        mixed, gates = self.mixer(normed)
        return step.states.recur(self.mixer.rule, self._state_index, mixed, gates)

    def _mixing(self) -> tuple[Attending | None, Carried | None]:
        mixer = self.mixer
        return None, Carried(mixer.first, self.attention_output, mixer.rule, mixer.beside, self._mixing_by)

    def _mixing_destinations(self, config: ModelConfig) -> dict[str, Destination]:
        return of_mixer(self.mixer, self.attention_output)


class LatentLayer(Layer):
    """A layer whose attention is over latents."""

    def _make_mixing(self, config: ModelConfig, index: int, dtype: torch.dtype) -> None:
        assert config.latents is not None
        self._index = config.cache_places[index]
        self._scores = Scores(config.attention_scale)
        self.projections = LatentProjections(config, config.latents, dtype, self._operations)
        self.indexer: LightningIndexer | None = None
        if config.indexer is not None and index in config.indexer.layers:
            sizes = config.latents, config.indexer
            self.indexer = LightningIndexer(config.hidden_size, *sizes, dtype, self._operations)
        gates = config.gates(index)
        self.gate = Linear(config.hidden_size, gates, dtype) if gates else None
        attended = config.num_heads * config.latents.value
        self.attention_output = Linear(attended, config.hidden_size, dtype, bias=config.output_bias)

    @property
    def _takes_float8(self) -> bool:
        return False

    def _attend(self, normed: Rows, step: Step) -> torch.Tensor:
        cache, layer, plan = step.cache, self._index, step.plans[self._attention]
        growth = step.growth if self._queries_grow else None
        latent, queries, absorbed, from_ = self.projections(normed, growth)
        norm = self.projections.latent_norm.weight, NORM_EPS
        queries = self._operations.store_latents(
            latent, norm, queries, absorbed, step.rotations[self._rope], cache, layer, step.slots
        )
        if self.indexer is not None:
            assert isinstance(plan, Selecting)
            self.indexer(normed, from_, step.rotations[self._rope], cache, layer, step.slots, plan)
        pages = cache.keys[layer]
        attended = plan.attend(pages, pages, queries, self._scores)
        given = self.projections.values(cache.values_of(layer, attended))
        return given if self.gate is None else self._operations.gate_by_sigmoid(given, self.gate(normed))

    def _mixing(self) -> tuple[AttendingLatents | None, Carried | None]:
        parts, config = self.projections, self._config
        ups = (parts.key_up.joined, parts.value_up.joined)
        if config.latents is None or not isinstance(ups[0], CompiledHeads) or not isinstance(ups[1], CompiledHeads):
            return None, None
        attending = AttendingLatents(
            query_latent=parts.query_latent,
            query_norm=None if parts.query_norm is None else parts.query_norm.weight,
            query=parts.query,
            latent=parts.latent,
            latent_norm=parts.latent_norm.weight,
            key_up=ups[0],
            value_up=ups[1],
            output=self.attention_output,
            heads=config.num_heads,
            sizes=config.latents,
            scores=self._scores,
            grows=self._queries_grow,
            choosing=None if self.indexer is None else self.indexer.choosing(),
            gates=self.gate,
        )
        return attending, None

    def _mixing_destinations(self, config: ModelConfig) -> dict[str, Destination]:
        places = {name: Destination(*place) for name, place in self.projections.destinations().items()}
        places["attention.output"] = Destination(self.attention_output, 0)
        if self.gate is not None:
            places["attention.gate"] = Destination(self.gate, 0)
        if self.indexer is not None:
            places |= self.indexer.destinations()
        if self.attention_output.bias is not None:
            places["attention.output_bias"] = Destination(self.attention_output.bias, 0)
        return places


class BesideLayer(Layer):
    """Attention and a state on the same norm of the stream, and a feed-forward part behind both."""

    _goes_on = False

    def _make_mixing(self, config: ModelConfig, index: int, dtype: torch.dtype) -> None:
        super()._make_mixing(config, index, dtype)
        assert isinstance(config.recurrence, Mamba)
        self._sizes = config.recurrence
        self._state_index = config.recurrence.layers.index(index)
        self.mixer = make_mixer(config, config.recurrence, dtype, index)
        self.mixer_output = Linear(self._sizes.size, config.hidden_size, dtype, bias=self.mixer.output_bias)

    def forward(
        self, x: torch.Tensor, delta: torch.Tensor | None, step: Step, wanted: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Layer.forward`."""
        normed = self._enter_attention(x, delta)
        assert step.states is not None and isinstance(normed, torch.Tensor) and self.feed_forward is not None
        attended = self._attend(normed, step)
        given = step.states.recur(self.mixer.rule, self._state_index, *self.mixer(normed))
        if wanted is not None:
            x, attended, given = (rows.index_select(0, wanted) for rows in (x, attended, given))
        delta = self.attention_output(attended) * self._config.mixing_multiplier
        delta += self.mixer_output(given) * self._sizes.output_multiplier
        answers = self.feed_forward(self._enter_mlp(x, self._ranks.add_up(delta)))
        return x, self._ranks.add_up(answers) * self._config.feed_forward_multiplier

    def _mixing(self) -> tuple[Attending | AttendingLatents | None, Carried | None]:
        mixer, by = self.mixer, self._sizes.output_multiplier
        return super()._mixing()[0], Carried(mixer.first, self.mixer_output, mixer.rule, mixer.beside, by)

    def _mixing_destinations(self, config: ModelConfig) -> dict[str, Destination]:
        return super()._mixing_destinations(config) | of_mixer(self.mixer, self.mixer_output)


class FeedForwardLayer(Layer):
    """A feed-forward part and nothing else."""

    def _make_mixing(self, config: ModelConfig, index: int, dtype: torch.dtype) -> None:
        pass

    def forward(
        self, x: torch.Tensor, delta: torch.Tensor | None, step: Step, wanted: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Layer.forward`."""
        assert self.feed_forward is not None
        if wanted is not None:
            x, delta = x.index_select(0, wanted), None if delta is None else delta.index_select(0, wanted)
        return x, self._ranks.add_up(self.feed_forward(self._enter_mlp(x, delta)))

    def _mixing(self) -> tuple[Attending | None, Carried | None]:
        return None, None

    def _mixing_destinations(self, config: ModelConfig) -> dict[str, Destination]:
        return {}


class ParallelLayer(Layer):
    """Attention and feed-forward on the same stream, by the same norm or each by its own."""

    _goes_on = False

    def forward(
        self, x: torch.Tensor, delta: torch.Tensor | None, step: Step, wanted: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Layer.forward`."""
        normed = self._enter_attention(x, delta)
        assert isinstance(normed, torch.Tensor) and self.feed_forward is not None
        attended = self._attend(normed, step)
        if self.mlp_norm is not None:
            normed = self.mlp_norm(x)
        if wanted is not None:
            x, normed, attended = (rows.index_select(0, wanted) for rows in (x, normed, attended))
        return x, self._ranks.add_up(self.attention_output(attended) + self.feed_forward(normed))


class StreamsLayer(Layer):
    """A layer that predicts several streams, computes with one of them, and corrects all; what comes out is
    `[N, streams, hidden]`, and what is still to be added to all but the first."""

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        dtype: torch.dtype,
        operations: Operations,
        ranks: Ranks,
        device: torch.device | str,
    ) -> None:
        super().__init__(config, index, dtype, operations, ranks, device)
        assert config.streams is not None
        self.altup = AltUp(config, config.streams, dtype, operations)
        self.laurel = Laurel(config, config.streams, dtype, operations)

    def forward(
        self, x: torch.Tensor, delta: torch.Tensor | None, step: Step, wanted: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Layer.forward`."""
        mlp, own = self.feed_forward, self.given
        assert mlp is not None and self.mlp_norm is not None and own is not None and step.given is not None
        predicted, given = self.altup.predict(with_given(x, delta)), step.given[:, self._number]
        active = self.altup.active(predicted)
        normed = self.attention_norm(active)
        attended = self._attend(normed, step)
        if wanted is not None:
            rows = predicted, given, active, normed, attended
            predicted, given, active, normed, attended = (each.index_select(0, wanted) for each in rows)
        answers = self._leave_attention(self._ranks.add_up(self.attention_output(attended)))
        computed = (active + answers + self.laurel(normed)) * math.sqrt(0.5)
        answers = self._leave_mlp(self._ranks.add_up(mlp(self.mlp_norm(computed))))
        x = self.altup.correct(predicted, computed + answers)
        return x, own(self.altup.looked_at(x), given)

    def destinations(self, config: ModelConfig) -> dict[str, Destination]:
        """See `Layer.destinations`."""
        return super().destinations(config) | self.altup.destinations() | self.laurel.destinations()


def layer_class(config: ModelConfig, index: int) -> type[Layer]:
    """Returns what a layer of the model is."""
    if not config.mixes(index):
        return FeedForwardLayer
    if config.recurrence is not None and index in config.recurrence.layers:
        return BesideLayer if config.beside_attention else RecurrentLayer
    if config.latents is not None:
        return LatentLayer
    if config.streams is not None:
        return StreamsLayer
    if config.compression is not None:
        return CompressedLayer
    return ParallelLayer if config.parallel else Layer

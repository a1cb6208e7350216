"""The stream of vectors that layers add to: its norms, and how a layer's parts are joined to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tandem.worker.checkpoints.model_parts.beside_stream import PerLayerInputs, Streams
from tandem.worker.checkpoints.model_parts.hyper_connections import HyperConnections
from tandem.worker.checkpoints.model_parts.layers import LayersConfig
from tandem.worker.checkpoints.model_parts.limits import ConfigError, require_finite


@dataclass(frozen=True, slots=True)
class KeptNorms:
    """The stream goes on as what the norm before a part gives, multiplied; what the part gives is added to it."""

    attention: float
    state: float
    feed_forward: float

    def __post_init__(self) -> None:
        for name in ("attention", "state", "feed_forward"):
            require_finite(f"kept_norms.{name}", getattr(self, name), above=0.0)


@dataclass(frozen=True, kw_only=True)
class StreamConfig(LayersConfig):
    """The fields of `ModelConfig` that say it."""

    norm_eps: float
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = False
    norm_weights: bool = True  # norms of the stream multiply by weights; layer norms may not
    # Of a layer's parts: what goes in, or comes out; after_attention: what comes out in layers with attention, and what
    # goes in where there are states.
    norm_placement: Literal["before", "after", "both", "after_attention"] = "before"
    parallel: bool = False  # attention and feed-forward layer get the same input, and add to the same stream
    parallel_norms: bool = False  # of the same stream, but each by a norm of its own
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0  # of what a layer's parts add
    kept_norms: KeptNorms | None = None
    layer_scale: bool = False  # what comes out of a layer is multiplied by a number of its own
    per_layer_inputs: PerLayerInputs | None = None
    streams: Streams | None = None  # several, of which layers compute with one; None: one
    hyper: HyperConnections | None = None  # several that layers add to; None: one

    def _check_stream(self) -> None:
        require_finite("norm_eps", self.norm_eps, above=0.0)
        for name in ("embedding_multiplier", "residual_multiplier"):
            require_finite(name, getattr(self, name), above=0.0)
        if self.parallel and self.norm_placement != "before":
            raise ConfigError("norm_placement", "must be before in layers whose parts are side by side")
        if not self.norm_weights and (self.norm != "layer" or self.norm_bias or self.norm_placement != "before"):
            raise ConfigError("norm_weights", "are what norms other than layer norms before a layer's parts have")
        if self.parallel_norms and not self.parallel:
            raise ConfigError("parallel_norms", "are of layers whose parts are side by side")
        if self.residual_multiplier != 1 and self.norm_placement != "before":
            raise ConfigError("residual_multiplier", "is served with norms before a layer's parts alone")
        if self.kept_norms is not None and (
            *(self.norm_placement, self.norm, self.residual_multiplier, self.parallel),
            *(self.feed_forward_alone, self.beside_attention, self.per_layer_inputs, self.layer_scale),
        ) != ("before", "rms", 1.0, False, None, False, None, False):
            raise ConfigError("kept_norms", "are of RMS norms before a layer's two parts")
        if self.recurrence is not None:
            if self.norm_placement == "after" or self.parallel or self.norm != "rms":
                raise ConfigError("recurrence", "is served with RMS norms before a layer's parts, or around them")
            if self.norm_placement != "before" and self.beside_attention:
                raise ConfigError("norm_placement", "must be before where attention is beside a state")
        elif self.norm_placement == "after_attention":
            raise ConfigError("norm_placement", "is that of models whose other layers have states")
        if self.feed_forward_alone is not None and (self.norm_placement != "before" or self.parallel):
            raise ConfigError("feed_forward_alone", "is served with norms before a layer's parts alone")
        inputs = self.per_layer_inputs
        if inputs is not None and self.streams is None and inputs.vocab_size < self.vocab_size:
            problem = f"{inputs.vocab_size} is less than the {self.vocab_size} of the vocabulary"
            raise ConfigError("per_layer_inputs.vocab_size", problem)

    @property
    def embedding_scale(self) -> float:
        """What embeddings are multiplied by. What layers add is not multiplied: the stream that they add to is divided
        by `residual_multiplier` instead, which their norms do not see, their epsilon being `stream_eps`."""
        return self.embedding_multiplier / self.residual_multiplier

    @property
    def stream_eps(self) -> float:
        """Returns the epsilon of norms of the stream; see `embedding_scale`."""
        return self.norm_eps / self.residual_multiplier**2

    def placement(self, layer: int) -> Literal["before", "after", "both"]:
        """Returns where the norms of a layer stand."""
        if self.norm_placement != "after_attention":
            return self.norm_placement
        return "after" if layer in self.attention_layers else "before"

    def kept_norm(self, layer: int) -> float:
        """Returns by what the norm before a layer's first part is multiplied where it takes the stream's place; 0: it
        does not."""
        kept, recurrence = self.kept_norms, self.recurrence
        if kept is None:
            return 0.0
        return kept.state if recurrence is not None and layer in recurrence.layers else kept.attention

    def _stream_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns those that are no layer's."""
        shapes: dict[str, tuple[int, ...]] = {}
        if self.per_layer_inputs is not None:
            shapes |= self.per_layer_inputs.end_shapes(self.num_layers, self.hidden_size)
        if self.streams is not None:
            shapes |= self.streams.end_shapes(self.hidden_size)
        if self.hyper is not None:
            shapes |= self.hyper.end_shapes(self.hidden_size)
        return shapes

    def _around_mixing_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns those around what is first in a layer."""
        shapes = self._norm_shapes("attention.norm")  # a layer's first norm
        if self.norm_placement == "both":
            shapes |= self._norm_shapes("attention.post_norm")
        if self.hyper is not None:
            shapes |= self.hyper.part_shapes("attention.hyper", self.hidden_size)
        return shapes

    def _around_feed_forward_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        """Returns those around a layer's feed-forward part, and of the layer as a whole."""
        own_norm = self.mixes(layer) and (not self.parallel or self.parallel_norms)
        shapes = self._norm_shapes("mlp.norm") if own_norm else {}
        if self.norm_placement == "both":
            shapes |= self._norm_shapes("mlp.post_norm")
        if self.hyper is not None:
            shapes |= self.hyper.part_shapes("mlp.hyper", self.hidden_size)
        if self.layer_scale:
            shapes["scale"] = (1,)
        if self.per_layer_inputs is not None:
            shapes |= self.per_layer_inputs.layer_shapes(self.hidden_size)
        if self.streams is not None:
            shapes |= self.streams.layer_shapes(self.hidden_size)
        return shapes

    def _norm_shapes(self, name: str) -> dict[str, tuple[int, ...]]:
        size = (self.hidden_size,)
        if not self.norm_weights:
            return {}
        return {name: size, f"{name}_bias": size} if self.norm_bias else {name: size}

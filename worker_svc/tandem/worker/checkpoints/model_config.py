"""Describes a model: its sizes and constants, and the tensors that a model of these sizes has.

Differences between architectures are data here, not subclasses: each field stands in the file of its part, with the
checks of that part and what follows from it (`model_parts/`). Here is what is behind and before the layers, what the
parts cannot have together, and all tensors in order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tandem.worker.checkpoints.model_parts.attention import AttentionConfig
from tandem.worker.checkpoints.model_parts.feed_forward import FeedForwardConfig
from tandem.worker.checkpoints.model_parts.limits import LIMITS, ConfigError, require_finite, require_size
from tandem.worker.checkpoints.model_parts.stream import StreamConfig

Table: TypeAlias = Literal["embedding", "output"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig(AttentionConfig, FeedForwardConfig, StreamConfig):
    """A decoder of the Llama family; raises ConfigError for sizes that do not go together."""

    tie_embeddings: bool  # the output projection is the embedding
    logit_multiplier: float = 1.0
    logit_soft_cap: float = 0.0  # logits, once they are multiplied, become cap tanh(that / cap); 0: they stay
    logit_bias: bool = False  # added to what the output projection gives
    # It guesses for another model: its stream begins with what that one has made of a token, joined with the embedding
    # of the next. Embedding and output are that one's, but for those that it has itself.
    joins: bool = False
    own_tables: tuple[Table, ...] = ()

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            require_size(name, getattr(self, name), limit)
        self._check_layers()
        self._check_heads()
        self._check_positions()
        self._check_attention()
        self._check_stream()
        self._check_feed_forward()
        require_finite("logit_multiplier", self.logit_multiplier, above=0.0)
        require_finite("logit_soft_cap", self.logit_soft_cap, at_least=0.0)
        self._check_together()

    def _check_together(self) -> None:
        if self.mixing_multiplier != 1 and (self.latents or self.parallel):
            raise ConfigError("mixing_multiplier", "is served of attention before a feed-forward part")
        if self.compression is not None and (
            self.hyper is None or self.norm != "rms" or self.norm_placement != "before"
        ):
            raise ConfigError("compression", "is served of several streams, with RMS norms before a layer's parts")
        if self.hyper is not None and (self.compression is None or self.residual_multiplier != 1):
            raise ConfigError("hyper", "are served of layers whose attention is compressed")
        if self.streams is not None:
            self._check_streams()

    def _check_streams(self) -> None:
        if self.norm_placement != "both" or self.norm != "rms" or self.per_layer_inputs is None:
            raise ConfigError("streams", "are served with RMS norms around parts and with what layers are given")
        further = (self.latents, self.recurrence, self.experts, self.feed_forward_alone)
        if self.layer_scale or self.joins or any(each is not None for each in further):
            raise ConfigError("streams", "are served of layers with attention and a feed-forward part alone")

    def with_context_length(self, context_length: int) -> ModelConfig:
        """Returns the same model with another context length."""
        return replace(self, context_length=context_length)

    def for_windows(self) -> ModelConfig:
        """Returns the same model rotating as its layers with windows do."""
        assert self.window_rope_theta is not None
        if self.compression is not None:
            return replace(self.for_full_layers(), rope_theta=self.window_rope_theta, rope_scaling=None)
        rotary_dim = None if self.in_proportion else self.window_rotary_dim or self.rotary_dim
        return replace(
            self,
            rope_theta=self.window_rope_theta,
            rope_scaling=None,
            rotary_dim=rotary_dim,
            window_rotary_dim=0,
            full_heads=None,
        )

    def for_full_layers(self) -> ModelConfig:
        """Returns the same model with the heads of layers without a window in all of them; of latents, with heads of
        what is rotated."""
        if self.latents is not None:
            return replace(self, head_dim=self.latents.rotated, rotary_dim=None, latents=None, indexer=None)
        if self.compression is not None:
            rotated = self.compression.rotated
            return replace(self, head_dim=rotated, rotary_dim=None, compression=None, hyper=None)
        heads = self._full_heads
        return replace(self, num_kv_heads=heads.number, head_dim=heads.size, full_heads=None)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Returns which of embedding and output are tensors of its own."""
        if self.joins:
            return self.own_tables
        return ("embedding",) if self.tie_embeddings else ("embedding", "output")

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns canonical name and shape of every tensor that a checkpoint of this model must give, in loading order.

        Matrices are `[out, in]`. The rows of q and k are laid out for RoPE on halves: within a head, row i and row
        i + head_dim / 2 form a pair, the first `rotary_dim / 2` of which turn.
        """
        shapes: dict[str, tuple[int, ...]] = {}
        if self.joins:
            shapes["join.matrix"] = (self.hidden_size, 2 * self.hidden_size)
            shapes |= self._norm_shapes("join.embedding_norm") | self._norm_shapes("join.hidden_norm")
        if self.logit_bias:
            shapes["output_bias"] = (self.vocab_size,)
        if self.learned_positions:
            shapes["positions"] = (self.learned_positions, self.hidden_size)
        shapes |= self._stream_shapes()
        for layer in range(self.num_layers):
            for name, shape in self._layer_shapes(layer).items():
                shapes[f"layers.{layer}.{name}"] = shape
        shapes |= self._norm_shapes("norm")
        # At the end: a matrix of a layer may need its size again while it is read, which these leave room for.
        shapes |= dict.fromkeys(self.tables, (self.vocab_size, self.hidden_size))
        return shapes

    def _layer_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        shapes, recurrence = self._around_mixing_shapes(), self.recurrence
        if layer in self.attention_layers:
            shapes |= self._attention_shapes(layer)
        if recurrence is not None and layer in recurrence.layers:
            shapes |= recurrence.tensor_shapes(self.hidden_size)
        if self.feeds(layer):
            shapes |= self._around_feed_forward_shapes(layer) | self._feed_forward_shapes(layer)
        return shapes

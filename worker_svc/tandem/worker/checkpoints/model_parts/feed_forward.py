"""The feed-forward parts of layers: their sizes and gates, which layers have experts, and their tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.layers import LayersConfig
from tandem.worker.checkpoints.model_parts.limits import LIMITS, ConfigError, require_finite, require_size
from tandem.worker.checkpoints.model_parts.mlp import XIELU_CONSTANTS, Activation, LimitedSwiGLU, mlp_shapes

_MOST_EXPERTS = 1 << 16  # in all layers together


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(LayersConfig):
    """The fields of `ModelConfig` that say it."""

    intermediate_size: int
    shared_widening: int = 1  # of the intermediate size of `shared_layers`
    inner_sizes: tuple[int, ...] = ()  # each layer's intermediate size; empty: as all are
    activation: Activation = "silu"  # of the feed-forward layer
    gated: bool = True  # activation(gate x) * up x; else activation(up x)
    gate_multiplier: float = 1.0  # of the feed-forward part's gate, before its activation
    feed_forward_multiplier: float = 1.0  # of what the feed-forward part gives
    # By layer, the share of a gate's numbers that become 0, were they distributed normally; 0, or empty: none do.
    sparsity: tuple[float, ...] = ()
    # By layer, limits of the gates of experts, and of those of ordinary and shared parts (`LimitedSwiGLU`); 0: none.
    swiglu_limits: tuple[float, ...] = ()
    shared_swiglu_limits: tuple[float, ...] = ()
    mlp_bias: bool = False  # of the matrices of ordinary feed-forward parts, and of a shared expert
    experts: Experts | None = None

    def _check_feed_forward(self) -> None:
        for name in ("feed_forward_multiplier", "gate_multiplier"):
            require_finite(name, getattr(self, name), above=0.0)
        for name in ("inner_sizes", "sparsity", "swiglu_limits", "shared_swiglu_limits"):
            if (count := len(getattr(self, name))) not in (0, self.num_layers):
                raise ConfigError(name, f"are {count} for {self.num_layers} layers")
        for limit in (*self.swiglu_limits, *self.shared_swiglu_limits):
            require_finite("swiglu_limits", limit, at_least=0.0)
        if (self.swiglu_limits or self.shared_swiglu_limits) and (self.activation != "silu" or not self.gated):
            raise ConfigError("swiglu_limits", "are those of gates by silu")
        if self.activation == "xielu" and (self.gated or self.experts is not None):
            raise ConfigError("activation", "xielu is served without a gate and experts")
        for size in self.inner_sizes:
            require_size("inner_sizes", size, LIMITS["intermediate_size"])
        if not all(0 <= share < 1 for share in self.sparsity):
            raise ConfigError("sparsity", "must be at least 0 and less than 1 in each layer")
        if (any(self.sparsity) or self.inner_sizes) and (not self.gated or self.experts is not None):
            raise ConfigError("sparsity" if any(self.sparsity) else "inner_sizes", "is served with gates, not experts")
        if self.experts is not None and self.experts.count * self.num_layers > _MOST_EXPERTS:
            raise ConfigError("experts.count", f"{self.experts.count} in {self.num_layers} layers are too many")

    def inner_size(self, layer: int) -> int:
        """Returns the intermediate size of a layer's ordinary feed-forward part."""
        usual = self.inner_sizes[layer] if self.inner_sizes else self.intermediate_size
        return usual * (1 if self.stores(layer) else self.shared_widening)

    def has_experts(self, layer: int) -> bool:
        """Tells whether a layer's feed-forward part is a mixture of experts."""
        return self.experts is not None and self.feeds(layer) and layer not in self.experts.dense_layers

    def experts_in(self, layer: int) -> Experts | None:
        """Returns a layer's experts, if it has such."""
        if self.experts is None or not self.has_experts(layer):
            return None
        limit, shared = self._limit(self.swiglu_limits, layer), self.limit(layer)
        if limit is None and shared is None:
            return self.experts
        return replace(self.experts, clamped=limit or self.experts.clamped, shared_clamped=shared)

    def limit(self, layer: int) -> LimitedSwiGLU | None:
        """Returns the gate of a layer's ordinary or shared part where it has a limit."""
        return self._limit(self.shared_swiglu_limits, layer)

    @staticmethod
    def _limit(limits: tuple[float, ...], layer: int) -> LimitedSwiGLU | None:
        return LimitedSwiGLU(limits[layer]) if limits and limits[layer] else None

    def _feed_forward_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        if self.activation == "xielu":
            shapes |= {f"mlp.{name}": (1,) for name in XIELU_CONSTANTS}
        experts = self.experts if self.has_experts(layer) else None
        if experts is None or experts.beside:
            size = self.inner_size(layer)
            shapes |= mlp_shapes("mlp", size, self.hidden_size, gated=self.gated, bias=self.mlp_bias)
        if experts is not None:
            shapes |= experts.tensor_shapes(layer, self.hidden_size, self.vocab_size, bias=self.mlp_bias)
        return shapes


def usual_sparsity(layers: int) -> tuple[float, ...]:
    """Returns `ModelConfig.sparsity` of a Gemma 3n of so many layers whose files do not say it."""
    return (0.95,) * 10 + (0.0,) * (layers - 10) if layers > 10 else ()

"""Attention, but for its heads and positions: what is done to queries, keys and values, and its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tandem.worker.checkpoints.model_parts.limits import ConfigError, require_finite, require_size
from tandem.worker.checkpoints.model_parts.positions import PositionsConfig


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(PositionsConfig):
    """The fields of `ModelConfig` that say it."""

    qkv_bias: bool = False
    output_bias: bool = False  # of the attention's output
    # q and k are normalized before they are rotated: by head, or all; unit: by head, in layers that rotate, no weights;
    # behind: by head, once they are rotated
    qk_norm: Literal["head", "whole", "unit", "behind"] | None = None
    qkv_limit: float = 0.0  # of the size of numbers in q, k and v, behind their norms; 0: none
    value_norm: bool = False  # values are normalized by head, without weights
    value_dim: int = 0  # numbers of a head's value, which is stored with zeros behind it; 0: as many as of its key
    attention_multiplier: float | None = None  # of queries times keys; None: one over the root of head_dim
    attention_soft_cap: float = 0.0  # queries times keys become cap tanh(that / cap); 0: they stay
    sinks: bool = False  # each head's softmax has one more score, of a value that is 0
    sinks_in_windows: bool = False  # of layers with a window alone
    attention_gate: bool = False  # what attention gives is multiplied by the sigmoid of a projection of its input
    gate_by_head: bool = False  # which is one number for each head
    gate_activation: Literal["sigmoid", "softplus"] = "sigmoid"  # what it is multiplied by instead of the sigmoid
    mixing_multiplier: float = 1.0  # of what attention gives

    def _check_attention(self) -> None:
        if self.attention_multiplier is not None:
            require_finite("attention_multiplier", self.attention_multiplier, above=0.0)
        require_finite("mixing_multiplier", self.mixing_multiplier, above=0.0)
        for name in ("qkv_limit", "attention_soft_cap"):
            require_finite(name, getattr(self, name), at_least=0.0)
        if self.qkv_limit and (self.qk_norm not in (None, "whole") or self.values_are_keys):
            raise ConfigError("qkv_limit", "is served without norms of heads, or with those over all of them at once")
        if self.value_dim:
            require_size("value_dim", self.value_dim, self.head_dim)
            if self.latents or self.attention_gate or self.values_are_keys or self.value_norm or self.shared_layers:
                raise ConfigError("value_dim", "is served of attention without latents, gates, norms or shared values")
        if self.qk_norm == "behind" and self.rope_scaling is not None:
            scaling = self.rope_scaling
            if (scaling.attention_factor, scaling.long_attention_factor) != (1, 1):
                raise ConfigError(
                    "rope_scaling.attention_factor", "must be 1 where norms of heads are behind the rotation"
                )
        if self.latents is not None and self.attention_gate:
            self._check_gates_of_latents()

    def _check_gates_of_latents(self) -> None:
        if not self.gate_by_head or self.gate_activation != "sigmoid":
            raise ConfigError("attention_gate", "is served of heads, by a sigmoid, where attention is over latents")

    @property
    def attention_scale(self) -> float:
        """Returns what queries times keys are multiplied by."""
        return self.head_dim**-0.5 if self.attention_multiplier is None else self.attention_multiplier

    def projections(self, layer: int) -> dict[Literal["q", "k", "v"], int]:
        """Returns the rows of each of a layer's projections before attention."""
        heads = self.layer_heads[layer]
        rows: dict[Literal["q", "k", "v"], int] = {"q": self.queries(layer) * heads.size}
        if self.stores(layer):
            rows["k"] = heads.number * heads.size
            if self.projects_values(layer):
                rows["v"] = heads.number * (self.value_dim or heads.size)
        return rows

    def attended_size(self, layer: int) -> int:
        """Returns how many numbers a layer's attention gives."""
        return self.queries(layer) * (self.value_dim or self.layer_heads[layer].size)

    def has_sinks(self, layer: int) -> bool:
        """Tells whether the heads of a layer with attention have one more score."""
        return self.sinks and (not self.sinks_in_windows or (bool(self.windows) and self.windows[layer] > 0))

    def gates(self, layer: int) -> int:
        """Returns by how many gates a layer with attention multiplies what that gives."""
        if not self.attention_gate:
            return 0
        return self.queries(layer) if self.gate_by_head else self.projections(layer)["q"]

    def _attention_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        if self.latents is not None:
            shapes = self.latents.tensor_shapes(self.hidden_size, self.num_heads, bias=self.qkv_bias)
            if self.indexer is not None and layer in self.indexer.layers:
                shapes |= self.indexer.tensor_shapes(self.hidden_size, self.latents.query_rank)
            shapes |= {"attention.gate": (self.gates(layer), self.hidden_size)} if self.attention_gate else {}
            return shapes | ({"attention.output_bias": (self.hidden_size,)} if self.output_bias else {})
        if self.compression is not None:
            return self.compression.tensor_shapes(layer, self.hidden_size, self.num_heads, self.head_dim)
        rows, head_dim = self.projections(layer), self.layer_heads[layer].size
        shapes = {
            **{f"attention.{name}": (size, self.hidden_size) for name, size in rows.items()},
            **({"attention.gate": (self.gates(layer), self.hidden_size)} if self.attention_gate else {}),
            "attention.output": (self.hidden_size, self.attended_size(layer)),
        }
        if self.qkv_bias:
            shapes |= {f"attention.{name}_bias": (size,) for name, size in rows.items()}
        if self.has_sinks(layer):
            shapes["attention.sinks"] = (self.queries(layer),)
        if self.output_bias:
            shapes["attention.output_bias"] = (self.hidden_size,)
        if self.qk_norm and self.qk_norm != "unit":
            whole = self.qk_norm == "whole"
            normalized = {name: size for name, size in rows.items() if name != "v"}
            shapes |= {f"attention.{name}_norm": (size if whole else head_dim,) for name, size in normalized.items()}
        return shapes

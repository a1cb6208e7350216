"""The sizes and constants of a model, and the tensors that a model of these sizes has.

Differences between architectures are data here, not subclasses. No torch: the front process reads this file too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

# Largest sizes that are taken for real. They bound what a broken or hostile file can make us allocate or list before
# its tensors are compared with it.
_LIMITS: Mapping[str, int] = {
    "vocab_size": 1 << 22,
    "hidden_size": 1 << 18,
    "intermediate_size": 1 << 20,
    "num_layers": 1 << 12,
    "num_heads": 1 << 12,
    "num_kv_heads": 1 << 12,
    "head_dim": 1 << 10,
    "context_length": 1 << 22,
}


class ConfigError(ValueError):
    """A size or constant is impossible or contradicts another one."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How the rotation frequencies are stretched beyond the context that a model was first trained on.

    `linear` divides every frequency by `factor` (Chen et al. 2023, https://arxiv.org/abs/2306.15595). `llama3` divides
    only those whose wavelength exceeds `original_context_length / low_freq_factor`, keeps those below
    `original_context_length / high_freq_factor`, and blends in between (Llama 3.1).
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 8192

    def __post_init__(self) -> None:
        _require_finite("rope_scaling.factor", self.factor, at_least=1.0)
        if self.kind == "llama3":
            _require_finite("rope_scaling.low_freq_factor", self.low_freq_factor, above=0.0)
            _require_finite("rope_scaling.high_freq_factor", self.high_freq_factor, above=self.low_freq_factor)
            _require_size("rope_scaling.original_context_length", self.original_context_length, 1 << 22)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family; raises ConfigError for sizes that do not go together."""

    architecture: str  # "llama"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int  # tokens, prompt and output together
    norm_eps: float
    rope_theta: float
    tie_embeddings: bool  # the output projection is the embedding
    rope_scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        for name, limit in _LIMITS.items():
            _require_size(name, getattr(self, name), limit)
        if self.num_heads % self.num_kv_heads:
            raise ConfigError("num_kv_heads", f"{self.num_kv_heads} does not divide the {self.num_heads} heads")
        if self.head_dim % 2:
            raise ConfigError("head_dim", f"{self.head_dim} is odd, but RoPE rotates pairs")
        _require_finite("norm_eps", self.norm_eps, above=0.0)
        _require_finite("rope_theta", self.rope_theta, at_least=1.0)

    @property
    def q_size(self) -> int:
        """Rows of the query projection."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Rows of the key projection, and of the value projection."""
        return self.num_kv_heads * self.head_dim

    def with_context_length(self, context_length: int) -> ModelConfig:
        """The same model serving contexts of another length."""
        return replace(self, context_length=context_length)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Canonical name and shape of every tensor that a checkpoint of this model must give, in loading order.

        Matrices are `[out, in]`. The rows of q and k are laid out for RoPE on halves: within a head, row i and row
        i + head_dim / 2 form a pair.
        """
        shapes: dict[str, tuple[int, ...]] = {"embedding": (self.vocab_size, self.hidden_size)}
        if not self.tie_embeddings:
            shapes["output"] = (self.vocab_size, self.hidden_size)
        for layer in range(self.num_layers):
            shapes |= {
                f"layers.{layer}.attention.norm": (self.hidden_size,),
                f"layers.{layer}.attention.q": (self.q_size, self.hidden_size),
                f"layers.{layer}.attention.k": (self.kv_size, self.hidden_size),
                f"layers.{layer}.attention.v": (self.kv_size, self.hidden_size),
                f"layers.{layer}.attention.output": (self.hidden_size, self.q_size),
                f"layers.{layer}.mlp.norm": (self.hidden_size,),
                f"layers.{layer}.mlp.gate": (self.intermediate_size, self.hidden_size),
                f"layers.{layer}.mlp.up": (self.intermediate_size, self.hidden_size),
                f"layers.{layer}.mlp.down": (self.hidden_size, self.intermediate_size),
            }
        shapes["norm"] = (self.hidden_size,)
        return shapes


def _require_size(field: str, value: int, limit: int) -> None:
    if not 1 <= value <= limit:
        raise ConfigError(field, f"must be from 1 to {limit}, but is {value}")


def _require_finite(field: str, value: float, *, above: float | None = None, at_least: float | None = None) -> None:
    if not math.isfinite(value):
        raise ConfigError(field, f"must be finite, but is {value}")
    if above is not None and value <= above:
        raise ConfigError(field, f"must be more than {above:g}, but is {value:g}")
    if at_least is not None and value < at_least:
        raise ConfigError(field, f"must be at least {at_least:g}, but is {value:g}")

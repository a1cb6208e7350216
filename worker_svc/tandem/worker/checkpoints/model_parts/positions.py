"""How a token's position is known: by rotation (RoPE), or by a vector that was learned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self, TypeAlias

from tandem.worker.checkpoints.model_parts.heads import HeadsConfig
from tandem.worker.checkpoints.model_parts.limits import LIMITS, ConfigError, require_finite, require_size
from tandem.worker.checkpoints.model_parts.rope import QueryGrowth, RopeScaling

Rope: TypeAlias = Literal["model", "window", "none"]  # how a layer rotates; none: not at all


@dataclass(frozen=True, kw_only=True)
class PositionsConfig(HeadsConfig):
    """The fields of `ModelConfig` that say it."""

    rope_theta: float
    rope_scaling: RopeScaling | None = None
    rotary_dim: int | None = None  # how many of a head's numbers are rotated; None: all
    rope_scale: float = 1.0  # an operator's own: positions are divided by it
    window_rope_theta: float | None = None  # layers with a window rotate by it, without scaling
    window_rotary_dim: int = 0  # of layers with a window that rotate by a theta of their own; 0: `rotary_dim`
    unrotated_layers: tuple[int, ...] = ()  # whose queries and keys know no position
    query_growth: QueryGrowth | None = None
    learned_positions: int = 0  # rows of a table of which one is added to a token's vector; 0: there is none
    position_offset: int = 0  # the row of the first position

    def _check_positions(self) -> None:
        head_dim = self._full_heads.size
        if self.rotary_dim is not None and (self.rotary_dim % 2 or not 2 <= self.rotary_dim <= head_dim):
            raise ConfigError("rotary_dim", f"must be even and from 2 to {head_dim}, but is {self.rotary_dim}")
        require_finite("rope_theta", self.rope_theta, at_least=1.0)
        require_finite("rope_scale", self.rope_scale, above=0.0)
        if self.window_rope_theta is not None:
            require_finite("window_rope_theta", self.window_rope_theta, at_least=1.0)
        if self.window_rotary_dim:
            wide, part = self.head_dim, self.window_rotary_dim
            if part % 2 or not 2 <= part <= wide:
                raise ConfigError("window_rotary_dim", f"must be even and from 2 to {wide}, but is {part}")
            if self.window_rope_theta is None or self.full_heads is not None or self.in_proportion:
                raise ConfigError("window_rotary_dim", "is served of heads of one size and a theta of their own")
        if self.rope_scaling is not None and self.rope_scaling.factors:
            wanted = self.rotated // 2
            for name in ("factors", *(["long_factors"] if self.rope_scaling.kind == "longrope" else [])):
                given = len(getattr(self.rope_scaling, name))
                if given != wanted:
                    raise ConfigError(f"rope_scaling.{name}", f"are {given}, but a head of {self.rotated} has {wanted}")
        if self.learned_positions:
            self._check_learned_positions()

    def _check_learned_positions(self) -> None:
        require_size("learned_positions", self.learned_positions, LIMITS["context_length"])
        most = self.learned_positions - self.position_offset
        if not 0 <= self.position_offset < self.learned_positions:
            raise ConfigError("position_offset", f"must be from 0 to {self.learned_positions - 1}")
        if self.context_length > most:
            problem = f"is {self.context_length}, but the model has learned {most} positions, where its context ends"
            raise ConfigError("context_length", problem)

    @property
    def rotated(self) -> int:
        """Returns how many of a head's numbers are rotated."""
        return self._full_heads.size if self.rotary_dim is None else self.rotary_dim

    def rotated_in(self, layer: int) -> int:
        """Returns how many of a head's numbers a layer rotates, if it does."""
        windowed = bool(self.windows) and self.windows[layer] > 0
        return self.window_rotary_dim if windowed and self.window_rotary_dim else self.rotated

    @property
    def in_proportion(self) -> bool:
        """Tells whether those that are rotated turn as if all were."""
        return self.rope_scaling is not None and self.rope_scaling.kind == "proportional"

    @property
    def layer_ropes(self) -> tuple[Rope, ...]:
        """Returns how each layer rotates queries and keys."""
        if self.compression is not None:
            return tuple("window" if kind == "window" else "model" for kind in self.compression.kinds)
        unrotated, windows = set(self.unrotated_layers), self.windows or (0,) * self.num_layers
        apart = self.window_rope_theta is not None
        return tuple(
            "none" if layer in unrotated else "window" if apart and window else "model"
            for layer, window in enumerate(windows)
        )

    @property
    def queries_grow(self) -> bool:
        """Tells whether some position of the context has queries that are multiplied by more than 1."""
        growth = self.query_growth
        return growth is not None and self.context_length + growth.ahead > growth.every

    def queries_grow_in(self, layer: int) -> bool:
        """Tells whether those of a layer do."""
        growth = self.query_growth
        return (
            growth is not None and self.queries_grow and (not growth.unrotated_alone or layer in self.unrotated_layers)
        )

    def with_rope(self, scale: float, alpha: float) -> Self:
        """Returns the same model with positions divided by `scale` (linear interpolation) and theta raised by `alpha`
        (NTK-aware scaling: about alpha times the context)."""
        turning = self._full_heads.size if self.in_proportion else self.rotated
        raised = alpha ** (turning / max(turning - 2, 1)) if alpha != 1 else 1.0
        apart = self.window_rope_theta
        return replace(
            self,
            rope_scale=self.rope_scale * scale,
            rope_theta=self.rope_theta * raised,
            window_rope_theta=None if apart is None else apart * raised,
        )

"""How frequencies of RoPE are scaled, and how queries grow with their position."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from tandem.worker.checkpoints.model_parts.limits import LIMITS, require_finite, require_size


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Stretches the rotation frequencies beyond the context that a model was first trained on.

    - `linear` divides every frequency by `factor` (Chen et al. 2023, https://arxiv.org/abs/2306.15595).
    - `dynamic` raises theta with the context (NTK-aware scaling). The published rule looks at the length that a
      sequence has at the moment, so that a token's key would depend on when it was computed. Here it looks at the
      context length that is served: the same frequencies at every position, those of a sequence that fills the context.
    - `llama3` divides only the frequencies whose wavelength exceeds `original_context_length / low_freq_factor`, keeps
      those below `original_context_length / high_freq_factor`, and blends in between (Llama 3.1).
    - `yarn` blends by the number of turns within the original context, from `beta_slow` to `beta_fast`, and multiplies
      cosines and sines by `attention_factor` (Peng et al. 2023, https://arxiv.org/abs/2309.00071).

    - `longrope` divides each frequency by its own of two sets (Ding et al. 2024, https://arxiv.org/abs/2402.13753):
      `factors` within `original_context_length`, `long_factors` beyond it. The published rule looks at the length that
      a sequence has at the moment; here, as for `dynamic`, the context length that is served decides.

    - `proportional` divides every frequency by `factor`; the `rotary_dim / 2` pairs that turn are the first, with
      the frequencies of a head that is rotated whole (Gemma 4).

    Where there are `factors` `[rotary_dim / 2]`, each frequency is first divided by its own. As in llama.cpp, the pairs
    that YaRN blends are still those of the undivided frequencies.
    """

    kind: Literal["linear", "dynamic", "llama3", "yarn", "longrope", "proportional"]
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 8192  # not looked at by linear
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True  # yarn: blend between whole pairs
    factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()  # of longrope
    long_attention_factor: float = 1.0  # of longrope, where `long_factors` are

    def __post_init__(self) -> None:
        require_finite("rope_scaling.factor", self.factor, at_least=1.0)
        require_size("rope_scaling.original_context_length", self.original_context_length, 1 << 22)
        if self.kind == "llama3":
            require_finite("rope_scaling.low_freq_factor", self.low_freq_factor, above=0.0)
            require_finite("rope_scaling.high_freq_factor", self.high_freq_factor, at_least=self.low_freq_factor)
        if self.kind == "yarn":
            require_finite("rope_scaling.beta_slow", self.beta_slow, above=0.0)
            require_finite("rope_scaling.beta_fast", self.beta_fast, at_least=self.beta_slow)
        require_finite("rope_scaling.attention_factor", self.attention_factor, above=0.0)
        require_finite("rope_scaling.long_attention_factor", self.long_attention_factor, above=0.0)
        for name in ("factors", "long_factors"):
            for factor in getattr(self, name):
                require_finite(f"rope_scaling.{name}", factor, above=0.0)

    def of_context(self, context_length: int) -> RopeScaling:
        """Returns the scaling of a served context: of longrope's two sets the one that it takes, as `factors`."""
        if self.kind != "longrope" or context_length <= self.original_context_length:
            return self
        return replace(self, factors=self.long_factors, attention_factor=self.long_attention_factor)

    @property
    def description(self) -> str:
        """Returns its name in a report."""
        return f"{self.kind}, divided" if self.factors and self.kind != "longrope" else self.kind


def yarn_attention_factor(factor: float) -> float:
    """Returns what YaRN multiplies cosines and sines by where a model does not say it."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True, slots=True)
class QueryGrowth:
    """Queries are multiplied by `1 + beta log(1 + floor((position + ahead) / every))` after they are rotated."""

    beta: float
    every: int
    ahead: int = 0
    unrotated_alone: bool = False  # those of layers that rotate stay

    def __post_init__(self) -> None:
        require_finite("query_growth.beta", self.beta, at_least=0.0)
        require_size("query_growth.every", self.every, LIMITS["context_length"])

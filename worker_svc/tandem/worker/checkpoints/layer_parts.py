"""What layers of a model may have: the parts of its configuration, each with what is possible in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

# Largest sizes that are taken for real. They bound what a broken or hostile file can make us allocate or list before
# its tensors are compared with it.
LIMITS: Mapping[str, int] = {
    "vocab_size": 1 << 22,
    "hidden_size": 1 << 18,
    "intermediate_size": 1 << 20,
    "num_layers": 1 << 12,
    "num_heads": 1 << 12,
    "num_kv_heads": 1 << 12,
    "head_dim": 1 << 10,
    "context_length": 1 << 24,
}
# relu: what is above 0; relu2: its square; gelu_tanh: GELU by its approximation; xielu: by constants of each layer.
Activation: TypeAlias = Literal["silu", "relu", "relu2", "gelu", "gelu_tanh", "xielu"]
XIELU_CONSTANTS = ("alpha_p", "alpha_n", "beta", "eps")  # tensors of one number


class ConfigError(ValueError):
    """A size or constant is impossible or contradicts another one."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem


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
class ClampedSwiGLU:
    """The gate of gpt-oss: `(up + offset) gate sigmoid(alpha gate)`, gate being at most `limit`, up at most in size."""

    alpha: float
    limit: float
    offset: float = 1.0

    def __post_init__(self) -> None:
        require_finite("experts.clamped.alpha", self.alpha)
        require_finite("experts.clamped.limit", self.limit, above=0.0)
        require_finite("experts.clamped.offset", self.offset)


@dataclass(frozen=True, slots=True)
class LimitedSwiGLU:
    """The gate of Step 3.5: `silu(gate) up`, the former being at most `limit`, up at most in size."""

    limit: float

    def __post_init__(self) -> None:
        require_finite("experts.clamped.limit", self.limit, above=0.0)


LFM2_SUM_OFFSET = 1e-6  # `Experts.sum_offset` of LFM2, which no file says


@dataclass(frozen=True, slots=True)
class Experts:
    """A feed-forward layer that is a choice among several (mixture of experts)."""

    count: int
    per_token: int
    intermediate_size: int
    normalized: bool  # the chosen experts' weights are divided by their sum, and add up to 1
    dense_layers: tuple[int, ...] = ()  # that have one ordinary feed-forward layer
    # mixer: SparseMixer, see `moe.py`; root_softplus: the root of log(1 + exp)
    score: Literal["softmax", "sigmoid", "mixer", "root_softplus"] = "softmax"
    biased: bool = False  # a bias of each expert decides who is chosen, not what it weighs
    groups: int = 1  # of experts, of which a token has some: those whose best scores are the largest
    groups_per_token: int = 1
    scale: float = 1.0  # of the chosen experts' weights
    jitter: float = 0.0  # of mixer: scores that are less by more than twice this share of them do not count
    shared_size: int = 0  # intermediate size of a further expert that every token has; 0: none
    clamped: ClampedSwiGLU | LimitedSwiGLU | None = None  # instead of the model's activation
    shared_clamped: ClampedSwiGLU | LimitedSwiGLU | None = None  # the same of the shared expert
    biases: bool = False  # of the router, which are added to its logits, and of the experts' matrices
    shared_router: bool = False  # a router of its own gives the shared expert's weight, by a sigmoid
    activation: Activation = "silu"
    beside: bool = False  # an ordinary feed-forward part stands beside them (`model/beside.py`)
    weighed: bool = False  # what an expert weighs is multiplied by a number of its own
    logit_multiplier: float = 1.0  # of the router's
    weighs_input: bool = False  # what goes into an expert is multiplied by its weight, not what comes out
    best_of_group: int = 2  # how many of a group's best scores add up to its own
    gated: bool = True  # activation(gate x) * up x; else activation(up x), as of the shared one
    latent: int = 0  # numbers that those of which a token has some are given, and give, for the hidden size; 0: all
    shared_multiplier: float = 1.0  # of what the shared expert gives
    sum_offset: float = 0.0  # added to the sum that weights are divided by
    listed_layers: tuple[int, ...] = ()  # in which a table says of each token of the vocabulary who is chosen

    def __post_init__(self) -> None:
        require_size("experts.count", self.count, 1 << 10)
        require_size("experts.per_token", self.per_token, self.count)
        require_size("experts.intermediate_size", self.intermediate_size, LIMITS["intermediate_size"])
        require_size("experts.groups", self.groups, self.count)
        require_size("experts.groups_per_token", self.groups_per_token, self.groups)
        each = self.count // self.groups
        if self.groups > 1 and (self.count % self.groups or each < self.best_of_group):
            problem = f"{self.groups} do not share {self.count} experts, {self.best_of_group} or more each"
            raise ConfigError("experts.groups", problem)
        if self.per_token > each * self.groups_per_token:
            raise ConfigError(
                "experts.per_token", f"{self.per_token} are not in {self.groups_per_token} groups of {each}"
            )
        require_finite("experts.scale", self.scale, above=0.0)
        require_finite("experts.shared_multiplier", self.shared_multiplier, above=0.0)
        require_finite("experts.sum_offset", self.sum_offset, at_least=0.0)
        require_finite("experts.jitter", self.jitter, at_least=0.0)
        require_finite("experts.logit_multiplier", self.logit_multiplier, above=0.0)
        if self.latent:
            require_size("experts.latent", self.latent, LIMITS["hidden_size"])
        if self.latent and (self.weighs_input or self.beside or self.shared_router):
            raise ConfigError("experts.latent", "is served of experts that are weighed, with nothing but a shared one")
        if self.clamped is not None and not self.gated:
            raise ConfigError("experts.gated", "is false, but its clamped activation is that of a gate")
        for needs, number in ((self.score == "mixer", 2), (self.weighs_input, 1)):
            if needs and self.per_token != number:
                raise ConfigError("experts.per_token", f"must be {number}, but is {self.per_token}")
        if self.shared_size:
            require_size("experts.shared_size", self.shared_size, LIMITS["intermediate_size"])


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


@dataclass(frozen=True, slots=True)
class KeptNorms:
    """The stream goes on as what the norm before a part gives, multiplied; what the part gives is added to it."""

    attention: float
    state: float
    feed_forward: float

    def __post_init__(self) -> None:
        for name in ("attention", "state", "feed_forward"):
            require_finite(f"kept_norms.{name}", getattr(self, name), above=0.0)


@dataclass(frozen=True, slots=True)
class PerLayerInputs:
    """What a layer is given of each token beside the stream (`model/per_layer_inputs.py`)."""

    size: int
    vocab_size: int

    def __post_init__(self) -> None:
        require_size("per_layer_inputs.size", self.size, 1 << 12)
        require_size("per_layer_inputs.vocab_size", self.vocab_size, LIMITS["vocab_size"])


@dataclass(frozen=True, slots=True)
class Streams:
    """Several streams beside each other, of which a layer computes with one (`model/streams.py`)."""

    count: int
    active: int  # the one that layers compute with
    laurel_rank: int  # numbers between the two matrices that stand beside attention
    scaled: bool = True  # what layers are given of a token is by the active stream times numbers of the layer's own

    def __post_init__(self) -> None:
        require_size("streams.count", self.count, 16)
        if not 0 <= self.active < self.count:
            raise ConfigError("streams.active", f"must be from 0 to {self.count - 1}, but is {self.active}")
        require_size("streams.laurel_rank", self.laurel_rank, LIMITS["hidden_size"])


def usual_sparsity(layers: int) -> tuple[float, ...]:
    """Returns `ModelConfig.sparsity` of a Gemma 3n of so many layers whose files do not say it."""
    return (0.95,) * 10 + (0.0,) * (layers - 10) if layers > 10 else ()


def require_size(field: str, value: int, limit: int) -> None:
    if not 1 <= value <= limit:
        raise ConfigError(field, f"must be from 1 to {limit}, but is {value}")


def require_finite(field: str, value: float, *, above: float | None = None, at_least: float | None = None) -> None:
    if not math.isfinite(value):
        raise ConfigError(field, f"must be finite, but is {value}")
    if above is not None and value <= above:
        raise ConfigError(field, f"must be more than {above:g}, but is {value:g}")
    if at_least is not None and value < at_least:
        raise ConfigError(field, f"must be at least {at_least:g}, but is {value:g}")

"""A feed-forward layer that is a choice among several (mixture of experts): its sizes, and the tensors that it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tandem.worker.checkpoints.model_parts.limits import LIMITS, ConfigError, require_finite, require_size
from tandem.worker.checkpoints.model_parts.mlp import Activation, ClampedSwiGLU, LimitedSwiGLU, mlp_shapes

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

    def tensor_shapes(self, layer: int, hidden: int, vocab_size: int, *, bias: bool) -> dict[str, tuple[int, ...]]:
        """Returns canonical names within a layer and shapes; `bias`: of the model's feed-forward parts."""
        shapes: dict[str, tuple[int, ...]] = {}
        if self.beside:
            for name in ("beside.norm", "beside.post_norm", "mlp.own_norm", "router_norm"):
                shapes[name] = (hidden,)
        if self.weighed:
            shapes["expert_weights"] = (self.count,)
        shapes["router"] = (self.count, hidden)
        if layer in self.listed_layers:
            shapes["router_table"] = (vocab_size, self.per_token)
        elif self.biased:
            shapes["router_bias"] = (self.count,)
        if self.biases:
            shapes["router_logit_bias"] = (self.count,)
        if self.shared_size:
            shapes |= mlp_shapes("shared", self.shared_size, hidden, gated=self.gated, bias=bias)
            if self.shared_router:
                shapes["shared_router"] = (1, hidden)
        width = self.latent or hidden
        if self.latent:
            shapes |= {"into_experts": (width, hidden), "out_of_experts": (hidden, width)}
            if bias:
                shapes |= {"into_experts_bias": (width,), "out_of_experts_bias": (hidden,)}
        size, how = self.intermediate_size, {"gated": self.gated, "bias": self.biases}
        for expert in range(self.count):
            shapes |= mlp_shapes(f"experts.{expert}", size, width, **how)
        return shapes

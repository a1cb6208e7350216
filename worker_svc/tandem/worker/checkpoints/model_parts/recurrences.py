"""Layers that have one state a sequence instead of keys and values: their sizes, and the tensors that these need.

Each names the shapes of its state (`model/states.py`): what is carried from token to token, the last inputs of a
convolution, and the numbers of a token that are needed to repeat it; and how several ranks share it, by its heads or
channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tandem.worker.checkpoints.model_parts.limits import LIMITS, ConfigError, require_finite, require_size

_MOST_KERNEL = 64  # tokens


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Layers with a gated delta rule instead of attention (`model/delta_net.py`)."""

    layers: tuple[int, ...]
    key_heads: int
    value_heads: int  # consecutive ones share a key head
    key_dim: int
    value_dim: int
    kernel: int  # tokens that the convolution sees
    beta_multiplier: float = 1.0  # of betas: with 2, what a state knows of a key may become its opposite
    norm_eps: float | None = None  # of the norm before the gate; None: the model's
    apart: bool = False  # queries, keys and values have a matrix each

    def __post_init__(self) -> None:
        require_finite("delta_net.beta_multiplier", self.beta_multiplier, above=0.0)
        require_size("delta_net.key_heads", self.key_heads, LIMITS["num_heads"])
        require_size("delta_net.value_heads", self.value_heads, LIMITS["num_heads"])
        require_size("delta_net.key_dim", self.key_dim, LIMITS["head_dim"])
        require_size("delta_net.value_dim", self.value_dim, LIMITS["head_dim"])
        require_size("delta_net.kernel", self.kernel, _MOST_KERNEL)
        if self.value_heads % self.key_heads:
            heads = f"{self.key_heads} does not divide the {self.value_heads} heads of values"
            raise ConfigError("delta_net.key_heads", heads)

    @property
    def groups(self) -> int:
        """Returns how many groups of heads there are, each with a query and a key."""
        return self.key_heads

    @property
    def key_size(self) -> int:
        """Returns the channels of the keys, and of the queries."""
        return self.key_heads * self.key_dim

    @property
    def size(self) -> int:
        """Returns the channels of the values, which is how many numbers the rule gives of a token."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Returns the channels that go through the convolution: queries, keys, values."""
        return 2 * self.key_size + self.size

    @property
    def state(self) -> tuple[int, int, int]:
        """Returns the shape of what is carried from token to token: heads, rows, columns."""
        return self.value_heads, self.key_dim, self.value_dim

    @property
    def factors(self) -> int:
        """Returns how many numbers of a token a journal holds beside its inputs: a decay and a beta a head."""
        return 2 * self.value_heads

    def shared(self, ranks: int) -> DeltaNet:
        """Returns the sizes of a rank's part. Raises ConfigError."""
        _divide("delta_net.key_heads", self.key_heads, ranks)
        return replace(self, key_heads=self.key_heads // ranks, value_heads=self.value_heads // ranks)

    @property
    def divided(self) -> Mapping[str, tuple[int, ...]]:
        """Returns the tensors whose rows ranks share, and the sizes of the parts of which each has a share."""
        channels = (self.key_size, self.key_size, self.size)
        parts = {part: (size,) for part, size in self.parts.items()} if self.apart else {"qkv": channels}
        heads = dict.fromkeys(("b", "a", "rate", "bias"), (self.value_heads,))
        return parts | {"filter": channels, "z": (self.size,)} | heads

    @property
    def parts(self) -> Mapping[str, int]:
        """Returns the channels of queries, keys and values, in their order."""
        return {"q": self.key_size, "k": self.key_size, "v": self.size}

    def tensor_shapes(self, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Returns the tensors of a layer, by canonical name within it."""
        first: dict[str, tuple[int, ...]] = {"delta_net.qkv": (self.channels, hidden_size)}
        if self.apart:
            first = {f"delta_net.{part}": (size, hidden_size) for part, size in self.parts.items()}
        return {
            **first,
            "delta_net.z": (self.size, hidden_size),
            "delta_net.b": (self.value_heads, hidden_size),
            "delta_net.a": (self.value_heads, hidden_size),
            "delta_net.filter": (self.channels, self.kernel),
            "delta_net.rate": (self.value_heads,),
            "delta_net.bias": (self.value_heads,),
            "delta_net.norm_weight": (self.value_dim,),
            "delta_net.output": (hidden_size, self.size),
        }


class _HeadsAlike:
    """What follows where each head has a query, a key and a value of one size, and a state of its own."""

    __slots__ = ()
    heads: int
    head_dim: int

    @property
    def groups(self) -> int:
        """Returns how many groups of heads there are, each with a query and a key."""
        return self.heads

    @property
    def size(self) -> int:
        """Returns how many numbers the rule gives of a token: those of the values, and of queries and keys."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Returns the numbers that the state sees of a token: queries, keys and values."""
        return 3 * self.size

    @property
    def state(self) -> tuple[int, int, int]:
        """Returns the shape of what is carried from token to token: heads, rows, columns."""
        return self.heads, self.head_dim, self.head_dim


@dataclass(frozen=True, slots=True)
class KimiDelta(_HeadsAlike):
    """Layers with a gated delta rule whose decays are of channels of keys (`model/kimi_delta.py`)."""

    layers: tuple[int, ...]
    heads: int
    head_dim: int  # of a head's query, key and value, and of what decays and gates are made of
    kernel: int  # tokens that the convolution sees
    directly: bool = False  # decays and gates are made of the stream by one matrix each
    least: float = 0.0  # the least logarithm of a decay, which is of a sigmoid then (Ling 3.0); 0: of a softplus

    def __post_init__(self) -> None:
        require_size("kimi_delta.heads", self.heads, LIMITS["num_heads"])
        require_size("kimi_delta.head_dim", self.head_dim, LIMITS["head_dim"])
        require_size("kimi_delta.kernel", self.kernel, _MOST_KERNEL)
        if not (math.isfinite(self.least) and self.least <= 0):
            raise ConfigError("kimi_delta.least", f"must be at most 0, but is {self.least:g}")

    @property
    def factors(self) -> int:
        """Returns how many numbers of a token a journal holds beside its inputs: a decay of each channel of the keys,
        and a beta a head."""
        return self.size + self.heads

    def shared(self, ranks: int) -> KimiDelta:
        """Returns the sizes of a rank's part. Raises ConfigError."""
        _divide("kimi_delta.heads", self.heads, ranks)
        return replace(self, heads=self.heads // ranks)

    @property
    def divided(self) -> Mapping[str, tuple[int, ...]]:
        """Returns the tensors whose rows ranks share, and the sizes of the parts of which each has a share."""
        wide = ("q", "k", "v", "q_filter", "k_filter", "v_filter", "decay_out", "gate_out", "decay", "gate", "bias")
        return dict.fromkeys(wide, (self.size,)) | dict.fromkeys(("b", "rate"), (self.heads,))

    def tensor_shapes(self, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Returns the tensors of a layer, by canonical name within it."""
        size, rank = self.size, self.head_dim
        shapes: dict[str, tuple[int, ...]] = {f"kimi_delta.{name}": (size, hidden_size) for name in "qkv"}
        shapes |= {f"kimi_delta.{name}_filter": (size, self.kernel) for name in "qkv"}
        shapes["kimi_delta.b"] = (self.heads, hidden_size)
        for name in ("decay", "gate"):
            if self.directly:
                shapes[f"kimi_delta.{name}"] = (size, hidden_size)
                continue
            shapes[f"kimi_delta.{name}_in"] = (rank, hidden_size)
            shapes[f"kimi_delta.{name}_out"] = (size, rank)
        return shapes | {
            "kimi_delta.rate": (self.heads,),
            "kimi_delta.bias": (size,),
            "kimi_delta.norm_weight": (rank,),
            "kimi_delta.output": (hidden_size, size),
        }


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """Layers with a convolution over the last tokens between two gates (`model/short_convolution.py`)."""

    layers: tuple[int, ...]
    channels: int  # as many as the model's stream has
    kernel: int  # tokens that the convolution sees
    biases: bool = False  # of the projections and of the convolution

    def __post_init__(self) -> None:
        require_size("short_convolution.kernel", self.kernel, _MOST_KERNEL)

    @property
    def size(self) -> int:
        """Returns how many numbers the convolution gives of a token."""
        return self.channels

    @property
    def state(self) -> tuple[int, int, int]:
        """Returns the shape of what is carried from token to token: nothing but the last inputs."""
        return 0, 0, 0

    @property
    def factors(self) -> int:
        """Returns how many numbers of a token a journal holds beside its inputs."""
        return 0

    def shared(self, ranks: int) -> ShortConvolution:
        """Returns the sizes of a rank's part. Raises ConfigError."""
        _divide("short_convolution.channels", self.channels, ranks)
        return replace(self, channels=self.channels // ranks)

    @property
    def divided(self) -> Mapping[str, tuple[int, ...]]:
        """Returns the tensors whose rows ranks share, and the sizes of the parts of which each has a share."""
        three, one = (self.channels,) * 3, (self.channels,)
        inputs = dict.fromkeys(("gates_and_input", "gates_and_input_bias"), three)
        return inputs | dict.fromkeys(("filter", "filter_bias"), one)

    def tensor_shapes(self, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Returns the tensors of a layer, by canonical name within it."""
        shapes: dict[str, tuple[int, ...]] = {
            "short_convolution.gates_and_input": (3 * self.channels, hidden_size),
            "short_convolution.filter": (self.channels, self.kernel),
            "short_convolution.output": (hidden_size, self.channels),
        }
        if self.biases:
            shapes |= {
                "short_convolution.gates_and_input_bias": (3 * self.channels,),
                "short_convolution.filter_bias": (self.channels,),
                "short_convolution.output_bias": (hidden_size,),
            }
        return shapes


@dataclass(frozen=True, slots=True)
class Mamba:
    """Layers with Mamba-2's state space, instead of attention or beside it (`model/mamba.py`)."""

    layers: tuple[int, ...]
    heads: int
    head_dim: int
    groups: int  # of heads that are next to each other; each has a B and a C
    state_size: int  # numbers of a B and of a C
    kernel: int  # tokens that the convolution sees
    filter_bias: bool = True
    input_bias: bool = False
    output_bias: bool = False
    norm: Literal["after", "before", "none"] = "after"  # of a group's channels, after the gate or before it
    least_dt: float = 0.0
    most_dt: float = math.inf
    multipliers: tuple[float, float, float, float, float] = (1.0,) * 5  # of z, x, B, C and dt
    output_multiplier: float = 1.0
    beside_attention: bool = False  # layers have both, and add what both give

    def __post_init__(self) -> None:
        require_size("mamba.heads", self.heads, LIMITS["num_heads"])
        require_size("mamba.head_dim", self.head_dim, LIMITS["head_dim"])
        require_size("mamba.groups", self.groups, self.heads)
        require_size("mamba.state_size", self.state_size, LIMITS["head_dim"])
        require_size("mamba.kernel", self.kernel, _MOST_KERNEL)
        if self.heads % self.groups:
            raise ConfigError("mamba.groups", f"{self.groups} do not share the {self.heads} heads")
        if not 0 <= self.least_dt <= self.most_dt:
            raise ConfigError("mamba.least_dt", f"must be from 0 to {self.most_dt:g}, but is {self.least_dt:g}")
        for multiplier in self.multipliers:
            require_finite("mamba.multipliers", multiplier, above=0.0)
        require_finite("mamba.output_multiplier", self.output_multiplier, above=0.0)

    @property
    def size(self) -> int:
        """Returns how many numbers the state space gives of a token."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Returns the channels that go through the convolution: x, B, C."""
        return self.size + 2 * self.groups * self.state_size

    @property
    def state(self) -> tuple[int, int, int]:
        """Returns the shape of what is carried from token to token: heads, rows, columns."""
        return self.heads, self.state_size, self.head_dim

    @property
    def factors(self) -> int:
        """Returns how many numbers of a token a journal holds beside its inputs: a decay and a dt a head."""
        return 2 * self.heads

    def shared(self, ranks: int) -> Mamba:
        """Returns the sizes of a rank's part: whole groups, which the norm is of. Raises ConfigError."""
        _divide("mamba.groups", self.groups, ranks)
        return replace(self, heads=self.heads // ranks, groups=self.groups // ranks)

    @property
    def divided(self) -> Mapping[str, tuple[int, ...]]:
        """Returns the tensors whose rows ranks share, and the sizes of the parts of which each has a share."""
        group = self.groups * self.state_size
        channels, size, heads = (self.size, group, group), (self.size,), (self.heads,)
        return {
            **dict.fromkeys(("channels", "channels_bias", "filter", "filter_bias"), channels),
            **dict.fromkeys(("z", "z_bias", "norm_weight"), size),
            **dict.fromkeys(("dt", "dt_bias", "rate", "bias", "skip"), heads),
        }

    def tensor_shapes(self, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Returns the tensors of a layer, by canonical name within it."""
        inputs = {"channels": self.channels, "z": self.size, "dt": self.heads}
        shapes: dict[str, tuple[int, ...]] = {f"mamba.{name}": (rows, hidden_size) for name, rows in inputs.items()}
        if self.input_bias:
            shapes |= {f"mamba.{name}_bias": (rows,) for name, rows in inputs.items()}
        shapes["mamba.filter"] = (self.channels, self.kernel)
        if self.filter_bias:
            shapes["mamba.filter_bias"] = (self.channels,)
        shapes |= {f"mamba.{name}": (self.heads,) for name in ("rate", "bias", "skip")}
        if self.norm != "none":
            shapes["mamba.norm_weight"] = (self.size,)
        shapes["mamba.output"] = (hidden_size, self.size)
        if self.output_bias:
            shapes["mamba.output_bias"] = (hidden_size,)
        return shapes


@dataclass(frozen=True, slots=True)
class Lightning(_HeadsAlike):
    """Layers with lightning attention instead of attention (`model/lightning.py`)."""

    layers: tuple[int, ...]
    heads: int
    head_dim: int  # of a head's query, key and value
    norm_eps: float = 1e-6  # of the norm over all heads
    output_multiplier: float = 1.0

    def __post_init__(self) -> None:
        require_size("lightning.heads", self.heads, LIMITS["num_heads"])
        require_size("lightning.head_dim", self.head_dim, LIMITS["head_dim"])
        require_finite("lightning.output_multiplier", self.output_multiplier, above=0.0)

    def slopes(self, layer: int, layers: int) -> tuple[float, ...]:
        """Returns minus the logarithm of what each head's state is multiplied by from token to token: less from head to
        head, and from layer to layer."""
        depth = 1 - layer / (layers - 1 + 1e-5) + 1e-5
        return tuple(2 ** (-8 * (head + 1) / self.heads) * depth for head in range(self.heads))

    @property
    def kernel(self) -> int:
        """Returns how many tokens the convolution sees: there is none."""
        return 1

    @property
    def factors(self) -> int:
        """Returns how many numbers of a token a journal holds beside its inputs: as many as Mamba's."""
        return 2 * self.heads

    def shared(self, ranks: int) -> Lightning:
        """Returns the sizes of a rank's part: one has all. Raises ConfigError."""
        if ranks > 1:
            problem = f"are normed together, which {ranks} ranks cannot share (tensor_parallel)"
            raise ConfigError("lightning.heads", problem)
        return self

    @property
    def divided(self) -> Mapping[str, tuple[int, ...]]:
        """Returns the tensors whose rows ranks share, and the sizes of the parts of which each has a share."""
        return {"channels": (self.size,) * 3, "z": (self.size,), "norm_weight": (self.size,)}

    def tensor_shapes(self, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Returns the tensors of a layer, by canonical name within it."""
        return {
            "lightning.channels": (self.channels, hidden_size),
            "lightning.z": (self.size, hidden_size),
            "lightning.norm_weight": (self.size,),
            "lightning.output": (hidden_size, self.size),
        }


def _divide(field: str, size: int, ranks: int) -> None:
    if size % ranks:
        raise ConfigError(field, f"{size} cannot be shared by {ranks} ranks (tensor_parallel)")


Recurrence: TypeAlias = DeltaNet | KimiDelta | ShortConvolution | Mamba | Lightning

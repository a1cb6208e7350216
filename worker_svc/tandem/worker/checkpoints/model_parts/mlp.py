"""One feed-forward part: its activation, and its matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tandem.worker.checkpoints.model_parts.limits import require_finite

# relu: what is above 0; relu2: its square; gelu_tanh: GELU by its approximation; xielu: by constants of each layer.
Activation: TypeAlias = Literal["silu", "relu", "relu2", "gelu", "gelu_tanh", "xielu"]
XIELU_CONSTANTS = ("alpha_p", "alpha_n", "beta", "eps")  # tensors of one number


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


def mlp_shapes(name: str, size: int, hidden: int, *, gated: bool, bias: bool) -> dict[str, tuple[int, ...]]:
    """Returns canonical names of a feed-forward part's tensors and shapes; `size` is its intermediate one."""
    rows = ({"gate": size} if gated else {}) | {"up": size}
    shapes: dict[str, tuple[int, ...]] = {f"{name}.{part}": (size, hidden) for part in rows}
    shapes[f"{name}.down"] = (hidden, size)
    if bias:
        shapes |= {f"{name}.{part}_bias": (count,) for part, count in (rows | {"down": hidden}).items()}
    return shapes

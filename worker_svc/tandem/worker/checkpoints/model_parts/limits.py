"""How large the sizes of a model may be, and the error of what is impossible."""

from __future__ import annotations

import math
from collections.abc import Mapping

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


class ConfigError(ValueError):
    """A size or constant is impossible or contradicts another one."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem


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

"""Norms over the last dimension.

Their weights are float32 whatever the model's dtype is, as GGUF files have them, and as 1 + weight is (Gemma), which a
bf16 near 1 would round to 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.model.linear import Bias, Rows
from tandem.worker.model.operations import Operations


class RMSNorm(torch.nn.Module):
    """Computes `x / sqrt(mean(x^2) + eps) * weight` over the last dimension, in float32."""

    weight: torch.nn.Parameter  # [size]
    __call__: Callable[..., torch.Tensor]

    def __init__(self, size: int, eps: float, operations: Operations) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size, dtype=torch.float32), requires_grad=False)
        self._eps = eps
        self._operations = operations

    @property
    def vectors(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns the weight and the bias, which it has not."""
        return self.weight, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Computes `[N, size] -> [N, size]`."""
        return self._operations.add_norm(x, None, self.weight, self._eps)

    def after_adding(self, x: torch.Tensor, delta: torch.Tensor | None, *, float8: bool = False) -> Rows:
        """Adds `delta` to `x` `[N, size]` in place, then returns the norm of it, which may be `float8`."""
        if float8 and x.dtype == torch.bfloat16:
            return self._operations.add_norm_float8(x, delta, self.weight, self._eps)
        return self._operations.add_norm(x, delta, self.weight, self._eps)


class LayerNorm(torch.nn.Module):
    """`(x - mean(x)) / sqrt(variance(x) + eps) * weight`, and a bias if there is one."""

    weight: torch.nn.Parameter  # [size]
    __call__: Callable[..., torch.Tensor]

    def __init__(
        self, size: int, eps: float, operations: Operations, *, bias: bool, ones: torch.device | str | None = None
    ) -> None:
        """`ones`: where the weights are that multiply by nothing, which no file has; None: they will come."""
        super().__init__()
        self.comes = ones is None
        weight = torch.empty(size, dtype=torch.float32) if ones is None else torch.ones(size, device=ones)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.bias = Bias(size, torch.float32) if bias else None
        self._eps = eps
        self._operations = operations

    @property
    def vectors(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns the weight, and the bias if there is one."""
        return self.weight, None if self.bias is None else self.bias.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[N, size] -> [N, size]`."""
        return self._operations.add_layer_norm(x, None, *self.vectors, self._eps)

    def after_adding(self, x: torch.Tensor, delta: torch.Tensor | None, *, float8: bool = False) -> torch.Tensor:
        """Adds `delta` to `x` `[N, size]` in place, then gives the norm of it."""
        return self._operations.add_layer_norm(x, delta, *self.vectors, self._eps)


def row_sums(rows: torch.Tensor) -> torch.Tensor:
    """Adds up each of the rows `[N, size]` by halves, so that its bits do not depend on how many there are."""
    while (size := rows.shape[1]) > 1:
        half = -(-size // 2)
        others = rows[:, half:]
        rows = rows[:, :half] + (torch.nn.functional.pad(others, (0, 1)) if size % 2 else others)
    return rows[:, 0]


def stream_norm(config: ModelConfig, operations: Operations, device: torch.device | str) -> RMSNorm | LayerNorm:
    """Makes a norm of the stream that layers add to."""
    if config.norm == "layer":
        ones = None if config.norm_weights else device
        return LayerNorm(config.hidden_size, config.stream_eps, operations, bias=config.norm_bias, ones=ones)
    return RMSNorm(config.hidden_size, config.stream_eps, operations)

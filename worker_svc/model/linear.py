"""The matrix product of the model, and the one place that knows how a weight is stored.

Everything else sees `Linear(x)`; other storage (prepacked, quantized) is added here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F


class Linear(torch.nn.Module):
    """`x [N, in] -> x weight^T [N, out]`; no bias, as in Llama."""

    weight: torch.nn.Parameter  # [out, in]
    __call__: Callable[..., torch.Tensor]

    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty((out_features, in_features), dtype=dtype), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[N, in] -> [N, out]`."""
        return F.linear(x, self.weight)

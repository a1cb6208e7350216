"""The matrix product of the model, and the one place that knows how a weight is stored.

Everything else sees `Linear(x)`; other storage (quantized) is added here.

On a CPU there are two libraries for `x W^T`. For a few rows and a large W, MKL rearranges all of W at each call; oneDNN
can be given a W that was rearranged once. Measured in fp32 on one Zen 3 core, W `[11264, 2048]`, milliseconds:

| rows                 | 1   | 4   | 8   | 16  | 64  | 512 |
|----------------------|-----|-----|-----|-----|-----|-----|
| MKL                  | 5   | 22  | 25  | 31  | 56  | 540 |
| oneDNN, W as it is   | 5   | 12  | 14  | 20  | 48  | 470 |
| oneDNN, W rearranged | 5   | 10  | 13  | 16  | 44  | 470 |

A small W is quicker with MKL: 0.02 against 0.04 ms for `[288, 288]` and 4 rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

REARRANGE_FROM = 1 << 18  # numbers in a matrix that oneDNN is given rearranged
SHARED_FROM = 1 << 22  # numbers in a matrix that oneDNN is given as it is, because something else reads it too
_ROWS = 16  # the number of rows for which oneDNN chooses the arrangement


class Bias(torch.nn.Module):
    """What a `Linear` adds to each row. A module of its own, so that it is filled as any weight is."""

    weight: torch.nn.Parameter  # [out]

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)


class Linear(torch.nn.Module):
    """`x [N, in] -> x weight^T [N, out]`, plus a bias where a model has one."""

    weight: torch.nn.Parameter  # [out, in]
    __call__: Callable[..., torch.Tensor]

    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty((out_features, in_features), dtype=dtype), requires_grad=False)
        self.bias = Bias(out_features, dtype) if bias else None
        self._with_onednn = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[N, in] -> [N, out]`."""
        bias = None if self.bias is None else self.bias.weight
        if self._with_onednn:
            product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.weight, bias, "none", [], "")
            return product
        return F.linear(x, self.weight, bias)

    @property
    def row_multiple(self) -> int:
        """A row's bits do not depend on the other rows if their number is a multiple of this (measured on x86)."""
        if not self._with_onednn:
            return 4
        return 1 if self.weight.is_mkldnn and self.weight.dtype == torch.float32 else 2

    def will_rearrange(self, device: torch.device | str) -> bool:
        """Whether `settle` will replace a weight on this device by a rearranged copy."""
        return self.weight.numel() >= REARRANGE_FROM and _onednn_serves(torch.device(device), self.weight.dtype)

    def settle(self) -> None:
        """Chooses how to compute, once the weight is there; afterwards only `forward` may look at it."""
        if self.will_rearrange(self.weight.device):
            rearranged = torch.ops.mkldnn._reorder_linear_weight(self.weight.data, _ROWS)
            self.weight = torch.nn.Parameter(rearranged, requires_grad=False)
            self._with_onednn = True

    def share(self, weight: torch.nn.Parameter) -> None:
        """Takes a weight that belongs to something else and stays as it is."""
        self.weight = weight
        self._with_onednn = weight.numel() >= SHARED_FROM and _onednn_serves(weight.device, weight.dtype)


def _onednn_serves(device: torch.device, dtype: torch.dtype) -> bool:
    if device.type != "cpu":
        return False
    operations = torch.ops.mkldnn
    if not all(hasattr(operations, name) for name in ("_linear_pointwise", "_reorder_linear_weight")):
        return False  # torch was built without oneDNN
    if dtype == torch.bfloat16:
        return bool(operations._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(operations._is_mkldnn_fp16_supported())
    return dtype == torch.float32

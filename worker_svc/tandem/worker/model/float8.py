"""Weights as 8-bit floats (e4m3: 4 bits of exponent, 3 of mantissa), with one scale a row of W.

    w = scale q        |q| <= 448, the largest e4m3

GPUs from Ada and Hopper on (compute capability 8.9) multiply them as they are: a row of activations gets a scale of
its own, is rounded to e4m3 too, and `torch._scaled_mm` sums up in float32. Elsewhere the weights are dequantized in
tiles and multiplied by torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tandem.worker.model.operations import ScaledProduct
from tandem.worker.model.product_rows import MOST_ROWS, linear

FLOAT8 = torch.float8_e4m3fn
_LARGEST = torch.finfo(FLOAT8).max
_CAPABILITY = (8, 9)
_MULTIPLE = 16  # of both sides of a matrix that `torch._scaled_mm` takes
_TILE_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Float8Rows:
    """Rows of a matrix; q: `[rows, columns]` e4m3, scale: `[rows, 1]` float32."""

    q: torch.Tensor
    scale: torch.Tensor

    def dequantize(self) -> torch.Tensor:
        """Returns the numbers, `[rows, columns]` float32."""
        return self.q.float() * self.scale


def to_float8(rows: torch.Tensor) -> Float8Rows:
    """Converts `[rows, columns]` of any floating dtype, on any device; a row's largest number becomes the largest e4m3.

    What is not finite makes its whole row NaN.
    """
    numbers = rows.float()
    scale = (numbers.abs().amax(1, keepdim=True) / _LARGEST).clamp_min(1e-30)
    return Float8Rows((numbers / scale).clamp_(-_LARGEST, _LARGEST).to(FLOAT8), scale)


def scaled_product(x: torch.Tensor, weight: Float8Rows) -> torch.Tensor:
    """Multiplies `x [N, in]` with `[out, in]`, both in e4m3: `[N, out]` in x's dtype."""
    from tandem.worker.model.cuda.kernels.float8 import rows_to_float8  # Triton is not installed where there is no CUDA

    rows = Float8Rows(*rows_to_float8(x))
    product = torch._scaled_mm(
        rows.q, weight.q.t(), scale_a=rows.scale, scale_b=weight.scale.t(), out_dtype=torch.bfloat16
    )
    return product.to(x.dtype)


class Float8Weight(torch.nn.Module):
    """A matrix `[out, in]`, filled row by row."""

    name = "fp8"
    row_multiple = MOST_ROWS  # see `Linear.row_multiple`
    q: torch.Tensor  # [out, in] e4m3
    scale: torch.Tensor  # [out, 1] float32
    __call__: Callable[..., torch.Tensor]

    def __init__(self, rows: int, columns: int, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("q", torch.zeros((rows, columns), dtype=FLOAT8, device=device))
        self.register_buffer("scale", torch.zeros((rows, 1), device=device))
        multiplies = device.type == "cuda" and torch.cuda.get_device_capability(device) >= _CAPABILITY
        self._scaled = multiplies and rows % _MULTIPLE == 0 and columns % _MULTIPLE == 0
        self.product: ScaledProduct | None = None  # instead of torch's

    def __len__(self) -> int:
        return len(self.q)

    def truncate(self, rows: int) -> None:
        """Keeps the first rows only."""
        self.q, self.scale = self.q[:rows].clone(), self.scale[:rows].clone()
        self._scaled = self._scaled and rows % _MULTIPLE == 0

    def fill(self, row: int, rows: Float8Rows) -> None:
        """Stores rows from `row` on."""
        self.q[row : row + len(rows.q)] = rows.q
        self.scale[row : row + len(rows.q)] = rows.scale

    def rows(self, index: torch.Tensor | slice) -> torch.Tensor:
        """Returns some rows `[N, in]` as float32 numbers."""
        return Float8Rows(self.q[index], self.scale[index]).dequantize()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies: `[N, in] -> [N, out]` in x's dtype."""
        if self.product is not None:
            return self.product(x, self.q, self.scale)
        if self._scaled:
            return scaled_product(x, Float8Rows(self.q, self.scale))
        tiles = (slice(start, start + _TILE_ROWS) for start in range(0, len(self.q), _TILE_ROWS))
        return torch.cat([linear(x, self.rows(tile).to(x.dtype)) for tile in tiles], dim=1)

"""Weights as 8-bit floats (e4m3: 4 bits of exponent, 3 of mantissa), with one scale a row of W, or every 128 inputs.

    w = scale q        |q| <= 448, the largest e4m3

GPUs from Ada and Hopper on (compute capability 8.9) multiply them as they are: with one scale a
row, a row of activations gets a scale of its own, is rounded to e4m3 too, and `torch._scaled_mm` sums up in float32. On
a CPU they are widened in registers by a compiled product (`native`) of activations in fp32. Elsewhere the weights are
dequantized in tiles and multiplied by torch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tandem.worker.checkpoints.grouped import FLOAT8, Float8Rows
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.panels import empty_panels, fill_panels, first_panels, panel_rows
from tandem.worker.model.operations import Product, ScaledProduct
from tandem.worker.model.product_rows import MOST_ROWS, linear

CAPABILITY = (8, 9)  # from which on there is a product of e4m3
_MULTIPLE = 16  # of both sides of a matrix that `torch._scaled_mm` takes
_TILE_ROWS = 1024


def scaled_product(x: torch.Tensor | Float8Rows, weight: Float8Rows) -> torch.Tensor:
    """Multiplies `x [N, in]` with `[out, in]`, both in e4m3: `[N, out]` in x's dtype, or bf16."""
    from tandem.worker.model.cuda.kernels.float8 import rows_to_float8  # Triton is not installed where there is no CUDA

    rows = x if isinstance(x, Float8Rows) else rows_to_float8(x)
    product = torch._scaled_mm(
        rows.q, weight.q.t(), scale_a=rows.scale, scale_b=weight.scale.t(), out_dtype=torch.bfloat16
    )
    return product if isinstance(x, Float8Rows) else product.to(x.dtype)


class Float8Weight(torch.nn.Module):
    """A matrix `[out, in]`, filled row by row. For the compiled products, both parts lie in panels."""

    name = "fp8"
    q: torch.Tensor  # [out, in] e4m3, or panels of them as bytes
    scale: torch.Tensor  # [out, groups] float32, or panels
    __call__: Callable[..., torch.Tensor]

    def __init__(self, rows: int, columns: int, device: torch.device, *, groups: int = 1) -> None:
        """Allocates the matrix; with several `groups`, 128 inputs share a scale."""
        super().__init__()
        self._rows, self.columns, self.groups = rows, columns, groups
        self.compiled = device.type == "cpu" and native.available()
        if self.compiled:
            q, scale = empty_panels(rows, columns, torch.uint8), empty_panels(rows, groups, torch.float32)
        else:
            q = torch.zeros((rows, columns), dtype=FLOAT8, device=device)
            scale = torch.zeros((rows, groups), device=device)
        self.register_buffer("q", q)
        self.register_buffer("scale", scale)
        multiplies = device.type == "cuda" and torch.cuda.get_device_capability(device) >= CAPABILITY
        self._scaled = multiplies and groups == 1 and rows % _MULTIPLE == 0 and columns % _MULTIPLE == 0
        self._reads = device.type != "cuda" or multiplies  # our kernel multiplies them as they are; or an interpreter
        self.product: ScaledProduct | None = None  # instead of torch's
        self.plain_product: Product | None = None  # instead of torch's, of what was dequantized

    def __len__(self) -> int:
        return self._rows

    @property
    def row_multiple(self) -> int:
        """See `Linear.row_multiple`. Compiled, a row is computed alone."""
        return 1 if self.compiled else MOST_ROWS

    def truncate(self, rows: int) -> None:
        """Keeps the first rows only."""
        self._rows = rows
        keep = first_panels if self.compiled else _first
        self.q, self.scale = keep(self.q, rows), keep(self.scale, rows)
        self._scaled = self._scaled and rows % _MULTIPLE == 0

    def fill(self, row: int, rows: Float8Rows) -> None:
        """Stores rows from `row` on."""
        if not self.compiled:
            self.q[row : row + len(rows.q)] = rows.q
            self.scale[row : row + len(rows.q)] = rows.scale
            return
        stored, scale = rows.q.view(torch.uint8), rows.scale
        if (broken := (stored & 127 == 127).any(1)).any():  # the product does not know NaN
            scale = scale.masked_fill(broken.unsqueeze(1), float("nan"))
        fill_panels(self.q, row, stored)
        fill_panels(self.scale, row, scale)

    def rows(self, index: torch.Tensor | slice) -> torch.Tensor:
        """Returns some rows `[N, in]` as float32 numbers."""
        if not self.compiled:
            return Float8Rows(self.q[index], self.scale[index]).dequantize()
        index = torch.arange(self._rows)[index] if isinstance(index, slice) else index
        q = panel_rows(self.q, index).contiguous().view(FLOAT8)
        return Float8Rows(q, panel_rows(self.scale, index)).dequantize()

    @property
    def takes_float8(self) -> bool:
        """Tells whether rows are rounded to 8 bits to be multiplied; then they may come so, and bf16 goes out."""
        return self._scaled and self.product is None

    def forward(self, x: torch.Tensor | Float8Rows) -> torch.Tensor:
        """Multiplies: `[N, in] -> [N, out]` in x's dtype."""
        if isinstance(x, Float8Rows):
            return scaled_product(x, Float8Rows(self.q, self.scale))
        if self.compiled:
            return native.float8_product(x.float(), self.q, self.scale)[:, : self._rows].to(x.dtype)
        if self.product is not None and self.groups == 1 and self._reads:
            return self.product(x, self.q, self.scale)
        if self._scaled:
            return scaled_product(x, Float8Rows(self.q, self.scale))
        tiles = (slice(start, start + _TILE_ROWS) for start in range(0, len(self.q), _TILE_ROWS))
        multiply = self.plain_product or linear
        return torch.cat([multiply(x, self.rows(tile).to(x.dtype)) for tile in tiles], dim=1)


def _first(buffer: torch.Tensor, rows: int) -> torch.Tensor:
    return buffer[:rows].clone()

"""Chooses how matrices of floats are multiplied on CUDA.

By cuBLAS, which is quick, and of which nobody knows whether a row's bits depend on how many there are: that is measured
at start. Where they do, reproducible mode multiplies by our kernel, where they cannot; and fast mode may take ours for
a few rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tandem.worker.model.cuda.kernels.product import Tile, product
from tandem.worker.model.operations import LIBRARY, Products

FAST_ROWS = 0  # rows up to which fast mode multiplies by our kernel: as many as `benchmarks/gpu.py` finds it faster for

MANY_ROWS = Tile(64, 128, 64)  # what Hopper's matrix units take
# No more rows than they must be, and so few outputs that there are programs enough without splits: another kernel would
# add these up, and of a small matrix and few rows that takes a third as long as the product.
FEW_ROWS = Tile(16, 32, 256)
FLOAT32 = Tile(16, 64, 32)  # which has no matrix unit: more rows would not fit into registers


def same_bits(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """Multiplies by our kernel, with the same tile for any number of rows."""
    return product(x.contiguous(), weight, FLOAT32 if x.dtype == torch.float32 else MANY_ROWS, scale)


def few_rows(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """Multiplies by our kernel, with the smallest tile."""
    return product(x.contiguous(), weight, FLOAT32 if x.dtype == torch.float32 else FEW_ROWS, scale)


def quickest(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiplies by our kernel for up to `FAST_ROWS` rows, else by cuBLAS."""
    return few_rows(x, weight) if len(x) <= FAST_ROWS else F.linear(x, weight)


def products(*, reproducible: bool) -> tuple[Products, ...]:
    """Implements `Operations.products`."""
    if reproducible:
        return LIBRARY, Products(same_bits, same_bits)
    return (Products(quickest) if FAST_ROWS else LIBRARY,)

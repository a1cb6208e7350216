"""Rows as 8-bit floats with a scale each, in one pass: what `float8.to_float8` computes with half a dozen operations.

    scale = max |x| / 448        q = x / scale, rounded to e4m3

One program a row. A row with a number that is not finite becomes NaN as a whole. Kernels whose results are only
multiplied by such matrices end with the same (`add_norm.py`, `swiglu.py`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.worker.checkpoints.grouped import FLOAT8, Float8Rows

LARGEST = tl.constexpr(torch.finfo(FLOAT8).max)


@triton.jit
def store_as_float8(numbers, q, scale, row, size, place, inside, BLOCK: tl.constexpr):
    """Stores `numbers` `[BLOCK]` float32 as row `row` of `q`, and its scale."""
    broken = tl.max(((numbers != numbers) | (tl.abs(numbers) == float("inf"))).to(tl.int32), 0)
    largest = tl.where(broken > 0, float("nan"), tl.max(tl.abs(numbers), 0))
    step = tl.div_rn(largest, tl.full([], LARGEST, tl.float32))
    step = tl.where(step < 1e-30, 1e-30, step)  # NaN stays
    tl.store(scale + row, step)
    quotient = tl.div_rn(numbers, tl.full([BLOCK], 0.0, tl.float32) + step)
    quotient = tl.where(quotient > LARGEST, LARGEST, tl.where(quotient < -LARGEST, -LARGEST, quotient))
    tl.store(q + row * size + place, quotient.to(q.dtype.element_ty), mask=inside)


@triton.jit
def _rows_to_float8(x, q, scale, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < size
    numbers = tl.load(x + row * size + place, mask=inside, other=0.0).to(tl.float32)
    store_as_float8(numbers, q, scale, row, size, place, inside, BLOCK)


def empty_float8(rows: int, size: int, device: torch.device) -> Float8Rows:
    """Makes room for rows `[rows, size]` and their scales `[rows, 1]`."""
    q = torch.empty((rows, size), dtype=FLOAT8, device=device)
    return Float8Rows(q, torch.empty((rows, 1), dtype=torch.float32, device=device))


def warps_of_row(block: int) -> int:
    """Returns how many warps hold a row of so many numbers."""
    return min(max(block // 512, 1), 16)


def rows_to_float8(x: torch.Tensor) -> Float8Rows:
    """Converts `x` `[N, size]` to e4m3 with scales `[N, 1]`."""
    rows, size = x.shape
    x = x.contiguous()
    made = empty_float8(rows, size, x.device)
    if rows:
        block = triton.next_power_of_2(size)
        _rows_to_float8[(rows,)](x, made.q, made.scale, size, block, num_warps=warps_of_row(block))
    return made

"""Rows as 8-bit floats with a scale each, in one pass: what `float8.to_float8` computes with half a dozen operations.

    scale = max |x| / 448        q = x / scale, rounded to e4m3

One program a row. A row with a number that is not finite becomes NaN as a whole.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LARGEST = tl.constexpr(torch.finfo(torch.float8_e4m3fn).max)


@triton.jit
def _rows_to_float8(x, q, scale, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < size
    numbers = tl.load(x + row * size + place, mask=inside, other=0.0).to(tl.float32)
    broken = tl.max(((numbers != numbers) | (tl.abs(numbers) == float("inf"))).to(tl.int32), 0)
    largest = tl.where(broken > 0, float("nan"), tl.max(tl.abs(numbers), 0))
    step = tl.div_rn(largest, tl.full([], LARGEST, tl.float32))
    step = tl.where(step < 1e-30, 1e-30, step)  # NaN stays
    tl.store(scale + row, step)
    quotient = tl.div_rn(numbers, tl.full([BLOCK], 0.0, tl.float32) + step)
    quotient = tl.where(quotient > LARGEST, LARGEST, tl.where(quotient < -LARGEST, -LARGEST, quotient))
    tl.store(q + row * size + place, quotient.to(q.dtype.element_ty), mask=inside)


def rows_to_float8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Converts `x` `[N, size]` to e4m3 `[N, size]` and scales `[N, 1]` fp32."""
    rows, size = x.shape
    x = x.contiguous()
    q = torch.empty((rows, size), dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty((rows, 1), dtype=torch.float32, device=x.device)
    if rows:
        block = triton.next_power_of_2(size)
        _rows_to_float8[(rows,)](x, q, scale, size, block, num_warps=min(max(block // 512, 1), 16))
    return q, scale

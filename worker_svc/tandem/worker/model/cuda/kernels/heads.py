"""Products with a matrix for each head, `[N, heads, in] -> [N, heads, out]`, in one launch.

A program takes a tile of rows, one of a head's outputs, and all columns, tile by tile in their order: a row's bits do
not depend on how many others there are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.worker.model.cuda.kernels.dependent import is_dependent, options, wait_for_inputs
from tandem.worker.model.cuda.kernels.product import Tile

_STAGES = 3  # a head has few columns: hardly more tiles than are on their way


@triton.jit(do_not_specialize=["rows"])
def _head_product(
    x, w, out, rows, row_stride, head_stride, columns, outputs,
    HEADS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, WHOLE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(DEPENDENT)
    # Programs side by side share a tile of w, which comes from memory once, and x stays in the cache.
    row = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)
    output = tl.program_id(1) * N + tl.arange(0, N)
    head = tl.program_id(2).to(tl.int64)
    real = (row < rows)[:, None]
    there = (output < outputs)[:, None]
    column = tl.arange(0, K)
    x_at = x + row[:, None] * row_stride + head * head_stride + column[None, :]
    w_at = w + (head * outputs + output)[:, None] * columns + column[None, :]
    total = tl.zeros([M, N], tl.float32)
    for start in range(0, columns, K):
        if WHOLE:
            a = tl.load(x_at + start, mask=real, other=0.0)
            b = tl.load(w_at + start, mask=there, other=0.0)
        else:
            inside = (start + column < columns)[None, :]
            a = tl.load(x_at + start, mask=real & inside, other=0.0)
            b = tl.load(w_at + start, mask=there & inside, other=0.0)
        total = tl.dot(a, tl.trans(b), total, input_precision="ieee")
    out_at = out + (row * HEADS + head)[:, None] * outputs + output[None, :]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=real & (output < outputs)[None, :])


def head_product(x: torch.Tensor, w: torch.Tensor, tile: Tile) -> torch.Tensor:
    """Multiplies `x` `[N, heads, columns]` with the transposes of `w` `[heads, outputs, columns]`, of x's dtype:
    `[N, heads, outputs]`. Of x, numbers that are columns of one row follow each other."""
    heads, outputs, columns = w.shape
    rows = len(x)
    assert x.shape[1:] == (heads, columns) and x.stride(2) == 1 and w.is_contiguous() and w.dtype == x.dtype
    out = x.new_empty((rows, heads, outputs))
    if rows:
        dependent = is_dependent(x.device)
        _head_product[(triton.cdiv(rows, tile.rows), triton.cdiv(outputs, tile.outputs), heads)](
            x, w, out, rows, x.stride(0), x.stride(1), columns, outputs,
            heads, *tile, columns % tile.columns == 0, dependent,
            num_warps=4, num_stages=_STAGES, **options(dependent),
        )  # fmt: skip
    return out

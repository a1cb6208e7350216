"""Products `x W^T` of which a row's bits do not depend on how many rows there are. W is a matrix in x's dtype, or one
of 8-bit floats with a scale for each of its rows, which become x's dtype on their way and lose nothing.

The columns are cut into splits, whose number the shape of W alone decides, and a split into tiles. A program takes a
tile of rows of x, one of rows of W and one split: it sums up the split by the matrix unit, tile by tile, in float32.
The sums of the splits are added up in their order: by one program that computes all of them, or, where there are too
few programs to keep a GPU busy, by `add_up`. Both give the same bits, and the same compiled kernel serves any number
of rows.

For a few rows the reading of W is all that takes time. A processor of an H200 reads 33 bytes a nanosecond, and waits
for them for about one microsecond: some 40 KiB must be on their way to it at any time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tandem.worker.model.cuda.kernels.dependent import fetch_ahead, is_dependent, options, wait_for_inputs

_BLOCK = 1024  # numbers of a row that `add_up` takes at once
_PROGRAMS = 264  # that fit on an H200 at a time, two for each of its processors
_BUSY = 96  # programs that read as much as a GPU can
_LEAST_SPLIT = 1024  # columns; shorter ones would be at their end before the loads of their tiles overlap
_ON_THEIR_WAY = 3  # tiles, while one is multiplied


class Tile(NamedTuple):
    """The sizes of what a program computes at once; powers of two, of at least 16."""

    rows: int  # of x
    outputs: int  # rows of W
    columns: int


@triton.jit(do_not_specialize=["rows", "each"])
def _product(
    x, w, scale, out, partial, rows, columns, outputs, split, each,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, WHOLE: tl.constexpr, SCALED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    # Programs side by side share a tile of W, which comes from memory once, and x stays in the cache.
    row = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)
    output = (tl.program_id(1) * N + tl.arange(0, N)).to(tl.int64)
    column = tl.arange(0, K)
    real = (row < rows)[:, None]
    there = (output < outputs)[:, None]
    x_tile = x + (tl.program_id(0) * M).to(tl.int64) * columns
    w_tile = w + (tl.program_id(1) * N).to(tl.int64) * columns
    x_at = tl.arange(0, M)[:, None] * columns + column[None, :]
    w_at = tl.arange(0, N)[:, None] * columns + column[None, :]
    at_all = row[:, None] * outputs + output[None, :]
    mask_all = real & (output < outputs)[None, :]
    if DEPENDENT:  # the first tiles of W are on their way while the kernel before this one ends
        LINE: tl.constexpr = 1024 // w.dtype.element_ty.primitive_bitwidth  # numbers
        beginning = tl.program_id(2) * each * split
        ahead = tl.minimum(beginning + tl.arange(0, 4 * K // LINE) * LINE, columns - 1)
        lines = tl.minimum(tl.program_id(1) * N + tl.arange(0, N), outputs - 1).to(tl.int64) * columns
        fetch_ahead(w + lines[:, None] + ahead[None, :])
    wait_for_inputs(DEPENDENT)
    total = tl.zeros([M, N], tl.float32)
    for number in range(tl.program_id(2) * each, (tl.program_id(2) + 1) * each):
        summed_up = tl.zeros([M, N], tl.float32)
        for start in range(number * split, tl.minimum((number + 1) * split, columns), K):
            if WHOLE:
                a = tl.load(x_tile + start + x_at, mask=real, other=0.0)
                b = tl.load(w_tile + start + w_at, mask=there, other=0.0)
            else:
                inside = (start + column < columns)[None, :]
                a = tl.load(x_tile + start + x_at, mask=real & inside, other=0.0)
                b = tl.load(w_tile + start + w_at, mask=there & inside, other=0.0)
            summed_up = tl.dot(a, tl.trans(b.to(x.dtype.element_ty)), summed_up, input_precision="ieee")
        if tl.num_programs(2) > 1:
            tl.store(partial + number * rows.to(tl.int64) * outputs + at_all, summed_up, mask=mask_all)
        total += summed_up
    if tl.num_programs(2) == 1:
        if SCALED:
            total *= tl.load(scale + output, mask=output < outputs, other=0.0)[None, :]
        tl.store(out + at_all, total.to(out.dtype.element_ty), mask=mask_all)


@triton.jit(do_not_specialize=["rows"])
def _add_up(
    partial, scale, out, rows, outputs, splits, SCALED: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = channel < outputs
    total = tl.zeros([BLOCK], tl.float32)
    for number in range(splits):
        total += tl.load(partial + (number * rows.to(tl.int64) + row) * outputs + channel, mask=there, other=0.0)
    if SCALED:
        total *= tl.load(scale + channel, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * outputs + channel, total.to(out.dtype.element_ty), mask=there)


def add_up(partial: torch.Tensor, scale: torch.Tensor | None, out: torch.Tensor) -> None:
    """Fills `out` `[N, outputs]` with the sum of `partial` `[splits, N, outputs]` float32 in the order of the splits,
    times a `scale` for each output."""
    splits, rows, outputs = partial.shape
    dependent = is_dependent(out.device)
    _add_up[(rows, triton.cdiv(outputs, _BLOCK))](
        partial, out if scale is None else scale, out, rows, outputs, splits, scale is not None, _BLOCK, dependent,
        **options(dependent),
    )  # fmt: skip


def product(x: torch.Tensor, w: torch.Tensor, tile: Tile, scale: torch.Tensor | None = None) -> torch.Tensor:
    """Multiplies `x` `[N, columns]` with the transpose of `w` `[outputs, columns]`: `[N, outputs]` in x's dtype. `w` is
    of that dtype too, or e4m3 with a float32 `scale` `[outputs, 1]`."""
    (rows, columns), outputs = x.shape, len(w)
    assert x.is_contiguous() and w.is_contiguous() and w.shape[1] == columns
    assert w.dtype == (x.dtype if scale is None else torch.float8_e4m3fn)
    out = x.new_empty((rows, outputs))
    if not rows:
        return out
    blocks = triton.cdiv(outputs, tile.outputs)
    splits = 1 if blocks >= _BUSY else max(1, min(_PROGRAMS // blocks, columns // _LEAST_SPLIT))
    split = triton.cdiv(triton.cdiv(columns, splits), tile.columns) * tile.columns
    splits = triton.cdiv(columns, split)
    programs = triton.cdiv(rows, tile.rows), blocks
    dependent = is_dependent(x.device)
    several = splits > 1 and programs[0] * blocks < _BUSY  # else a second kernel would only take time
    partial = torch.empty((splits if several else 0, rows, outputs), dtype=torch.float32, device=x.device)
    _product[(*programs, splits if several else 1)](
        x, w, out if scale is None else scale, out, partial, rows, columns, outputs, split, 1 if several else splits,
        *tile, columns % tile.columns == 0, scale is not None, dependent, num_warps=4,
        num_stages=_ON_THEIR_WAY + (1 if tile.rows >= 64 else 2),  # Hopper's matrix units read tiles where they lie
        **options(dependent),
    )  # fmt: skip
    if several:
        add_up(partial, scale, out)
    return out

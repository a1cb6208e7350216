"""Products with matrices of int8, which go to the matrix units as they are:

    one scale a channel    out = scale sum_k x_k q_k
    in groups              out = sum over groups of scale_g sum_k x_k q_k

Integers up to 256 are exact in bf16 and fp16, sums are fp32. In memory a row is filled up with zeros to whole groups.
Numbers of 4 bits are multiplied by `words.py`.

A program takes `M` rows of x and some output channels. The groups are cut into splits of about `_SPLIT` numbers, each
summed up for itself, and then all in their order: by one program or, where there are too few to keep a GPU busy, by
several of which the last adds up. With one `M` for every call, a row's bits do not depend on how many rows there are.
For many rows, `plain` makes the matrix plain, of either kind.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.worker.checkpoints.grouped import E8M0
from tandem.worker.model.cuda.kernels.last import finish_product
from tandem.worker.model.cuda.kernels.swiglu import swiglu
from tandem.worker.model.cuda.kernels.words import WORDS, power_or_scale

_BLOCK = 1024  # numbers of a row that are made plain at once
CHANNEL_STEP = 128  # numbers of a row that are looked at at once where a channel has one scale
_OUTPUTS = 32  # channels of a program
_SPLIT = 1024
BUSY = 300  # programs; an H200 has 132 processors
_ON_THEIR_WAY = 48 << 10  # bytes of the matrix that a processor waits for
_ROOM = 180 << 10  # bytes of its shared memory that its programs may take for them
_DEEPEST = 12  # groups


@triton.jit
def of_group(x, q_at, scale, constant, there, GROUPED: tl.constexpr):
    """Multiplies one group of columns `[M, G]`: `[M, channels]` float32. constant: where each channel's scale is."""
    stored = tl.load(q_at, mask=there[:, None], other=0)
    part = tl.dot(x, tl.trans(stored.to(x.dtype)), input_precision="ieee")
    if GROUPED:
        part *= tl.load(scale + constant, mask=there, other=0.0).to(tl.float32)[None, :]
    return part


@triton.jit(do_not_specialize=["rows", "each"])
def _quantized_product(
    x, q, scale, out, partial, counters, rows, columns, outputs, groups, split, each,
    M: tl.constexpr, N: tl.constexpr, G: tl.constexpr, GROUPED: tl.constexpr, WHOLE: tl.constexpr, GATE: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)
    channel = tl.program_id(1) * N + tl.arange(0, N)
    column = tl.arange(0, G)
    real = row < rows
    there = channel < outputs
    x_row = x + row[:, None] * columns
    q_row = q + channel.to(tl.int64)[:, None] * (groups * G) + column[None, :]
    at_all = row[:, None] * outputs + channel[None, :]
    mask_all = real[:, None] & there[None, :]
    total = tl.zeros([M, N], tl.float32)
    for number in range(tl.program_id(2) * each, (tl.program_id(2) + 1) * each):
        summed_up = tl.zeros([M, N], tl.float32)
        for group in range(number * split, tl.minimum((number + 1) * split, groups)):
            at = group * G + column
            mask = real[:, None]
            if not WHOLE:
                mask = mask & (at < columns)[None, :]
            numbers = tl.load(x_row + at[None, :], mask=mask, other=0.0)
            constant = channel.to(tl.int64) * groups + group
            summed_up += of_group(numbers, q_row + group * G, scale, constant, there, GROUPED)
        if tl.num_programs(2) > 1:
            tl.store(partial + number * rows.to(tl.int64) * outputs + at_all, summed_up, mask=mask_all)
        total += summed_up
    if tl.num_programs(2) == 1:
        if not GROUPED:
            total *= tl.load(scale + channel, mask=there, other=0.0).to(tl.float32)[None, :]
        tl.store(out + at_all, total.to(out.dtype.element_ty), mask=mask_all)
    else:
        finish_product(partial, counters, scale, out, row, rows, outputs, M, N, not GROUPED, GATE)


@triton.jit
def _plain(
    q, scale, least, table, out, columns, groups,
    G: tl.constexpr, INT4: tl.constexpr, GROUPED: tl.constexpr, LEAST: tl.constexpr, CODED: tl.constexpr,
    POWERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < columns
    if INT4:
        word = tl.load(q + row * (groups * (G // 4)) + at // 128 * WORDS + at % WORDS, mask=inside, other=0)
        digits = (word.to(tl.int32) >> (at % 128 // WORDS * 4)) & 15
        if CODED:
            digits = tl.load(table + digits)
        numbers = digits.to(tl.float32)
    else:
        numbers = tl.load(q + row * (groups * G) + at, mask=inside, other=0).to(tl.float32)
    if GROUPED:
        constant = row * groups + at // G
        numbers *= power_or_scale(tl.load(scale + constant, mask=inside, other=0), POWERS)
        if LEAST:
            numbers += tl.load(least + constant, mask=inside, other=0.0).to(tl.float32)
    else:
        numbers *= tl.load(scale + row).to(tl.float32)
    tl.store(out + row * columns + at, numbers.to(out.dtype.element_ty), mask=inside)


def plain(
    q: torch.Tensor,
    scale: torch.Tensor,
    least: torch.Tensor | None,
    table: torch.Tensor | None,
    columns: int,
    group: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Dequantizes the matrix to `[out, columns]` in `dtype`; the other arguments are those of
    `quantized_product` or `words_product`."""
    int4 = q.dtype == torch.int16
    groups = q.shape[1] * (4 if int4 else 1) // group
    out = torch.empty((len(q), columns), dtype=dtype, device=q.device)
    _plain[(len(q), triton.cdiv(columns, _BLOCK))](
        q, scale, scale if least is None else least, q if table is None else table, out, columns, groups, group, int4,
        scale.shape[1] > 1 or int4, least is not None, table is not None, scale.dtype == E8M0, _BLOCK,
    )  # fmt: skip
    return out


def _stages(q: torch.Tensor, x: torch.Tensor, rows_together: int, group: int) -> int:
    """Returns how deep the loads of groups are pipelined: so that the programs of a processor, of which the registers
    hold four with few rows and two with many, keep it busy, as far as there is room."""
    programs = 4 if rows_together <= 16 else 2
    of_matrix = _OUTPUTS * group
    of_both = of_matrix + rows_together * group * x.element_size()
    return 1 + max(3, min(_ON_THEIR_WAY // programs // of_matrix, _ROOM // programs // of_both, _DEEPEST))


def quantized_product(
    x: torch.Tensor,
    q: torch.Tensor,
    scale: torch.Tensor,
    counters: torch.Tensor,
    *,
    group: int,
    rows_together: int,
    gate: bool = False,
) -> torch.Tensor:
    """Multiplies `x` `[N, columns]` with a matrix `[out, columns]`, in x's dtype.

    q: `[out, groups * group]` int8.
    scale: `[out, groups]`, or `[out, 1]` where a channel has one scale; then `group` is `CHANNEL_STEP`.
    counters: `[BUSY]` int32, zero.
    rows_together: of x, that one program multiplies: 16 or more, a power of two.
    gate: the first half of the outputs are gates, the others ups; returns `swiglu` of them `[N, out / 2]`.
    """
    rows, columns = x.shape
    outputs = len(q)
    groups = q.shape[1] // group
    assert x.is_contiguous() and q.is_contiguous() and scale.shape[1] in (1, groups)
    if not rows:
        return x.new_empty((0, outputs // 2 if gate else outputs))
    grouped = scale.shape[1] > 1
    programs = triton.cdiv(rows, rows_together), triton.cdiv(outputs, _OUTPUTS)
    split = max(1, _SPLIT // group)
    splits = triton.cdiv(groups, split)
    several = splits > 1 and programs[0] * programs[1] < BUSY
    partial = torch.empty((splits if several else 0, rows, outputs), dtype=torch.float32, device=x.device)
    fused = gate and several and outputs // 2 % _OUTPUTS == 0
    out = x.new_empty((rows, outputs // 2 if fused else outputs))
    _quantized_product[(*programs, splits if several else 1)](
        x, q, scale, out, partial, counters, rows, columns, outputs, groups, split, 1 if several else splits,
        rows_together,
        _OUTPUTS, group, grouped, columns == groups * group, fused, num_warps=4,
        num_stages=_stages(q, x, rows_together, group),
    )  # fmt: skip
    return swiglu(out, outputs // 2) if gate and not fused else out

"""Products with quantized matrices, whose small integers go to the matrix units as they are:

    int8, one scale a channel    out = scale sum_k x_k q_k
    int8 in groups               out = sum over groups of scale_g sum_k x_k q_k
    int4 in groups               out = sum over groups of scale_g sum_k x_k q_k + least_g sum_k x_k

Integers up to 256 are exact in bf16 and fp16, sums are fp32. In memory a row is filled up with zeros to whole groups;
byte i of an int4 group of G holds number i in its low half and number i + G / 2 in its high one.

A program takes `M` rows of x and some output channels. The groups are cut into splits of about `_SPLIT` numbers, each
summed up for itself, and then all in their order: by one program or, where there are too few to keep a GPU busy, by
several and `product.add_up`. With one `M` for every call, a row's bits do not depend on how many rows there are. For
many rows, `plain` makes the matrix plain.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.worker.checkpoints.grouped import E8M0
from tandem.worker.model.cuda.kernels.product import add_up

_BLOCK = 1024  # numbers of a row that are made plain at once
CHANNEL_STEP = 128  # numbers of a row that are looked at at once where a channel has one scale
_OUTPUTS = 32  # channels of a program
_SPLIT = 1024
_BUSY = 300  # programs; an H200 has 132 processors
_ON_THEIR_WAY = 48 << 10  # bytes of the matrix that a processor waits for
_ROOM = 180 << 10  # bytes of its shared memory that its programs may take for them
_DEEPEST = 12  # groups


@triton.jit
def _scale(scale, at, mask, POWERS: tl.constexpr):
    """Loads scales; with POWERS, those of which the exponent is stored, + 127."""
    stored = tl.load(scale + at, mask=mask, other=0)
    if POWERS:
        return (stored.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    return stored.to(tl.float32)


@triton.jit
def of_group(
    first, second, q_at, scale, least, table, constant, there,
    INT4: tl.constexpr, GROUPED: tl.constexpr, LEAST: tl.constexpr, CODED: tl.constexpr, POWERS: tl.constexpr,
):  # fmt: skip
    """Multiplies one group of columns: `[M, channels]` float32.

    first, second: of x, what the low and the high halves of bytes are multiplied with; without INT4 `first` is all.
    constant: the place of each channel's scale and least number.
    """
    stored = tl.load(q_at, mask=there[:, None], other=0)
    if INT4:
        low, high = stored & 15, stored >> 4
        if CODED:
            low, high = tl.load(table + low), tl.load(table + high)
        part = tl.dot(first, tl.trans(low.to(first.dtype)), input_precision="ieee")
        part = tl.dot(second, tl.trans(high.to(first.dtype)), part, input_precision="ieee")
    else:
        part = tl.dot(first, tl.trans(stored.to(first.dtype)), input_precision="ieee")
    if GROUPED:
        part *= _scale(scale, constant, there, POWERS)[None, :]
        if LEAST:
            lowest = tl.load(least + constant, mask=there, other=0.0).to(tl.float32)
            summed = tl.sum(first.to(tl.float32), 1)
            if INT4:
                summed += tl.sum(second.to(tl.float32), 1)
            part += summed[:, None] * lowest[None, :]
    return part


@triton.jit(do_not_specialize=["rows", "each"])
def _quantized_product(
    x, q, scale, least, table, out, partial, rows, columns, outputs, groups, split, each,
    M: tl.constexpr, N: tl.constexpr, G: tl.constexpr, INT4: tl.constexpr, GROUPED: tl.constexpr,
    LEAST: tl.constexpr, CODED: tl.constexpr, POWERS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)
    channel = tl.program_id(1) * N + tl.arange(0, N)
    real = row < rows
    there = channel < outputs
    x_row = x + row[:, None] * columns
    at_all = row[:, None] * outputs + channel[None, :]
    mask_all = real[:, None] & there[None, :]
    if INT4:
        half = tl.arange(0, G // 2)
        q_row = q + channel.to(tl.int64)[:, None] * (groups * (G // 2)) + half[None, :]
    else:
        half = tl.arange(0, G)
        q_row = q + channel.to(tl.int64)[:, None] * (groups * G) + half[None, :]
    total = tl.zeros([M, N], tl.float32)
    for number in range(tl.program_id(2) * each, (tl.program_id(2) + 1) * each):
        summed_up = tl.zeros([M, N], tl.float32)
        for group in range(number * split, tl.minimum((number + 1) * split, groups)):
            at = group * G + half
            mask = real[:, None]
            if not WHOLE:
                mask = mask & (at < columns)[None, :]
            first = tl.load(x_row + at[None, :], mask=mask, other=0.0)
            second = first
            if INT4:
                other_mask = real[:, None]
                if not WHOLE:
                    other_mask = other_mask & (at + G // 2 < columns)[None, :]
                second = tl.load(x_row + (at + G // 2)[None, :], mask=other_mask, other=0.0)
            summed_up += of_group(
                first, second, q_row + group * (G // 2 if INT4 else G), scale, least, table,
                channel.to(tl.int64) * groups + group, there, INT4, GROUPED, LEAST, CODED, POWERS,
            )  # fmt: skip
        if tl.num_programs(2) > 1:
            tl.store(partial + number * rows.to(tl.int64) * outputs + at_all, summed_up, mask=mask_all)
        total += summed_up
    if tl.num_programs(2) == 1:
        if not GROUPED:
            total *= tl.load(scale + channel, mask=there, other=0.0).to(tl.float32)[None, :]
        tl.store(out + at_all, total.to(out.dtype.element_ty), mask=mask_all)


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
        place = at % G
        packed = tl.load(q + row * (groups * (G // 2)) + at // G * (G // 2) + place % (G // 2), mask=inside, other=0)
        digits = tl.where(place < G // 2, packed & 15, packed >> 4)
        if CODED:
            digits = tl.load(table + digits)
        numbers = digits.to(tl.float32)
    else:
        numbers = tl.load(q + row * (groups * G) + at, mask=inside, other=0).to(tl.float32)
    if GROUPED:
        constant = row * groups + at // G
        numbers *= _scale(scale, constant, inside, POWERS)
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
    """Dequantizes the matrix to `[out, columns]` in `dtype`; the other arguments are those of `quantized_product`."""
    int4 = q.dtype == torch.uint8
    groups = q.shape[1] * (2 if int4 else 1) // group
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
    of_matrix = _OUTPUTS * group // (2 if q.dtype == torch.uint8 else 1)
    of_both = of_matrix + rows_together * group * x.element_size()
    return 1 + max(3, min(_ON_THEIR_WAY // programs // of_matrix, _ROOM // programs // of_both, _DEEPEST))


def quantized_product(
    x: torch.Tensor,
    q: torch.Tensor,
    scale: torch.Tensor,
    least: torch.Tensor | None,
    table: torch.Tensor | None = None,
    *,
    group: int,
    rows_together: int,
) -> torch.Tensor:
    """Multiplies `x` `[N, columns]` with a matrix `[out, columns]`, in x's dtype.

    q: `[out, groups * group]` int8, or `[out, groups * group / 2]` uint8 of two numbers each.
    scale, least: `[out, groups]`, or `[out, 1]` where a channel has one scale; then `group` is `CHANNEL_STEP`.
    table: `[16]`, what numbers of 4 bits stand for.
    rows_together: of x, that one program multiplies: 16 or more, a power of two.
    """
    rows, columns = x.shape
    outputs = len(q)
    int4 = q.dtype == torch.uint8
    groups = q.shape[1] * (2 if int4 else 1) // group
    assert x.is_contiguous() and q.is_contiguous() and scale.shape[1] in (1, groups)
    out = x.new_empty((rows, outputs))
    if not rows:
        return out
    grouped = scale.shape[1] > 1 or int4
    programs = triton.cdiv(rows, rows_together), triton.cdiv(outputs, _OUTPUTS)
    split = max(1, _SPLIT // group)
    splits = triton.cdiv(groups, split)
    several = splits > 1 and programs[0] * programs[1] < _BUSY
    partial = torch.empty((splits if several else 0, rows, outputs), dtype=torch.float32, device=x.device)
    _quantized_product[(*programs, splits if several else 1)](
        x, q, scale, scale if least is None else least, q if table is None else table, out, partial, rows, columns,
        outputs, groups, split, 1 if several else splits, rows_together, _OUTPUTS, group, int4, grouped,
        least is not None, table is not None, scale.dtype == E8M0, columns == groups * group, num_warps=4,
        num_stages=_stages(q, x, rows_together, group),
    )  # fmt: skip
    if several:
        add_up(partial, None if grouped else scale, out)
    return out

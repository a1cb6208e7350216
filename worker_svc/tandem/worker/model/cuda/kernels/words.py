"""Numbers of 4 bits on their way to a matrix unit, without a conversion from integers.

Of 128 columns of a row there are 32 words of 16 bits: word c holds those of the columns c, 32 + c, 64 + c and 96 + c,
the first in its lowest bits. So each quarter of the columns is one shift of all words, in the order in which the matrix
unit takes them, and a shift and one logical operation make two numbers:

    0x4300 | q    is 128 + q in bf16      0x6400 | q    is 1024 + q in fp16

What is too much is taken off again with the least number of a group: `scale sum x (o + q) + (least - o scale) sum x`,
and sums of x come out of the matrix unit too, of ones. A number of MXFP4 (e2m1) has its sign and its other bits moved
to their places in a float, which is then multiplied by a power of two. Other codes are looked up.

Triton has no numbers of which one register holds two, so these operations are PTX; where that cannot run (float32, the
interpreter), the same numbers are made one by one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.worker.checkpoints.grouped import E8M0
from tandem.worker.model.cuda.kernels.last import finish_product
from tandem.worker.model.cuda.kernels.swiglu import swiglu

COLUMNS = 128  # of a block of words
WORDS = tl.constexpr(32)  # of a row of it
_SPLIT = 8  # blocks
BUSY = 300  # programs; an H200 has 132 processors
DIGITS, E2M1, TABLE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # what words hold
_PACKED = tl.constexpr(not triton.knobs.runtime.interpret)


def kind_of_words(code: str) -> tuple[int, int]:
    """Tells what the words of a code hold, and how much less than its digit a number is."""
    if code in ("", "int4"):
        return DIGITS.value, 8 if code else 0
    return (E2M1.value if code == "e2m1" else TABLE.value), 0


@triton.constexpr_function
def _offset(dtype):
    """What digits are too large by."""
    return 128.0 if dtype == tl.bfloat16 else 1024.0 if dtype == tl.float16 else 0.0


@triton.constexpr_function
def _digits_in_pairs(quarter, dtype):
    """PTX of two digits, each with its offset, from two words."""
    base = "0x43004300" if dtype == tl.bfloat16 else "0x64006400"
    shifted = f"shr.b32 t, $1, {4 * quarter};" if quarter else "mov.b32 t, $1;"
    return f"{{ .reg .b32 t; {shifted} lop3.b32 $0, t, 0x000F000F, {base}, 0xEA; }}"  # (t & mask) | base


@triton.constexpr_function
def _e2m1_in_pairs(quarter, dtype):
    """PTX of two numbers of e2m1, doubled, from two words."""
    bf16 = dtype == tl.bfloat16
    left = (6 if bf16 else 9) - 4 * quarter  # to the last bits of the exponent and the first of the mantissa
    moved = f"shl.b32 m, $1, {left};" if left >= 0 else f"shr.b32 m, $1, {-left};"
    mask, power = ("0x01C001C0", "0x7F007F00") if bf16 else ("0x0E000E00", "0x78007800")  # 2^127, 2^15
    kind = "bf16x2" if bf16 else "f16x2"
    return (
        f"{{ .reg .b32 m, s, p, z; {moved} and.b32 m, m, {mask}; shl.b32 s, $1, {12 - 4 * quarter};"
        f" lop3.b32 s, s, 0x80008000, m, 0xEA; mov.b32 p, {power}; mov.b32 z, 0x80008000;"
        f" fma.rn.{kind} $0, s, p, z; }}"
    )


@triton.jit
def numbers(words, table, like, QUARTER: tl.constexpr, HOLD: tl.constexpr):
    """Makes a quarter of the columns of words `[outputs, WORDS]`: numbers in the dtype of `like`, of digits with
    their offset."""
    if _PACKED and like.dtype != tl.float32 and HOLD == DIGITS:
        return tl.inline_asm_elementwise(
            _digits_in_pairs(QUARTER, like.dtype), "=r,r", [words], dtype=like.dtype, is_pure=True, pack=2
        )
    elif _PACKED and like.dtype != tl.float32 and HOLD == E2M1:
        return tl.inline_asm_elementwise(
            _e2m1_in_pairs(QUARTER, like.dtype), "=r,r", [words], dtype=like.dtype, is_pure=True, pack=2
        )
    else:
        digit = (words.to(tl.int32) >> (4 * QUARTER)) & 15
        if HOLD == TABLE:
            return tl.load(table + digit).to(like.dtype)
        elif HOLD == E2M1:
            size = digit & 7
            size = tl.where(size < 2, size, (2 | (size & 1)) << (tl.maximum(size >> 1, 1) - 1))
            return tl.where(digit >= 8, -size, size).to(like.dtype)
        else:
            return (digit.to(tl.float32) + _offset(like.dtype)).to(like.dtype)


@triton.jit
def power_or_scale(stored, POWERS: tl.constexpr):
    """Makes scales of stored ones; with POWERS, of which the exponent is stored, + 127."""
    if POWERS:
        return (stored.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    return stored.to(tl.float32)


@triton.jit
def add_block(
    total, xs, words, scale, least, table, constant,
    G: tl.constexpr, HOLD: tl.constexpr, SHIFT: tl.constexpr, LEAST: tl.constexpr, POWERS: tl.constexpr,
    TURNED: tl.constexpr,
):  # fmt: skip
    """Adds the products of 128 columns to `total` `[M, outputs]` float32, or, TURNED, `[outputs, M]`: the matrix unit
    then takes words from registers, and x from shared memory.

    xs: quarters of x, each `[M, WORDS]`. constant: where each output's first scale and least number are, of G columns.
    """
    dtype: tl.constexpr = xs[0].dtype
    offset: tl.constexpr = (_offset(dtype) + SHIFT) if HOLD == DIGITS else 0.0
    QUARTERS: tl.constexpr = G // 32
    for group in tl.static_range(4 // QUARTERS):
        part = tl.zeros_like(total)
        summed = tl.zeros_like(total)
        for i in tl.static_range(QUARTERS):
            x = xs[group * QUARTERS + i]
            w = numbers(words, table, x, group * QUARTERS + i, HOLD)
            if TURNED:
                part = tl.dot(w, tl.trans(x), part, input_precision="ieee")
            else:
                part = tl.dot(x, tl.trans(w), part, input_precision="ieee")
            if LEAST or offset != 0.0:
                ones = tl.full(words.shape, 1.0, x.dtype)
                if TURNED:
                    summed = tl.dot(ones, tl.trans(x), summed, input_precision="ieee")
                else:
                    summed = tl.dot(x, tl.trans(ones), summed, input_precision="ieee")
        s = power_or_scale(tl.load(scale + constant + group), POWERS)
        total += part * tl.expand_dims(s, 1 if TURNED else 0)
        if LEAST or offset != 0.0:
            zero = -offset * s
            if LEAST:
                zero += tl.load(least + constant + group).to(tl.float32)
            total += summed * tl.expand_dims(zero, 1 if TURNED else 0)
    return total


@triton.jit
def quarters(x_at, start, real, columns, WHOLE: tl.constexpr):
    """Loads 128 columns of x, from `start` on, in quarters; `x_at` `[M, WORDS]` are those of the first quarter."""
    word = start + tl.arange(0, WORDS)
    if WHOLE:
        mask = real[:, None]
        return (
            tl.load(x_at + start, mask=mask, other=0.0), tl.load(x_at + start + 32, mask=mask, other=0.0),
            tl.load(x_at + start + 64, mask=mask, other=0.0), tl.load(x_at + start + 96, mask=mask, other=0.0),
        )  # fmt: skip
    else:
        return (
            tl.load(x_at + start, mask=real[:, None] & (word < columns)[None, :], other=0.0),
            tl.load(x_at + start + 32, mask=real[:, None] & (word + 32 < columns)[None, :], other=0.0),
            tl.load(x_at + start + 64, mask=real[:, None] & (word + 64 < columns)[None, :], other=0.0),
            tl.load(x_at + start + 96, mask=real[:, None] & (word + 96 < columns)[None, :], other=0.0),
        )


@triton.jit(do_not_specialize=["rows", "each"])
def _words_product(
    x, q, scale, least, table, out, partial, counters, rows, columns, outputs, blocks, split, each,
    M: tl.constexpr, N: tl.constexpr, G: tl.constexpr, HOLD: tl.constexpr, SHIFT: tl.constexpr, LEAST: tl.constexpr,
    POWERS: tl.constexpr, WHOLE: tl.constexpr, TURNED: tl.constexpr, GATE: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)
    channel = tl.program_id(1) * N + tl.arange(0, N)
    real = row < rows
    there = channel < outputs
    stored = tl.minimum(channel, outputs - 1).to(tl.int64)  # instead of a mask for each load
    x_at = x + row[:, None] * columns + tl.arange(0, WORDS)[None, :]
    q_at = q + stored[:, None] * (blocks * WORDS) + tl.arange(0, WORDS)[None, :]
    constant = stored * (blocks * (128 // G))
    if TURNED:
        at_all = row[None, :] * outputs + channel[:, None]
        mask_all = real[None, :] & there[:, None]
        total = tl.zeros([N, M], tl.float32)
    else:
        at_all = row[:, None] * outputs + channel[None, :]
        mask_all = real[:, None] & there[None, :]
        total = tl.zeros([M, N], tl.float32)
    for number in range(tl.program_id(2) * each, (tl.program_id(2) + 1) * each):
        summed_up = tl.zeros_like(total)
        for block in range(number * split, tl.minimum((number + 1) * split, blocks)):
            words = tl.load(q_at + block * WORDS)
            xs = quarters(x_at, block * 128, real, columns, WHOLE)
            summed_up = add_block(
                summed_up, xs, words, scale, least, table, constant + block * (128 // G),
                G, HOLD, SHIFT, LEAST, POWERS, TURNED,
            )  # fmt: skip
        if tl.num_programs(2) > 1:
            tl.store(partial + number * rows.to(tl.int64) * outputs + at_all, summed_up, mask=mask_all)
        total += summed_up
    if tl.num_programs(2) == 1:
        tl.store(out + at_all, total.to(out.dtype.element_ty), mask=mask_all)
    else:
        finish_product(partial, counters, scale, out, row, rows, outputs, M, N, False, GATE)


def words_product(
    x: torch.Tensor,
    q: torch.Tensor,
    scale: torch.Tensor,
    least: torch.Tensor | None,
    table: torch.Tensor | None,
    counters: torch.Tensor,
    *,
    group: int,
    code: str,
    rows_together: int,
    gate: bool = False,
) -> torch.Tensor:
    """Multiplies `x` `[N, columns]` with a matrix `[out, columns]`, in x's dtype.

    q: `[out, blocks * WORDS]` int16.
    scale, least: `[out, blocks * 128 / group]`.
    table: `[16]`, what numbers of a `code` stand for.
    counters: `[BUSY]` int32, zero.
    rows_together: of x, that one program multiplies: 16 or more, a power of two.
    gate: the first half of the outputs are gates, the others ups; returns `swiglu` of them `[N, out / 2]`.
    """
    rows, columns = x.shape
    outputs, blocks = len(q), q.shape[1] // WORDS.value
    assert x.is_contiguous() and q.is_contiguous() and scale.shape[1] == blocks * (COLUMNS // group)
    if not rows:
        return x.new_empty((0, outputs // 2 if gate else outputs))
    tile = outputs_of(rows_together, x.dtype)
    programs = triton.cdiv(rows, rows_together), triton.cdiv(outputs, tile)
    splits = triton.cdiv(blocks, _SPLIT)
    several = splits > 1 and programs[0] * programs[1] < BUSY
    partial = torch.empty((splits if several else 0, rows, outputs), dtype=torch.float32, device=x.device)
    fused = gate and several and outputs // 2 % tile == 0
    out = x.new_empty((rows, outputs // 2 if fused else outputs))
    hold, shift = kind_of_words(code)
    _words_product[(*programs, splits if several else 1)](
        x, q, scale, scale if least is None else least, q if table is None else table, out, partial, counters, rows,
        columns, outputs, blocks, _SPLIT, 1 if several else splits, rows_together, tile, group, hold, shift,
        least is not None, scale.dtype == E8M0, columns % COLUMNS == 0, rows_together >= 64, fused, num_warps=4,
        num_stages=stages(rows_together),
    )  # fmt: skip
    return swiglu(out, outputs // 2) if gate and not fused else out


def stages(rows: int) -> int:
    """Returns how deep the loads of blocks are pipelined for so many rows of x, which take shared memory too."""
    return 5 if rows <= 16 else 4


def outputs_of(rows: int, dtype: torch.dtype) -> int:
    """Returns how many outputs a program computes of so many rows: what is done once for a block counts less with many,
    and more than this would not fit into registers."""
    return 128 if rows <= 16 and dtype != torch.float32 else 64

"""Products of pairs (row, expert) with the matrices of their experts, in one launch for all experts.

A program takes a block of pairs of one expert (`experts.arrange`) and some of its outputs, for all columns; of gate and
up it computes both and ends with the gate, of up alone with its activation. The matrices of all experts lie behind each
other, and so do their scales and biases. What is computed of a pair lies at the pair's number, so nothing depends on
how pairs were arranged; with one tile for every call, a pair's bits do not depend on how many others there are.

Three kernels: matrices of floats, in x's dtype or e4m3 with a scale a channel or 128 columns; int8; and 4 bits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tandem.worker.checkpoints.grouped import E8M0
from tandem.worker.checkpoints.model_parts.mlp import Activation, ClampedSwiGLU, LimitedSwiGLU
from tandem.worker.model.cuda.kernels.experts import Arrangement
from tandem.worker.model.cuda.kernels.product import Tile
from tandem.worker.model.cuda.kernels.quantized import of_group
from tandem.worker.model.cuda.kernels.swiglu import CLAMPED, GELU, LIMITED, SWIGLU, gated
from tandem.worker.model.cuda.kernels.words import COLUMNS, WORDS, add_block, kind_of_words, quarters, stages

NO_SCALE, CHANNELS, GROUPS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


class Floats(NamedTuple):
    """The matrices `[experts, out, in]` of floats."""

    numbers: torch.Tensor
    scale: torch.Tensor | None  # float32 [experts, out, 1 or groups of 128 columns], of e4m3


class Integers(NamedTuple):
    """The matrices of small integers, as `quantized_product` or `words_product` takes one, each with one more dimension
    in front."""

    q: torch.Tensor
    scale: torch.Tensor
    least: torch.Tensor | None
    table: torch.Tensor | None
    group: int
    code: str


Matrices = Floats | Integers


@triton.jit
def _places(order, blocks, expert, outputs, M: tl.constexpr, N: tl.constexpr, GATE: tl.constexpr):
    """Returns the pairs `[M]` of this program's block, and which of them there are; its outputs `[N]`, and their rows
    in the matrices of all experts."""
    block = blocks + tl.program_id(0) * 3
    place = tl.load(block + 1) + tl.arange(0, M)
    real = place < tl.load(block + 2)
    pair = tl.load(order + place, mask=real, other=0)
    output = tl.program_id(1) * N + tl.arange(0, N)
    channel = expert.to(tl.int64) * (outputs * (2 if GATE else 1)) + output
    return pair, real, output, channel


@triton.jit
def _finish(
    out,
    bias,
    total,
    other,
    pair,
    real,
    expert,
    output,
    outputs,
    alpha,
    limit,
    GATE: tl.constexpr,
    BIASED: tl.constexpr,
    SQUARED: tl.constexpr,
):
    """Stores what a program has summed up, of outputs that there are."""
    inside = output < outputs
    if BIASED:
        first = expert.to(tl.int64) * (outputs * (2 if GATE else 1)) + output
        total += tl.load(bias + first, mask=inside, other=0.0).to(tl.float32)[None, :]
        if GATE:
            other += tl.load(bias + first + outputs, mask=inside, other=0.0).to(tl.float32)[None, :]
    if GATE:
        total = gated(total, other, alpha, limit, GATE)
    if SQUARED:  # a comparison lets a NaN stay what it is
        total = tl.where(total < 0.0, 0.0, total)
        total = total * total
    at = pair.to(tl.int64)[:, None] * outputs + output[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=real[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["per_row"])
def _expert_product(
    x, w, scale, bias, out, order, blocks, columns, outputs, per_row, alpha, limit,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, WHOLE: tl.constexpr, GATE: tl.constexpr,
    SCALED: tl.constexpr, BIASED: tl.constexpr, SQUARED: tl.constexpr,
):  # fmt: skip
    expert = tl.load(blocks + tl.program_id(0) * 3)
    if expert < 0:
        return
    pair, real, output, channel = _places(order, blocks, expert, outputs, M, N, GATE)
    column = tl.arange(0, K)
    there = (output < outputs)[:, None]
    x_at = (pair // per_row).to(tl.int64)[:, None] * columns + column[None, :]
    w_at = channel[:, None] * columns + column[None, :]
    up_at = w_at + outputs.to(tl.int64) * columns
    scales: tl.constexpr = 128 // K if SCALED == GROUPS else 1
    groups = tl.cdiv(columns, 128)
    total = tl.zeros([M, N], tl.float32)
    other = tl.zeros([M, N], tl.float32)
    for start in range(0, columns, K):
        x_mask = real[:, None]
        w_mask = there
        if not WHOLE:
            x_mask = x_mask & (start + column < columns)[None, :]
            w_mask = w_mask & (start + column < columns)[None, :]
        a = tl.load(x + x_at + start, mask=x_mask, other=0.0)
        b = tl.load(w + w_at + start, mask=w_mask, other=0.0).to(x.dtype.element_ty)
        if SCALED == GROUPS:
            group = start // K // scales
            step = tl.load(scale + channel * groups + group, mask=output < outputs, other=0.0)
            total += tl.dot(a, tl.trans(b), input_precision="ieee") * step[None, :]
        else:
            total = tl.dot(a, tl.trans(b), total, input_precision="ieee")
        if GATE:
            b = tl.load(w + up_at + start, mask=w_mask, other=0.0).to(x.dtype.element_ty)
            if SCALED == GROUPS:
                step = tl.load(scale + (channel + outputs) * groups + group, mask=output < outputs, other=0.0)
                other += tl.dot(a, tl.trans(b), input_precision="ieee") * step[None, :]
            else:
                other = tl.dot(a, tl.trans(b), other, input_precision="ieee")
    if SCALED == CHANNELS:
        total *= tl.load(scale + channel, mask=output < outputs, other=0.0)[None, :]
        if GATE:
            other *= tl.load(scale + channel + outputs, mask=output < outputs, other=0.0)[None, :]
    _finish(out, bias, total, other, pair, real, expert, output, outputs, alpha, limit, GATE, BIASED, SQUARED)


@triton.jit(do_not_specialize=["per_row"])
def _int8_expert_product(
    x, q, scale, bias, out, order, blocks, columns, outputs, groups, per_row, alpha, limit,
    M: tl.constexpr, N: tl.constexpr, G: tl.constexpr, GROUPED: tl.constexpr, WHOLE: tl.constexpr, GATE: tl.constexpr,
    BIASED: tl.constexpr, SQUARED: tl.constexpr,
):  # fmt: skip
    expert = tl.load(blocks + tl.program_id(0) * 3)
    if expert < 0:
        return
    pair, real, output, channel = _places(order, blocks, expert, outputs, M, N, GATE)
    column = tl.arange(0, G)
    there = output < outputs
    x_at = (pair // per_row).to(tl.int64)[:, None] * columns + column[None, :]
    q_at = channel[:, None] * (groups * G) + column[None, :]
    total = tl.zeros([M, N], tl.float32)
    other = tl.zeros([M, N], tl.float32)
    for group in range(groups):
        start = group * G
        mask = real[:, None]
        if not WHOLE:
            mask = mask & (start + column < columns)[None, :]
        numbers = tl.load(x + x_at + start, mask=mask, other=0.0)
        total += of_group(numbers, q + q_at + start, scale, channel * groups + group, there, GROUPED)
        if GATE:
            up_at = q + q_at + outputs.to(tl.int64) * (groups * G) + start
            other += of_group(numbers, up_at, scale, (channel + outputs) * groups + group, there, GROUPED)
    if not GROUPED:
        total *= tl.load(scale + channel, mask=there, other=0.0).to(tl.float32)[None, :]
        if GATE:
            other *= tl.load(scale + channel + outputs, mask=there, other=0.0).to(tl.float32)[None, :]
    _finish(out, bias, total, other, pair, real, expert, output, outputs, alpha, limit, GATE, BIASED, SQUARED)


@triton.jit(do_not_specialize=["per_row"])
def _words_expert_product(
    x, q, scale, least, table, bias, out, order, blocks, columns, outputs, words, per_row, alpha, limit,
    M: tl.constexpr, N: tl.constexpr, G: tl.constexpr, HOLD: tl.constexpr, SHIFT: tl.constexpr, LEAST: tl.constexpr,
    POWERS: tl.constexpr, WHOLE: tl.constexpr, TURNED: tl.constexpr, GATE: tl.constexpr, BIASED: tl.constexpr,
    SQUARED: tl.constexpr,
):  # fmt: skip
    expert = tl.load(blocks + tl.program_id(0) * 3)
    if expert < 0:
        return
    pair, real, output, channel = _places(order, blocks, expert, outputs, M, N, GATE)
    channel -= tl.maximum(output - (outputs - 1), 0)  # outputs that there are not read what another one has
    x_at = x + (pair // per_row).to(tl.int64)[:, None] * columns + tl.arange(0, WORDS)[None, :]
    q_at = q + channel[:, None] * (words * WORDS) + tl.arange(0, WORDS)[None, :]
    up_at = q_at + outputs.to(tl.int64) * (words * WORDS)
    EACH: tl.constexpr = 128 // G
    constant = channel * (words * EACH)
    total = tl.zeros([N, M] if TURNED else [M, N], tl.float32)
    other = tl.zeros_like(total)
    for block in range(words):
        xs = quarters(x_at, block * 128, real, columns, WHOLE)
        stored = tl.load(q_at + block * WORDS)
        total = add_block(
            total, xs, stored, scale, least, table, constant + block * EACH,
            G, HOLD, SHIFT, LEAST, POWERS, TURNED,
        )  # fmt: skip
        if GATE:
            stored = tl.load(up_at + block * WORDS)
            other = add_block(
                other, xs, stored, scale, least, table, constant + outputs.to(tl.int64) * (words * EACH) + block * EACH,
                G, HOLD, SHIFT, LEAST, POWERS, TURNED,
            )  # fmt: skip
    if TURNED:
        total = tl.trans(total)
        other = tl.trans(other)
    _finish(out, bias, total, other, pair, real, expert, output, outputs, alpha, limit, GATE, BIASED, SQUARED)


def expert_product(
    x: torch.Tensor,
    matrices: Matrices,
    bias: torch.Tensor | None,
    arrangement: Arrangement,
    pairs: int,
    tile: Tile,
    gate: ClampedSwiGLU | LimitedSwiGLU | None = None,
    activation: Activation | None = None,
    *,
    has_gate: bool = False,
) -> torch.Tensor:
    """Multiplies row `i // (pairs // len(x))` of `x` with the matrix of pair i's expert, adds its `bias`
    `[experts, out]`, and, with a gate, computes that: `[pairs, out]`, or half of it, in x's dtype. Without a gate the
    one activation that there is squares what is above 0.

    tile: of which the rows are those of `arrangement`; integers take a group of columns instead of the tile's.
    """
    stored = matrices.numbers if isinstance(matrices, Floats) else matrices.q
    columns = x.shape[1]
    outputs = stored.shape[1] // (2 if has_gate else 1)
    assert x.is_contiguous() and stored.is_contiguous() and pairs % max(len(x), 1) == 0
    out = x.new_empty((pairs, outputs))
    if not pairs:
        return out
    grid = len(arrangement.blocks), triton.cdiv(outputs, tile.outputs)
    plain = GELU.value if activation == "gelu_tanh" else SWIGLU.value
    limited = CLAMPED.value if isinstance(gate, ClampedSwiGLU) else LIMITED.value
    gating = limited if gate is not None else plain if has_gate else 0
    alpha, limit = gate.alpha if isinstance(gate, ClampedSwiGLU) else 1.0, 0.0 if gate is None else gate.limit
    squared = activation == "relu2" and not has_gate
    there, per_row = out if bias is None else bias, pairs // len(x)
    if isinstance(matrices, Floats):
        scale = matrices.scale
        scaled = NO_SCALE.value if scale is None else CHANNELS.value if scale.shape[2] == 1 else GROUPS.value
        depth = min(tile.columns, 128) if scaled == GROUPS.value else tile.columns
        _expert_product[grid](
            x, stored, out if scale is None else scale, there, out, *arrangement, columns, outputs, per_row,
            alpha, limit, tile.rows, tile.outputs, depth, columns % depth == 0, gating, scaled, bias is not None,
            squared, num_warps=4, num_stages=4 if tile.rows >= 64 else 5,
        )  # fmt: skip
        return out
    q, scale, least, table, group, code = matrices
    if q.dtype == torch.int8:
        groups = q.shape[2] // group
        _int8_expert_product[grid](
            x, q, scale, there, out, *arrangement, columns, outputs, groups, per_row, alpha, limit, tile.rows,
            tile.outputs, group, scale.shape[2] > 1, columns == groups * group, gating, bias is not None, squared,
            num_warps=4, num_stages=4,
        )  # fmt: skip
        return out
    hold, shift = kind_of_words(code)
    _words_expert_product[grid](
        x, q, scale, scale if least is None else least, q if table is None else table, there, out, *arrangement,
        columns, outputs, q.shape[2] // WORDS.value, per_row, alpha, limit, tile.rows, tile.outputs, group, hold, shift,
        least is not None, scale.dtype == E8M0, columns % COLUMNS == 0, tile.rows >= 64, gating, bias is not None,
        squared,
        num_warps=4, num_stages=stages(tile.rows),
    )  # fmt: skip
    return out

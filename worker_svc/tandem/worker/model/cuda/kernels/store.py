"""Rotates queries and keys, and stores keys and values in their pages, in one pass over the projection's output.

    q, k <- x cos + roll(x, half) signed_sin         on the first `rotated` coordinates; rounded to the dtype
    k    <- (k - mean) / scale,  q <- q scale        where keys are stored normalized (KVCache)
    k, v  = what kv_formats.py stores of a vector, at (page, head, place)

A program takes one head of some rows. Quantization is the arithmetic of kv_formats.py to the bit: the division is
IEEE's, and adding and subtracting 1.5 * 2^23 rounds a small float32 half to even.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.worker.model.cuda.kernels.dependent import is_dependent, options, wait_for_inputs
from tandem.worker.model.cuda.kernels.tiles import INT4, INT8, Stored, numbers_and_constants
from tandem.worker.model.kv_formats import Parts

_TINY = tl.constexpr(torch.finfo(torch.float32).tiny)
_ROUND = tl.constexpr(12582912.0)
_MOST_ROWS = 16  # that a program takes


@triton.jit
def _rotated(x, cos, sin, row, real, row_stride, at, inside, ROTATED: tl.constexpr):
    """Rotates coordinates `at` of one head of each row, `[rows, at]`, rounded to x's dtype, as float32."""
    mask = real[:, None] & inside[None, :]
    vector = x + row[:, None] * row_stride
    numbers = tl.load(vector + at[None, :], mask=mask, other=0.0)
    if ROTATED:
        turning = mask & (at < ROTATED)[None, :]
        partner = tl.load(vector + ((at + ROTATED // 2) % ROTATED)[None, :], mask=turning, other=0.0)
        angle = row[:, None] * ROTATED + at[None, :]
        c = tl.load(cos + angle, mask=turning, other=1.0)
        s = tl.load(sin + angle, mask=turning, other=0.0)
        numbers = (numbers.to(tl.float32) * c + partner.to(tl.float32) * s).to(x.dtype.element_ty)
    return numbers.to(tl.float32)


@triton.jit
def _to_store(
    x, cos, sin, mean, scale, row, real, row_stride, at, inside, is_key, ROTATED: tl.constexpr, CHANNELS: tl.constexpr
):
    """Returns coordinates `at` of keys or values as they are to be stored, `[rows, at]` float32."""
    if is_key:
        numbers = _rotated(x, cos, sin, row, real, row_stride, at, inside, ROTATED)
        if CHANNELS:
            centred = numbers - tl.load(mean + at, mask=inside, other=0.0)[None, :]
            numbers = tl.div_rn(centred, tl.load(scale + at, mask=inside, other=1.0)[None, :] + tl.zeros_like(centred))
    else:
        numbers = _rotated(x, cos, sin, row, real, row_stride, at, inside, 0)
    return numbers


@triton.jit
def _rounded_quotient(x, step):
    """Computes `round(x / step)` of float32, halves to even; `step` has one number for each row of `x`."""
    return tl.div_rn(x, step + tl.zeros_like(x)) + _ROUND - _ROUND


@triton.jit(do_not_specialize=["rows"])
def _store(
    qkv, q_out, cos, sin, slots, mean, scale, k_numbers, k_constants, v_numbers, v_constants, rows, row_stride,
    ROWS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr,
    PAGE: tl.constexpr, ROTATED: tl.constexpr, CHANNELS: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(DEPENDENT)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = row < rows
    head = tl.program_id(1)
    x = qkv + head * D
    at = tl.arange(0, D_PAD)
    inside = at < D
    mask = real[:, None] & inside[None, :]
    if head < HEADS:
        numbers = _rotated(x, cos, sin, row, real, row_stride, at, inside, ROTATED)
        if CHANNELS:
            kv_head = head // (HEADS // KV_HEADS)
            numbers *= tl.load(scale + kv_head * D + at, mask=inside, other=0.0)[None, :]
        q_at = (row[:, None] * HEADS + head) * D + at[None, :]
        tl.store(q_out + q_at, numbers.to(q_out.dtype.element_ty), mask=mask)
    else:
        is_key = head < HEADS + KV_HEADS
        kv_head = (head - HEADS) % KV_HEADS
        mean_at = mean + kv_head * D
        scale_at = scale + kv_head * D
        page = tl.load(slots + row, mask=real, other=0).to(tl.int64)
        place = tl.load(slots + rows + row, mask=real, other=0)
        vector = (page * KV_HEADS + kv_head) * PAGE + place  # its number in the pages
        numbers_at = k_numbers if is_key else v_numbers
        constants_at = k_constants if is_key else v_constants
        if FORMAT == INT4:
            # Neighbours share a byte: even and odd coordinates apart, and each vector's groups as rows.
            half = tl.arange(0, D_PAD // 2)
            in_half = half < D // 2
            even = _to_store(
                x, cos, sin, mean_at, scale_at, row, real, row_stride, 2 * half, in_half, is_key, ROTATED, CHANNELS
            )
            odd = _to_store(
                x, cos, sin, mean_at, scale_at, row, real, row_stride, 2 * half + 1, in_half, is_key, ROTATED, CHANNELS
            )
            even = tl.reshape(even, [ROWS, D_PAD // GROUP_PAD, GROUP_PAD // 2])
            odd = tl.reshape(odd, [ROWS, D_PAD // GROUP_PAD, GROUP_PAD // 2])
            group = tl.arange(0, D_PAD // GROUP_PAD)
            inner = tl.arange(0, GROUP_PAD // 2)
            byte = group[:, None] * (GROUP // 2) + inner[None, :]
            counted = (group < D // GROUP)[:, None] & (inner < GROUP // 2)[None, :]
            lowest = tl.min(tl.where(counted[None], tl.minimum(even, odd), float("inf")), 2)
            highest = tl.max(tl.where(counted[None], tl.maximum(even, odd), float("-inf")), 2)
            real_group = real[:, None] & (group < D // GROUP)[None, :]
            lowest = tl.where(real_group, lowest, 0.0)
            span = tl.where(real_group, highest, 0.0) - lowest
            step = tl.maximum(tl.div_rn(span, tl.full(span.shape, 15.0, tl.float32)), _TINY)
            # What fills up a group is no number of the vector, and may become anything here.
            low_digit = _rounded_quotient(even - lowest[:, :, None], step[:, :, None]).to(tl.int32)
            high_digit = _rounded_quotient(odd - lowest[:, :, None], step[:, :, None]).to(tl.int32)
            packed = (low_digit | (high_digit << 4)).to(tl.uint8)
            packed_at = vector[:, None, None] * (D // 2) + byte[None]
            tl.store(numbers_at + packed_at, packed, mask=real[:, None, None] & counted[None])
            group_at = vector[:, None] * (2 * (D // GROUP)) + group[None, :]
            tl.store(constants_at + group_at, step, mask=real_group)
            tl.store(constants_at + group_at + D // GROUP, lowest, mask=real_group)
        else:
            numbers = _to_store(
                x, cos, sin, mean_at, scale_at, row, real, row_stride, at, inside, is_key, ROTATED, CHANNELS
            )
            if FORMAT == INT8:
                largest = tl.max(tl.abs(numbers), 1)
                step = tl.maximum(tl.div_rn(largest, tl.full(largest.shape, 127.0, tl.float32)), _TINY)
                tl.store(constants_at + vector, step, mask=real)
                numbers = _rounded_quotient(numbers, step[:, None])
            at_all = vector[:, None] * D + at[None, :]
            tl.store(numbers_at + at_all, numbers.to(k_numbers.dtype.element_ty), mask=mask)


def rotate_and_store(
    qkv: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor] | None,
    keys: Parts,
    values: Parts,
    stored: Stored,
    slots: torch.Tensor | None,
    channels: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Fills one layer's `keys` and `values` at `slots` `[2, N]`; gives the queries `[N, heads, head_dim]`.

    qkv: `[N, heads + 2 kv_heads, head_dim]`, each row contiguous; it stays as it is.
    rotation: cosines and signed sines `[N, 1, rotated]` float32, or None for no rotation.
    slots: None: there are queries alone, `[N, heads, head_dim]`, and nothing is stored.
    channels: mean and scale of each key channel, `[kv_heads, head_dim]` float32, where keys are stored normalized.
    """
    rows, all_heads, head_dim = qkv.shape
    kv_heads, page_size = keys[0].shape[1:3]
    heads = all_heads - (0 if slots is None else 2 * kv_heads)
    assert qkv.stride()[1:] == (head_dim, 1) and (slots is None or slots.is_contiguous())
    q = qkv.new_empty((rows, heads, head_dim))
    cos, sin = rotation or (qkv, qkv)
    assert not rotation or (cos.is_contiguous() and sin.is_contiguous())
    mean, scale = channels or (qkv, qkv)
    if rows:
        block = min(_MOST_ROWS, triton.next_power_of_2(rows))
        dependent = is_dependent(q.device)
        _store[(triton.cdiv(rows, block), all_heads)](
            qkv, q, cos, sin, qkv if slots is None else slots, mean, scale,
            *numbers_and_constants(keys), *numbers_and_constants(values),
            rows, qkv.stride(0), block, heads, kv_heads, head_dim, stored.padded, page_size,
            cos.shape[-1] if rotation else 0, channels is not None,
            stored.format, stored.group, triton.next_power_of_2(stored.group), dependent,
            num_warps=4 if block >= 8 else 1, **options(dependent),
        )  # fmt: skip
    return q

"""Finishes queries and keys, and stores keys and values in their pages, in one pass over the projection's output.

    x    <- x + bias                                 where there is one; rounded to the dtype
    x    <- x / sqrt(mean(x^2) + eps) weight         of each head, where a model has such norms; rounded
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
from tandem.worker.model.cuda.kernels.tiles import INT4, INT6, INT8, Stored, numbers_and_constants
from tandem.worker.model.kv_formats import Parts

_TINY = tl.constexpr(torch.finfo(torch.float32).tiny)
_ROUND = tl.constexpr(12582912.0)
_MOST_ROWS = 16  # that a program takes


@triton.jit
def head_of(
    x, bias, weight, rms, row, real, row_stride, at, inside, BIASED: tl.constexpr, NORMED: tl.constexpr
):  # fmt: skip
    """Loads coordinates `at` of one head of each row, `[rows, at]`, with its bias and normalized."""
    numbers = tl.load(x + row[:, None] * row_stride + at[None, :], mask=real[:, None] & inside[None, :], other=0.0)
    if BIASED:
        added = numbers.to(tl.float32) + tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)[None, :]
        numbers = added.to(x.dtype.element_ty)
    if NORMED:
        scaled = numbers.to(tl.float32) / rms[:, None]
        scaled *= tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)[None, :]
        numbers = scaled.to(x.dtype.element_ty)
    return numbers


@triton.jit
def root_mean_square(
    x, bias, row, real, row_stride, eps, D: tl.constexpr, D_PAD: tl.constexpr, BIASED: tl.constexpr
):  # fmt: skip
    """Returns that of one head of each row, `[rows]`."""
    at = tl.arange(0, D_PAD)
    numbers = head_of(x, bias, x, eps, row, real, row_stride, at, at < D, BIASED, False).to(tl.float32)
    return tl.sqrt(tl.sum(tl.where((at < D)[None, :], numbers * numbers, 0.0), 1) / D + eps)


@triton.jit
def rotated(
    x, bias, weight, rms, cos, sin, row, real, row_stride, at, inside,
    ROTATED: tl.constexpr, BIASED: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """Rotates coordinates `at` of one head of each row, `[rows, at]`, rounded to x's dtype, as float32."""
    numbers = head_of(x, bias, weight, rms, row, real, row_stride, at, inside, BIASED, NORMED)
    if ROTATED:
        turns = inside & (at < ROTATED)
        turning = real[:, None] & turns[None, :]
        other = (at + ROTATED // 2) % ROTATED
        partner = head_of(x, bias, weight, rms, row, real, row_stride, other, turns, BIASED, NORMED)
        angle = row[:, None] * ROTATED + at[None, :]
        c = tl.load(cos + angle, mask=turning, other=1.0)
        s = tl.load(sin + angle, mask=turning, other=0.0)
        numbers = (numbers.to(tl.float32) * c + partner.to(tl.float32) * s).to(x.dtype.element_ty)
    return numbers.to(tl.float32)


@triton.jit
def _to_store(
    x, bias, k_weight, v_weight, rms, cos, sin, mean, scale, row, real, row_stride, at, inside, is_key,
    ROTATED: tl.constexpr, CHANNELS: tl.constexpr, BIASED: tl.constexpr, NORMS: tl.constexpr,
):  # fmt: skip
    """Returns coordinates `at` of keys or values as they are to be stored, `[rows, at]` float32."""
    if is_key:
        numbers = rotated(
            x, bias, k_weight, rms, cos, sin, row, real, row_stride, at, inside, ROTATED, BIASED, NORMS > 1
        )
        if CHANNELS:
            centred = numbers - tl.load(mean + at, mask=inside, other=0.0)[None, :]
            numbers = tl.div_rn(centred, tl.load(scale + at, mask=inside, other=1.0)[None, :] + tl.zeros_like(centred))
    else:
        numbers = rotated(x, bias, v_weight, rms, cos, sin, row, real, row_stride, at, inside, 0, BIASED, NORMS > 2)
    return numbers


@triton.jit
def _rounded_quotient(x, step):
    """Computes `round(x / step)` of float32, halves to even; `step` has one number for each row of `x`."""
    return tl.div_rn(x, step + tl.zeros_like(x)) + _ROUND - _ROUND


@triton.jit
def _step(span, steps):
    """Returns one of so many steps through a span."""
    return tl.maximum(tl.div_rn(span, tl.zeros_like(span) + steps), _TINY)


@triton.jit
def _digit_of_6_bits(x, step):
    """Returns 32 more than `round(x / step)`, which is from -31 to 31."""
    return (_rounded_quotient(x, step[:, None]).to(tl.int32) + 32) & 63


@triton.jit
def store_int4(
    even, odd, vector, real, numbers_at, constants_at,
    ROWS: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr,
):  # fmt: skip
    """Stores vectors of D numbers, of which `[ROWS, D_PAD // 2]` are the even and the odd ones."""
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
    step = _step(span, 15.0)
    # What fills up a group is no number of the vector, and may become anything here.
    low_digit = _rounded_quotient(even - lowest[:, :, None], step[:, :, None]).to(tl.int32)
    high_digit = _rounded_quotient(odd - lowest[:, :, None], step[:, :, None]).to(tl.int32)
    packed = (low_digit | (high_digit << 4)).to(tl.uint8)
    packed_at = vector[:, None, None] * (D // 2) + byte[None]
    tl.store(numbers_at + packed_at, packed, mask=real[:, None, None] & counted[None])
    group_at = vector[:, None] * (2 * (D // GROUP)) + group[None, :]
    tl.store(constants_at + group_at, step, mask=real_group)
    tl.store(constants_at + group_at + D // GROUP, lowest, mask=real_group)


@triton.jit
def store_int6(
    first, second, third, last, vector, real, numbers_at, constants_at, D: tl.constexpr, D_PAD: tl.constexpr
):  # fmt: skip
    """Stores vectors of D numbers, of which `[ROWS, D_PAD // 4]` are the first, second, third and last of every four;
    these share three bytes."""
    fourth = tl.arange(0, D_PAD // 4)
    even = tl.maximum(tl.abs(first), tl.abs(third))
    odd = tl.maximum(tl.abs(second), tl.abs(last))
    step = _step(tl.max(tl.maximum(even, odd), 1), 31.0)
    tl.store(constants_at + vector, step, mask=real)
    first = _digit_of_6_bits(first, step)
    second = _digit_of_6_bits(second, step)
    third = _digit_of_6_bits(third, step)
    last = _digit_of_6_bits(last, step)
    in_all = real[:, None] & (fourth < D // 4)[None, :]
    low_at = numbers_at + vector[:, None] * (D // 4 * 3) + 2 * fourth[None, :]
    tl.store(low_at, ((first & 15) | ((second & 15) << 4)).to(tl.uint8), mask=in_all)
    tl.store(low_at + 1, ((third & 15) | ((last & 15) << 4)).to(tl.uint8), mask=in_all)
    high = (first >> 4) | (second >> 4 << 2) | (third >> 4 << 4) | (last >> 4 << 6)
    high_at = numbers_at + vector[:, None] * (D // 4 * 3) + D // 2 + fourth[None, :]
    tl.store(high_at, high.to(tl.uint8), mask=in_all)


@triton.jit
def store_numbers(
    numbers, vector, real, at, inside, numbers_at, constants_at, D: tl.constexpr, FORMAT: tl.constexpr
):  # fmt: skip
    """Stores vectors `[rows, at]` of D numbers, each in a place of its own."""
    if FORMAT == INT8:
        step = _step(tl.max(tl.abs(numbers), 1), 127.0)
        tl.store(constants_at + vector, step, mask=real)
        numbers = _rounded_quotient(numbers, step[:, None])
    at_all = vector[:, None] * D + at[None, :]
    tl.store(numbers_at + at_all, numbers.to(numbers_at.dtype.element_ty), mask=real[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["rows"])
def _store(
    qkv, q_out, cos, sin, slots, bias, q_weight, k_weight, v_weight, mean, scale,
    k_numbers, k_constants, v_numbers, v_constants, rows, row_stride, eps,
    ROWS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr,
    PAGE: tl.constexpr, ROTATED: tl.constexpr, CHANNELS: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr, BIASED: tl.constexpr, NORMS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(DEPENDENT)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = row < rows
    head = tl.program_id(1)
    x = qkv + head * D
    bias += head * D
    rms = tl.zeros([ROWS], tl.float32)
    if NORMS > 0:
        rms = root_mean_square(x, bias, row, real, row_stride, eps, D, D_PAD, BIASED)
    at = tl.arange(0, D_PAD)
    inside = at < D
    mask = real[:, None] & inside[None, :]
    if head < HEADS:
        numbers = rotated(
            x, bias, q_weight, rms, cos, sin, row, real, row_stride, at, inside, ROTATED, BIASED, NORMS > 0
        )
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
                x, bias, k_weight, v_weight, rms, cos, sin, mean_at, scale_at, row, real, row_stride, 2 * half, in_half,
                is_key, ROTATED, CHANNELS, BIASED, NORMS,
            )  # fmt: skip
            odd = _to_store(
                x, bias, k_weight, v_weight, rms, cos, sin, mean_at, scale_at, row, real, row_stride, 2 * half + 1,
                in_half, is_key, ROTATED, CHANNELS, BIASED, NORMS,
            )  # fmt: skip
            store_int4(even, odd, vector, real, numbers_at, constants_at, ROWS, D, D_PAD, GROUP, GROUP_PAD)
        elif FORMAT == INT6:
            # Four neighbours share three bytes: each of the four for itself.
            fourth = tl.arange(0, D_PAD // 4)
            in_fourth = fourth < D // 4
            first = _to_store(
                x, bias, k_weight, v_weight, rms, cos, sin, mean_at, scale_at, row, real, row_stride, 4 * fourth,
                in_fourth, is_key, ROTATED, CHANNELS, BIASED, NORMS,
            )  # fmt: skip
            second = _to_store(
                x, bias, k_weight, v_weight, rms, cos, sin, mean_at, scale_at, row, real, row_stride, 4 * fourth + 1,
                in_fourth, is_key, ROTATED, CHANNELS, BIASED, NORMS,
            )  # fmt: skip
            third = _to_store(
                x, bias, k_weight, v_weight, rms, cos, sin, mean_at, scale_at, row, real, row_stride, 4 * fourth + 2,
                in_fourth, is_key, ROTATED, CHANNELS, BIASED, NORMS,
            )  # fmt: skip
            last = _to_store(
                x, bias, k_weight, v_weight, rms, cos, sin, mean_at, scale_at, row, real, row_stride, 4 * fourth + 3,
                in_fourth, is_key, ROTATED, CHANNELS, BIASED, NORMS,
            )  # fmt: skip
            store_int6(first, second, third, last, vector, real, numbers_at, constants_at, D, D_PAD)
        else:
            numbers = _to_store(
                x, bias, k_weight, v_weight, rms, cos, sin, mean_at, scale_at, row, real, row_stride, at, inside,
                is_key, ROTATED, CHANNELS, BIASED, NORMS,
            )  # fmt: skip
            store_numbers(numbers, vector, real, at, inside, numbers_at, constants_at, D, FORMAT)


def rotate_and_store(
    qkv: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor] | None,
    keys: Parts,
    values: Parts,
    stored: Stored,
    slots: torch.Tensor | None,
    channels: tuple[torch.Tensor, torch.Tensor] | None = None,
    bias: torch.Tensor | None = None,
    norms: tuple[torch.Tensor, ...] = (),
    eps: float = 0.0,
) -> torch.Tensor:
    """Fills one layer's `keys` and `values` at `slots` `[2, N]`; gives the queries `[N, heads, head_dim]`.

    qkv: `[N, heads + 2 kv_heads, head_dim]`, each row contiguous; it stays as it is.
    rotation: cosines and signed sines `[N, 1, rotated]` float32, or None for no rotation.
    slots: None: there are queries alone, `[N, heads, head_dim]`, and nothing is stored.
    channels: mean and scale of each key channel, `[kv_heads, head_dim]` float32, where keys are stored normalized.
    bias: what is added first, `[(heads + 2 kv_heads) head_dim]`.
    norms: weights `[head_dim]` of the norms of each head of queries, of keys, and of values; fewer: of the first.
    """
    rows, all_heads, head_dim = qkv.shape
    kv_heads, page_size = keys[0].shape[1:3]
    heads = all_heads - (0 if slots is None else 2 * kv_heads)
    assert qkv.stride()[1:] == (head_dim, 1) and (slots is None or slots.is_contiguous())
    q = qkv.new_empty((rows, heads, head_dim))
    cos, sin = rotation or (qkv, qkv)
    assert not rotation or (cos.is_contiguous() and sin.is_contiguous())
    mean, scale = channels or (qkv, qkv)
    weights = (*norms, *[qkv] * (3 - len(norms)))
    if rows:
        block = min(_MOST_ROWS, triton.next_power_of_2(rows))
        dependent = is_dependent(q.device)
        _store[(triton.cdiv(rows, block), all_heads)](
            qkv, q, cos, sin, qkv if slots is None else slots, qkv if bias is None else bias, *weights, mean, scale,
            *numbers_and_constants(keys), *numbers_and_constants(values), rows, qkv.stride(0), eps,
            block, heads, kv_heads, head_dim, stored.padded, page_size,
            cos.shape[-1] if rotation else 0, channels is not None,
            stored.format, stored.group, triton.next_power_of_2(stored.group),
            bias is not None, len(norms), dependent,
            num_warps=4 if block >= 8 else 1, **options(dependent),
        )  # fmt: skip
    return q

"""One token a row, from all of its logits: the largest, or one drawn at a temperature T > 0 with a number u in [0, 1).

    T = 0   the first i whose logit is the largest
    T > 0   the first i with w_0 + ... + w_i > u (w_0 + ... + w_n),   w_i = exp((x_i - the largest) / T)

Only logits from `low` to `high` count. One program a row, and sums in float64 over blocks whose size the vocabulary
decides: a row's token depends on nothing else. A NaN anywhere in a row comes out as its largest.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

_MOST = 8192  # logits that are looked at at once


class Chosen(NamedTuple):
    """What was chosen in each row."""

    ids: torch.Tensor  # [rows] int64
    largest: torch.Tensor  # [rows] fp32, of those that count
    mass: torch.Tensor  # [rows] fp64, the sum of weights; 1 for the largest


@triton.jit
def _counting(logits, at, size, lowest, highest):
    """Loads the logits of one block, -inf where they do not count."""
    x = tl.load(logits + at, mask=at < size, other=float("-inf"))
    return tl.where((x >= lowest) & (x <= highest), x, float("-inf"))


@triton.jit
def _weights(x, top, t):
    """Computes the weights of one block, float64."""
    return tl.where(x > float("-inf"), tl.exp((x - top) / t), 0.0).to(tl.float64)


@triton.jit
def _choose(
    logits, low, high, temperature, uniforms, ids, largest, mass, size, stride,
    BOUNDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    logits += row.to(tl.int64) * stride
    place = tl.arange(0, BLOCK)
    lowest = float("-inf")
    highest = float("inf")
    if BOUNDED:
        lowest = tl.load(low + row)
        highest = tl.load(high + row)

    top = float("-inf")
    chosen = tl.full([], 0, tl.int32)
    broken = 0
    for start in range(0, size, BLOCK):
        raw = tl.load(logits + start + place, mask=start + place < size, other=0.0)
        broken = tl.maximum(broken, tl.max((raw != raw).to(tl.int32), 0))
        x = _counting(logits, start + place, size, lowest, highest)
        block_top = tl.max(x, 0)
        first = tl.min(tl.where(x == block_top, start + place, size - 1), 0)
        chosen = tl.where(block_top > top, first, chosen)
        top = tl.maximum(top, block_top)
    tl.store(largest + row, tl.where(broken > 0, float("nan"), top))

    t = tl.load(temperature + row)
    total = tl.full([], 1.0, tl.float64)
    if (t > 0) & (top > float("-inf")):
        total = tl.full([], 0.0, tl.float64)
        for start in range(0, size, BLOCK):
            x = _counting(logits, start + place, size, lowest, highest)
            total += tl.sum(_weights(x, top, t), 0)
        target = tl.load(uniforms + row) * total
        # The block in which the sum exceeds the target; these are the very sums of before.
        reached = tl.full([], 0.0, tl.float64)
        before = tl.full([], 0.0, tl.float64)
        block = 0
        for start in range(0, size, BLOCK):
            x = _counting(logits, start + place, size, lowest, highest)
            further = reached + tl.sum(_weights(x, top, t), 0)
            inside = (reached <= target) & (further > target)
            block = tl.where(inside, start, block)
            before = tl.where(inside, reached, before)
            reached = further
        x = _counting(logits, block + place, size, lowest, highest)
        weights = _weights(x, top, t)
        above = (before + tl.cumsum(weights, 0) > target) & (weights > 0)
        first = tl.min(tl.where(above, block + place, size), 0)
        # Added up one by one, the block may stay a little below its sum: then its last weight counts.
        last = tl.max(tl.where(weights > 0, block + place, 0), 0)
        chosen = tl.minimum(first, last)
    tl.store(ids + row, chosen.to(tl.int64))
    tl.store(mass + row, total)


def choose(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    uniforms: torch.Tensor,
    low: torch.Tensor | None = None,
    high: torch.Tensor | None = None,
) -> Chosen:
    """Chooses one token a row. `logits` `[rows, vocabulary]` fp32, each row contiguous; `temperature` fp32 and
    `uniforms` fp64 `[rows]`; `low` and `high` fp32 `[rows]`, both or none."""
    rows, size = logits.shape
    assert logits.stride(1) == 1 and logits.dtype == torch.float32
    chosen = Chosen(
        torch.empty(rows, dtype=torch.int64, device=logits.device),
        torch.empty(rows, dtype=torch.float32, device=logits.device),
        torch.empty(rows, dtype=torch.float64, device=logits.device),
    )
    if rows:
        bounded = low is not None and high is not None
        block = min(_MOST, triton.next_power_of_2(size))
        _choose[(rows,)](
            logits, low if bounded else logits, high if bounded else logits, temperature, uniforms, *chosen, size,
            logits.stride(0), bounded, block, num_warps=min(max(block // 512, 1), 16),
        )  # fmt: skip
    return chosen

"""RMSNorm of each head of queries, keys and perhaps values, in the projection's output, where they stay:

    x <- x / sqrt(mean(x^2) + eps) * weight        (float32 inside, rounded once)

One program a row and head; queries have one weight, keys another, values a third.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl


@triton.jit
def _norm_heads(
    qkv, first_weight, second_weight, third_weight, row_stride, eps,
    FIRST: tl.constexpr, SECOND: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    place = tl.arange(0, D_PAD)
    inside = place < D
    at = tl.program_id(0).to(tl.int64) * row_stride + head * D + place
    numbers = tl.load(qkv + at, mask=inside, other=0.0).to(tl.float32)
    behind = second_weight if head < FIRST + SECOND else third_weight
    weight = tl.load((first_weight if head < FIRST else behind) + place, mask=inside, other=0.0).to(tl.float32)
    rms = tl.sqrt(tl.sum(numbers * numbers, 0) / D + eps)
    tl.store(qkv + at, (numbers / rms * weight).to(qkv.dtype.element_ty), mask=inside)


def norm_heads(qkv: torch.Tensor, parts: Sequence[tuple[int, torch.Tensor]], eps: float) -> None:
    """Normalizes the first heads of `qkv` `[N, heads + 2 kv_heads, head_dim]`, each row contiguous, by `parts`: up to
    three, each so many heads and their weight `[head_dim]`."""
    rows, _, size = qkv.shape
    assert qkv.stride()[1:] == (size, 1) and len({weight.dtype for _, weight in parts}) == 1 and len(parts) <= 3
    numbers = [heads for heads, _ in parts] + [0]
    weights = [weight for _, weight in parts] + [parts[-1][1]] * (3 - len(parts))
    if rows:
        _norm_heads[(rows, sum(numbers))](
            qkv, *weights, qkv.stride(0), eps, *numbers[:2], size, triton.next_power_of_2(size), num_warps=1
        )

"""RMSNorm of each head of queries and keys, in the projection's output, where they stay:

    x <- x / sqrt(mean(x^2) + eps) * weight        (float32 inside, rounded once)

One program a row and head; queries have one weight and keys another.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _norm_heads(qkv, q_weight, k_weight, row_stride, eps, HEADS: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr):
    head = tl.program_id(1)
    place = tl.arange(0, D_PAD)
    inside = place < D
    at = tl.program_id(0).to(tl.int64) * row_stride + head * D + place
    numbers = tl.load(qkv + at, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load((q_weight if head < HEADS else k_weight) + place, mask=inside, other=0.0).to(tl.float32)
    rms = tl.sqrt(tl.sum(numbers * numbers, 0) / D + eps)
    tl.store(qkv + at, (numbers / rms * weight).to(qkv.dtype.element_ty), mask=inside)


def norm_heads(qkv: torch.Tensor, heads: int, q_weight: torch.Tensor, k_weight: torch.Tensor, eps: float) -> None:
    """Normalizes the first `heads` heads of `qkv` `[N, heads + 2 kv_heads, head_dim]`, each row contiguous, by
    `q_weight`, and those of keys by `k_weight`, both `[head_dim]`."""
    rows, all_heads, size = qkv.shape
    assert qkv.stride()[1:] == (size, 1) and q_weight.dtype == k_weight.dtype
    if rows:
        _norm_heads[(rows, heads + (all_heads - heads) // 2)](
            qkv, q_weight, k_weight, qkv.stride(0), eps, heads, size, triton.next_power_of_2(size), num_warps=1
        )

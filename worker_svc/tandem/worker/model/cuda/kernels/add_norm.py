"""Residual addition and RMSNorm in one pass:

    x   <- x + delta                                 (in place, rounded to x's dtype)
    out  = x / sqrt(mean(x^2) + eps) * weight        (float32 inside, rounded once)

One program a row: a row's bits depend on nothing else.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.worker.model.cuda.kernels.dependent import is_dependent, options, wait_for_inputs


@triton.jit
def _add_norm(x, delta, weight, out, size, eps, HAS_DELTA: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0).to(tl.int64) * size
    place = tl.arange(0, BLOCK)
    inside = place < size
    stored = tl.load(x + row + place, mask=inside, other=0.0)
    if HAS_DELTA:
        added = stored.to(tl.float32) + tl.load(delta + row + place, mask=inside, other=0.0).to(tl.float32)
        stored = added.to(x.dtype.element_ty)
        tl.store(x + row + place, stored, mask=inside)
    numbers = stored.to(tl.float32)
    rms = tl.sqrt(tl.sum(numbers * numbers, 0) / size + eps)
    scaled = numbers / rms * tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + place, scaled.to(out.dtype.element_ty), mask=inside)


def add_norm(x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Computes the norm `[N, size]` of `x` `[N, size]` (overwritten if there is a `delta` `[N, size]`)."""
    rows, size = x.shape
    assert x.is_contiguous() and (delta is None or delta.is_contiguous())
    out = torch.empty_like(x)
    if rows:
        block = triton.next_power_of_2(size)
        warps = min(max(block // 512, 1), 16)
        dependent = is_dependent(x.device)
        _add_norm[(rows,)](
            x, x if delta is None else delta, weight, out, size, eps, delta is not None, block, dependent,
            num_warps=warps, **options(dependent),
        )  # fmt: skip
    return out

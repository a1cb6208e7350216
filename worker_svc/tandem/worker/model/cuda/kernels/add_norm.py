"""Residual addition and RMSNorm in one pass:

    x   <- x + delta                                 (in place, rounded to x's dtype)
    out  = x / sqrt(mean(x^2) + eps) * weight        (float32 inside, rounded once)

One program a row: a row's bits depend on nothing else. What is only multiplied by matrices of 8-bit floats is rounded
to them at once (`float8.py`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.worker.checkpoints.grouped import Float8Rows
from tandem.worker.model.cuda.kernels.dependent import is_dependent, options, wait_for_inputs
from tandem.worker.model.cuda.kernels.float8 import empty_float8, store_as_float8, warps_of_row


@triton.jit
def _add_norm(
    x, delta, weight, out, scale, size, eps,
    HAS_DELTA: tl.constexpr, FLOAT8: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
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
    if FLOAT8:
        rounded = scaled.to(x.dtype.element_ty).to(tl.float32)
        store_as_float8(rounded, out, scale, tl.program_id(0).to(tl.int64), size, place, inside, BLOCK)
    else:
        tl.store(out + row + place, scaled.to(out.dtype.element_ty), mask=inside)


def add_norm(x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Computes the norm `[N, size]` of `x` `[N, size]` (overwritten if there is a `delta` `[N, size]`)."""
    out = torch.empty_like(x)
    _launch(x, delta, weight, eps, out, None)
    return out


def add_norm_float8(x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> Float8Rows:
    """Computes what `rows_to_float8` makes of the norm."""
    rows, size = x.shape
    made = empty_float8(rows, size, x.device)
    _launch(x, delta, weight, eps, made.q, made.scale)
    return made


def _launch(
    x: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    scale: torch.Tensor | None,
) -> None:
    rows, size = x.shape
    assert x.is_contiguous() and (delta is None or delta.is_contiguous())
    if rows:
        block = triton.next_power_of_2(size)
        dependent = is_dependent(x.device)
        _add_norm[(rows,)](
            x, x if delta is None else delta, weight, out, out if scale is None else scale, size, eps,
            delta is not None, scale is not None, block, dependent,
            num_warps=warps_of_row(block), **options(dependent),
        )  # fmt: skip

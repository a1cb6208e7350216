"""`silu(gate) * up`, float32 inside, rounded once; gate and up lie side by side in a row. Products of experts end with
the same, with gpt-oss's clamped gate or Step 3.5's limited one, or with GELU in the place of silu."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.worker.checkpoints.grouped import Float8Rows
from tandem.worker.model.cuda.kernels.dependent import is_dependent, options, wait_for_inputs
from tandem.worker.model.cuda.kernels.float8 import empty_float8, store_as_float8, warps_of_row

_BLOCK = 1024
SWIGLU, CLAMPED, GELU, LIMITED = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3), tl.constexpr(4)  # 0: no gate


@triton.jit
def gated(gate, up, alpha, limit, GATE: tl.constexpr):
    """Computes `silu(gate) up`; GELU: `gelu_tanh(gate) up`; CLAMPED: `gate sigmoid(alpha gate) (up + 1)` of gate and up
    within `limit`; LIMITED: `silu(gate) up`, each within `limit`."""
    if GATE == CLAMPED:  # comparisons let a NaN stay what it is
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up)) + 1.0
        return gate / (1.0 + tl.exp(-alpha * gate)) * up
    elif GATE == LIMITED:
        passed = gate / (1.0 + tl.exp(-gate))
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        return tl.where(passed > limit, limit, passed) * up
    elif GATE == GELU:  # see `feed_forward.py`
        doubled = gate * (1.0 + 0.044715 * gate * gate) * 1.5957691216057308
        return gate / (1.0 + tl.exp(-doubled)) * up
    else:
        return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _swiglu(gate_up, out, size, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    gate = tl.load(gate_up + row * 2 * size + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + place, gated(gate, up, 1.0, 0.0, SWIGLU).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu_float8(gate_up, out, scale, size, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < size
    gate = tl.load(gate_up + row * 2 * size + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + place, mask=inside, other=0.0).to(tl.float32)
    rounded = gated(gate, up, 1.0, 0.0, SWIGLU).to(gate_up.dtype.element_ty).to(tl.float32)
    store_as_float8(rounded, out, scale, row, size, place, inside, BLOCK)


def swiglu(gate_up: torch.Tensor, size: int) -> torch.Tensor:
    """Computes `[N, 2 size] -> [N, size]`."""
    assert gate_up.is_contiguous()
    rows = gate_up.shape[0]
    out = gate_up.new_empty((rows, size))
    if rows:
        dependent = is_dependent(gate_up.device)
        _swiglu[(rows, triton.cdiv(size, _BLOCK))](gate_up, out, size, _BLOCK, dependent, **options(dependent))
    return out


def swiglu_float8(gate_up: torch.Tensor, size: int) -> Float8Rows:
    """Computes what `rows_to_float8` makes of `swiglu`, one program a row."""
    assert gate_up.is_contiguous()
    rows = gate_up.shape[0]
    made = empty_float8(rows, size, gate_up.device)
    if rows:
        block, dependent = triton.next_power_of_2(size), is_dependent(gate_up.device)
        _swiglu_float8[(rows,)](
            gate_up, made.q, made.scale, size, block, dependent, num_warps=warps_of_row(block), **options(dependent)
        )
    return made

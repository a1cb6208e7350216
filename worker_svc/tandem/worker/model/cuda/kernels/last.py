"""The last of several programs to end: it puts together what all of them stored, in an order that is always the same.
So neither another launch is needed, nor does a bit depend on who is last.

Nobody waits: each counts itself once what it stored is there for all to see, and the one that makes the count whole
goes on. Then the counter is zero again, for the next launch: those of one counter follow each other.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.worker.model.cuda.kernels.swiglu import SWIGLU, gated


@triton.jit
def is_last(counter, programs):
    """Tells whether this one of `programs` is the last to come here. What others stored is then read with `.cg`: this
    processor's own cache may have what was there before."""
    tl.debug_barrier()  # one thread counts for all of them
    last = tl.atomic_add(counter, 1, sem="acq_rel") == programs - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def _sum(partial, splits, size, at, mask, M: tl.constexpr, N: tl.constexpr):
    total = tl.zeros([M, N], tl.float32)
    for number in range(splits):
        total += tl.load(partial + number * size + at, mask=mask, other=0.0, cache_modifier=".cg")
    return total


@triton.jit
def finish_product(
    partial, counters, scale, out, row, rows, outputs,
    M: tl.constexpr, N: tl.constexpr, SCALED: tl.constexpr, GATE: tl.constexpr,
):  # fmt: skip
    """Ends a product whose splits, the programs' third dimension, stored their sums: the last program of a tile adds
    them up in their order. With GATE, a tile is one of gates and the one of ups half of the outputs further, and what
    is stored is `silu(gate) up` of both as they would be rounded."""
    tile = tl.program_id(1)
    programs = tl.num_programs(2)
    stored = outputs
    if GATE:
        stored = outputs // 2
        tile = tile % (stored // N)
        programs *= 2
    if is_last(counters + tile * tl.num_programs(0) + tl.program_id(0), programs):
        channel = tile * N + tl.arange(0, N)
        there = channel < stored
        mask = (row < rows)[:, None] & there[None, :]
        at = row[:, None] * outputs + channel[None, :]
        size = rows.to(tl.int64) * outputs
        total = _sum(partial, tl.num_programs(2), size, at, mask, M, N)
        if SCALED:
            total *= tl.load(scale + channel, mask=there, other=0.0).to(tl.float32)[None, :]
        if GATE:
            up = _sum(partial, tl.num_programs(2), size, at + stored, mask, M, N)
            if SCALED:
                up *= tl.load(scale + stored + channel, mask=there, other=0.0).to(tl.float32)[None, :]
            kind = out.dtype.element_ty
            total = gated(total.to(kind).to(tl.float32), up.to(kind).to(tl.float32), 1.0, 0.0, SWIGLU)
        tl.store(out + row[:, None] * stored + channel[None, :], total.to(out.dtype.element_ty), mask=mask)

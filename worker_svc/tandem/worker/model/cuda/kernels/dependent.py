"""Kernels that begin while the one before them ends (programmatic dependent launch, from Hopper on).

Between two kernels of a stream, or of a recording, a GPU is idle for about a microsecond. A kernel that is launched as
a *dependent* takes the processors that become free, up to where it waits for what it reads:

    n      ... computes ...................... ends
    n + 1            begins, looks ahead, waits  ... computes ...

Every kernel that may be launched so waits first of all, so that when one has ended, all before it have. Before it waits
it may look at nothing but weights. The bits are the same.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.worker.model.cuda.kernels.card import card_of

# Whether kernels are launched so: for a GPU to decide, by the part `dependent` of `benchmarks/gpu.py`.
ON = False
_OLDEST = (9, 0)


def is_dependent(device: torch.device) -> bool:
    """Tells whether kernels on this device are launched as dependents."""
    return ON and card_of(device).capability >= _OLDEST


def options(dependent: bool) -> dict[str, bool]:
    """Returns the options of a launch, which an interpreter has not."""
    return {"launch_pdl": True} if dependent else {}


@triton.jit
def wait_for_inputs(DEPENDENT: tl.constexpr):
    """Lets the next kernel begin, and waits until all that was written before this one is there."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def fetch_ahead(pointers):
    """Brings the lines of 128 bytes at `pointers` into the cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers.to(tl.int64)], tl.int32, is_pure=False, pack=1
    )

"""Adds numbers at places: biases to logits, and to a table of how often each id occurred what came and what went.

Several for one place may come in any order: they are integers. Biases come once for each place.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 256


@triton.jit(do_not_specialize=["size"])
def _add_at(target, places, values, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    place = tl.load(places + at, mask=inside, other=0)
    tl.atomic_add(target + place, tl.load(values + at, mask=inside, other=0), mask=inside, sem="relaxed")


def add_at(target: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> None:
    """Adds `values` `[n]` in place to the elements of `target` that are `places` `[n]` (int64) behind its first one."""
    assert values.dtype == target.dtype and places.dtype == torch.int64 and len(places) == len(values)
    if len(places):
        _add_at[(triton.cdiv(len(places), _BLOCK),)](target, places, values, len(places), _BLOCK)

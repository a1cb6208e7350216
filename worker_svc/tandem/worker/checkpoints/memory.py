"""Memory apart from the C library's heap, which goes back to the system with the tensor that has it.

Weights stay, while copies that are made on the way to them go. On one heap these leave holes between those, which count
as resident as long as the process lives: measured, 7 MB a layer of 7 billion parameters in 4 bits.
"""

from __future__ import annotations

import contextlib
import math
import mmap

import torch

_SMALL = 64 << 10  # bytes that find room in a hole


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns zeros on the CPU, which take memory once they are written to; in huge pages where the system has them."""
    size = math.prod(shape) * dtype.itemsize
    if size < _SMALL:
        return torch.zeros(shape, dtype=dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # of another system, or of a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(shape)

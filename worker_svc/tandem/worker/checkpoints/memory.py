"""Memory apart from the C library's heap.

Weights stay, while copies that are made on the way to them go. On one heap these leave holes between those, which count
as resident as long as the process lives: measured, 7 MB a layer of 7 billion parameters in 4 bits. So a copy has a
mapping of its own, which goes with it, and weights lie side by side in larger ones: a matrix of an expert is smaller
than a huge page, and finding small pages costs a product of one row 10 to 15 % of its time. Mappings are so large that
the rests of huge pages at their ends are few, and before each large weight the heap gives its holes back: 1 MB a layer,
and 20 MB at most.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import threading
import weakref

import torch

_SMALL = 64 << 10  # bytes that find room in a hole
_SHARED = 256 << 20  # bytes of a mapping that weights share; what none needs is never touched, so it takes no memory
_LARGE = 4 << 20  # bytes of a weight, beside which it takes no time to close holes
_LINE = 64  # bytes of a cache line, where a weight begins


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns zeros on the CPU, which take memory once they are written to; in huge pages where the system has them."""
    size = math.prod(shape) * dtype.itemsize
    if size < _SMALL:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(_mapped(size), dtype=dtype).view(shape)


class Weights:
    """Where weights on the CPU lie. A mapping goes back to the system with the last of those that share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: weakref.ref[mmap.mmap] | None = None  # the last one
        self._taken = 0  # bytes of it

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Returns zeros that stay, which take memory once they are written to, as `zeros` does."""
        count = math.prod(shape)
        size = count * dtype.itemsize
        if not _SMALL <= size <= _SHARED:
            return zeros(shape, dtype)
        with self._lock:
            pages = self._shared() if self._shared is not None else None
            if size >= _LARGE:
                _close_holes()
            if pages is None or self._taken + size > _SHARED:
                pages, self._taken = _mapped(_SHARED), 0
                self._shared = weakref.ref(pages)
            first, self._taken = self._taken, self._taken + -(-size // _LINE) * _LINE
        return torch.frombuffer(pages, dtype=dtype, count=count, offset=first).view(shape)


WEIGHTS = Weights()


def give_back(tail: torch.Tensor) -> None:
    """Gives back to the system what huge pages hold of a contiguous end of a weight, which nobody reads any more."""
    first = -(-tail.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (tail.data_ptr() + tail.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        with contextlib.suppress(AttributeError):  # of another system
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


def _close_holes() -> None:
    """Gives back to the system what the C library keeps between that which is in use."""
    with contextlib.suppress(AttributeError):  # of another system
        ctypes.CDLL(None).malloc_trim(0)


def _mapped(size: int) -> mmap.mmap:
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"there is no room for {size} bytes") from error
    with contextlib.suppress(AttributeError, OSError):  # of another system, or of a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages

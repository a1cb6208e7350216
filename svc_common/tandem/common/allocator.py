"""Sets what the C library's allocator does with large blocks that are freed."""

from __future__ import annotations

import ctypes

LARGE_BLOCK_BYTES = 1 << 20
_M_MMAP_THRESHOLD = -3  # malloc.h


def return_large_blocks() -> bool:
    """Returns freed blocks of `LARGE_BLOCK_BYTES` and more to the system from now on. Returns False where the C library
    has no such setting (glibc has it).

    By default the first large block that is freed raises glibc's threshold up to 32 MiB, and later ones come from the
    heaps of their threads, which keep what lies below the last small block in use.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES))

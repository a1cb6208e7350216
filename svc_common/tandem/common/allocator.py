"""What the C library's allocator does with large blocks that are freed."""

from __future__ import annotations

import ctypes

LARGE_BLOCK_BYTES = 1 << 20
_M_MMAP_THRESHOLD = -3  # malloc.h


def return_large_blocks() -> bool:
    """From now on blocks of `LARGE_BLOCK_BYTES` and more go back to the system when they are freed. False where the C
    library has no such setting (it is glibc's).

    By default the first large block that is freed raises glibc's threshold up to 32 MiB, and later ones come from the
    heaps of their threads, which keep what lies below the last small block in use.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES))

"""Records which requests an engine computes for the first time, in memory that outlives it.

When an engine dies in a step, a request that has its first one there may be the reason; those that have tokens already
have passed theirs. The engine notes the former before each step, and the front reads the note when the engine is dead:
no message would leave a process that ends by a fault in native code.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence

MAX_SUSPECTS = 4096
_COUNT = struct.Struct("<Q")
_BYTES = _COUNT.size * (1 + MAX_SUSPECTS)


class SuspectNote:
    """Holds numbers of requests; written by an engine, read by its front. Shared through a descriptor that the engine's
    process inherits."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Makes a new note, or opens that of a descriptor. Raises OSError when no descriptors or memory are left."""
        self.descriptor = os.memfd_create("tandem-suspects") if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, _BYTES)
        self._memory = mmap.mmap(self.descriptor, _BYTES)
        self._last: Sequence[int] = ()

    def write(self, numbers: Sequence[int]) -> None:
        """Replaces what is noted; all but the first MAX_SUSPECTS are left out."""
        if numbers or self._last:
            kept = numbers[:MAX_SUSPECTS]
            struct.pack_into(f"<{1 + len(kept)}Q", self._memory, 0, len(kept), *kept)
            self._last = numbers

    def read(self) -> tuple[int, ...]:
        """Returns what was noted last."""
        (count,) = _COUNT.unpack_from(self._memory)
        return struct.unpack_from(f"<{count}Q", self._memory, _COUNT.size)

    def close(self) -> None:
        """Frees the memory."""
        self._memory.close()
        os.close(self.descriptor)

"""Arrays of hundreds of thousands of strings in GGUF files, cut in C where a compiler is at hand.

`python -m tandem.common.gguf_strings` compiles the function beside its source, for images without a compiler.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import mmap
from pathlib import Path

from tandem.common.compiled import CSources

_BORDER = b"\xff"  # in no text of UTF-8
_FEW = 1000  # strings that Python cuts as quickly as numpy is imported
SOURCES = CSources(
    Path(__file__).parent,
    "gguf_strings",
    ("gguf_strings.c",),
    (),
    {"gguf_strings": ([ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p], ctypes.c_int64)},
)


@functools.cache
def _library() -> ctypes.CDLL | None:
    return SOURCES.load(logging.getLogger("tandem.common"), "vocabularies in GGUF files load slower")


def cut_strings(data: mmap.mmap, at: int, count: int) -> tuple[list[bytes], int] | None:
    """The `count` strings that begin at `at`, and where they end. None where it is to be done without the library."""
    library = _library() if count > _FEW else None
    if library is None:
        return None
    import numpy as np

    view = np.frombuffer(data, np.uint8)
    start, room = view.ctypes.data + at, len(view) - at
    size = library.tandem_gguf_strings(start, room, count, None)
    if size < 0:
        return None
    out = np.empty(size - 7 * count, np.uint8)
    library.tandem_gguf_strings(start, room, count, out.ctypes.data)
    strings = out.tobytes().split(_BORDER)[1:]
    return (strings, at + size) if len(strings) == count else None


if __name__ == "__main__":
    SOURCES.main()

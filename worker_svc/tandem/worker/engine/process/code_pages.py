"""Gives back the pages of code that were read while this process started.

An import touches 70 MB of torch's libraries that nothing calls again: tables of operations are filled once. The system
takes such pages back when memory is short, but until then they count as this process's, beside weights that fill what
it has. What is called again is mapped again, 64 KiB at a time, from the system's cache of the file.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from pathlib import Path

# Code of a mapped file, whose pages hold what the file does. Not those of `r--p`, among which are tables that the
# loader wrote before they were locked.
_CODE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-xp [0-9a-f]+ \S+ \d+ +/")
_MAPPINGS = "/proc/self/smaps"


def release_code() -> None:
    """Drops the pages of all mapped code that is the file's own."""
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    code: tuple[int, int] | None = None
    for line in Path(_MAPPINGS).read_text().splitlines():
        if found := _CODE.match(line):
            code = int(found[1], 16), int(found[2], 16)
        elif line.startswith("Anonymous:") and code is not None:
            if line.split()[1] == "0":  # else a debugger, or a loader, wrote there: that would be lost
                madvise(code[0], code[1] - code[0], mmap.MADV_DONTNEED)  # advice: if it fails, nothing is lost
            code = None

"""Memory of large inputs goes back to the system."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Blocks of 8 MB, each under a small one that stays: what a service looks like that keeps a little of each large input.
PROGRAM = """
import ctypes, sys
import psutil
from tandem.common.allocator import return_large_blocks
if sys.argv[1] == "return" and not return_large_blocks():
    sys.exit("no mallopt")
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def block(size):
    pointer = libc.malloc(ctypes.c_size_t(size))
    ctypes.memset(pointer, 1, size)
    return pointer
libc.free(block(30 << 20))
before = psutil.Process().memory_info().rss
blocks = []
for _ in range(10):
    blocks.append(block(8 << 20))
    block(100_000)
for pointer in blocks:
    libc.free(pointer)
print((psutil.Process().memory_info().rss - before) >> 20)
"""


def kept(repository: Path, way: str) -> int:
    """Megabytes of 80 that a process keeps after it has freed them."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, way], cwd=repository, capture_output=True, text=True, timeout=60, check=False
    )
    if "no mallopt" in done.stderr:
        pytest.skip("the C library is not glibc")
    return int(done.stdout)


def test_large_blocks_that_are_freed_go_back_to_the_system(repository: Path) -> None:
    assert kept(repository, "keep") > 40, "otherwise this shows nothing"
    assert kept(repository, "return") < 10

"""Pages of code that were read at start go back to the system, and come again as they are in the file."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import pytest
import torch

from tandem.worker.engine.process.code_pages import release_code

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are looked at as Linux tells them")


def resident(address: int) -> int:
    """KiB of the mapping that begins there."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    begin = next(line for line in lines if line.startswith(f"{address:x}-"))
    assert " r-xp " in begin
    return int(next(line for line in lines if line.startswith("Rss:")).split()[1])


def mapped_code(path: Path, written: bytes = b"") -> tuple[int, int]:
    """The address of a file's pages and their size, mapped as code is, with something written over its beginning."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    size = path.stat().st_size
    with path.open("rb") as file:
        flags = mmap.MAP_PRIVATE
        where = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE, flags, file.fileno(), 0)
    ctypes.memmove(where, written, len(written))
    if libc.mprotect(ctypes.c_void_p(where), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_EXEC):
        pytest.skip("files of temporary folders may not be code here")
    return where, size


@pytest.mark.parametrize("written", [b"", b"changed"])
def test_what_is_the_files_own_goes_and_what_was_written_over_it_stays(tmp_path: Path, written: bytes) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(bytes(range(256)) * 1024)
    where, size = mapped_code(path, written)
    content = ctypes.string_at(where, size)
    assert resident(where)
    release_code()
    assert bool(resident(where)) == bool(written)
    assert ctypes.string_at(where, size) == content == written + path.read_bytes()[len(written) :]
    ctypes.CDLL(None).munmap(ctypes.c_void_p(where), ctypes.c_size_t(size))


def test_torch_computes_what_it_did() -> None:
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    before = torch.linalg.svdvals(x @ x.t()).softmax(0)
    release_code()
    assert torch.equal(torch.linalg.svdvals(x @ x.t()).softmax(0), before)

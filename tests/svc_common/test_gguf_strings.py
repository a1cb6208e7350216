"""Strings cut in C are those that `struct` reads, and no length leads outside of the file."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import pytest

from tandem.common import gguf_strings
from tandem.common.gguf_strings import cut_strings


@pytest.fixture(autouse=True)
def _compiled() -> None:
    if gguf_strings._library() is None:
        pytest.skip("no C compiler")


def cut(path: Path, data: bytes, at: int, count: int) -> tuple[list[bytes], int] | None:
    path.write_bytes(data)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        return cut_strings(view, at, count)


def written(strings: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(string)) + string for string in strings)


STRINGS = [b"", b"a", b"\x00" * 9, "é龘".encode(), b"x" * 300] * 300


def test_strings_and_their_end(tmp_path: Path) -> None:
    data = b"head" + written(STRINGS) + b"tail"
    assert cut(tmp_path / "x", data, 4, len(STRINGS)) == (STRINGS, len(data) - 4)


def test_what_is_no_text_and_what_is_little_is_left_to_python(tmp_path: Path) -> None:
    assert cut(tmp_path / "x", written([*STRINGS, b"\xff"]), 0, len(STRINGS) + 1) is None
    assert cut(tmp_path / "x", written(STRINGS), 0, 10) is None


@pytest.mark.parametrize("length", [301, 1 << 31, 1 << 63, (1 << 64) - 1])
def test_a_length_that_leads_outside_is_noticed(tmp_path: Path, length: int) -> None:
    data = bytearray(written(STRINGS))
    data[-308:-300] = struct.pack("<Q", length)
    for end in (len(data), -300, -301, -305):
        assert cut(tmp_path / "x", bytes(data[:end]), 0, len(STRINGS)) is None

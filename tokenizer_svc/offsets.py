"""Positions of tokens in text: bytes of UTF-8 to code points."""

from __future__ import annotations

from collections.abc import Sequence

_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))


def to_code_points(data: bytes, byte_offsets: Sequence[int]) -> list[int]:
    """The code point in which each byte offset of `data` lies; offsets ascend, and may be the end."""
    if data.isascii():
        return list(byte_offsets)
    result: list[int] = []
    at = 0  # bytes counted so far
    started = 0  # characters that begin in them
    for offset in byte_offsets:
        if offset > at:
            started += len(data[at:offset].translate(None, _CONTINUATION_BYTES))
            at = offset
        inside = at < len(data) and 0x80 <= data[at] < 0xC0
        result.append(started - 1 if inside else started)
    return result

"""Positions of tokens in text: bytes of UTF-8 to code points, and back through normalization."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from tokenizer_svc.arrays import Ids


def to_code_points(data: bytes, byte_offsets: Ids) -> Ids:
    """The code point in which each byte offset of `data` lies; offsets ascend, and may be the end."""
    if data.isascii():
        return byte_offsets
    begun = np.empty(len(data) + 1, np.uint32)  # characters that begin before each byte, or with it
    np.cumsum(np.frombuffer(data, np.int8) >= -64, out=begun[:-1])  # as signed numbers, -128 to -65 go on
    begun[-1] = begun[-2] + 1
    return begun[byte_offsets] - np.uint32(1)


def offsets_before_nfc(text: str, offsets: Sequence[int]) -> list[int]:
    """Byte offsets in the NFC form of `text` as byte offsets in `text`: where the character that composed it begins.

    Text is taken apart in front of every character that can begin a composition; each part composes by itself.
    """
    composed_at: list[int] = []  # byte offset of each part in the NFC form
    begins_at: list[int] = []  # and in the text
    composed = begins = 0
    part = ""
    for character in [*text, ""]:
        if part and (not character or _begins(part, character)):
            composed_at.append(composed)
            begins_at.append(begins)
            composed += len(unicodedata.normalize("NFC", part).encode())
            begins += len(part.encode())
            part = ""
        part += character
    return [begins_at[max(0, bisect_right(composed_at, offset) - 1)] if begins_at else 0 for offset in offsets]


def _begins(part: str, character: str) -> bool:
    """Whether what follows `part` composes without it."""
    if unicodedata.combining(character):
        return False
    return unicodedata.normalize("NFC", part + character) == unicodedata.normalize("NFC", part) + character

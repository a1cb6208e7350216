"""The vocabulary of the small servers: an id for each byte, and three others."""

from __future__ import annotations

from collections.abc import Sequence

BOS, EOS, CONTROL = 0, 1, 2
FIRST_BYTE = 3
VOCABULARY = FIRST_BYTE + 256
CONTROL_TEXT = "<|control|>"
FINGERPRINT = "f" * 64
TEXT = "Once there was a wörker 🚀 that counted. "


def ids_of_text(text: str) -> list[int]:
    return [FIRST_BYTE + byte for byte in text.encode()]


def text_of_ids(ids: Sequence[int]) -> str:
    return bytes(i - FIRST_BYTE for i in ids if i >= FIRST_BYTE).decode(errors="replace")

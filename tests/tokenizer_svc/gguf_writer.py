"""Writes the metadata of small GGUF files for tests."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

_NUMBERS = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}


def gguf_bytes(metadata: dict[str, Any], version: int = 3) -> bytes:
    """A GGUF file without tensors; lists hold str, int or float."""
    parts = [b"GGUF", struct.pack("<IQQ", version, 0, len(metadata))]
    for key, value in metadata.items():
        parts.append(_text(key))
        parts.append(_list(value) if isinstance(value, list) else _value(value))
    return b"".join(parts)


def write_gguf(path: Path, metadata: dict[str, Any]) -> Path:
    path.write_bytes(gguf_bytes(metadata))
    return path


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def _value(value: object) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    kind, code = _NUMBERS[type(value)]
    return struct.pack(f"<I{code}", kind, value)


def _list(values: list[Any]) -> bytes:
    if values and isinstance(values[0], str):
        return struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(_text, values))
    kind, code = _NUMBERS[type(values[0])] if values else (4, "I")
    return struct.pack("<IIQ", 9, kind, len(values)) + struct.pack(f"<{len(values)}{code}", *values)

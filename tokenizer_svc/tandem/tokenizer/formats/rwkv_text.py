"""RWKV's token texts: bytes written with backslash escapes."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(.)|$)", re.DOTALL)
_NAMED = {"t": b"\t", "n": b"\n", "r": b"\r"}


def unescape(text: str) -> bytes:
    """Returns the bytes of a token. Raises ValueError for an escape that ends too soon."""
    parts: list[bytes] = []
    at = 0
    for match in _ESCAPE.finditer(text):
        parts.append(text[at : match.start()].encode())
        if match[1] is not None:
            parts.append(bytes([int(match[1], 16)]))
        elif match[2] is None or match[2] == "x":
            raise ValueError(f"has a broken escape: {text!r}")
        else:
            parts.append(_NAMED.get(match[2], match[2].encode()))
        at = match.end()
    parts.append(text[at:].encode())
    return b"".join(parts)

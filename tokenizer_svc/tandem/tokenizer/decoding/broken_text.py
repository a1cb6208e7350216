"""Bytes of UTF-8 that may be broken or unfinished: what of them is text, and where."""

from __future__ import annotations

from codecs import utf_8_decode

_WINDOW = 1024  # bytes that are decoded at once to find where a character starts


def whole_text(raw: bytes) -> str | None:
    """Returns the text of bytes, None where they are not whole characters."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def byte_position(raw: bytes, characters: int) -> int:
    """Returns the byte position of the character number `characters` in `raw`, decoded with replacement."""
    at = 0
    while characters:
        window = raw[at : at + _WINDOW]
        try:
            text, used = utf_8_decode(window, "strict", False)
        except UnicodeDecodeError as error:
            text, used = window[: error.start].decode(), error.start
            if len(text) < characters:  # the invalid bytes became one U+FFFD
                characters -= len(text) + 1
                at += error.end
                continue
        else:
            if not used:  # an unfinished character at the very end, flushed as one U+FFFD
                return at + len(window)
        if len(text) >= characters:
            return at + len(text[:characters].encode())
        characters -= len(text)
        at += used
    return at

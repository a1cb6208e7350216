"""GPT-2's alphabet: every byte is written as one printable character in vocabulary files."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from itertools import accumulate, pairwise


def _alphabet() -> str:
    """Returns the character of each byte: printable Latin-1 stands for itself, the other bytes, in order, for U+0100
    and on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte) if byte in printable else chr(next(others)) for byte in range(256))


ALPHABET = _alphabet()
_ENCODING = codecs.charmap_build(ALPHABET)


def from_alphabet(text: str) -> bytes:
    """Returns the bytes of a token's text; a character outside of the alphabet stands for itself in UTF-8."""
    try:
        return codecs.charmap_encode(text, "strict", _ENCODING)[0]
    except UnicodeEncodeError:
        return b"".join(
            bytes([ALPHABET.index(character)]) if character in ALPHABET else character.encode() for character in text
        )


def from_alphabet_all(texts: Sequence[str]) -> list[bytes]:
    """Returns the bytes of many texts, in one pass where they keep to the alphabet: one character is one byte there."""
    try:
        joined = codecs.charmap_encode("".join(texts), "strict", _ENCODING)[0]
    except UnicodeEncodeError:
        return list(map(from_alphabet, texts))
    return [joined[start:end] for start, end in pairwise(accumulate(map(len, texts), initial=0))]

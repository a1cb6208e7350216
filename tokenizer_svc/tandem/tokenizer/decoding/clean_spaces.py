"""llama.cpp's `clean_spaces`: English text without the spaces that naive detokenization leaves."""

from __future__ import annotations

import re

_BEFORE_PUNCTUATION = re.compile(rb" (?=[?!.,])")
_LONELY_APOSTROPHE = re.compile(rb" ' ")
_BEFORE_CONTRACTION = re.compile(rb" (?='(?:[sm]|re|ve))")


def clean_spaces(text: bytes) -> bytes:
    """Removes spaces: `Hello , it 's` becomes `Hello, it's`. Information is lost, so this is never part of a round
    trip.

    Contractions with t, d and ll keep their space, as in llama.cpp.
    """
    text = _BEFORE_PUNCTUATION.sub(b"", text)
    text = _LONELY_APOSTROPHE.sub(b"'", text)
    return _BEFORE_CONTRACTION.sub(b"", text)

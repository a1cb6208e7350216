"""Keeps a character of several code points in one piece: an emoji with its skin tone, a letter with accents.

What comes next may always belong to the last character, so that one is held back until the next one has begun.
"""

from __future__ import annotations

import regex  # type: ignore[import-untyped]

MAX_HELD = 64  # code points; a longer character is sent in parts
_CLUSTER = regex.compile(r"\X")
_NEAR = 256  # how far from the end a certain border is looked for


class GraphemeHold:
    """Takes text in any parts and returns it in whole characters."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = ""

    def push(self, text: str) -> str:
        """Returns the text that can be sent now."""
        if not text:
            return ""
        text = self.held + text
        start = _certain_border(text)
        for match in _CLUSTER.finditer(text, start):
            start = match.start()
        if len(text) - start > MAX_HELD:
            start = len(text)
        self.held = text[start:]
        return text[:start]

    def flush(self) -> str:
        """Returns the text that was held back."""
        held, self.held = self.held, ""
        return held


def _certain_border(text: str) -> int:
    """Returns a position near the end, between two ASCII letters, digits or spaces, where a character is certain to
    begin."""
    for at in range(len(text) - 1, max(0, len(text) - _NEAR), -1):
        if text[at] in _PLAIN and text[at - 1] in _PLAIN:
            return at
    return 0


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,;:!?'\"()-")

"""Bounds the ids of a vocabulary: a mistyped id must not allocate memory."""

from __future__ import annotations

MAX_ID = 1 << 22  # far above any vocabulary
MAX_GAPS = 1 << 16  # ids that stand for nothing; vocabularies leave some hundreds


def check_reach(highest: int, tokens: int, field: str) -> None:
    """Raises ValueError when the id `highest` is too large for a vocabulary of so many tokens. `field` is the place
    that the ids come from."""
    if highest >= MAX_ID:
        raise ValueError(f"{field} has the id {highest}, which is out of any range")
    if (gaps := highest + 1 - tokens) > MAX_GAPS:
        raise ValueError(f"{field} has the id {highest}: {gaps} ids below it have no token, at most {MAX_GAPS} may")

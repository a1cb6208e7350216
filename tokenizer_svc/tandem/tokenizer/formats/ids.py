"""Bounds the ids of a vocabulary: a mistyped id must not allocate memory. Pads them to those of the model."""

from __future__ import annotations

from array import array
from dataclasses import replace

from tandem.tokenizer.vocabulary import DecodedForms, TokenTable, TokenType

MAX_ID = 1 << 22  # far above any vocabulary
MAX_GAPS = 1 << 16  # ids that stand for nothing; vocabularies leave some hundreds


def check_reach(highest: int, tokens: int, field: str) -> None:
    """Raises ValueError when the id `highest` is too large for a vocabulary of so many tokens. `field` is the place
    that the ids come from."""
    if highest >= MAX_ID:
        raise ValueError(f"{field} has the id {highest}, which is out of any range")
    if (gaps := highest + 1 - tokens) > MAX_GAPS:
        raise ValueError(f"{field} has the id {highest}: {gaps} ids below it have no token, at most {MAX_GAPS} may")


def padded(table: TokenTable, size: int) -> TokenTable:
    """Returns the same table with unused ids behind it, `size` ids in all.

    A model has more ids than its vocabulary where its embedding was rounded up, and may draw one of them. A size that
    is smaller, or out of reach, is not that of this vocabulary's model and changes nothing.
    """
    more = size - len(table)
    if not 0 < more <= MAX_GAPS or size > MAX_ID:
        return table
    nothing, scores, forms = [b""] * more, table.scores, table.forms
    return replace(
        table,
        pieces=[*table.pieces, *nothing],
        types=table.types + bytes([TokenType.UNUSED]) * more,
        scores=None if scores is None else scores + array(scores.typecode, bytes(scores.itemsize * more)),
        forms=None if forms is None else DecodedForms(forms.first, [*forms.rest, *nothing]),
    )

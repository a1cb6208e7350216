"""Sequence breakers of DRY as text: every way in which a text can begin within a token, as ids. Pure.

A breaker must be found wherever its text stands in the output, whatever tokens spell it. As in llama.cpp, each token
that contains the text is a breaker by itself; each token that ends with a beginning of the text is one together with
the ids of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

MAX_CHARACTERS = 40  # of a breaker; what is behind is not looked at, as in llama.cpp


def beginnings(text: str, pieces: Sequence[bytes]) -> Iterator[tuple[int, str]]:
    """Yields the ids whose piece contains `text` or ends with a beginning of it, each with the rest of `text` behind
    it."""
    text = text[:MAX_CHARACTERS]
    whole = text.encode()
    ends = tuple(text[:count].encode() for count in range(1, len(text)))
    for id_, piece in enumerate(pieces):
        if whole in piece:
            yield id_, ""
        elif ends and piece.endswith(ends):
            for end in ends:
                if piece.endswith(end):
                    yield id_, whole[len(end) :].decode()

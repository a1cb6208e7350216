"""SentencePiece's byte-pair encoding by merging bytes as tiktoken does, in C: the same ids, many times faster, without
the interpreter lock.

Both join, again and again, the best pair of neighbours whose text is a piece: by score in one, by rank in the other. So
pieces ranked by falling score give the same ids, under these rules:

- One begins with characters, the other with bytes. The bytes of each character that any piece holds are joined first:
  the beginnings of characters have the lowest ranks. No piece has a part of a character, so nothing else can come
  of them. What is left of an unknown character stands for its bytes, as byte fallback has it.
- A word that is a piece is taken at once. A piece that merging does not make of its own text is made of no other
  text either, as merges within it see nothing of what is around it; such pieces are left out.
- Text is cut where no merge can reach across: in front of the spaces of a word, and around characters that no piece
  joins to another.

- Of pairs with the same score SentencePiece joins the leftmost. Runs of one character often have the same (spaces in
  Llama 2): a run then grows from the left until it is the longest. So it does where longer runs have lower ranks.

Where other pieces share a score, a piece holds a space anywhere but at its beginning, a byte has no piece, or a piece
that is to be taken apart again (UNUSED) can be made or is a character, there is no such merger.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from tandem.tokenizer.arrays import Ids
from tandem.tokenizer.vocabularies.bpe.compiled_bpe import CompiledBpe, compiled_bpe, expansions_of
from tandem.tokenizer.vocabularies.bpe.pattern_compiler import tiktokens
from tandem.tokenizer.vocabulary import TokenType

SPACE = "▁"  # U+2581, which stands for a space in the pieces
_INNER_SPACE = re.compile(r"[^ ] ")
_MERGING = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)


class SpmMerger:
    """Encodes text to ids. Make it with `of`."""

    def __init__(self, bpe: CompiledBpe) -> None:
        self._bpe = bpe

    @staticmethod
    def of(model: ModelProto, encode: Callable[[list[str]], Sequence[Sequence[int]]]) -> SpmMerger | None:
        """Returns None where merging bytes is not the same. `encode` is the library's own, for many short texts. Raises
        NotServed where there are no compiled functions."""
        pieces = _Pieces.of(model)
        ranked = pieces.ranked(encode)
        if ranked is None:
            return None
        ids_of_ranks = pieces.ids_of_ranks(ranked)
        expansions = expansions_of(list(ids_of_ranks.values()))
        pattern = _pattern(list(pieces.scores))
        return SpmMerger(compiled_bpe([pattern], tiktokens, list(ids_of_ranks), expansions=expansions))

    def encode(self, text: str) -> Ids:
        return self._bpe.encode(text.replace(SPACE, " "))

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        return self._bpe.encode_many([text.replace(SPACE, " ") for text in texts])


class _Pieces(NamedTuple):
    """The pieces of a model, with spaces for U+2581."""

    known: dict[str, int]
    of_bytes: dict[int, int]
    scores: dict[str, float]  # of those that a merge makes
    unused: list[str]

    @staticmethod
    def of(model: ModelProto) -> _Pieces:
        pieces = _Pieces({}, {}, {}, [])
        for index, piece in enumerate(model.pieces):
            if piece.type == TokenType.BYTE:
                pieces.of_bytes[int(piece.piece[3:5], 16)] = index
            elif piece.type in _MERGING:
                text = piece.piece.replace(SPACE, " ")
                pieces.known[text] = index
                if len(text) > 1:
                    pieces.scores[text] = piece.score
                if piece.type == TokenType.UNUSED:
                    pieces.unused.append(text)
        return pieces

    def ranked(self, encode: Callable[[list[str]], Sequence[Sequence[int]]]) -> list[str] | None:
        """Returns the pieces that merging makes, in the order of their merge ranks; None where that order is not the
        same."""
        known, scores = self.known, self.scores
        if len(self.of_bytes) < 256 or " " not in known or any(map(_INNER_SPACE.search, scores)):
            return None
        if any(
            len(text) == 1 or any(text[:cut] in known and text[cut:] in known for cut in range(1, len(text)))
            for text in self.unused
        ):
            return None
        made = encode(list(scores))
        ranked = [text for text, ids in zip(scores, made, strict=True) if list(ids) == [known[text]]]
        ranked.sort(key=lambda text: (scores[text], len(text)), reverse=True)
        if not all(_is_clear(list(tied)) for _, tied in groupby(ranked, key=scores.__getitem__)):
            return None
        return ranked

    def ids_of_ranks(self, ranked: Sequence[str]) -> dict[bytes, list[int]]:
        """Returns everything that is merged, in the order of merge ranks (bytes, the beginnings of characters, and the
        pieces), with the ids that each stands for."""
        known, of_bytes = self.known, self.of_bytes
        found = {bytes([byte]): [of_bytes[byte]] for byte in range(256)}
        found |= {bytes([byte]): [known[chr(byte)]] for byte in range(128) if chr(byte) in known}
        for character in sorted({character for text in known for character in text}):
            data = character.encode()
            for end in range(2, len(data)):
                found.setdefault(data[:end], [of_bytes[byte] for byte in data[:end]])
            found.setdefault(data, [known[character]] if character in known else [of_bytes[byte] for byte in data])
        for text in ranked:
            found.setdefault(text.encode(), [known[text]])
        return found


def _is_clear(tied: Sequence[str]) -> bool:
    """Returns True when these pieces of one score, longest first, are a single one, or all runs of one character up to
    the longest."""
    return len(tied) == 1 or list(tied) == [tied[0][0] * length for length in range(len(tied) + 1, 1, -1)]


def _pattern(merging: Sequence[str]) -> str:
    """Returns the pattern of words with the spaces in front of them. Characters that no piece joins to another are
    words of their own."""
    joining = sorted({ord(character) for text in merging for character in text} - {ord(" ")})
    if not joining:
        return r" +|[^ ]"
    ranges: list[list[int]] = []
    for point in joining:
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    inside = "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in ranges)
    return f" *[{inside}]+| +|[^ ]"

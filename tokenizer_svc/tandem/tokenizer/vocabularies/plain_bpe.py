"""Byte-pair encoding by tiktoken: where there is no compiled library, or a pattern is not understood by it.

Some vocabularies cut text by several patterns, each one the pieces of the last. tiktoken knows one pattern, so these
are cut here and only merged there. Text that no pattern matches is a piece of its own, as in llama.cpp. tiktoken's
pattern engine overflows its stack on about a million white-space characters in a row; such text is cut here too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain

import tiktoken

from tandem.tokenizer.arrays import NONE, Ids, ids_of, starts_of
from tandem.tokenizer.vocabularies.cutting import cutter_of
from tandem.tokenizer.vocabularies.merge_list import MergeList, PairMerger
from tandem.tokenizer.vocabularies.merging import RankMerger, raise_unless_panic, whole_merger
from tandem.tokenizer.vocabularies.patterns import PRE_TOKENIZERS
from tandem.tokenizer.vocabularies.words import WordCache


def by_tiktokens_engine(patterns: Sequence[str]) -> bool:
    """Whether there is one pattern only, which most likely leaves nothing out."""
    return len(patterns) == 1 and patterns[0].endswith(r"|\s+")


_COMPLETE = {cut.patterns for cut in PRE_TOKENIZERS.values() if by_tiktokens_engine(cut.patterns)}
_SHORT_PIECE = 1000  # characters; encoding so many is quick enough to keep the interpreter lock
_WHITE_SPACE_BYTES = bytes(set("".join(chr(c) for c in range(0x3001) if chr(c).isspace()).encode()))


class PlainBpe:
    """Text to ranks. `ranks` and `whole_pieces` lead from bytes to a rank each, and are in the order of ranks.

    Raises ValueError where a pattern is none.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        ranks: Mapping[bytes, int],
        whole_pieces: Mapping[bytes, int],
        merges: MergeList | None = None,
        whole: bool = True,
    ) -> None:
        """`merges` and `whole` as CompiledMerger has them."""
        self._ranks = dict(ranks)
        pairs = None if merges is None else PairMerger(list(ranks), merges)
        self._pairs = None if pairs is None or pairs.is_by_product(whole) else pairs
        self._takes_whole = whole
        self.by_pair = self._pairs is not None
        self._whole_pieces = whole_pieces
        self._cutters = list(map(cutter_of, patterns))
        self._merger = self._make_merger(patterns)
        self._leaves_nothing_out = tuple(patterns) in _COMPLETE
        self._words = WordCache(lambda words: [self._encode_whole(word) for word in words])

    def encode(self, text: str) -> Ids:
        """The ranks."""
        found = None if self._merger is None else self._merger.encode(text)
        if found is None or not self._has_all(found, text):
            return ids_of(self._words.encode(self._cut(text)))
        return found

    def encode_with_offsets(self, text: str) -> tuple[Ids, Ids]:
        """The ranks, and where each begins in the UTF-8 of the text: they stand for its bytes one after the other."""
        ranks = self.encode(text)
        return ranks, starts_of(self._lengths[ranks])

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """The ranks of each text, by one call of tiktoken where that is possible."""
        found = None if self._merger is None else self._merger.encode_many(texts)
        if found is None or not all(map(self._has_all, found, texts)):
            return [self.encode(text) if text else NONE for text in texts]
        return found

    def _has_all(self, ranks: Ids, text: str) -> bool:
        """Whether the ranks stand for the whole text: tiktoken drops what its pattern does not match."""
        return self._leaves_nothing_out or int(self._lengths[ranks].sum()) == len(text.encode())

    def _make_merger(self, patterns: Sequence[str]) -> RankMerger | None:
        """tiktoken with the pattern, where there is one and it may be for its engine."""
        if not by_tiktokens_engine(patterns) or self._whole_pieces or self._pairs is not None:
            return None
        try:
            return RankMerger(patterns[0], self._ranks, backtracking=True)
        except ValueError:  # written for another engine
            return None

    @cached_property
    def _lengths(self) -> Ids:
        """Bytes of each rank; dictionaries keep the order of ranks."""
        return ids_of(list(map(len, chain(self._ranks, self._whole_pieces))))

    @cached_property
    def _whole(self) -> tiktoken.Encoding:
        return whole_merger(self._ranks)

    @cached_property
    def _white_space(self) -> tiktoken.Encoding:
        """The same for white space alone, which only tokens of such bytes can come of. Making one of all tokens holds
        the interpreter lock for more than a tenth of a second."""
        return whole_merger(
            {
                token: rank
                for token, rank in self._ranks.items()
                if len(token) == 1 or not token.translate(None, _WHITE_SPACE_BYTES)
            }
        )

    def _encode_whole(self, piece: str) -> list[int]:
        if self._whole_pieces and (rank := self._whole_pieces.get(piece.encode())) is not None:
            return [rank]
        if self._pairs is not None:
            data = piece.encode()
            rank = self._ranks.get(data) if self._takes_whole else None
            return self._pairs.merge(data) if rank is None else [rank]
        try:
            if self._merger is not None and len(piece) <= _SHORT_PIECE:
                return self._merger.encode_piece(piece)
            return (self._white_space if piece.isspace() else self._whole).encode_ordinary(piece)
        except BaseException as error:
            raise_unless_panic(error)
            raise ValueError("the text cannot be encoded") from None

    def _cut(self, text: str) -> list[str]:
        pieces = [text]
        for cut in self._cutters:
            pieces = [finer for piece in pieces for finer in cut(piece)]
        return pieces

"""Byte-level byte-pair encoding (GPT-2, Llama 3): a pattern cuts text into pieces, then byte pairs merge by rank.

tiktoken does the work. Three things are ours:

- Ranks are merge order, and a table leads from rank to id; the two differ in some vocabularies.
- Some vocabularies cut text by several patterns, each one the pieces of the last. tiktoken knows one pattern, so these
  are cut here and only merged there. Text that no pattern matches is a piece of its own, as in llama.cpp.
- tiktoken's pattern engine overflows its stack on about a million white-space characters in a row. Such text is cut
  here too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain

import numpy as np
import tiktoken

from tokenizer_svc.arrays import NONE, Ids, ids_of, starts_of
from tokenizer_svc.offsets import offsets_before_nfc
from tokenizer_svc.vocabularies.cutting import cutter_of
from tokenizer_svc.vocabularies.merging import RankMerger, raise_unless_panic, whole_merger
from tokenizer_svc.vocabularies.patterns import PRE_TOKENIZERS
from tokenizer_svc.vocabularies.words import WordCache
from tokenizer_svc.vocabulary import VocabularyType

_BEFORE_A_LINE = re.compile(r"(?<=\n)(?=[A-Za-z])")
_CUT_AT_LINES = tuple(PRE_TOKENIZERS[name].patterns for name in ("llama-bpe", "qwen2"))
_SHORT_PIECE = 1000  # characters; encoding so many is quick enough to keep the interpreter lock
_WHITE_SPACE_BYTES = bytes(set("".join(chr(c) for c in range(0x3001) if chr(c).isspace()).encode()))
_NO_ID = 0xFFFFFFFF  # of bytes that the vocabulary lacks


class BpeVocabulary:
    """`ranked` lists (bytes, id) in merge order, single bytes among them; bytes that are missing are dropped from text.

    `patterns` are applied one after the other. `whole_pieces` are tokens that no merge makes, but which a whole piece
    may be. With `nfc` text is composed first. Raises ValueError when the ranks hold a token twice or are empty, or a
    pattern is none.
    """

    type = VocabularyType.BPE

    def __init__(
        self,
        ranked: Sequence[tuple[bytes, int]],
        patterns: Sequence[str],
        whole_pieces: Mapping[bytes, int] | None = None,
        nfc: bool = False,
    ) -> None:
        if not ranked:
            raise ValueError("there are no ranks")
        tokens, merged_ids = zip(*ranked, strict=True)
        ranks = dict(zip(tokens, range(len(tokens)), strict=True))
        if len(ranks) != len(tokens):
            raise ValueError("a token has two ranks")
        self._merged_ids: Sequence[int] = merged_ids
        self._patterns = tuple(patterns)
        self._nfc = nfc
        lacking = [byte for byte in map(bytes, zip(range(256), strict=True)) if byte not in ranks]
        ranks |= zip(lacking, range(len(ranks), 256 + len(ranks)), strict=False)
        whole = {piece: index for piece, index in (whole_pieces or {}).items() if piece not in ranks}
        self._whole_pieces = {piece: rank for rank, piece in enumerate(whole, len(ranks))}
        self._ranks = ranks
        self._ids = np.array([*merged_ids, *[_NO_ID] * len(lacking), *whole.values()], np.uint32)
        self._lacks_bytes = bool(lacking)
        self._ranks_are_ids = bool((self._ids == np.arange(len(self._ids), dtype=np.uint32)).all())
        self._cutters = list(map(cutter_of, self._patterns))
        self._merger = self._make_merger()
        # In these patterns a piece that ends in line breaks takes all of them, and none begins with one and goes on.
        self.safe_border = _BEFORE_A_LINE if self._patterns in _CUT_AT_LINES and not self._nfc else None
        self._words = WordCache(lambda words: [self._encode_whole(word) for word in words])

    def _make_merger(self) -> RankMerger | None:
        """tiktoken with the pattern, where there is one and it leaves nothing out."""
        if len(self._patterns) != 1 or not self._patterns[0].endswith(r"|\s+") or self._whole_pieces:
            return None
        try:
            return RankMerger(self._patterns[0], self._ranks, backtracking=True)
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

    def encode(self, text: str) -> Ids:
        return self._ids_of_ranks(self._encode_ranks(text))

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, by one call of tiktoken where that is possible."""
        found = None if self._merger is None or self._nfc else self._merger.encode_many(texts)
        if found is None:
            return [self.encode(text) if text else NONE for text in texts]
        return found if self._ranks_are_ids else list(map(self._ids_of_ranks, found))

    def encode_with_offsets(self, text: str) -> tuple[Ids, Ids]:
        """Ranks stand for bytes of the text one after the other."""
        if self._nfc and not unicodedata.is_normalized("NFC", text):
            ids, offsets = self.encode_with_offsets(unicodedata.normalize("NFC", text))
            return ids, ids_of(offsets_before_nfc(text, offsets.tolist()))
        ranks = self._encode_ranks(text)
        ids, offsets = self._ids[ranks], starts_of(self._lengths[ranks])
        if not self._lacks_bytes:
            return ids, offsets
        known = ids != _NO_ID
        return ids[known], offsets[known]

    def _ids_of_ranks(self, ranks: Ids) -> Ids:
        if self._ranks_are_ids:
            return ranks
        ids = self._ids[ranks]
        return ids[ids != _NO_ID] if self._lacks_bytes else ids

    def behaviour(self) -> Iterator[bytes]:
        if self._nfc:
            yield b"NFC"
        for pattern in self._patterns:
            yield b"pattern " + pattern.encode()
        yield b"ids in merge order " + ",".join(map(str, self._merged_ids)).encode()
        if self._whole_pieces:
            yield b"whole pieces " + ",".join(map(str, self._ids[list(self._whole_pieces.values())])).encode()

    def _encode_ranks(self, text: str) -> Ids:
        if self._nfc:
            text = unicodedata.normalize("NFC", text)
        found = None if self._merger is None else self._merger.encode(text)
        return ids_of(self._words.encode(self._cut(text))) if found is None else found

    def _encode_whole(self, piece: str) -> list[int]:
        if self._whole_pieces and (rank := self._whole_pieces.get(piece.encode())) is not None:
            return [rank]
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

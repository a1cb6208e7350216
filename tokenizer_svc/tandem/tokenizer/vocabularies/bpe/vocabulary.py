"""Byte-level byte-pair encoding (GPT-2, Llama 3): a pattern cuts text into pieces, then bytes merge by merge rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from operator import itemgetter

import numpy as np

from tandem.tokenizer.arrays import NONE, Ids
from tandem.tokenizer.native.compiled_encoder import NotServed
from tandem.tokenizer.vocabularies.bpe.compiled_bpe import CompiledBpe, compiled_bpe
from tandem.tokenizer.vocabularies.bpe.merges import MergeList
from tandem.tokenizer.vocabularies.bpe.pattern_compiler import regexs, tiktokens
from tandem.tokenizer.vocabularies.bpe.pre_tokenizers import PRE_TOKENIZERS
from tandem.tokenizer.vocabularies.bpe.tiktoken_bpe import TiktokenBpe, by_tiktokens_engine
from tandem.tokenizer.vocabulary import Located, VocabularyType

_BEFORE_A_LINE = re.compile(r"(?<=\n)(?=[A-Za-z])")
_CUT_AT_LINES = tuple(PRE_TOKENIZERS[name].patterns for name in ("llama-bpe", "qwen2"))
_NO_ID = 0xFFFFFFFF  # of bytes that the vocabulary lacks


class BpeVocabulary:
    """Lists (bytes, id) in merge order as `ranked`, single bytes among them; bytes that are missing are dropped from
    text.

    `merges` are the pairs that make them, where a file lists those: their numbers are places in `ranked`, and `whole`
    tells whether a piece that is a token is taken as it is. `patterns` are applied one after the other. `whole_pieces`
    are tokens that no merge makes, but which a whole piece may be. Raises ValueError when the ranks hold a token twice
    or are empty, or a pattern is not a regular expression.
    """

    type = VocabularyType.BPE

    def __init__(
        self,
        ranked: Sequence[tuple[bytes, int]],
        patterns: Sequence[str],
        whole_pieces: Mapping[bytes, int] | None = None,
        merges: MergeList | None = None,
        whole: bool = True,
    ) -> None:
        if not ranked:
            raise ValueError("there are no ranks")
        tokens, merged_ids = (list(map(itemgetter(part), ranked)) for part in (0, 1))
        self._merged_ids: Sequence[int] = merged_ids
        self._patterns = tuple(patterns)
        single = {token for token in tokens if len(token) == 1}
        lacking = [byte for byte in map(bytes, zip(range(256), strict=True)) if byte not in single]
        merging = [*tokens, *lacking]
        known = set(merging) if whole_pieces else set()
        others = {piece: index for piece, index in (whole_pieces or {}).items() if piece not in known}
        self._whole_ids = list(others.values())
        self._ids = np.array([*merged_ids, *[_NO_ID] * len(lacking), *self._whole_ids], np.uint32)
        self._lacks_bytes = bool(lacking)
        known_ids = [*merged_ids, *self._whole_ids]
        self._lengths = np.zeros(max(known_ids) + 1, np.uint32)  # in bytes, by id
        self._lengths[known_ids] = list(map(len, [*tokens, *others]))
        self._ranks_are_ids = bool((self._ids == np.arange(len(self._ids), dtype=np.uint32)).all())
        self.compiled: CompiledBpe | None = None
        self._plain: TiktokenBpe | None = None
        try:
            # By the engine that tells letters and digits in `TiktokenBpe`: each has a Unicode version of its own.
            engine = tiktokens if by_tiktokens_engine(self._patterns) and not others else regexs
            self.compiled = compiled_bpe(
                self._patterns, engine, [*merging, *others], len(merging), self._expansions(), merges, whole
            )
            by_pair = self.compiled.by_pair
            self.encoder = "compiled"
        except NotServed as reason:
            rank = count()
            if len(set(merging)) != len(merging):
                raise ValueError("a token has two ranks") from None
            ranks, whole_ranks = ({token: next(rank) for token in part} for part in (merging, others))
            self._plain = TiktokenBpe(self._patterns, ranks, whole_ranks, merges, whole)
            by_pair = self._plain.by_pair
            self.encoder = f"tiktoken ({reason})"
        self._pairs = merges if by_pair else None
        self._takes_whole = whole
        # In these patterns a piece that ends in line breaks takes all of them, and none begins with one and goes on.
        self.safe_border = _BEFORE_A_LINE if self._patterns in _CUT_AT_LINES else None

    def encode(self, text: str) -> Ids:
        if self.compiled is not None:
            return self.compiled.encode(text)
        assert self._plain is not None
        return self._ids_of_ranks(self._plain.encode(text))

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the ids of each text, by one call where that is possible."""
        if self.compiled is not None:
            return self.compiled.encode_many(texts)
        assert self._plain is not None
        found = self._plain.encode_many(texts)
        return found if self._ranks_are_ids else list(map(self._ids_of_ranks, found))

    def encode_with_offsets(self, text: str) -> Located:
        if self.compiled is not None:
            ids, starts = self.compiled.encode_with_offsets(text)
        else:
            assert self._plain is not None
            ranks, starts = self._plain.encode_with_offsets(text)
            ids = self._ids[ranks]
            if self._lacks_bytes:
                known = ids != _NO_ID
                ids, starts = ids[known], starts[known]
        return Located(ids, starts, starts + self._lengths[ids])

    def _ids_of_ranks(self, ranks: Ids) -> Ids:
        if self._ranks_are_ids:
            return ranks
        ids = self._ids[ranks]
        return ids[ids != _NO_ID] if self._lacks_bytes else ids

    def _expansions(self) -> tuple[Ids, Ids] | None:
        """Returns the place of each merge rank's id among all; a byte that is missing has none."""
        if self._ranks_are_ids:
            return None
        known = self._ids != _NO_ID
        return np.concatenate((NONE, [0], np.cumsum(known))).astype(np.uint32), self._ids[known]

    def behaviour(self) -> Iterator[bytes]:
        for pattern in self._patterns:
            yield b"pattern " + pattern.encode()
        yield b"ids in merge order " + ",".join(map(str, self._merged_ids)).encode()
        if self._pairs is not None:
            numbers = [self._takes_whole, *self._pairs.products.tolist(), *self._pairs.cuts.tolist()]
            yield b"pairs " + ",".join(map(str, numbers)).encode()
        if self._whole_ids:
            yield b"whole pieces " + ",".join(map(str, self._whole_ids)).encode()

"""Byte-level byte-pair encoding (GPT-2, Llama 3): a pattern cuts text into pieces, then byte pairs merge by rank.

tiktoken does the work. Three things are ours:

- Ranks are merge order, and a table leads from rank to id; the two differ in some vocabularies.
- Some vocabularies cut text by several patterns, each one the pieces of the last. tiktoken knows one pattern, so these
  are cut here and only merged there. Text that no pattern matches is a piece of its own, as in llama.cpp.
- tiktoken's pattern engine overflows its stack on about a million white-space characters in a row. Such text is cut
  here too; and should the engine panic all the same, that is not allowed out of this file.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain

import regex  # type: ignore[import-untyped]
import tiktoken

from tokenizer_svc.offsets import offsets_before_nfc
from tokenizer_svc.vocabularies.patterns import PRE_TOKENIZERS
from tokenizer_svc.vocabularies.words import WordCache
from tokenizer_svc.vocabulary import VocabularyType

_LONG_RUN = 100_000  # white-space characters in a row that tiktoken is spared
_BEFORE_A_LINE = re.compile(r"(?<=\n)(?=[A-Za-z])")
_CUT_AT_LINES = tuple(PRE_TOKENIZERS[name].patterns for name in ("llama-bpe", "qwen2"))
_SHORT_PIECE = 1000  # characters; encoding so many is quick enough to keep the interpreter lock
_WHITE_SPACE_BYTES = bytes(set("".join(chr(c) for c in range(0x3001) if chr(c).isspace()).encode()))
_BORDER = "\U0010fffe"  # a non-character; texts that hold it are encoded one by one
_ONLY_BORDER = {_BORDER}
_LONG_WHITE_SPACE = re.compile(rf"\s{{{_LONG_RUN}}}")


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
        ranks = dict(zip((token for token, _ in ranked), range(len(ranked)), strict=True))
        if len(ranks) != len(ranked):
            raise ValueError("a token has two ranks")
        self._ids: list[int | None] = [index for _, index in ranked]
        self._patterns = tuple(patterns)
        self._nfc = nfc
        for byte in range(256):
            if bytes([byte]) not in ranks:
                ranks[bytes([byte])] = len(self._ids)
                self._ids.append(None)
        self._whole_pieces = {}
        for piece, index in (whole_pieces or {}).items():
            if piece not in ranks:
                self._whole_pieces[piece] = len(self._ids)
                self._ids.append(index)
        self._ranks = ranks
        self._lengths = list(map(len, chain(ranks, self._whole_pieces)))  # dictionaries keep the order of ranks
        self._ranks_are_ids = self._ids == list(range(len(self._ids)))
        try:
            self._cutters = [regex.compile(pattern) for pattern in self._patterns]
        except regex.error as error:
            raise ValueError(f"a pattern is no regular expression: {error}") from None
        self._cutting = self._make_cutting()
        # In these patterns a piece that ends in line breaks takes all of them, and none begins with one and goes on.
        self.safe_border = _BEFORE_A_LINE if self._patterns in _CUT_AT_LINES and not self._nfc else None
        self._words = WordCache(lambda words: [self._encode_whole(word) for word in words])

    def _make_cutting(self) -> tiktoken.Encoding | None:
        """tiktoken with the pattern, where there is one and it leaves nothing out."""
        if len(self._patterns) != 1 or not self._patterns[0].endswith(r"|\s+") or self._whole_pieces:
            return None
        try:
            border = {_BORDER: len(self._ids)}
            return tiktoken.Encoding(
                "text", pat_str=self._patterns[0], mergeable_ranks=self._ranks, special_tokens=border
            )
        except ValueError:  # written for another engine
            return None

    @cached_property
    def _whole(self) -> tiktoken.Encoding:
        """tiktoken that takes any text for one piece."""
        return tiktoken.Encoding("pieces", pat_str=r"(?s:.+)", mergeable_ranks=self._ranks, special_tokens={})

    @cached_property
    def _white_space(self) -> tiktoken.Encoding:
        """The same for white space alone, which only tokens of such bytes can come of. Making one of all tokens holds
        the interpreter lock for more than a tenth of a second."""
        ranks = {
            token: rank
            for token, rank in self._ranks.items()
            if len(token) == 1 or not token.translate(None, _WHITE_SPACE_BYTES)
        }
        return tiktoken.Encoding("white space", pat_str=r"(?s:.+)", mergeable_ranks=ranks, special_tokens={})

    def encode(self, text: str) -> list[int]:
        ranks = self._encode_ranks(text)
        if self._ranks_are_ids:
            return ranks
        ids = self._ids
        return [index for rank in ranks if (index := ids[rank]) is not None]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text. All go through tiktoken in one call, with a border between them that it treats as a special
        token: it cuts there before anything else, and the interpreter lock is taken once and not once a text."""
        joined = _BORDER.join(texts)
        if (
            self._cutting is not None
            and self._ranks_are_ids
            and not self._nfc
            and joined.count(_BORDER) == len(texts) - 1
            and not _has_long_white_space(joined)
        ):
            try:
                ids = self._cutting.encode(joined, allowed_special=_ONLY_BORDER, disallowed_special=())
                return _split_at(ids, len(self._ids))
            except BaseException as error:
                _raise_unless_panic(error)
        return [self.encode(text) if text else [] for text in texts]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[int]]:
        if self._nfc and not unicodedata.is_normalized("NFC", text):
            ids, offsets = self.encode_with_offsets(unicodedata.normalize("NFC", text))
            return ids, offsets_before_nfc(text, offsets)
        return self._partition(text)

    def _partition(self, text: str) -> tuple[list[int], list[int]]:
        """Ranks stand for bytes of the text one after the other."""
        ids: list[int] = []
        offsets: list[int] = []
        at = 0
        for rank in self._encode_ranks(text):
            index = self._ids[rank]
            if index is not None:
                ids.append(index)
                offsets.append(at)
            at += self._lengths[rank]
        return ids, offsets

    def behaviour(self) -> Iterator[bytes]:
        if self._nfc:
            yield b"NFC"
        for pattern in self._patterns:
            yield b"pattern " + pattern.encode()
        merged = self._ids[: len(self._ids) - len(self._whole_pieces)]
        yield b"ids in merge order " + b",".join(b"%d" % index for index in merged if index is not None)
        if self._whole_pieces:
            yield b"whole pieces " + b",".join(b"%d" % (self._ids[rank] or 0) for rank in self._whole_pieces.values())

    def _encode_ranks(self, text: str) -> list[int]:
        if self._nfc:
            text = unicodedata.normalize("NFC", text)
        if self._cutting is not None and not _has_long_white_space(text):
            try:
                return self._cutting.encode_ordinary(text)
            except BaseException as error:
                _raise_unless_panic(error)
        return self._words.encode(self._cut(text))

    def _encode_whole(self, piece: str) -> list[int]:
        if self._whole_pieces and (rank := self._whole_pieces.get(piece.encode())) is not None:
            return [rank]
        try:
            if self._cutting is not None and len(piece) <= _SHORT_PIECE:
                return self._cutting._encode_single_piece(piece)
            return (self._white_space if piece.isspace() else self._whole).encode_ordinary(piece)
        except BaseException as error:
            _raise_unless_panic(error)
            raise ValueError("the text cannot be encoded") from None

    def _cut(self, text: str) -> list[str]:
        pieces = [text]
        for cutter in self._cutters:
            finer: list[str] = []
            for piece in pieces:
                at = 0
                for match in cutter.finditer(piece):
                    start, end = match.span()
                    if start > at:
                        finer.append(piece[at:start])
                    if end > start:
                        finer.append(piece[start:end])
                    at = end
                if at < len(piece):
                    finer.append(piece[at:])
            pieces = finer
        return pieces


def _split_at(ids: list[int], border: int) -> list[list[int]]:
    parts: list[list[int]] = []
    at = 0
    try:
        while True:
            end = ids.index(border, at)
            parts.append(ids[at:end])
            at = end + 1
    except ValueError:
        parts.append(ids[at:])
    return parts


def _has_long_white_space(text: str) -> bool:
    """Whether there is a run of twice `_LONG_RUN` white-space characters (a shorter one may be reported as well)."""
    return any(
        text[at].isspace() and _LONG_WHITE_SPACE.match(text, at) is not None
        for at in range(_LONG_RUN - 1, len(text), _LONG_RUN)
    )


def _raise_unless_panic(error: BaseException) -> None:
    """A Rust panic arrives as a BaseException of a class that cannot be imported."""
    if type(error).__name__ != "PanicException":
        raise error

"""WordPiece (BERT): words are normalized and cut at white space, punctuation and Chinese characters; then the longest
pieces that match a word are taken from left to right. A word that cannot be made of pieces is one unknown token.

Text is lower-cased and loses its accents, as the uncased models want it; `lowercase=False` is for the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import regex  # type: ignore[import-untyped]

from tandem.tokenizer.arrays import NONE, Ids, ids_of
from tandem.tokenizer.library_characters import CHINESE, DROPPED, ONE_OF_ACCENTS, PUNCTUATION
from tandem.tokenizer.normalizing import Form, lowered_by_library, normalized, normalized_by_library
from tandem.tokenizer.vocabulary import Located, VocabularyType
from tandem.tokenizer.word_cache import WordCache

_CHINESE = (
    r"\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b73f"
    r"\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f"
)
_ALONE = rf"\p{{P}}$+<=>^`|~{_CHINESE}"  # punctuation, ASCII symbols and Chinese characters are words of their own
_ALONE_TO_LIBRARY = PUNCTUATION + CHINESE


class _Rules(NamedTuple):
    """What is a word, and what is dropped; of text that is lower-cased, how it gets its normal form, what accents are,
    and what becomes of the rest."""

    words: re.Pattern[str]
    dropped: re.Pattern[str]
    accents: re.Pattern[str]
    normalized: Callable[[Form, str], str]
    lowered: Callable[[str], str]


_LLAMA_CPP = _Rules(
    words=regex.compile(rf"[{_ALONE}]|[^\s{_ALONE}]+"),
    dropped=regex.compile(r"(?!\s)[\p{Cc}\p{Cf}\p{Co}\ufffd]"),
    accents=regex.compile(r"\p{Mn}"),
    normalized=normalized,
    lowered=lambda text: text.replace("\u03a3", "\u03c3").lower(),  # the one letter that Python lower-cases by others
)
_LIBRARY = _Rules(
    words=re.compile(rf"[{_ALONE_TO_LIBRARY}]|[^\s{_ALONE_TO_LIBRARY}]+"),
    dropped=re.compile(f"[{DROPPED}]"),
    accents=regex.compile(ONE_OF_ACCENTS),
    normalized=normalized_by_library,
    lowered=lowered_by_library,
)


class WpmVocabulary:
    """A WordPiece vocabulary. `begin` maps the pieces that begin a word to their ids, `inside` those that continue
    one."""

    type = VocabularyType.WPM
    safe_border = None
    encoder = "Python"

    def __init__(
        self,
        begin: Mapping[str, int],
        inside: Mapping[str, int],
        unk_id: int,
        *,
        lowercase: bool = True,
        max_word_characters: int | None = None,
        as_library: bool = False,
    ) -> None:
        """With `as_library` characters are what they are to Hugging Face's library, else what they are to llama.cpp:
        to the latter U+000B, U+000C and U+0085 are white space, and marks and punctuation those of today's Unicode."""
        self._begin, self._inside = begin, inside
        self._unk_id = unk_id
        self._lowercase = lowercase
        self._max_word = max_word_characters
        self._rules = _LIBRARY if as_library else _LLAMA_CPP
        self._lengths = [{index: len(piece) for piece, index in pieces.items()} for pieces in (begin, inside)]
        self._longest = max(map(len, [*begin, *inside]), default=1)
        self._words = WordCache(lambda words: [self._encode_word(word) for word in words])

    def encode(self, text: str) -> Ids:
        return ids_of(self._words.encode(self._rules.words.findall(self._normalize(text))))

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        return [self.encode(text) if text else NONE for text in texts]

    def encode_with_offsets(self, text: str) -> Located:
        """Returns ids and places: of a piece, those of the characters that its own were normalized from."""
        parts = [self._normalize(character) for character in text]
        sources = [number for number, part in enumerate(parts) for _ in part]
        bytes_before = list(accumulate((len(character.encode()) for character in text), initial=0))
        ids: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        for match in self._rules.words.finditer("".join(parts)):
            at = match.start()
            for index in self._words.encode([match[0]]):
                lengths = self._lengths[at > match.start()]
                ids.append(index)
                starts.append(bytes_before[sources[at]])
                at += lengths.get(index, match.end() - at)  # the unknown token is all of a word
                ends.append(bytes_before[sources[at - 1] + 1])
        return Located(ids_of(ids), ids_of(starts), ids_of(ends))

    def behaviour(self) -> Iterator[bytes]:
        yield b"lowercase " + str(self._lowercase).encode()
        yield b"longest word " + str(self._max_word).encode()
        yield b"unknown " + str(self._unk_id).encode()
        if self._rules is _LIBRARY:
            yield b"characters of the library"

    def _normalize(self, text: str) -> str:
        """Normalizes a text. Accents are dropped, not composed, so that characters can be normalized one by one with
        the same result."""
        if self._lowercase:
            text = self._rules.lowered(self._rules.accents.sub("", self._rules.normalized("NFD", text)))
        return self._rules.dropped.sub("", text)

    def _encode_word(self, word: str) -> list[int]:
        if self._max_word is not None and len(word) > self._max_word:
            return [self._unk_id]
        ids: list[int] = []
        at = 0
        while at < len(word):
            pieces = self._inside if at else self._begin
            for end in range(min(len(word), at + self._longest), at, -1):
                found = pieces.get(word[at:end])
                if found is not None:
                    ids.append(found)
                    at = end
                    break
            else:
                return [self._unk_id]
        return ids

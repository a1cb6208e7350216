"""WordPiece (BERT): words are normalized and cut at white space, punctuation and Chinese characters; then the longest
pieces that match a word are taken from left to right. A word that cannot be made of pieces is one unknown token.

Text is lower-cased and loses its accents, as the uncased models want it; `lowercase=False` is for the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import regex  # type: ignore[import-untyped]

from tandem.tokenizer.arrays import NONE, Ids, ids_of
from tandem.tokenizer.normalizing import normalized
from tandem.tokenizer.vocabulary import Located, VocabularyType
from tandem.tokenizer.word_cache import WordCache

_CHINESE = (
    r"\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b73f"
    r"\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f"
)
_ALONE = rf"\p{{P}}$+<=>^`|~{_CHINESE}"  # punctuation, ASCII symbols and Chinese characters are words of their own
_WORD = regex.compile(rf"[{_ALONE}]|[^\s{_ALONE}]+")
_DROPPED = regex.compile(r"(?!\s)[\p{Cc}\p{Cf}\p{Co}\ufffd]")
_DROPPED_BY_LIBRARY = regex.compile(r"(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}\ufffd]")
_ACCENT = regex.compile(r"\p{Mn}")


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
        drops_all_controls: bool = False,
    ) -> None:
        """With `drops_all_controls` U+000B, U+000C and U+0085 are dropped too, as by BERT's library; else they are
        white space."""
        self._begin, self._inside = begin, inside
        self._unk_id = unk_id
        self._lowercase = lowercase
        self._max_word = max_word_characters
        self._dropped = _DROPPED_BY_LIBRARY if drops_all_controls else _DROPPED
        self._lengths = {index: len(piece) for pieces in (inside, begin) for piece, index in pieces.items()}
        self._longest = max(map(len, [*begin, *inside]), default=1)
        self._words = WordCache(lambda words: [self._encode_word(word) for word in words])

    def encode(self, text: str) -> Ids:
        return ids_of(self._words.encode(_WORD.findall(self._normalize(text))))

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
        for match in _WORD.finditer("".join(parts)):
            at = match.start()
            for index in self._words.encode([match[0]]):
                ids.append(index)
                starts.append(bytes_before[sources[at]])
                at += self._lengths.get(index, match.end() - at)  # the unknown token is all of a word
                ends.append(bytes_before[sources[at - 1] + 1])
        return Located(ids_of(ids), ids_of(starts), ids_of(ends))

    def behaviour(self) -> Iterator[bytes]:
        yield b"lowercase " + str(self._lowercase).encode()
        yield b"longest word " + str(self._max_word).encode()
        yield b"unknown " + str(self._unk_id).encode()
        if self._dropped is not _DROPPED:
            yield b"drops all controls"

    def _normalize(self, text: str) -> str:
        """Normalizes a text. Accents are dropped, not composed, so that characters can be normalized one by one with
        the same result."""
        if self._lowercase:
            text = _ACCENT.sub("", normalized("NFD", text))
            # The one letter that Python lower-cases by its neighbours, which neither BERT's library nor llama.cpp does.
            text = text.replace("\u03a3", "\u03c3").lower()
        return str(self._dropped.sub("", text))

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

"""Splits text at special tokens, before a vocabulary sees what lies between them.

The rule is llama.cpp's `tokenizer_st_partition`: the longest special token is searched first, from left to right, in
all text; then the next longest in what is left; and so on. A token with `lstrip` or `rstrip` swallows the ASCII white
space on that side, as far as the neighbouring special token.

One regular expression does all this in one pass where no special token can reach into another one. Where they can
overlap (runs of spaces as tokens, for instance) the passes are made one by one.

The `tokenizers` library has another rule, which its files are read by: the leftmost token first, the longest of those
that begin there; `normalized` tokens in what the others leave; any white space is swallowed.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import regex  # type: ignore[import-untyped]

from tandem.tokenizer.vocabulary import SpecialToken

WHITE_SPACE = " \t\n\v\f\r"  # isspace() of the C locale
_ANY_WHITE_SPACE = "".join(filter(str.isspace, map(chr, [*range(9, 14), *range(32, 0x3001)])))
_MOST_NESTED = 1 << 19
_TAKEN = "\ud800"  # never part of valid text, so that nothing matches across it
_TAKEN_WORD = "\ud801"  # the same in place of a letter
_WORD = regex.compile(rf"[\p{{Alphabetic}}\p{{M}}\p{{Nd}}\p{{Pc}}\p{{Join_Control}}{_TAKEN_WORD}]")


class Fragment(NamedTuple):
    """A stretch `text[start:end]`; it is plain text where `token` is None."""

    start: int
    end: int
    token: int | None


class FragmentSplitter:
    """Splits text at one set of special tokens. Ties between equal texts go to the lowest id."""

    def __init__(self, tokens: Sequence[SpecialToken], leftmost: bool = False) -> None:
        """With `leftmost` the rule of the `tokenizers` library applies."""
        self._by_id = {token.id: token for token in tokens}
        late = [token for token in tokens if leftmost and token.normalized]
        self._late = FragmentSplitter([replace(token, normalized=False) for token in late], leftmost) if late else None
        if late:
            tokens = [token for token in tokens if not token.normalized]
        self._white_space = _ANY_WHITE_SPACE if leftmost else WHITE_SPACE
        by_text: dict[str, SpecialToken] = {}
        for token in sorted(tokens, key=lambda token: token.id):
            if token.text:
                by_text.setdefault(token.text, token)
        self._by_text = by_text
        self._longest_first = sorted(by_text.values(), key=lambda token: -len(token.text.encode()))
        self._pattern = self._compile() if by_text else None
        self._one_pass = leftmost or not can_overlap(self._longest_first)

    def _compile(self) -> re.Pattern[str]:
        try:
            return re.compile(_any_of(self._by_text))
        except RecursionError:  # hundreds of tokens, each the beginning of the next
            if sum(map(len, self._by_text)) > _MOST_NESTED:  # a pattern takes about a kilobyte for each
                raise ValueError(
                    f"special tokens that begin with one another, of more than {_MOST_NESTED} characters together, "
                    "are not supported"
                ) from None
            return re.compile("|".join(re.escape(token.text) for token in self._longest_first))

    def split(self, text: str) -> list[Fragment]:
        """Returns the fragments of `text` in order; white space that a token swallows is in none of them."""
        if not text:
            return []
        if self._late is None:
            return self._split(text)
        fragments: list[Fragment] = []
        for start, end, token in self._split(text):
            if token is not None:
                fragments.append(Fragment(start, end, token))
                continue
            parts = self._late.split(text[start:end])
            fragments += (Fragment(start + part.start, start + part.end, part.token) for part in parts)
        return fragments

    def _split(self, text: str) -> list[Fragment]:
        if self._pattern is None or self._pattern.search(text) is None:
            return [Fragment(0, len(text), None)]
        return self._split_in_one_pass(text) if self._one_pass else self._split_longest_first(text)

    def masked(self, text: str) -> str:
        """Returns a text of the same length in which no token is found, and whose characters have the same effect on a
        token beside them as those of `text`."""
        if any(token.single_word for token in self._by_id.values()):
            return "".join(_TAKEN_WORD if _WORD.match(each) else _TAKEN for each in text)
        return _TAKEN * len(text)

    def first_match(self, text: str) -> tuple[SpecialToken, int] | None:
        """Returns the leftmost special token in `text` and its start, in code points."""
        for start, _, token_id in self.split(text):
            if token_id is not None:
                return self._by_id[token_id], start
        return None

    def _split_in_one_pass(self, text: str) -> list[Fragment]:
        assert self._pattern is not None
        fragments: list[Fragment] = []
        at = 0
        for match in self._pattern.finditer(text):
            start, end = match.span()
            token = self._by_text[match[0]]
            if token.single_word and (_WORD.match(text[start - 1 : start]) or _WORD.match(text[end : end + 1])):
                continue
            left = max(at, self._strip_left_of(text, start, at)) if token.lstrip else start
            right = self._strip_right_of(text, end) if token.rstrip else end
            if left > at:
                fragments.append(Fragment(at, left, None))
            if left < right:
                fragments.append(Fragment(start, end, token.id))
            at = right
        if at < len(text):
            fragments.append(Fragment(at, len(text), None))
        return fragments

    def _split_longest_first(self, text: str) -> list[Fragment]:
        """Splits token by token, the longest first: each pass blanks out its matches, so that shorter tokens see only
        what is left."""
        rest = text
        taken: list[tuple[int, int, int | None]] = []  # start, end, token; None for swallowed white space
        for token in self._longest_first:
            at = rest.find(token.text)
            if at < 0:
                continue
            parts: list[str] = []
            done = 0
            while at >= 0:
                end = at + len(token.text)
                left = self._strip_left_of(rest, at, done) if token.lstrip else at
                right = self._strip_right_of(rest, end) if token.rstrip else end
                taken.append((at, end, token.id))
                if left < at:
                    taken.append((left, at, None))
                if right > end:
                    taken.append((end, right, None))
                parts += (rest[done:left], _TAKEN * (right - left))
                done = right
                at = rest.find(token.text, done)
            parts.append(rest[done:])
            rest = "".join(parts)
        fragments: list[Fragment] = []
        at = 0
        for start, end, token_id in sorted(taken):
            if start > at:
                fragments.append(Fragment(at, start, None))
            if token_id is not None:
                fragments.append(Fragment(start, end, token_id))
            at = end
        if at < len(text):
            fragments.append(Fragment(at, len(text), None))
        return fragments

    def _strip_left_of(self, text: str, at: int, floor: int) -> int:
        while at > floor and text[at - 1] in self._white_space:
            at -= 1
        return at

    def _strip_right_of(self, text: str, at: int) -> int:
        while at < len(text) and text[at] in self._white_space:
            at += 1
        return at


def _any_of(texts: Iterable[str]) -> str:
    """Returns a pattern for the longest of `texts` at a position. Common prefixes are matched once: 256 alternatives
    one after the other took 4 microseconds a match."""
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(text[:1], []).append(text)
    optional = "?" if groups.pop("", None) is not None else ""  # one of them ends here, but a longer one goes first
    if not groups:
        return ""
    branches: list[str] = []
    for group in groups.values():
        shared = _shared_beginning(min(group), max(group))
        branches.append(re.escape(shared) + _any_of(text[len(shared) :] for text in group))
    alternatives = "|".join(branches)
    return f"(?:{alternatives}){optional}" if optional or len(branches) > 1 else alternatives


def _shared_beginning(left: str, right: str) -> str:
    for at, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return left[:at]
    return min(left, right, key=len)


def can_overlap(tokens: Sequence[SpecialToken]) -> bool:
    """Returns True when one leftmost pass could take a short token where the rule takes a longer one that starts inside
    it, or when swallowed white space could be part of a token."""
    tokens = [token for token in tokens if token.text]
    strips = any(token.lstrip or token.rstrip for token in tokens)
    if strips and any(token.text[0] in WHITE_SPACE or token.text[-1] in WHITE_SPACE for token in tokens):
        return True
    firsts = {token.text[0] for token in tokens}
    if all(firsts.isdisjoint(token.text[1:]) for token in tokens):
        return False  # none begins within another: what most vocabularies have
    longer: list[str] = []  # than the tokens at hand, sorted
    by_length = sorted({token.text for token in tokens}, key=len, reverse=True)
    for _, equal in groupby(by_length, key=len):
        texts = list(equal)
        if any(_begins(longer, text[cut:]) for text in texts for cut in _starts(text, firsts)):
            return True
        for text in texts:
            insort(longer, text)
    return False


def hides(late: Sequence[SpecialToken], early: Sequence[SpecialToken]) -> bool:
    """Returns True when one leftmost pass could take a token of `late` where one of `early` begins within it."""
    texts = sorted({token.text for token in early if token.text})
    known, lengths, firsts = set(texts), {len(text) for text in texts}, {text[0] for text in texts}
    for text in {token.text for token in late}:
        for cut in (0, *_starts(text, firsts)):
            if cut and _begins(texts, text[cut:]):
                return True
            if any(length <= len(text) - cut and text[cut : cut + length] in known for length in lengths):
                return True
    return False


def _starts(text: str, firsts: Set[str]) -> Iterator[int]:
    """Yields the places behind the first at which one of these characters stands."""
    return (place for place in range(1, len(text)) if text[place] in firsts)


def _begins(texts: Sequence[str], begin: str) -> bool:
    """Tells whether one of these sorted texts begins so."""
    place = bisect_left(texts, begin)
    return place < len(texts) and texts[place].startswith(begin)

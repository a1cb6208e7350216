"""Splitting at special tokens follows llama.cpp's rule: longest token first, then left to right."""

from __future__ import annotations

import itertools

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tandem.tokenizer.fragments import WHITE_SPACE, Fragment, FragmentSplitter
from tandem.tokenizer.vocabulary import SpecialToken, TokenType


def token(number: int, text: str, lstrip: bool = False, rstrip: bool = False) -> SpecialToken:
    return SpecialToken(number, text, TokenType.CONTROL, lstrip, rstrip)


def shown(text: str, tokens: list[SpecialToken]) -> list[str | int]:
    fragments = FragmentSplitter(tokens).split(text)
    return [text[part.start : part.end] if part.token is None else part.token for part in fragments]


def reference(text: str, tokens: list[SpecialToken]) -> list[str | int]:
    """The rule, word for word, on a list of fragments."""
    fragments: list[str | int] = [text] if text else []
    for special in sorted(tokens, key=lambda each: -len(each.text.encode())):
        done: list[str | int] = []
        for fragment in fragments:
            while isinstance(fragment, str) and special.text in fragment:
                left, _, fragment = fragment.partition(special.text)
                if special.lstrip:
                    left = left.rstrip(WHITE_SPACE)
                if special.rstrip:
                    fragment = fragment.lstrip(WHITE_SPACE)
                done += [left, special.id] if left else [special.id]
            if fragment != "":
                done.append(fragment)
        fragments = done
    return fragments


def test_text_without_special_tokens_is_one_fragment() -> None:
    assert FragmentSplitter([token(1, "<s>")]).split("plain") == [Fragment(0, 5, None)]
    assert FragmentSplitter([]).split("plain") == [Fragment(0, 5, None)]
    assert FragmentSplitter([token(1, "<s>")]).split("") == []


def test_a_longer_token_goes_before_one_that_starts_further_left() -> None:
    assert shown("<a>bc", [token(1, "<a"), token(2, "a>bc")]) == ["<", 2]


def test_stripping_ends_at_the_neighbouring_special_token() -> None:
    assert shown("a \n<x> <y> b", [token(1, "<x>", rstrip=True), token(2, "<y>", lstrip=True)]) == ["a \n", 1, 2, " b"]


def test_the_lowest_id_wins_where_two_tokens_have_one_text() -> None:
    assert shown("a<s>b", [token(9, "<s>"), token(4, "<s>")]) == ["a", 4, "b"]


SPECIALS = st.lists(
    st.tuples(st.text(alphabet="ab< \n", min_size=1, max_size=4), st.booleans(), st.booleans()),
    min_size=1,
    max_size=6,
    unique_by=lambda entry: entry[0],
)


@given(st.text(alphabet="ab< \nü", max_size=24), SPECIALS)
def test_any_text_and_tokens_split_as_the_rule_says(text: str, entries: list[tuple[str, bool, bool]]) -> None:
    # Equally long tokens that overlap have no order in the rule: the reference takes theirs from the list.
    tokens = [token(number, *entry) for number, entry in enumerate(entries)]
    assert shown(text, tokens) == reference(text, tokens) or _has_equally_long(tokens)


def _has_equally_long(tokens: list[SpecialToken]) -> bool:
    lengths = [len(each.text.encode()) for each in tokens]
    return len(set(lengths)) < len(lengths)


@pytest.mark.parametrize("strip", [False, True])
def test_fragments_are_in_order_and_disjoint_and_leave_out_white_space_only(strip: bool) -> None:
    text = "  <a>  <b><c> x <a>"
    tokens = [token(1, "<a>", lstrip=strip, rstrip=strip), token(2, "<b>"), token(3, "<c>")]
    fragments = FragmentSplitter(tokens).split(text)
    kept = "".join(text[part.start : part.end] for part in fragments)
    assert all(left.end <= right.start for left, right in itertools.pairwise(fragments))
    assert kept == ("<a><b><c> x<a>" if strip else text)


def test_hundreds_of_tokens_that_begin_with_one_another() -> None:
    tokens = [token(length, "a" * length) for length in range(1, 601)]  # deeper than a regular expression may nest
    assert shown("b" + "a" * 900 + "b", tokens) == ["b", 600, 300, "b"]


@given(
    st.text(alphabet="aé_9 -.\u200c\u200d\u0301\u203f\u2160ⓐ@½\u00aa", max_size=6),
    st.text(alphabet="a \u200c\u200d.", max_size=3),
)
def test_words_end_where_they_do_in_the_library(left: str, right: str) -> None:
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, "?"))
    library.add_tokens([tokenizers.AddedToken("xyz", single_word=True, normalized=False)])
    text = f"{left}xyz{right} xyz\u200c xyz \u200dxyz"
    single = SpecialToken(1, "xyz", TokenType.USER_DEFINED, single_word=True)
    ours = [part.start for part in FragmentSplitter([single], leftmost=True).split(text) if part.token is not None]
    encoding = library.encode(text)
    theirs = [start for (start, _), index in zip(encoding.offsets, encoding.ids, strict=True) if index == 1]
    assert ours == theirs


def test_masked_text_is_beside_a_token_what_it_would_be() -> None:
    splitter = FragmentSplitter([SpecialToken(1, "xyz", TokenType.USER_DEFINED, single_word=True)], leftmost=True)
    for before, found in (("a", False), ("\u200d", False), (".", True), (" ", True)):
        masked = splitter.masked(before)
        assert len(masked) == 1 and masked != before
        assert any(part.token == 1 for part in splitter.split(masked + "xyz")) is found
    assert not any(part.token for part in splitter.split(splitter.masked("xyz")))

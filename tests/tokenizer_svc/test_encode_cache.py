"""The cache changes nothing but the work, and stays within its bound."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.tokenizer.arrays import ids_of
from tandem.tokenizer.encode_cache import EncodeCache
from tandem.tokenizer.encoding import Policy, Segment, SpecialTokenInText
from tandem.tokenizer.formats import load_tokenizer
from tandem.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(shared_data: Path) -> Tokenizer:
    return load_tokenizer(shared_data / "models/stories260K/meta")


@given(
    texts=st.lists(st.text(alphabet="ab é<s>", max_size=120), max_size=12), limit=st.sampled_from([0, 3000, 1 << 20])
)
def test_a_cached_tokenizer_answers_as_without_a_cache(tokenizer: Tokenizer, texts: list[str], limit: int) -> None:
    cache = EncodeCache(limit)
    cached = tokenizer.with_cache(cache)
    for text in texts + texts:
        for policy in (Policy.TEXT, Policy.PARSE):
            segments = [Segment(text, policy)]
            assert cached.encode_segments(segments).ids == tokenizer.encode_segments(segments).ids
            cache.check()
    assert cached.fingerprint == tokenizer.fingerprint


def test_a_conversation_costs_its_new_text_only(tokenizer: Tokenizer) -> None:
    """In one text, where the special tokens are found, and in segments."""
    turns = [f"this is message number {number} of a long conversation" for number in range(20)]
    cache = EncodeCache(1 << 20)
    cached = tokenizer.with_cache(cache)
    for count in range(1, len(turns) + 1):
        cached.encode("<s>" + "</s><s>".join(turns[:count]) + "</s>" * 8, parse_special=True)
    assert cache.misses == len(turns) * 2  # each text once, and the whole, which is never the same
    cache = EncodeCache(1 << 20)
    cached = tokenizer.with_cache(cache)
    for count in range(1, len(turns) + 1):
        cached.encode_segments([Segment(turn) for turn in turns[:count]])
    assert (cache.misses, cache.hits) == (len(turns), sum(range(len(turns))))


@given(
    parts=st.lists(
        st.tuples(st.sampled_from(["", "a b", "<s>", "x<s>", "<s>x", " ", "</s></s>"]), st.sampled_from(Policy)),
        max_size=6,
    )
)
def test_segments_from_memory_leave_the_next_one_as_it_was(
    tokenizer: Tokenizer, parts: list[tuple[str, Policy]]
) -> None:
    """Whether a space prefix follows depends on how the segment before ended."""
    segments = [
        Segment(text, policy, frozenset({1}) if policy == Policy.PARSE_LISTED else frozenset())
        for text, policy in parts
        if policy != Policy.REJECT
    ]
    cached = tokenizer.with_cache(EncodeCache(1 << 20))
    expected = tokenizer.encode_segments(segments).ids
    assert cached.encode_segments(segments).ids == expected
    assert cached.encode_segments(segments).ids == expected


def test_a_segment_that_must_be_rejected_is_never_remembered(tokenizer: Tokenizer) -> None:
    cached = tokenizer.with_cache(EncodeCache(1 << 20))
    for _ in range(2):
        with pytest.raises(SpecialTokenInText):
            cached.encode_segments([Segment("<s>", Policy.REJECT)])
        cached.encode_segments([Segment("<s>", Policy.TEXT)])


def test_what_was_not_asked_for_goes_first() -> None:
    cache = EncodeCache(10 * 600)
    for number in range(10):
        cache.put(number, f"{number}" * 80, ids_of([1, 2]))
    cache.check()
    assert cache.get(0) is not None
    cache.put("x", "x" * 80, ids_of([3]))
    cache.check()
    assert cache.get(0) is not None
    assert cache.get(1) is None
    cache.put("y", "y" * 4000, ids_of([4]))
    assert cache.get("y") is None
    cache.check()

"""The cache changes nothing but the work, and stays within its bound."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenizer_svc.encode_cache import EncodeCache
from tokenizer_svc.formats import load_tokenizer
from tokenizer_svc.tokenizer import Policy, Segment, Tokenizer


@pytest.fixture(scope="module")
def tokenizer(shared_data: Path) -> Tokenizer:
    return load_tokenizer(shared_data / "models/stories260K/meta")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    texts=st.lists(st.text(alphabet="ab é<s>", max_size=120), max_size=12), limit=st.sampled_from([0, 3000, 1 << 20])
)
def test_a_cached_tokenizer_answers_as_without_a_cache(tokenizer: Tokenizer, texts: list[str], limit: int) -> None:
    cache = EncodeCache(limit)
    cached = tokenizer.with_cache(cache)
    for text in texts + texts:
        for policy in (Policy.TEXT, Policy.PARSE):
            segments = [Segment(text, policy)]
            assert cached.encode_segments(segments) == tokenizer.encode_segments(segments)
            cache.check()
    assert cached.fingerprint == tokenizer.fingerprint


def test_a_conversation_costs_its_new_text_only(tokenizer: Tokenizer) -> None:
    cache = EncodeCache(1 << 20)
    cached = tokenizer.with_cache(cache)
    turns = [f"this is message number {number} of a long conversation" for number in range(20)]
    for count in range(1, len(turns) + 1):
        cached.encode("<s>" + "</s><s>".join(turns[:count]), parse_special=True)
    assert cache.misses == len(turns)
    assert cache.hits == sum(range(len(turns)))


def test_the_least_recently_used_goes_first() -> None:
    cache = EncodeCache(10 * 400)
    for number in range(10):
        cache.put(f"{number}" * 80, [1, 2])
    cache.check()
    assert cache.get("0" * 80) is not None
    cache.put("x" * 80, [3])
    assert cache.get("0" * 80) is not None
    assert cache.get("1" * 80) is None
    cache.put("y" * 4000, [4])
    assert cache.get("y" * 4000) is None
    cache.check()

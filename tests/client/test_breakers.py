"""DRY's sequence breakers as text: found however tokens spell them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.client.breakers import MAX_CHARACTERS, beginnings

TEXTS = st.text(alphabet="ab\nä", min_size=1, max_size=4)
PIECES = st.lists(st.text(alphabet="ab\nä", max_size=5).map(str.encode), max_size=30)


@given(TEXTS, PIECES)
def test_wherever_a_breaker_begins_in_an_output_its_ids_are_known(text: str, pieces: list[bytes]):
    found = list(beginnings(text, pieces))
    whole = text.encode()
    for id_, piece in enumerate(pieces):
        rests = {rest for number, rest in found if number == id_}
        if whole in piece:
            assert rests == {""}
        else:
            expected = {text[count:] for count in range(1, len(text)) if piece.endswith(text[:count].encode())}
            assert rests == expected


def test_a_long_breaker_is_looked_at_as_far_as_llama_cpp_does():
    assert list(beginnings("x" * 100, [b"y", b"x" * 50])) == [(1, "")]
    assert [len(rest) for _, rest in beginnings("xy" * 50, [b"zx"])] == [MAX_CHARACTERS - 1]

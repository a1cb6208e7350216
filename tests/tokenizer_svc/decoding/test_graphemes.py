"""Characters of several code points are never split, and nothing is lost or held for ever."""

from __future__ import annotations

import regex
from hypothesis import given
from hypothesis import strategies as st

from tandem.tokenizer.decoding.graphemes import MAX_HELD, GraphemeHold
from tandem.tokenizer.decoding.streaming import stream_decoder

PIECES = st.lists(
    st.one_of(
        st.sampled_from(
            ["a", " b", "e", "\u0301", "👩", "\u200d", "🚀", "👍", "🏽", "🇩", "🇪", "\r", "\n", "한", "ᄒ", "ᅡ"]
        ),
        st.text(max_size=5),
    ),
    max_size=30,
)


@given(PIECES)
def test_every_part_ends_where_a_character_ends(pieces: list[str]) -> None:
    hold = GraphemeHold()
    parts = [hold.push(piece) for piece in pieces]
    parts.append(hold.flush())
    whole = "".join(pieces)
    assert "".join(parts) == whole
    clusters = regex.findall(r"\X", whole)
    if any(len(cluster) > MAX_HELD for cluster in clusters):
        return
    borders = {0}
    at = 0
    for cluster in clusters:
        at += len(cluster)
        borders.add(at)
    sent = 0
    for part in parts:
        sent += len(part)
        assert sent in borders


def test_what_is_held_is_bounded() -> None:
    hold = GraphemeHold()
    sent = hold.push("a" + "\u0301" * 10_000)
    assert len(hold.held) <= MAX_HELD
    assert sent + hold.held == "a" + "\u0301" * 10_000


def test_held_text_is_reported_and_stop_strings_are_found_through_it() -> None:
    pieces = [bytes([byte]) for byte in range(256)]
    decoder = stream_decoder(pieces, stops=["stop"], graphemes=True)
    assert (decoder.push(b"ab"), decoder.held_bytes) == ("a", 1)
    assert decoder.push(b"cstopx") == "bc"
    assert (decoder.matched_stop, decoder.held_bytes, decoder.done) == ("stop", 0, True)

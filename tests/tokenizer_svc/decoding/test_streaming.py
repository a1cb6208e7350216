"""A stream gives what decoding the whole gives, however the ids are cut into calls."""

from __future__ import annotations

import itertools
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.tokenizer.decoding import stop_strings
from tandem.tokenizer.decoding.stop_strings import StopMatcher, StopStates
from tandem.tokenizer.decoding.streaming import StreamDecoder, StreamPieces, stream_decoder

PIECES = [
    *(bytes([byte]) for byte in range(256)),
    *(b"", b" hello", b"ab", b"abc", b"\xf0\x9f", b"\x98\x80", b"\xe2\x96", "é".encode(), "👩‍🚀".encode()),
    *(b"stop", b"\xff"),
]
SHARED = StreamPieces(PIECES)
EMPTY, STOP = 256, PIECES.index(b"stop")
IDS = st.lists(
    st.one_of(st.integers(0, len(PIECES) - 1), st.sampled_from([97, 98, 99, *range(256, len(PIECES))])), max_size=40
)
STOPS = st.lists(
    st.one_of(
        st.text(alphabet="abcé\ufffd", min_size=1, max_size=4), st.sampled_from(["stop", "hello", "😀", "ab", "bca"])
    ),
    min_size=1,
    max_size=4,
)


def run(ids: list[int], cuts: list[int], **options: object) -> tuple[str, StreamDecoder]:
    """All text of a stream that gets `ids` cut at `cuts`, and where it stands then."""
    decoder = stream_decoder(PIECES, **options)  # type: ignore[arg-type]
    places = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    texts: list[str] = []
    for start, end in itertools.pairwise(places):
        texts.append(decoder.push(ids[start:end]))
        if decoder.done:
            return "".join(texts), decoder
    texts.append(decoder.push([], end=True))
    return "".join(texts), decoder


def one_by_one(ids: list[int]) -> list[int]:
    return list(range(len(ids)))


@given(IDS, st.lists(st.integers(0, 40), max_size=10))
def test_streaming_equals_whole_decoding_for_any_split(ids: list[int], cuts: list[int]) -> None:
    whole = b"".join(PIECES[index] for index in ids).decode("utf-8", "replace")
    text, decoder = run(ids, cuts)
    assert text == whole
    assert (decoder.done, decoder.held_bytes, decoder.ids_consumed) == (True, 0, len(ids))


RULES = st.sampled_from(
    [{}, {"strip_space": True}, {"first_pieces": {257: b"hello"}}, {"drop_front": (0, 97)}, {"drop_last": 98}]
)


@given(st.lists(IDS, min_size=1, max_size=4), RULES)
def test_what_an_id_shows_in_a_plain_stream_it_shows_in_every_plain_stream(
    streams: list[list[int]], rules: dict[str, object]
) -> None:
    known: dict[int, str] = {}  # as a caller learns it
    for ids in streams:
        whole, _ = run(ids, [], **rules)
        decoder = stream_decoder(PIECES, **rules)  # type: ignore[arg-type]
        text, plain = "", False
        for index in ids:
            if plain and index in known:
                text += known[index]
                continue
            new = decoder.push([index])
            if plain and decoder.is_plain:
                known[index] = new
            text, plain = text + new, decoder.is_plain
        assert text + decoder.push([], end=True) == whole


@given(IDS, STOPS)
def test_a_stream_that_may_hold_text_back_is_never_plain(ids: list[int], stops: list[str]) -> None:
    for options in ({"stops": stops}, {"graphemes": True}):
        decoder = stream_decoder(PIECES, **options)  # type: ignore[arg-type]
        for index in ids:
            if not decoder.done:
                decoder.push([index])
            assert not decoder.is_plain


@given(IDS, st.lists(st.integers(0, 40), max_size=10), STOPS, st.booleans())
def test_stop_strings_end_the_stream_at_the_same_id_for_any_split(
    ids: list[int], cuts: list[int], stops: list[str], include: bool
) -> None:
    options = {"stops": stops, "include_stop": include}
    left_text, left = run(ids, cuts, **options)
    right_text, right = run(ids, one_by_one(ids), **options)
    assert left_text == right_text
    for fact in ("matched_stop", "trim_ids", "ids_consumed", "held_bytes", "done"):
        assert getattr(left, fact) == getattr(right, fact)


@given(IDS, STOPS)
def test_a_stop_string_is_found_as_soon_as_it_is_complete_and_never_emitted(ids: list[int], stops: list[str]) -> None:
    """The reference looks at all text so far after every id."""
    decoder = stream_decoder(PIECES, stops=stops)
    sent = ""
    for count in range(1, len(ids) + 1):
        sent += decoder.push(ids[count - 1 : count])
        so_far = stream_decoder(PIECES).push(ids[:count])
        found = [stop for stop in stops if stop in so_far]
        assert decoder.done == bool(found)
        assert so_far.startswith(sent)
        if found:
            assert decoder.matched_stop in found
            assert decoder.ids_consumed == count
            ends = {stop: so_far.index(stop) + len(stop) for stop in found}
            assert ends[decoder.matched_stop] == min(ends.values())
            assert sent == so_far[: so_far.index(decoder.matched_stop)]
            return
        assert not any(stop in sent for stop in stops)


@given(IDS, STOPS)
def test_what_is_held_back_is_no_more_than_the_beginning_of_a_stop_string_or_of_a_character(
    ids: list[int], stops: list[str]
) -> None:
    decoder = stream_decoder(PIECES, stops=stops)
    decoder.push(ids)
    if not decoder.done:
        raw = b"".join(PIECES[index] for index in ids)
        kept = raw[len(raw) - decoder.held_bytes :].decode("utf-8", "replace").rstrip("\ufffd")
        assert kept == "" or any(stop.startswith(kept) for stop in stops) or "\ufffd" in "".join(stops)


@given(IDS, st.lists(st.integers(1, 40), min_size=1, max_size=10), STOPS)
def test_after_every_call_all_is_sent_but_the_longest_end_that_may_begin_a_stop_string(
    ids: list[int], widths: list[int], stops: list[str]
) -> None:
    """The reference looks at all text so far; the streams share what they find out, as those of a service do."""
    decoder, sent, count = stream_decoder(SHARED, stops=stops), "", 0
    for width in itertools.cycle(widths):
        sent += decoder.push(ids[count : count + width])
        count += width
        so_far = stream_decoder(PIECES).push(ids[:count])
        if any(stop in so_far for stop in stops):
            assert decoder.done
            return
        ends = (so_far[start:] for start in range(len(so_far)))
        held = next((end for end in ends if any(stop.startswith(end) for stop in stops)), "")
        assert sent + held == so_far
        if "\ufffd" not in so_far:
            raw = b"".join(PIECES[index] for index in ids[:count])
            assert decoder.held_bytes == len(raw) - len(sent.encode())
        if count >= len(ids):
            return


@given(IDS, STOPS)
def test_trimmed_ids_lie_within_or_behind_the_stop_string(ids: list[int], stops: list[str]) -> None:
    """The first trimmed id begins at or behind the stop string, and the one before it, if it has bytes, does not."""
    text, decoder = run(ids, [], stops=stops)
    if decoder.matched_stop is None:
        assert decoder.trim_ids == 0
        return
    consumed = [PIECES[index] for index in ids[: decoder.ids_consumed]]
    starts = [len(b"".join(consumed[:count])) for count in range(len(consumed))]
    if b"".join(consumed).decode("utf-8", "replace").encode() == b"".join(consumed):
        stop_start = len(text.encode())
        inside = [number for number, start in enumerate(starts) if start >= stop_start and consumed[number]]
        assert decoder.trim_ids == (len(consumed) - inside[0] if inside else 0)


def test_an_emoji_of_several_tokens_appears_once_and_whole() -> None:
    decoder = stream_decoder(PIECES)
    emoji = "😀".encode()
    texts = [decoder.push([byte]) for byte in emoji]
    assert texts == ["", "", "", "😀"]


def test_held_bytes_are_reported() -> None:
    decoder = stream_decoder(PIECES, stops=["stop!"])
    assert (decoder.push([STOP]), decoder.held_bytes) == ("", 4)
    assert (decoder.push([97]), decoder.held_bytes) == ("stopa", 0)
    assert (decoder.push([0xF0]), decoder.held_bytes) == ("", 1)


def test_the_longest_of_several_stop_strings_that_end_together_wins() -> None:
    text, decoder = run([*b"xstop"], [], stops=["op", "stop", "p"])
    assert (text, decoder.matched_stop, decoder.trim_ids) == ("x", "stop", 4)


def test_the_stop_string_that_is_complete_first_wins_over_one_that_starts_first() -> None:
    text, decoder = run([*b"abcd"], [], stops=["abcd", "bc"])
    assert (text, decoder.matched_stop, decoder.ids_consumed, decoder.trim_ids) == ("a", "bc", 3, 2)


def test_include_stop_sends_the_stop_string_and_nothing_behind_it() -> None:
    decoder = stream_decoder(PIECES, stops=["st"], include_stop=True)
    text = decoder.push([97, STOP, 98])
    assert (text, decoder.matched_stop, decoder.ids_consumed, decoder.trim_ids) == ("ast", "st", 2, 1)


def test_an_empty_id_in_front_of_the_stop_string_is_not_trimmed() -> None:
    _, decoder = run([97, EMPTY, STOP, EMPTY], [1, 2, 3], stops=["stop"])
    assert (decoder.ids_consumed, decoder.trim_ids) == (3, 1)


def test_a_held_prefix_is_flushed_at_the_end() -> None:
    decoder = stream_decoder(PIECES, stops=["stop!"])
    decoder.push([STOP, 0xE2])
    text = decoder.push([], end=True)
    assert (text, decoder.done, decoder.matched_stop, decoder.held_bytes) == ("stop\ufffd", True, None, 0)


def test_a_stop_string_that_only_the_end_completes_is_found() -> None:
    text, decoder = run([97, 0xE2], [], stops=["\ufffd"])
    assert (text, decoder.matched_stop, decoder.trim_ids) == ("a", "\ufffd", 1)


@pytest.mark.parametrize("watched", [False, True])
def test_only_the_first_space_of_a_stream_is_a_prefix(watched: bool) -> None:
    stops = ["never"] if watched else None
    hello = PIECES.index(b" hello")
    assert run([hello, hello], [], strip_space=True, stops=stops)[0] == "hello hello"
    assert run([EMPTY, hello], [1], strip_space=True, stops=stops)[0] == " hello"


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("cuts", [[], [1], [1, 2, 3, 4]])
def test_first_and_last_ids_to_drop_are_dropped_only_there(watched: bool, cuts: list[int]) -> None:
    stops = ["never"] if watched else None
    text, decoder = run([97, 98, 97, 98, 98], cuts, drop_front=(97,), drop_last=98, stops=stops)
    assert (text, decoder.ids_consumed) == ("bab", 5)


def test_a_stream_that_is_done_takes_nothing_more() -> None:
    decoder = stream_decoder(PIECES)
    decoder.push([97], end=True)
    with pytest.raises(ValueError, match="done"):
        decoder.push([98])


def test_work_on_one_id_does_not_grow_with_the_stream() -> None:
    """What a stream remembers stays bounded, whatever it has seen."""
    decoder = stream_decoder(PIECES, stops=["stop" * 8])
    for _ in range(2_000):
        decoder.push([STOP, EMPTY, EMPTY])
        if decoder.done:
            break
        assert len(decoder._raw) < 32
        assert len(decoder._trail) < 32
    assert decoder.done
    decoder = stream_decoder(PIECES, stops=["stop!"])
    decoder.push([STOP] + [EMPTY] * 1_000)
    assert len(decoder._trail) == 1


@given(IDS, STOPS, st.integers(0, 4), st.sampled_from([1, 3, 20]))
def test_streams_of_the_same_stop_strings_are_alike_whatever_is_remembered(
    ids: list[int], stops: list[str], remembered: int, width: int
) -> None:
    text, decoder = run(ids, one_by_one(ids), stops=stops)
    facts = (text, decoder.matched_stop, decoder.ids_consumed, decoder.trim_ids)
    pieces = StreamPieces(PIECES)
    for _ in range(3):
        with mock.patch.object(stop_strings, "_REMEMBERED", remembered):
            again = stream_decoder(pieces, stops=stops)
            used = ids[: decoder.ids_consumed]
            texts = [again.push(used[at : at + width]) for at in range(0, len(used), width)]
            if not again.done:
                texts.append(again.push([], end=True))
        assert ("".join(texts), again.matched_stop, again.ids_consumed, again.trim_ids) == facts


def test_what_is_remembered_of_stop_strings_and_of_held_ids_is_bounded() -> None:
    pieces = StreamPieces(PIECES)
    for count in (15, 16, 17, 2_000):  # around where the oldest ids are forgotten, and far behind
        decoder = stream_decoder(pieces, stops=["\n\nZ"])
        assert "".join(decoder.push([10]) for _ in range(count)) == "\n" * (count - 2)
        assert len(decoder._trail) <= 16
        assert decoder.push([ord("Z")]) == ""
        assert (decoder.matched_stop, decoder.ids_consumed, decoder.trim_ids) == ("\n\nZ", count + 1, 3)
    texts = {index: "ab" * index for index in range(500)}
    with mock.patch.object(stop_strings, "_REMEMBERED", 1000):
        states = StopStates(StopMatcher(["ab" * 500]), [text.encode() for text in texts.values()], texts)
        held = states.nothing
        for index in [*range(400)] * 5:
            step = held[index]
            held = step[1] if step is not None else states.nothing
            known = list(states._known.values())
            assert sum(map(len, known)) + len(known) <= 1002


@given(IDS, st.lists(st.integers(0, 40), max_size=10), STOPS, st.integers(0, 12), st.booleans())
def test_within_the_first_ids_no_stop_string_counts_that_is_complete_there(
    ids: list[int], cuts: list[int], stops: list[str], min_ids: int, include: bool
) -> None:
    """The reference looks at all text so far after every id, and for ends behind the text of the first ids."""
    text, decoder = run(ids, cuts, stops=stops, min_ids=min_ids, include_stop=include)
    passed = len(stream_decoder(PIECES).push(ids[:min_ids]))
    for count in range(min_ids + 1, len(ids) + 2):
        # Behind the last id what is held back is flushed.
        so_far = stream_decoder(PIECES).push(ids[:count], end=count > len(ids))
        found = [
            (start + len(stop), start, stop)
            for stop in stops
            for start in range(len(so_far))
            if so_far.startswith(stop, start) and start + len(stop) > passed
        ]
        if found:
            end, start, stop = min(found)
            assert (decoder.matched_stop, decoder.ids_consumed) == (stop, min(count, len(ids)))
            assert text == so_far[: end if include else start]
            return
    assert decoder.matched_stop is None
    assert text == stream_decoder(PIECES).push(ids, end=True)


def test_a_stop_string_that_begins_within_the_first_ids_and_ends_behind_them_stops() -> None:
    a, b = b"ab"
    text, decoder = run([a, b, a, b, b], [], stops=["ab"], min_ids=3)
    assert (text, decoder.matched_stop, decoder.ids_consumed, decoder.trim_ids) == ("ab", "ab", 4, 2)
    text, decoder = run([a, b, a], [], stops=["ab"], min_ids=3)
    assert (text, decoder.matched_stop) == ("aba", None)


def test_what_the_end_of_a_stream_makes_of_its_first_ids_is_text_too() -> None:
    broken = next(id_ for id_, piece in enumerate(PIECES) if piece == b"\xf0")
    text, decoder = run([broken], [], stops=["\ufffd"], min_ids=2)
    assert (text, decoder.matched_stop) == ("\ufffd", None)
    text, decoder = run([broken], [], stops=["\ufffd"], min_ids=1)
    assert (text, decoder.matched_stop) == ("", "\ufffd")

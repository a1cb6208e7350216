"""Turns a stream of token ids back into text, and ends it at stop strings.

Each id stands for bytes. An incremental UTF-8 decoder emits whole characters and keeps an unfinished one back; bytes
that can no longer become a character are emitted as U+FFFD. Stop strings are searched in the text that comes out, and
text is held back only as far as it may still become one: the longest end of it that is a beginning of a stop string.

Two rules make the answer independent of how the ids are cut into calls:

- the stop string that is *complete first* wins; of several that are complete at once, the longest;
- the id that completes it is the last one consumed, and whatever follows is discarded.

A stop string that is complete within the first `min_ids` ids is text like any other. One that only begins there counts.

The work for one id does not depend on how much went before: only bytes that are held back are looked at again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from codecs import utf_8_decode
from collections import deque
from collections.abc import Mapping, Sequence
from functools import lru_cache

from tandem.tokenizer.decoding.broken_text import byte_position, whole_text
from tandem.tokenizer.decoding.graphemes import GraphemeHold
from tandem.tokenizer.decoding.stop_strings import Held, StopMatch, StopMatcher, StopStates

_SLICE = 1024  # ids that are joined at once while stop strings are watched
_STOPS_KEPT = 32  # sets of stop strings whose streams share what they found out
_FEW = 16  # ids that are looked up one by one; more of them are joined and searched at once


class StreamPieces:
    """The bytes of each id, and their text where they are whole characters: most ids need no decoder."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self.texts = _Texts(pieces)
        self.stop_states = lru_cache(_STOPS_KEPT)(self._make_stop_states)

    def _make_stop_states(self, stops: tuple[str, ...]) -> StopStates:
        return StopStates(StopMatcher(stops), self.pieces, self.texts)


class _Texts(dict[int, "str | None"]):
    """The texts of the ids that were looked up; None where the bytes are not whole characters."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def __missing__(self, index: int) -> str | None:
        text = self[index] = whole_text(self._pieces[index])
        return text


class _Edges:
    """Applies the rules for the first and the last id of a stream to the bytes of its ids."""

    __slots__ = ("_drop_front", "_drop_last", "_first_pieces", "_pieces", "_started", "_strip_space", "_waiting")

    def __init__(
        self,
        pieces: Sequence[bytes],
        strip_space: bool,
        first_pieces: Mapping[int, bytes] | None,
        drop_front: Sequence[int],
        drop_last: int | None,
    ) -> None:
        self._pieces = pieces
        self._strip_space = strip_space
        self._first_pieces = first_pieces
        self._drop_front = drop_front  # what is left of it
        self._drop_last = drop_last
        self._waiting: list[bytes] = []  # of the newest id, which is `drop_last`, until another id follows
        self._started = False

    @property
    def are_passed(self) -> bool:
        """True when each further id stands for its piece."""
        return self._started and self._drop_last is None

    def parts(self, ids: Sequence[int]) -> tuple[list[bytes], int]:
        """Returns the bytes of each id, and how many ids that had to wait are put in front of them."""
        pieces = self._pieces
        parts = [pieces[index] for index in ids]
        if not parts:
            return parts, 0
        if not self._started:
            self._start(ids, parts)
        if self._drop_last is None:
            return parts, 0
        waited = len(self._waiting)
        parts = self._waiting + parts
        self._waiting = [parts.pop()] if ids[-1] == self._drop_last else []
        return parts, waited

    def _start(self, ids: Sequence[int], parts: list[bytes]) -> None:
        begins = 0
        while self._drop_front and begins < len(ids):
            same = ids[begins] == self._drop_front[0]
            self._drop_front = self._drop_front[1:] if same else ()
            if same:
                parts[begins] = b""
                begins += 1
                self._strip_space = False
        if self._drop_front:
            return
        if self._first_pieces is not None:
            first = self._first_pieces
            place = next((place for place in range(begins, len(parts)) if parts[place] or ids[place] in first), None)
            if place is not None:
                self._started = True
                parts[place] = first.get(ids[place], parts[place])
            return
        self._started = True
        if self._strip_space and parts[0][:1] == b" ":
            parts[0] = parts[0][1:]


class StreamDecoder(ABC):
    """Decodes one stream. `push` ids as they come and read the properties; `done` is True once the stream ended or met
    a stop string.

    `ids_consumed` counts the ids of the whole stream so far, `trim_ids` those at their end that lie wholly within or
    behind `matched_stop`.
    """

    __slots__ = ("_edges", "_graphemes", "_raw", "done", "ids_consumed", "matched_stop", "trim_ids")

    def __init__(self, edges: _Edges, graphemes: GraphemeHold | None) -> None:
        self._edges = edges
        self._graphemes = graphemes
        self._raw = b""  # bytes that are not emitted yet; begins at a character
        self.ids_consumed = 0
        self.done = False
        self.matched_stop: str | None = None
        self.trim_ids = 0

    @abstractmethod
    def push(self, ids: Sequence[int], end: bool = False) -> str:
        """Returns the new text of more ids, each a valid index of the vocabulary; with `end` no more follow and nothing
        is held back. Raises ValueError where the stream is done."""

    @property
    def holds_back(self) -> bool:
        """True when complete text may be held back: for stop strings, or for a character of several code
        points."""
        return self._graphemes is not None

    @property
    def is_plain(self) -> bool:
        """True while each further id of whole characters shows these, whatever came before, and leaves it so."""
        return False

    def texts_of(self, ids: range) -> dict[int, str] | None:
        """Returns what each of these ids shows while the stream is plain, of those that show whole characters; None for
        a stream that never is."""
        return None

    @property
    def held_bytes(self) -> int:
        """The number of bytes of UTF-8 that are held back."""
        return len(self._raw) + (len(self._graphemes.held.encode()) if self._graphemes is not None else 0)

    def _check_open(self) -> None:
        if self.done:
            raise ValueError("the stream is done")

    def _in_graphemes(self, text: str) -> str:
        if self._graphemes is None:
            return text
        return self._graphemes.push(text) + (self._graphemes.flush() if self.done else "")


class PlainStream(StreamDecoder):
    """A stream without stop strings."""

    __slots__ = ("_ready", "_texts")

    def __init__(self, pieces: StreamPieces, edges: _Edges, graphemes: GraphemeHold | None) -> None:
        super().__init__(edges, graphemes)
        self._texts = pieces.texts
        self._ready: _Texts | None = None  # what ids show while no rule holds and nothing is kept back

    @property
    def is_plain(self) -> bool:
        return self._ready is not None

    def texts_of(self, ids: range) -> dict[int, str] | None:
        if self._graphemes is not None:
            return None
        return {index: text for index in ids if (text := self._texts[index]) is not None}

    def push(self, ids: Sequence[int], end: bool = False) -> str:
        if self._ready is not None and not end:  # what nearly every call of a generation is: whole characters
            if len(ids) == 1:
                text = self._ready[ids[0]]
                if text is not None:
                    self.ids_consumed += 1
                    return text
            else:
                try:
                    text = "".join(map(self._ready.__getitem__, ids))  # type: ignore[arg-type]
                    self.ids_consumed += len(ids)
                    return text
                except TypeError:  # one of them is None
                    pass
        self._check_open()
        raw = self._raw + b"".join(self._edges.parts(ids)[0])
        self.ids_consumed += len(ids)
        self.done = end
        text, used = utf_8_decode(raw, "replace", end)
        self._raw = raw[used:]
        plain = self._edges.are_passed and self._graphemes is None
        self._ready = self._texts if plain and not self._raw and not end else None
        return self._in_graphemes(text)


class WatchedStream(StreamDecoder):
    """A stream with stop strings. It is in one of two states: either no rule holds, and `_held` tells what is held back
    and what the next id leads to; or `_held` is None, and `_raw` is decoded and searched."""

    __slots__ = ("_held", "_include_stop", "_min_ids", "_passed", "_pieces", "_states", "_stops", "_trail")

    def __init__(
        self,
        pieces: StreamPieces,
        edges: _Edges,
        graphemes: GraphemeHold | None,
        stops: Sequence[str],
        include_stop: bool,
        min_ids: int,
    ) -> None:
        super().__init__(edges, graphemes)
        self._pieces = pieces.pieces
        self._states = pieces.stop_states(tuple(stops))
        self._stops = self._states.stops
        self._include_stop = include_stop
        self._min_ids = min_ids
        self._passed = 0  # characters at the beginning of `_raw` within which no stop string counts
        self._held: Held | None = None
        # (ids before it, bytes) of the last ids that have any, of all at least that may lie within a stop string: of as
        # many bytes as that, and of those in the id that completes it.
        self._trail: deque[tuple[int, int]] = deque(maxlen=4 * self._stops.longest + 4)

    @property
    def holds_back(self) -> bool:
        return True

    @property
    def held_bytes(self) -> int:
        return super().held_bytes if self._held is None else len(self._held.raw)

    def push(self, ids: Sequence[int], end: bool = False) -> str:
        held = self._held
        if held is not None and not end:
            if len(ids) == 1:  # what nearly every call of a generation is
                step = held[ids[0]]
                if step is not None:
                    text, following = step
                    if following.raw and (size := len(self._pieces[ids[0]])):
                        self._trail.append((self.ids_consumed, size))
                    self.ids_consumed += 1
                    self._held = following
                    return text
            elif len(ids) < _FEW:
                return self._push_few(held, ids)
            elif (step := self._states.step(held, ids)) is not None:
                text, self._held = step
                self.ids_consumed += len(ids)
                self._note(ids, len(self._held.raw))
                return text
        return self._push_ruled(ids, end)

    def _push_few(self, held: Held, ids: Sequence[int]) -> str:
        nothing, ordinal, sent = self._states.nothing, self.ids_consumed, ""
        for index in ids:
            step = held[index]
            if step is None:
                break
            text, held = step
            sent += text
            if held is not nothing and (size := len(self._pieces[index])):
                self._trail.append((ordinal, size))
            ordinal += 1
        consumed = ordinal - self.ids_consumed
        self.ids_consumed = ordinal
        self._held = held
        return sent if consumed == len(ids) else sent + self._push_ruled(ids[consumed:], end=False)

    def _push_ruled(self, ids: Sequence[int], end: bool) -> str:
        self._check_open()
        if self._held is not None:
            self._raw, self._held = self._held.raw, None
        sent = ""
        for at in range(0, len(ids), _SLICE):
            sent += self._watch(ids[at : at + _SLICE])
            if self.done:
                break
        if end and not self.done:
            sent += self._flush()
        ruled = self._graphemes is not None or not self._edges.are_passed
        if not (self.done or ruled or self._passed or self.ids_consumed < self._min_ids):
            self._held = self._states.at(self._raw)
        return self._in_graphemes(sent)

    def _note(self, ids: Sequence[int], held: int) -> None:
        """Records the newest ids, up to the one in which the bytes that are held back begin."""
        newest: list[tuple[int, int]] = []
        for back, index in enumerate(reversed(ids), 1):
            if held <= 0:
                break
            if size := len(self._pieces[index]):
                newest.append((self.ids_consumed - back, size))
                held -= size
        self._trail.extend(reversed(newest))

    def _watch(self, ids: Sequence[int]) -> str:
        parts, waited = self._edges.parts(ids)
        ordinal = self.ids_consumed - waited
        raw = self._raw + b"".join(parts)
        text, used = utf_8_decode(raw, "replace", False)
        if ordinal < self._min_ids:
            early = self._raw + b"".join(parts[: self._min_ids - ordinal])
            self._passed = len(utf_8_decode(early, "replace", False)[0])
        if self._stops.find(text, self._passed) is not None:
            return self._match(parts, ordinal)
        self.ids_consumed += len(ids)
        hold = self._stops.held(text)
        self._passed = max(0, self._passed - len(text) + hold)
        sent = text[: len(text) - hold]
        self._raw = raw[byte_position(raw, len(sent)) if hold else used :]
        if self._raw:
            self._remember(parts, ordinal)
        return sent

    def _flush(self) -> str:
        raw, self._raw = self._raw, b""
        self.done = True
        text = raw.decode("utf-8", "replace")
        match = None if self.ids_consumed < self._min_ids else self._stops.find(text, self._passed)
        return text if match is None else self._stopped(raw, text, match)

    def _match(self, parts: list[bytes], ordinal: int) -> str:
        """Handles a stop string that is complete somewhere in `parts`: finds the id that completes it and ends the
        stream there."""

        def search(count: int) -> tuple[bytes, str, StopMatch | None]:
            raw = self._raw + b"".join(parts[:count])
            text, _ = utf_8_decode(raw, "replace", False)
            return raw, text, self._stops.find(text, self._passed)

        count = 1 + bisect_left(range(1, len(parts)), True, key=lambda count: search(count)[2] is not None)
        raw, text, match = search(count)
        assert match is not None
        self._remember(parts[:count], ordinal)
        self._raw = b""
        self.ids_consumed = ordinal + count
        self.done = True
        return self._stopped(raw, text, match)

    def _stopped(self, raw: bytes, text: str, match: StopMatch) -> str:
        """Returns the last text. The ids behind those that begin in front of the stop string are trimmed."""
        self.matched_stop = match.stop
        at, start = len(raw), byte_position(raw, match.start)
        for ordinal, size in reversed(self._trail):
            at -= size
            if at < start:
                break
            self.trim_ids = self.ids_consumed - ordinal
        return text[: match.end if self._include_stop else match.start]

    def _remember(self, parts: Sequence[bytes], ordinal: int) -> None:
        self._trail.extend((number, len(part)) for number, part in enumerate(parts, ordinal) if part)


def stream_decoder(
    pieces: StreamPieces | Sequence[bytes],
    *,
    strip_space: bool = False,
    first_pieces: Mapping[int, bytes] | None = None,
    drop_front: Sequence[int] = (),
    drop_last: int | None = None,
    stops: Sequence[str] = (),
    include_stop: bool = False,
    graphemes: bool = False,
    min_ids: int = 0,
) -> StreamDecoder:
    """Returns a decoder for a stream of ids, whose bytes are `pieces`.

    With `strip_space` the stream begins a text, so a first id that begins with a space carries SentencePiece's prefix.
    `first_pieces` replace the bytes of the first id that shows anything. The ids that the stream and `drop_front` begin
    with are left out, and so is `drop_last` where it is the last one. With `graphemes` a character of several code
    points is never split over two deltas. A stop string that is complete within the first `min_ids` ids does not count.
    """
    known = pieces if isinstance(pieces, StreamPieces) else StreamPieces(pieces)
    edges = _Edges(known.pieces, strip_space, first_pieces, drop_front, drop_last)
    hold = GraphemeHold() if graphemes else None
    return WatchedStream(known, edges, hold, stops, include_stop, min_ids) if stops else PlainStream(known, edges, hold)

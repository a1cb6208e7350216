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

from bisect import bisect_left
from codecs import utf_8_decode
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from tandem.tokenizer.graphemes import GraphemeHold
from tandem.tokenizer.stop_strings import Held, StopMatch, StopMatcher, StopStates

_SLICE = 1024  # ids that are joined at once while stop strings are watched
_STOPS_KEPT = 32  # sets of stop strings whose streams share what they found out
_TRAIL = 8192  # ids that are remembered of those that may lie in what is held back, which has no more bytes
_WINDOW = 1024  # bytes that are decoded at once to find where a character starts


class StreamPieces:
    """The bytes of each id, and their text where they are whole characters: most ids need no decoder."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self.texts = _Texts(pieces)
        self.stop_states = lru_cache(_STOPS_KEPT)(self._make_stop_states)

    def _make_stop_states(self, stops: tuple[str, ...]) -> StopStates:
        return StopStates(StopMatcher(stops), self.texts)


class _Texts(dict[int, "str | None"]):
    """The texts of those ids that were asked for; None where the bytes are no whole characters."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def __missing__(self, index: int) -> str | None:
        try:
            text: str | None = self._pieces[index].decode()
        except UnicodeDecodeError:
            text = None
        self[index] = text
        return text


class StreamDecoder:
    """One stream. `push` ids as they come, and read off where it stands; `done` once it ended or met a stop string.

    `ids_consumed` counts the ids of the whole stream so far, `trim_ids` those at their end that lie wholly within or
    behind `matched_stop`.

    `min_ids`: no stop string counts that is complete within so many first ids.

    `pieces` are the bytes of each id. `strip_space`: the stream begins a text, so a first id that begins with a space
    carries SentencePiece's prefix. `first_pieces`: the first id that shows anything shows what stands there instead.
    `drop_first` and `drop_last` name an id that is left out where it is the first or the last one of the stream.
    `graphemes`: a character of several code points is never split over two deltas.
    """

    __slots__ = (
        "_at_ease",
        "_drop_first",
        "_drop_last",
        "_first_pieces",
        "_graphemes",
        "_held",
        "_include_stop",
        "_kept_last",
        "_min_ids",
        "_offset",
        "_passed",
        "_pending",
        "_pieces",
        "_raw",
        "_simple",
        "_started",
        "_states",
        "_stops",
        "_strip_space",
        "_texts",
        "_trail",
        "done",
        "ids_consumed",
        "matched_stop",
        "trim_ids",
    )

    def __init__(
        self,
        pieces: StreamPieces | Sequence[bytes],
        *,
        strip_space: bool = False,
        first_pieces: Mapping[int, bytes] | None = None,
        drop_first: int | None = None,
        drop_last: int | None = None,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        graphemes: bool = False,
        min_ids: int = 0,
    ) -> None:
        known = pieces if isinstance(pieces, StreamPieces) else StreamPieces(pieces)
        self._pieces = known.pieces
        self._texts = known.texts
        self._strip_space = strip_space
        self._first_pieces = first_pieces
        self._drop_first = drop_first
        self._drop_last = drop_last
        self._kept_last: bytes | None = None  # of the newest id, which is `drop_last`; waits until another id follows
        self._states: StopStates | None = known.stop_states(tuple(stops)) if stops else None
        self._stops = self._states.stops if self._states is not None else None
        self._include_stop = include_stop
        self._min_ids = min_ids
        self._passed = 0  # characters at the beginning of `_raw` within which no stop string counts
        self._simple = drop_last is None and not graphemes
        self._at_ease = False  # in the middle of a stream without any rule, which holds nothing back
        self._held: Held | None = None  # the same with stop strings, and whole characters that are held back for them
        self._trail: list[tuple[int, int]] = []  # then: (ids before it, bytes) of the last ids, if something is held
        self._graphemes = GraphemeHold() if graphemes else None
        self._started = False
        self._raw = b""  # bytes that are not emitted yet; begins at a character
        self._offset = 0  # of `_raw` in the stream, in bytes; what is passed at ease is not counted
        self._pending: list[tuple[int, int]] = []  # (byte offset, ids before it) of the ids that begin within `_raw`
        self.ids_consumed = 0
        self.done = False
        self.matched_stop: str | None = None
        self.trim_ids = 0

    @property
    def holds_back(self) -> bool:
        """Whether text may be kept back that is whole: for stop strings, or for a character of several code points."""
        return self._stops is not None or self._graphemes is not None

    @property
    def held_bytes(self) -> int:
        """Bytes of UTF-8 that are kept back."""
        return len(self._raw) + (len(self._graphemes.held.encode()) if self._graphemes is not None else 0)

    def push(self, ids: Sequence[int], end: bool = False) -> str:
        """The new text of more ids, each a valid index of the vocabulary; with `end` no more follow and nothing is held
        back. Raises ValueError where the stream is done."""
        # What nearly every call of a generation is: whole characters, and nothing held back but for stop strings.
        if self._at_ease and not end:
            if len(ids) == 1:
                text = self._texts[ids[0]]
                if text is not None:
                    self.ids_consumed += 1
                    return text
            else:
                try:
                    text = "".join(map(self._texts.__getitem__, ids))  # type: ignore[arg-type]
                    self.ids_consumed += len(ids)
                    return text
                except TypeError:  # one of them is None
                    pass
        sent = ""
        if self._held is not None and not end:
            if len(ids) == 1:
                step = self._held[ids[0]]
                if step is not None:
                    text, held = step
                    if held is not self._held or held.raw:
                        self._hold(ids[0], held)
                    self.ids_consumed += 1
                    return text
            else:
                sent, passed = self._pass(ids)
                ids = ids[passed:]
                if not ids:
                    return sent
        if self.done:
            raise ValueError("the stream is done")
        self._settle()
        text = self._push_plain(ids, end) if self._stops is None else self._push_sliced(ids, end, self._stops)
        if self._simple and self._started and not self.done:
            self._be_at_ease()
        if self._graphemes is None:
            return sent + text
        return self._graphemes.push(text) + (self._graphemes.flush() if self.done else "")

    def _pass(self, ids: Sequence[int]) -> tuple[str, int]:
        """The text of ids from the first on that are whole characters and complete no stop string, and their number."""
        assert self._held is not None
        texts: list[str] = []
        for index in ids:
            step = self._held[index]
            if step is None:
                break
            text, held = step
            if held is not self._held or held.raw:
                self._hold(index, held)
            self.ids_consumed += 1
            texts.append(text)
        return "".join(texts), len(texts)

    def _hold(self, index: int, held: Held) -> None:
        """`held` is kept back behind an id, which is not counted yet."""
        self._held = held
        self._raw = held.raw
        if not held.raw:
            self._trail.clear()
        elif size := len(self._pieces[index]):
            self._trail.append((self.ids_consumed, size))
            if len(self._trail) > _TRAIL:
                del self._trail[: -len(held.raw)]  # each of those that are left has a byte or more

    def _settle(self) -> None:
        """Writes down where the ids begin that begin within what is held back."""
        self._at_ease = False
        if self._held is None:
            return
        self._held = None
        self._offset = 0
        self._pending = []
        at = len(self._raw)
        for ordinal, size in reversed(self._trail):
            at -= size
            if at < 0:
                break
            self._pending.append((at, ordinal))
        self._pending.reverse()

    def _be_at_ease(self) -> None:
        """Where nothing is held back but whole characters, the next ids need no decoder."""
        if self._states is None:
            self._at_ease = not self._raw
            return
        if self._passed or self.ids_consumed < self._min_ids:
            return
        try:
            self._held = self._states.at(self._raw.decode())
        except UnicodeDecodeError:
            return
        ends = [*(offset for offset, _ in self._pending), self._offset + len(self._raw)]
        sizes = [end - begin for begin, end in pairwise(ends)]
        self._trail = [(ordinal, size) for (_, ordinal), size in zip(self._pending, sizes, strict=True)]

    def _push_sliced(self, ids: Sequence[int], end: bool, stops: StopMatcher) -> str:
        texts: list[str] = []
        for at in range(0, len(ids), _SLICE):
            texts.append(self._push_watched(ids[at : at + _SLICE], stops))
            if self.done:
                return "".join(texts)
        if end:
            texts.append(self._flush_watched(stops))
        return "".join(texts)

    def _parts(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each id, after the rules for the first and the last id of a stream."""
        pieces = self._pieces
        parts = [pieces[index] for index in ids]
        if not parts:
            return parts
        if not self._started:
            begins = 0
            if self._drop_first is not None and ids[0] == self._drop_first:
                parts[0] = b""
                begins = 1
            self._drop_first = None
            if self._first_pieces is not None:
                place = next((place for place in range(begins, len(parts)) if parts[place]), None)
                if place is not None:
                    self._started = True
                    parts[place] = self._first_pieces.get(ids[place], parts[place])
                return parts
            self._started = True
            if begins == 0 and self._strip_space and parts[0][:1] == b" ":
                parts[0] = parts[0][1:]
        return parts

    def _push_plain(self, ids: Sequence[int], end: bool) -> str:
        if ids:
            parts = self._parts(ids)
            if self._drop_last is not None:
                if self._kept_last is not None:
                    parts.insert(0, self._kept_last)
                self._kept_last = parts.pop() if ids[-1] == self._drop_last else None
            self.ids_consumed += len(ids)
            raw = self._raw + b"".join(parts)
        else:
            raw = self._raw
        if end:
            self._raw = b""
            self.done = True
            return raw.decode("utf-8", "replace")
        text, used = utf_8_decode(raw, "replace", False)
        self._raw = raw[used:]
        return text

    def _push_watched(self, ids: Sequence[int], stops: StopMatcher) -> str:
        parts = self._parts(ids)
        ordinal = self.ids_consumed
        if self._drop_last is not None and parts:
            if self._kept_last is not None:  # the id that waited joins the stream in front of the new ones
                parts.insert(0, self._kept_last)
                ordinal -= 1
            self._kept_last = parts.pop() if ids[-1] == self._drop_last else None
        raw = self._raw + b"".join(parts)
        text, used = utf_8_decode(raw, "replace", False)
        if ordinal < self._min_ids:
            early = self._raw + b"".join(parts[: self._min_ids - ordinal])
            self._passed = len(utf_8_decode(early, "replace", False)[0])
        if stops.find(text, self._passed) is not None:
            return self._match(parts, ordinal, stops)
        self.ids_consumed += len(ids)
        hold = stops.held(text)
        self._passed = max(0, self._passed - len(text) + hold)
        if not hold and used == len(raw):
            self._offset += used
            self._raw = b""
            self._pending.clear()
            return text
        emitted = text[: len(text) - hold]
        kept_from = _byte_position(raw, len(emitted)) if hold else used
        self._remember(parts, ordinal, kept_from)
        self._offset += kept_from
        self._raw = raw[kept_from:]
        return emitted

    def _flush_watched(self, stops: StopMatcher) -> str:
        raw, self._raw = self._raw, b""
        self.done = True
        text = raw.decode("utf-8", "replace")
        match = None if self.ids_consumed < self._min_ids else stops.find(text, self._passed)
        if match is None:
            return text
        return self._stopped(text, match, self._pending, _byte_position(raw, match.start))

    def _match(self, parts: list[bytes], ordinal: int, stops: StopMatcher) -> str:
        """A stop string is complete somewhere in `parts`: finds the id that completes it, and ends the stream there."""
        low, high = 1, len(parts)  # the number of parts that completes it
        while low < high:
            middle = (low + high) // 2
            text, _ = utf_8_decode(self._raw + b"".join(parts[:middle]), "replace", False)
            if stops.find(text, self._passed) is not None:
                high = middle
            else:
                low = middle + 1
        raw = self._raw + b"".join(parts[:low])
        text, _ = utf_8_decode(raw, "replace", False)
        match = stops.find(text, self._passed)
        assert match is not None
        self.ids_consumed = ordinal + low
        self.done = True
        starts = list(self._pending)
        at = self._offset + len(self._raw)
        for index, part in enumerate(parts[:low]):
            if part:
                starts.append((at, ordinal + index))
            at += len(part)
        self._raw = b""
        return self._stopped(text, match, starts, _byte_position(raw, match.start))

    def _stopped(self, text: str, match: StopMatch, starts: Sequence[tuple[int, int]], stop_start: int) -> str:
        first = bisect_left(starts, (self._offset + stop_start, 0))
        self.matched_stop = match.stop
        self.trim_ids = self.ids_consumed - starts[first][1] if first < len(starts) else 0
        return text[: match.end if self._include_stop else match.start]

    def _remember(self, parts: list[bytes], ordinal: int, kept_from: int) -> None:
        """Keeps where those ids begin that begin within the bytes that stay."""
        floor = self._offset + kept_from
        if self._pending and self._pending[0][0] < floor:
            self._pending = [entry for entry in self._pending if entry[0] >= floor]
        at = self._offset + len(self._raw) + sum(map(len, parts))
        fresh: list[tuple[int, int]] = []
        for index in range(len(parts) - 1, -1, -1):
            at -= len(parts[index])
            if at < floor:
                break
            if parts[index]:
                fresh.append((at, ordinal + index))
        self._pending += reversed(fresh)


def _byte_position(raw: bytes, characters: int) -> int:
    """Where the character number `characters` of `raw`, decoded with replacement, begins, in bytes."""
    at = 0
    while characters:
        window = raw[at : at + _WINDOW]
        try:
            text, used = utf_8_decode(window, "strict", False)
        except UnicodeDecodeError as error:
            text, used = window[: error.start].decode(), error.start
            if len(text) < characters:  # the invalid bytes became one U+FFFD
                characters -= len(text) + 1
                at += error.end
                continue
        else:
            if not used:  # an unfinished character at the very end, flushed as one U+FFFD
                return at + len(window)
        if len(text) >= characters:
            return at + len(text[:characters].encode())
        characters -= len(text)
        at += used
    return at

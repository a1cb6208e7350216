"""Turns a stream of token ids back into text, and ends it at stop strings.

Each id stands for bytes. An incremental UTF-8 decoder emits whole characters and keeps an unfinished one back; bytes
that can no longer become a character are emitted as U+FFFD. Stop strings are searched in the text that comes out, and
text is held back only as far as it may still become one: the longest end of it that is a beginning of a stop string.

Two rules make the answer independent of how the ids are cut into calls:

- the stop string that is *complete first* wins; of several that are complete at once, the longest;
- the id that completes it is the last one consumed, and whatever follows is discarded.

The work for one id does not depend on how much went before: only bytes that are held back are looked at again.
"""

from __future__ import annotations

from bisect import bisect_left
from codecs import utf_8_decode
from collections.abc import Sequence
from typing import NamedTuple

from tokenizer_svc.graphemes import GraphemeHold

_SLICE = 1024  # ids that are joined at once while stop strings are watched
_WINDOW = 1024  # bytes that are decoded at once to find where a character starts


class StopMatch(NamedTuple):
    """Where a stop string stands in a text, in code points."""

    start: int
    end: int
    stop: str


class StopMatcher:
    """Finds any of several strings in a text, and the end of a text that may yet become one of them."""

    __slots__ = ("_first_characters", "_longest", "_sorted", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        if not stops or not all(stops):
            raise ValueError("stop strings must not be empty")
        self._stops = tuple(dict.fromkeys(stops))
        self._sorted = sorted(self._stops)
        self._first_characters = frozenset(stop[0] for stop in self._stops)
        self._longest = max(map(len, self._stops))

    def find(self, text: str) -> StopMatch | None:
        """The stop string whose end comes first in `text`, the longest of them where two end together."""
        best: StopMatch | None = None
        for stop in self._stops:
            start = text.find(stop) if best is None else text.find(stop, 0, best.end)
            if start >= 0:
                match = StopMatch(start, start + len(stop), stop)
                if best is None or (match.end, match.start) < (best.end, best.start):
                    best = match
        return best

    def is_apart(self, text: str) -> bool:
        """Whether no stop string can begin in `text`."""
        return self._first_characters.isdisjoint(text)

    def held(self, text: str) -> int:
        """How many characters at the end of `text`, which holds no stop string, are the beginning of one."""
        length = len(text)
        for start in range(max(0, length - self._longest + 1), length):
            if text[start] in self._first_characters:
                tail = text[start:]
                index = bisect_left(self._sorted, tail)
                if index < len(self._sorted) and self._sorted[index].startswith(tail):
                    return length - start
        return 0


class StreamDelta(NamedTuple):
    """What one call gave: new text, and where the stream stands after it."""

    text: str
    held_bytes: int  # bytes of UTF-8 that are kept back
    ids_consumed: int  # of the whole stream so far
    done: bool
    matched_stop: str | None = None
    trim_ids: int = 0  # trailing consumed ids that lie wholly within or behind the stop string


_new_delta = tuple.__new__  # a third of what the constructor of a NamedTuple takes


class StreamDecoder:
    """One stream. `push` ids as they come; `done` once it ended or met a stop string.

    `pieces` are the bytes of each id. `strip_space`: the stream begins a text, so a first id that begins with a space
    carries SentencePiece's prefix. `drop_first` and `drop_last` name an id that is left out where it is the first or
    the last one of the stream. `graphemes`: a character of several code points is never split over two deltas.
    """

    __slots__ = (
        "_drop_first",
        "_drop_last",
        "_graphemes",
        "_include_stop",
        "_kept_last",
        "_offset",
        "_pending",
        "_pieces",
        "_raw",
        "_simple",
        "_started",
        "_stops",
        "_strip_space",
        "done",
        "ids_consumed",
    )

    def __init__(
        self,
        pieces: Sequence[bytes],
        *,
        strip_space: bool = False,
        drop_first: int | None = None,
        drop_last: int | None = None,
        stops: StopMatcher | None = None,
        include_stop: bool = False,
        graphemes: bool = False,
    ) -> None:
        self._pieces = pieces
        self._strip_space = strip_space
        self._drop_first = drop_first
        self._drop_last = drop_last
        self._kept_last = False  # the newest id is `drop_last`; its text waits until another id follows
        self._stops = stops
        self._include_stop = include_stop
        self._simple = drop_last is None and not graphemes
        self._graphemes = GraphemeHold() if graphemes else None
        self._started = False
        self._raw = b""  # bytes that are not emitted yet; begins at a character
        self._offset = 0  # bytes of the stream before `_raw`
        self._pending: list[tuple[int, int]] = []  # (byte offset, ids before it) of the ids that begin within `_raw`
        self.ids_consumed = 0
        self.done = False

    def push(self, ids: Sequence[int], end: bool = False) -> StreamDelta:
        """Takes more ids, each a valid index of the vocabulary; with `end` no more follow and nothing is held back."""
        if self.done:
            raise ValueError("the stream is done")
        if self._simple and not self._raw and self._started and not end:
            # What nearly every call of a generation is: whole characters, nothing held back.
            pieces = self._pieces
            raw = pieces[ids[0]] if len(ids) == 1 else b"".join([pieces[index] for index in ids])
            if raw.isascii():
                text = raw.decode("ascii")
                if self._stops is None or self._stops.is_apart(text):
                    self.ids_consumed += len(ids)
                    self._offset += len(raw)
                    return _new_delta(StreamDelta, (text, 0, self.ids_consumed, False, None, 0))
        delta = self._push(ids, end)
        if self._graphemes is None:
            return delta
        text = self._graphemes.push(delta.text)
        if delta.done:
            return delta._replace(text=text + self._graphemes.flush())
        return delta._replace(text=text, held_bytes=delta.held_bytes + len(self._graphemes.held.encode()))

    def _push(self, ids: Sequence[int], end: bool) -> StreamDelta:
        if self._stops is None:
            text = self._push_plain(ids, end)
            return StreamDelta(text, len(self._raw), self.ids_consumed, end)
        texts: list[str] = []
        for at in range(0, len(ids), _SLICE):
            text, match, trim = self._push_watched(ids[at : at + _SLICE], self._stops)
            texts.append(text)
            if match is not None:
                return StreamDelta("".join(texts), 0, self.ids_consumed, True, match.stop, trim)
        if end:
            text, match, trim = self._flush_watched(self._stops)
            texts.append(text)
            if match is not None:
                return StreamDelta("".join(texts), 0, self.ids_consumed, True, match.stop, trim)
        return StreamDelta("".join(texts), len(self._raw), self.ids_consumed, self.done)

    def _parts(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each id, after the rules for the first and the last id of a stream."""
        pieces = self._pieces
        parts = [pieces[index] for index in ids]
        if not parts:
            return parts
        if not self._started:
            self._started = True
            if self._drop_first is not None and ids[0] == self._drop_first:
                parts[0] = b""
            elif self._strip_space and parts[0][:1] == b" ":
                parts[0] = parts[0][1:]
        return parts

    def _push_plain(self, ids: Sequence[int], end: bool) -> str:
        if ids:
            parts = self._parts(ids)
            if self._drop_last is not None:
                if self._kept_last:
                    parts.insert(0, self._pieces[self._drop_last])
                self._kept_last = ids[-1] == self._drop_last
                if self._kept_last:
                    parts.pop()
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

    def _push_watched(self, ids: Sequence[int], stops: StopMatcher) -> tuple[str, StopMatch | None, int]:
        parts = self._parts(ids)
        ordinal = self.ids_consumed
        if self._drop_last is not None and parts:
            if self._kept_last:  # the id that waited joins the stream in front of the new ones
                parts.insert(0, self._pieces[self._drop_last])
                ordinal -= 1
            self._kept_last = ids[-1] == self._drop_last
            if self._kept_last:
                parts.pop()
        raw = self._raw + b"".join(parts)
        text, used = utf_8_decode(raw, "replace", False)
        if stops.find(text) is not None:
            return self._match(parts, ordinal, stops)
        self.ids_consumed += len(ids)
        hold = stops.held(text)
        if not hold and used == len(raw):
            self._offset += used
            self._raw = b""
            self._pending.clear()
            return text, None, 0
        emitted = text[: len(text) - hold]
        kept_from = _byte_position(raw, len(emitted)) if hold else used
        self._remember(parts, ordinal, kept_from)
        self._offset += kept_from
        self._raw = raw[kept_from:]
        return emitted, None, 0

    def _flush_watched(self, stops: StopMatcher) -> tuple[str, StopMatch | None, int]:
        raw, self._raw = self._raw, b""
        self.done = True
        text = raw.decode("utf-8", "replace")
        match = stops.find(text)
        if match is None:
            return text, None, 0
        trim = self._trim(self._pending, _byte_position(raw, match.start))
        return text[: match.end if self._include_stop else match.start], match, trim

    def _match(self, parts: list[bytes], ordinal: int, stops: StopMatcher) -> tuple[str, StopMatch, int]:
        """A stop string is complete somewhere in `parts`: finds the id that completes it, and ends the stream there."""
        low, high = 1, len(parts)  # the number of parts that completes it
        while low < high:
            middle = (low + high) // 2
            text, _ = utf_8_decode(self._raw + b"".join(parts[:middle]), "replace", False)
            if stops.find(text) is not None:
                high = middle
            else:
                low = middle + 1
        raw = self._raw + b"".join(parts[:low])
        text, _ = utf_8_decode(raw, "replace", False)
        match = stops.find(text)
        assert match is not None
        self.ids_consumed = ordinal + low
        self.done = True
        starts = list(self._pending)
        at = self._offset + len(self._raw)
        for index, part in enumerate(parts[:low]):
            if part:
                starts.append((at, ordinal + index))
            at += len(part)
        trim = self._trim(starts, _byte_position(raw, match.start))
        self._raw = b""
        return text[: match.end if self._include_stop else match.start], match, trim

    def _trim(self, starts: Sequence[tuple[int, int]], stop_start: int) -> int:
        first = bisect_left(starts, (self._offset + stop_start, 0))
        return self.ids_consumed - starts[first][1] if first < len(starts) else 0

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

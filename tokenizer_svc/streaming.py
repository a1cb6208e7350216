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
_IDS_REMEMBERED = 1024  # of a stream with stop strings
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


class StreamPieces:
    """The bytes of each id, and their text where they are whole characters: most ids need no decoder."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self.texts = _Texts(pieces)


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


class _TextsApart(dict[int, "str | None"]):
    """The texts of those ids in which no stop string can begin; None for others. Of one stream, which remembers so many
    that most of its ids are among them, and no more."""

    def __init__(self, texts: _Texts, stops: StopMatcher) -> None:
        self._texts = texts
        self._stops = stops

    def __missing__(self, index: int) -> str | None:
        text = self._texts[index]
        if text is not None and not self._stops.is_apart(text):
            text = None
        if len(self) < _IDS_REMEMBERED:
            self[index] = text
        return text


class StreamDecoder:
    """One stream. `push` ids as they come, and read off where it stands; `done` once it ended or met a stop string.

    `ids_consumed` counts the ids of the whole stream so far, `trim_ids` those at their end that lie wholly within or
    behind `matched_stop`.

    `pieces` are the bytes of each id. `strip_space`: the stream begins a text, so a first id that begins with a space
    carries SentencePiece's prefix. `drop_first` and `drop_last` name an id that is left out where it is the first or
    the last one of the stream. `graphemes`: a character of several code points is never split over two deltas.
    """

    __slots__ = (
        "_at_ease",
        "_drop_first",
        "_drop_last",
        "_easy",
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
        "matched_stop",
        "trim_ids",
    )

    def __init__(
        self,
        pieces: StreamPieces | Sequence[bytes],
        *,
        strip_space: bool = False,
        drop_first: int | None = None,
        drop_last: int | None = None,
        stops: StopMatcher | None = None,
        include_stop: bool = False,
        graphemes: bool = False,
    ) -> None:
        known = pieces if isinstance(pieces, StreamPieces) else StreamPieces(pieces)
        self._pieces = known.pieces
        self._easy: dict[int, str | None] = known.texts if stops is None else _TextsApart(known.texts, stops)
        self._strip_space = strip_space
        self._drop_first = drop_first
        self._drop_last = drop_last
        self._kept_last = False  # the newest id is `drop_last`; its text waits until another id follows
        self._stops = stops
        self._include_stop = include_stop
        self._simple = drop_last is None and not graphemes
        self._at_ease = False  # in the middle of a stream that holds nothing back and has no rule but stop strings
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
    def held_bytes(self) -> int:
        """Bytes of UTF-8 that are kept back."""
        return len(self._raw) + (len(self._graphemes.held.encode()) if self._graphemes is not None else 0)

    def push(self, ids: Sequence[int], end: bool = False) -> str:
        """The new text of more ids, each a valid index of the vocabulary; with `end` no more follow and nothing is held
        back. Raises ValueError where the stream is done."""
        if self._at_ease and not end:
            # What nearly every call of a generation is: whole characters, and nothing held back before or after.
            if len(ids) == 1:
                text = self._easy[ids[0]]
                if text is not None:
                    self.ids_consumed += 1
                    return text
            else:
                try:
                    text = "".join(map(self._easy.__getitem__, ids))  # type: ignore[arg-type]
                    self.ids_consumed += len(ids)
                    return text
                except TypeError:  # one of them is None
                    pass
        if self.done:
            raise ValueError("the stream is done")
        text = self._push_plain(ids, end) if self._stops is None else self._push_sliced(ids, end, self._stops)
        self._at_ease = self._simple and self._started and not self._raw and not self.done
        if self._graphemes is None:
            return text
        return self._graphemes.push(text) + (self._graphemes.flush() if self.done else "")

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

    def _push_watched(self, ids: Sequence[int], stops: StopMatcher) -> str:
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
        match = stops.find(text)
        if match is None:
            return text
        return self._stopped(text, match, self._pending, _byte_position(raw, match.start))

    def _match(self, parts: list[bytes], ordinal: int, stops: StopMatcher) -> str:
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

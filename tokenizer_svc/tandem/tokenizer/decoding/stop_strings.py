"""Stop strings: where one stands in a text, and how much of the text's end may still become one."""

from __future__ import annotations

import re
from bisect import bisect_left
from codecs import utf_8_decode
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tandem.tokenizer.decoding.broken_text import byte_position, whole_text

_REMEMBERED = 16_384  # what follows an id, for all streams of the same stop strings: some three megabytes


class StopMatch(NamedTuple):
    """The position of a stop string in a text, in code points."""

    start: int
    end: int
    stop: str


class StopMatcher:
    """Finds any of several strings in a text, and the end of a text that may still become one of them."""

    __slots__ = ("_sorted", "_stops", "beginning", "longest")

    def __init__(self, stops: Sequence[str]) -> None:
        if not stops or not all(stops):
            raise ValueError("stop strings must not be empty")
        self._stops = tuple(dict.fromkeys(stops))
        self._sorted = sorted(self._stops)
        # Finds the next character with which a stop string begins.
        self.beginning = re.compile("|".join({re.escape(stop[0]) for stop in self._stops})).search
        self.longest = max(map(len, self._stops))  # in characters

    def find(self, text: str, passed: int = 0) -> StopMatch | None:
        """Returns the stop string whose end comes first in `text`, the longest one where several end together. A string
        that ends within the first `passed` characters does not count."""
        best: StopMatch | None = None
        for stop in self._stops:
            begin = max(0, passed + 1 - len(stop))
            start = text.find(stop, begin) if best is None else text.find(stop, begin, best.end)
            if start >= 0:
                match = StopMatch(start, start + len(stop), stop)
                if best is None or (match.end, match.start) < (best.end, best.start):
                    best = match
        return best

    def is_in(self, text: str) -> bool:
        """Returns whether any of the stop strings is in `text`."""
        for stop in self._stops:  # noqa: SIM110 (`any` takes twice as long)
            if stop in text:
                return True
        return False

    def held(self, text: str) -> int:
        """Returns how many characters at the end of `text`, which holds no stop string that counts, may begin one."""
        first = self.beginning(text, max(0, len(text) - self.longest + 1))
        while first is not None:
            tail = text[first.start() :]
            index = bisect_left(self._sorted, tail)
            if index < len(self._sorted) and self._sorted[index].startswith(tail):
                return len(tail)
            first = self.beginning(text, first.start() + 1)
        return 0


class Held(dict[int, "tuple[str, Held] | None"]):
    """The state of a stream that holds these bytes back, which begin at a character. It maps an id to the text that may
    be sent and the next state, or to None where the id completes a stop string."""

    __slots__ = ("_states", "raw", "text")

    def __init__(self, states: StopStates, raw: bytes) -> None:
        self._states = states
        self.raw = raw
        self.text = whole_text(raw)

    def __missing__(self, index: int) -> tuple[str, Held] | None:
        step = self[index] = self._states.step(self, (index,))
        self._states.count()
        return step


class StopStates:
    """The states of all streams with the same stop strings. `texts` are the texts of the `pieces` of ids, None where
    these are not whole characters. Safe to share between threads."""

    def __init__(self, stops: StopMatcher, pieces: Sequence[bytes], texts: Mapping[int, str | None]) -> None:
        self.stops = stops
        self._pieces = pieces
        self._texts = texts
        self._known: dict[bytes, Held] = {}
        self._room = _REMEMBERED
        self.nothing = self._known[b""] = Held(self, b"")

    def at(self, raw: bytes) -> Held:
        """Returns the state of a stream that holds these bytes back."""
        held = self._known.get(raw)
        if held is None:
            held = self._known[raw] = Held(self, raw)
            self.count()
        return held

    def step(self, held: Held, ids: Sequence[int]) -> tuple[str, Held] | None:
        """Returns the text that may be sent after these ids, and the next state; None where they complete a stop
        string."""
        texts: Mapping[int, str] = self._texts  # type: ignore[assignment]
        try:
            text = held.text + (texts[ids[0]] if len(ids) == 1 else "".join(map(texts.__getitem__, ids)))  # type: ignore[operator]
        except TypeError:  # one of them is None
            return self._step_in_bytes(held.raw + b"".join(map(self._pieces.__getitem__, ids)))
        if self.stops.beginning(text) is None:
            return text, self.nothing
        if self.stops.is_in(text):
            return None
        hold = self.stops.held(text)
        if not hold:
            return text, self.nothing
        sent = text[:-hold]
        return sent, self.at(text[len(sent) :].encode())

    def _step_in_bytes(self, raw: bytes) -> tuple[str, Held] | None:
        text, used = utf_8_decode(raw, "replace", False)
        if self.stops.is_in(text):
            return None
        hold = self.stops.held(text)
        sent = text[: len(text) - hold]
        return sent, self.at(raw[byte_position(raw, len(sent)) if hold else used :])

    def count(self) -> None:
        """Counts one more entry, and forgets all of them where that is one too many."""
        self._room -= 1
        if self._room < 0:
            for held in list(self._known.values()):
                held.clear()
            self._known = {b"": self.nothing}
            self._room = _REMEMBERED

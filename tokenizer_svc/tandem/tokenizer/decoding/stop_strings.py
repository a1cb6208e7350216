"""Stop strings: where one stands in a text, and how much of the text's end may still become one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_REMEMBERED = 4096  # what follows an id, for all streams of the same stop strings: a megabyte at most


class StopMatch(NamedTuple):
    """The position of a stop string in a text, in code points."""

    start: int
    end: int
    stop: str


class StopMatcher:
    """Finds any of several strings in a text, and the end of a text that may still become one of them."""

    __slots__ = ("_first_characters", "_longest", "_sorted", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        if not stops or not all(stops):
            raise ValueError("stop strings must not be empty")
        self._stops = tuple(dict.fromkeys(stops))
        self._sorted = sorted(self._stops)
        self._first_characters = frozenset(stop[0] for stop in self._stops)
        self._longest = max(map(len, self._stops))

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

    def held(self, text: str) -> int:
        """Returns how many characters at the end of `text`, which holds no stop string that counts, may begin one."""
        length = len(text)
        for start in range(max(0, length - self._longest + 1), length):
            if text[start] in self._first_characters:
                tail = text[start:]
                index = bisect_left(self._sorted, tail)
                if index < len(self._sorted) and self._sorted[index].startswith(tail):
                    return length - start
        return 0


class Held(dict[int, "tuple[str, Held] | None"]):
    """The state of a stream that holds `text` back, which is whole characters. It maps an id to the text that may be
    sent and the next state, or to None where the id is not whole characters or completes a stop string."""

    __slots__ = ("_states", "raw", "text")

    def __init__(self, states: StopStates, text: str) -> None:
        self._states = states
        self.text = text
        self.raw = text.encode()

    def __missing__(self, index: int) -> tuple[str, Held] | None:
        step = self._states.step(self.text, index)
        if self._states.has_room():
            self[index] = step
        return step


class StopStates:
    """The states of all streams with the same stop strings. `texts` are the texts of ids, None where an id is not whole
    characters. Safe to share between threads."""

    def __init__(self, stops: StopMatcher, texts: Mapping[int, str | None]) -> None:
        self.stops = stops
        self._texts = texts
        self._known: dict[str, Held] = {}
        self._room = _REMEMBERED
        self.nothing = self.at("")

    def at(self, text: str) -> Held:
        """Returns the state of a stream that holds this text back."""
        held = self._known.get(text)
        if held is None:
            held = Held(self, text)
            if self.has_room():
                self._known[text] = held
        return held

    def step(self, held: str, index: int) -> tuple[str, Held] | None:
        """Returns the text that may be sent after an id, and the next state; None where the id is not whole characters
        or completes a stop string."""
        text = self._texts[index]
        if text is None:
            return None
        text = held + text
        if self.stops.find(text) is not None:
            return None
        sent = len(text) - self.stops.held(text)
        return text[:sent], self.at(text[sent:])

    def has_room(self) -> bool:
        """Reserves room for one more entry, and returns False where there is none."""
        self._room -= self._room > 0
        return self._room > 0

"""Finds stop sequences, lists of ids that end a request, one token at a time.

An automaton over the ids (Aho and Corasick 1975). A state is the longest end of the output that begins a sequence, so
one dictionary look-up a token says whether a sequence has ended and how many last tokens may still become one: those
are held back, since what is sent is never retracted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Match(NamedTuple):
    """A sequence that has ended: its place among the sequences, and how many ids it has."""

    place: int
    length: int


class StopSequences:
    """The automaton of one request. States are integers, 0 is the beginning; it holds no state itself."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        """Takes `sequences` `[>= 0]` of at least one id each."""
        self._next: list[dict[int, int]] = [{}]
        self._depth = [0]
        self._match: list[Match | None] = [None]
        for place, sequence in enumerate(sequences):
            self._add(place, sequence)
        self._link()

    def _add(self, place: int, sequence: Sequence[int]) -> None:
        state = 0
        for token in sequence:
            following = self._next[state].get(token)
            if following is None:
                following = self._next[state][token] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
            state = following
        if self._match[state] is None:
            self._match[state] = Match(place, len(sequence))

    def _link(self) -> None:
        """Finds where to go on when the next token does not fit: at the longest proper end that begins a sequence."""
        self._fall_back = [0] * len(self._next)
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for token, following in self._next[state].items():
                self._fall_back[following] = self.after(self._fall_back[state], token)
                queue.append(following)
            if self._match[state] is None:
                self._match[state] = self._match[self._fall_back[state]]

    def after(self, state: int, token: int) -> int:
        """Returns the state after one more token."""
        while True:
            following = self._next[state].get(token)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self._fall_back[state]

    def after_all(self, tokens: Iterable[int]) -> int:
        """Returns the state after `tokens`, from the beginning."""
        state = 0
        for token in tokens:
            state = self.after(state, token)
        return state

    def match(self, state: int) -> Match | None:
        """Returns the sequence that has just ended, the longest of several; None if none has."""
        return self._match[state]

    def held(self, state: int) -> int:
        """Returns how many last tokens may still become a sequence."""
        return self._depth[state]

    def completing(self, state: int) -> set[int]:
        """Returns the tokens that would end a sequence now."""
        found: set[int] = set()
        while True:
            found.update(token for token, after in self._next[state].items() if self._match[after] is not None)
            if state == 0:
                return found
            state = self._fall_back[state]

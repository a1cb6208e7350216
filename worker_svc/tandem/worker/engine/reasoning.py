"""Follows a model's reasoning through its output: where it begins, where it ends, and what must come when its budget is
used up.

    begin_ids      it begins behind them, wherever they first occur; none: the output begins within it
    end_ids        it ends with them; tokens before them count
    budget         after so many tokens the rest of end_ids is forced, token by token

A state is a pure function of the output so far, so that a request that is resumed, preempted or speculated on goes on
alike. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tandem.worker.engine.account import Usage
from tandem.worker.engine.stops import StopSequences

if TYPE_CHECKING:
    from tandem.worker.engine.guides.matcher import Matcher


class ReasoningState(NamedTuple):
    """Where an output stands: the automaton's state, tokens since the reasoning began, and its tokens once it ended."""

    begun: bool
    matched: int = 0
    since: int = 0
    tokens: int | None = None

    @property
    def over(self) -> bool:
        """Tells whether the reasoning has ended."""
        return self.tokens is not None


class Reasoning:
    """The rules of one request."""

    def __init__(self, begin_ids: Sequence[int], end_ids: Sequence[int], budget: int | None) -> None:
        """Takes at least one id in `end_ids`; a `budget` of None is none."""
        self._begin, self._end = StopSequences([begin_ids] if begin_ids else []), StopSequences([end_ids])
        self._end_ids = tuple(end_ids)
        self.budget = budget
        self.start = ReasoningState(begun=not begin_ids)

    def after(self, state: ReasoningState, token: int) -> ReasoningState:
        """Returns the state after one more token."""
        if state.over:
            return state
        if not state.begun:
            matched = self._begin.after(state.matched, token)
            return ReasoningState(begun=True) if self._begin.match(matched) else ReasoningState(False, matched)
        matched, since = self._end.after(state.matched, token), state.since + 1
        over = self._end.match(matched) is not None
        return ReasoningState(True, matched, since, since - len(self._end_ids) if over else None)

    def after_all(self, tokens: Iterable[int]) -> ReasoningState:
        """Returns the state after `tokens`, from the beginning."""
        state = self.start
        for token in tokens:
            state = self.after(state, token)
        return state

    def end_of(self, tokens: Iterable[int]) -> int | None:
        """Returns how many of `tokens` lie before the answer; None if the reasoning has not ended in them."""
        state = self.start
        for place, token in enumerate(tokens):
            state = self.after(state, token)
            if state.over:
                return place + 1
        return None

    def forced(self, state: ReasoningState) -> int | None:
        """Returns the id that must come next; None if any may."""
        if self.budget is None or not state.begun or state.over:
            return None
        return self._end_ids[self._end.held(state.matched)] if state.since >= self.budget else None

    def tokens(self, state: ReasoningState) -> int:
        """Counts the tokens of reasoning so far, without the marks around it."""
        return state.since - self._end.held(state.matched) if state.tokens is None else state.tokens

    def free(self, state: ReasoningState, tokens: int) -> bool:
        """Tells whether nothing is forced within the next `tokens` tokens, whatever they are."""
        if self.budget is None or state.over:
            return True
        return (state.since + tokens if state.begun else tokens) < self.budget


@dataclass(slots=True)
class Thinking:
    """The reasoning of a request, as far as its output has come, and the guide that begins behind it."""

    rules: Reasoning
    state: ReasoningState
    usage: Usage  # of the request
    behind: Matcher | None = None  # until the reasoning has ended
    unguided: int = 0  # output tokens before the first that the guide is told

    def think(self, token: int, output_tokens: int) -> Matcher | None:
        """Moves over a token, by which the output has `output_tokens`; returns the guide if it begins behind it."""
        self.state = self.rules.after(self.state, token)
        return self._moved(output_tokens)

    def resume(self, output: Sequence[int]) -> Matcher | None:
        """Moves over the output of another worker; returns the guide if it has begun."""
        self.state = self.rules.after_all(output)
        return self._moved(self.rules.end_of(output) or 0)

    def _moved(self, behind: int) -> Matcher | None:
        self.usage.reasoning_tokens = self.rules.tokens(self.state)
        if not self.state.over or self.behind is None:
            return None
        matcher, self.behind, self.unguided = self.behind, None, behind
        return matcher

"""Follows a model's reasoning through its output: where it begins, where it ends, and what must come when its budget is
used up.

    begin_ids      it begins behind them, wherever they first occur; none: the output begins within it
    end_ids        it ends with them; tokens before them count
    budget         after so many tokens the rest of end_ids is forced, token by token
    leads          the answer is guided: begin_ids stand at the very beginning of the output or nowhere. The first of
                   them as the first token has the others forced; with another first token there is no reasoning

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
    """Where an output stands: the automaton's state, tokens since the reasoning began, and its tokens once it ended or
    is known not to come."""

    begun: bool
    matched: int = 0
    since: int = 0
    tokens: int | None = None

    @property
    def over(self) -> bool:
        """Tells whether the reasoning has ended, or will not begin."""
        return self.tokens is not None


class Reasoning:
    """The rules of one request."""

    def __init__(
        self, begin_ids: Sequence[int], end_ids: Sequence[int], budget: int | None, *, leads: bool = False
    ) -> None:
        """Takes at least one id in `end_ids`; a `budget` of None is none."""
        self._begin, self._end = StopSequences([begin_ids] if begin_ids else []), StopSequences([end_ids])
        self._begin_ids, self._end_ids = tuple(begin_ids), tuple(end_ids)
        self._leads = leads
        self.budget = budget
        self.start = ReasoningState(begun=not begin_ids)

    def after(self, state: ReasoningState, token: int) -> ReasoningState:
        """Returns the state after one more token."""
        if state.over:
            return state
        if not state.begun:
            matched = self._begin.after(state.matched, token)
            if self._begin.match(matched):
                return ReasoningState(begun=True)
            return ReasoningState(False, matched, tokens=0 if self._leads and matched <= state.matched else None)
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
                return place + 1 if state.begun else 0
        return None

    def opening(self, state: ReasoningState) -> int | None:
        """Returns the id that may begin the reasoning where a guided answer may come as well; None if that is over."""
        return self._begin_ids[0] if self._leads and state == self.start and not state.begun else None

    def forced(self, state: ReasoningState) -> int | None:
        """Returns the id that must come next; None if any may."""
        if not state.begun and not state.over:
            return self._begin_ids[state.matched] if self._leads and state.matched else None
        if self.budget is None or state.over:
            return None
        return self._end_ids[self._end.held(state.matched)] if state.since >= self.budget else None

    def tokens(self, state: ReasoningState) -> int:
        """Counts the tokens of reasoning so far, without the marks around it."""
        if state.tokens is not None or not state.begun:
            return state.tokens or 0
        return state.since - self._end.held(state.matched)

    def free(self, state: ReasoningState, tokens: int) -> bool:
        """Tells whether nothing is forced within the next `tokens` tokens, whatever they are."""
        if self._leads and not state.begun and not state.over:
            return False
        if self.budget is None or state.over:
            return True
        return (state.since + tokens if state.begun else tokens) < self.budget


@dataclass(slots=True)
class Thinking:
    """The reasoning of a request, as far as its output has come, and the guide of the answer behind it."""

    rules: Reasoning
    state: ReasoningState
    usage: Usage  # of the request
    guide: Matcher | None = None
    unguided: int = 0  # output tokens before the first that the guide is told

    @property
    def guiding(self) -> Matcher | None:
        """The guide, if the next token is to match it."""
        return self.guide if self.state.over or self.rules.opening(self.state) is not None else None

    def think(self, token: int, output_tokens: int) -> None:
        """Moves over a token, by which the output has `output_tokens`."""
        before, self.state = self.state, self.rules.after(self.state, token)
        if self.state.over:
            if self.state.begun and not before.over:
                self.unguided = output_tokens
        elif self.guide is not None and self.rules.opening(before) is not None:
            self.guide.restart()
        self.usage.reasoning_tokens = self.rules.tokens(self.state)

    def resume(self, output: Sequence[int]) -> None:
        """Moves over the output of another worker."""
        self.state = self.rules.after_all(output)
        self.unguided = self.rules.end_of(output) or 0
        self.usage.reasoning_tokens = self.rules.tokens(self.state)

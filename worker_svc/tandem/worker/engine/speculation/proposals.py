"""Proposes drafts: tokens that probably come next, so that one forward pass can verify several.

A step computes a request's last token and its k drafts together and samples after each of them, with the very numbers
that it would use token by token. Draft after draft is accepted while it equals what was sampled before it; the first
one that differs, and all behind it, are rejected. So speculation changes how many passes an answer takes and nothing
else. What rejected drafts left in the cache is overwritten by the tokens that take their places.

How many: those that are likely to give more tokens per second than they cost (`costs.py`), by what each
request's drafts did so far and by what steps of so many rows take here. Often that is none.

Where drafts come from, the first that has any: what a grammar forces; prompt lookup (Saxena 2023): where the last n
tokens stood before in prompt or output, what followed then; a draft model (`draft_model.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tandem.worker.engine.chains import Tokens
from tandem.worker.engine.load import EngineStatistics
from tandem.worker.engine.request import Request
from tandem.worker.engine.speculation.costs import Costs, windows
from tandem.worker.engine.speculation.drafting import Memory, NGramIndex

BESIDE = 4  # requests in a step for each that sits it out; were there more, no step would be launched ahead
WORTH = 0.95  # accepted drafts for which a step is sat out; two that were never tried are likely to give more
FORCED_CHANCE = 0.95  # of what a grammar forces, which may be written in other tokens


class Proposer(Protocol):
    """Proposes drafts beside prompt lookup, as a draft model does."""

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> None:
        """Writes up to `counts[i]` drafts behind the known tokens of `requests[i]`, and how many into `.drafts`."""
        ...

    def forget(self, request: Request) -> None:
        """Forgets a request that is over."""
        ...


@dataclass(slots=True)
class _Hope:
    """The drafts that a request may get."""

    request: Request
    draft: Sequence[int] | Tokens  # those that are there; none: the model is asked
    limit: int
    chance: float  # that one is accepted, if those before it are

    def gain(self, count: int) -> float:
        """Returns how many of so many drafts are likely to be accepted."""
        return sum(self.chance**place for place in range(1, count + 1))


def _wanting(running: Sequence[Request]) -> list[Request]:
    # A draw that depends on earlier draws cannot be made before they are.
    return [request for request in running if request.drafting is not None and not request.sampling.stateful]


@dataclass(slots=True)
class Speculation:
    """Gives requests their drafts before each step."""

    costs: Costs
    rows: int  # drafts in a step, at most
    statistics: EngineStatistics
    model: Proposer | None = None
    _memories: dict[int, Memory] = field(default_factory=dict)  # by the numbers of requests

    def propose(self, running: Sequence[Request], *, behind: bool = False) -> None:
        """Writes drafts behind the known tokens of the requests that decode and want some. `behind` a step in flight,
        who gets drafts sits the next one out, so they must promise more than that would give."""
        wanting = [request for request in _wanting(running) if not request.in_flight.pending]
        for request in wanting:
            request.drafts = 0
        hopes = self._hopes(wanting, 0) if wanting else []
        if not hopes:
            return
        given, declined = self._share(running, hopes)
        self.statistics.drafts_declined += declined
        asked = []
        for hope, window in zip(hopes, given, strict=True):
            if behind and hope.gain(window) <= WORTH:
                continue
            draft, request = hope.draft[:window], hope.request
            request.tokens[request.num_tokens : request.num_tokens + len(draft)] = draft
            request.drafts = len(draft)
            if window and not len(hope.draft):
                asked.append((request, window))
        if self.model is not None and asked:
            self.model.propose(*zip(*asked, strict=True))

    def lets_overlap(self, running: Sequence[Request]) -> bool:
        """Tells whether a step may be launched before the one in flight has landed, and chooses who sits it out,
        because his drafts promise more than it would give him; who has drafts in flight does in any case.

        With drafts that become a tokens for each of S requests, beside P others, and a share h of a step's time that
        overlap hides, P + S a tokens in 1 + h of a step become P + S a / 2 in one. That is more if
        P h > S a (1 - h) / 2: if P > 3 S, for a = 2 and h = 1/4.
        """
        pending = [r for r in _wanting(running) if r.in_flight.pending and not r.in_flight.ended]
        waiting = sum(request.in_flight.waits for request in pending)
        hopes = self._hopes([request for request in pending if not request.in_flight.waits], 1)
        given = self._share(running, hopes)[0] if hopes else []
        if (waiting + sum(window > 0 for window in given)) * BESIDE > len(running):
            return False
        for hope, window in zip(hopes, given, strict=True):
            hope.request.in_flight.waits = hope.gain(window) > WORTH
        return True

    def _hopes(self, requests: Sequence[Request], pending: int) -> list[_Hope]:
        """Returns the requests that drafts can be had for, so many of whose tokens are in flight."""
        hopes = []
        for request in requests:
            drafting, matcher = request.drafting, request.matcher
            assert drafting is not None
            # One token is sampled in any case; drafts behind the last one that is wanted are useless.
            limit = min(drafting.max_tokens, request.stopping.max_tokens - request.output_tokens - pending - 1)
            if request.owed != 1 or limit < 1 or (matcher is not None and matcher.slow):
                continue
            memory = self._memory(request)
            draft, forced = self._guess(request, memory, limit + pending)
            draft = draft[pending:]  # what is in flight is guessed too
            if not len(draft) and self.model is None:
                continue
            chance = memory.chance(request.num_tokens)
            chance = max(chance, FORCED_CHANCE) if forced else chance
            hopes.append(_Hope(request, draft, len(draft) or limit, chance))
        return hopes

    def _share(self, running: Sequence[Request], hopes: Sequence[_Hope]) -> tuple[list[int], bool]:
        """Returns how many drafts each gets, and whether some were wanted that are not worth what they cost."""
        decodes = sum(request.owed == 1 for request in running)
        return windows(self.costs, decodes, [h.chance for h in hopes], [h.limit for h in hopes], self.rows)

    def learn(self, request: Request, proposed: int, accepted: int) -> None:
        """Learns from one round of speculation on a request."""
        self._memory(request).learn(proposed, accepted, request.num_tokens)

    def forget(self, request: Request) -> None:
        """Forgets a request that is over."""
        self._memories.pop(request.number, None)
        if self.model is not None:
            self.model.forget(request)

    def _memory(self, request: Request) -> Memory:
        memory = self._memories.get(request.number)
        if memory is None:
            assert request.drafting is not None
            index = NGramIndex(request.drafting.ngram) if request.drafting.ngram else None
            memory = self._memories[request.number] = Memory(index)
        return memory

    @staticmethod
    def _guess(request: Request, memory: Memory, count: int) -> tuple[Sequence[int] | Tokens, bool]:
        """Returns up to `count` drafts that cost no model: what a grammar forces, and whether it does, or what followed
        the last tokens before."""
        if request.matcher is not None and (forced := request.matcher.forced[:count]):
            return forced, True
        if memory.index is None:
            return (), False
        return memory.index.continuation(request.known, count), False

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
class Speculation:
    """Gives requests their drafts before each step."""

    costs: Costs
    rows: int  # drafts in a step, at most
    statistics: EngineStatistics
    model: Proposer | None = None
    _memories: dict[int, Memory] = field(default_factory=dict)  # by the numbers of requests

    def propose(self, running: Sequence[Request]) -> None:
        """Writes drafts behind the known tokens of the requests that decode and want some."""
        # A draw that depends on earlier draws cannot be made before they are.
        wanting = [r for r in running if r.drafting is not None and not r.sampling.stateful]
        if not wanting:
            return
        requests: list[Request] = []
        found: list[int] = []  # drafts that are there; 0: the model is asked
        limits: list[int] = []
        chances: list[float] = []
        for request in wanting:
            request.drafts = 0
            drafting = request.drafting
            assert drafting is not None
            # One token is sampled in any case; drafts behind the last one that is wanted are useless.
            limit = min(drafting.max_tokens, request.stopping.max_tokens - request.output_tokens - 1)
            if request.owed != 1 or limit < 1 or (request.matcher is not None and request.matcher.slow):
                continue
            memory = self._memory(request)
            draft, forced = self._guess(request, memory, limit)
            if not len(draft) and self.model is None:
                continue
            request.tokens[request.num_tokens : request.num_tokens + len(draft)] = draft
            chance = memory.chance(request.num_tokens)
            requests.append(request)
            found.append(len(draft))
            limits.append(len(draft) or limit)
            chances.append(max(chance, FORCED_CHANCE) if forced else chance)
        if not requests:
            return
        decodes = sum(request.owed == 1 for request in running)
        given, declined = windows(self.costs, decodes, chances, limits, self.rows)
        self.statistics.drafts_declined += declined
        asked = []
        for request, count, window in zip(requests, found, given, strict=True):
            request.drafts = min(count, window)
            if window and not count:
                asked.append((request, window))
        if self.model is not None and asked:
            self.model.propose(*zip(*asked, strict=True))

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

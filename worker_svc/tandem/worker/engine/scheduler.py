"""Decides what the next step computes.

One rule and no modes: a request owes the keys and values of its tokens (`owed = num_tokens - num_computed`), and every
step hands out a budget of tokens. A prefill owes many, a decode owes one, a preempted request owes everything again.

    1. Running requests that owe one token (decodes) get it first; no prefill can hold up a stream. Of a caller with
       many of them some may sit a step out while others have few (`fairness.py`). Then their drafts get what there is
       without taking a page from anybody, up to half of the budget.
    2. Running requests that owe more get chunks: by priority, then by what their callers had (`fairness.py`), then by
       arrival. A chunk that does not finish what is owed ends on a page boundary where it can, so that whole pages are
       published.
    3. What is left of the budget admits waiting requests in the same order, and none past one that does not fit. It
       fits when the pages for all it owes are there, and beside them one for each running request to grow into. Where
       its caller had no more than that of the next running one, a waiting request goes first, unless its priority is
       lower: a caller's long prompts do not hold up another's.

When a running request needs a page and there is none, a running one of the lowest priority loses its pages and waits
again: the latest of the caller that had most. Its published pages stay cached while there is room, so it seldom
computes much twice. A waiting request without a place gets one in the same way from a caller that had no less, and that
even afterwards holds as many places, or pages, as the other; so no place goes to and fro. The first in order (priority,
then arrival) is never the victim, therefore it always gets on, and therefore everything finishes.

A request that is *held* waits for somebody else, who answers within a time of his own; it keeps its place and its
pages, and steps go without it.

No torch, no clock, no randomness: given the same arrivals, every rank of a tensor-parallel engine decides alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tandem.worker.engine.budget import Budget, Chunk
from tandem.worker.engine.fairness import Fairness
from tandem.worker.engine.load import EngineStatistics
from tandem.worker.engine.pages import PageCopy, PageTable
from tandem.worker.engine.request import Request
from tandem.worker.engine.states import StateCopy, StateTable
from tandem.worker.engine.waiting import WaitingQueue


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of one step."""

    max_batch_tokens: int
    max_running: int
    crowd: int | None = None  # decodes of `fairness.rest`; None: nobody rests
    checks: bool = (
        True  # behind a chunk nothing is sampled of: whether its numbers are finite. On a GPU it is waited for
    )

    def __post_init__(self) -> None:
        if self.max_running < 1:
            raise ValueError(f"max_running must be at least 1, not {self.max_running}")
        if self.max_batch_tokens < self.max_running:
            raise ValueError(
                f"max_batch_tokens ({self.max_batch_tokens}) must be at least max_running ({self.max_running}): "
                "every running request may decode in every step"
            )


@dataclass(slots=True, eq=False)
class Scheduler:
    """Owns the requests from arrival to end, and through the page table their pages."""

    table: PageTable
    limits: SchedulerLimits
    running: list[Request] = field(default_factory=list)  # in order of service
    fairness: Fairness = field(default_factory=Fairness)
    queue: WaitingQueue = field(init=False)
    requests: dict[int, Request] = field(default_factory=dict)  # running and waiting, by number
    _copies: list[PageCopy] = field(default_factory=list)
    _state_copies: list[StateCopy] = field(default_factory=list)
    _unsound: list[int] = field(default_factory=list)  # free pages whose numbers may not be finite
    _lacking: tuple[Request, int] | None = None  # the waiting request that did not fit, and how many pages it wanted
    _admitted: set[int] = field(default_factory=set)  # numbers, in the step that is being scheduled
    _arrivals: int = 0

    def __post_init__(self) -> None:
        self.queue = WaitingQueue(self.fairness)

    @property
    def statistics(self) -> EngineStatistics:
        """Returns the counters of the whole engine."""
        return self.table.statistics

    @property
    def waiting(self) -> int:
        """Counts the requests that wait."""
        return len(self.requests) - len(self.running)

    @property
    def waiting_tokens(self) -> int:
        """Counts the tokens that the waiting requests owe."""
        return self.queue.tokens

    @property
    def has_work(self) -> bool:
        """Tells whether any request runs or waits."""
        return bool(self.requests)

    # --- arrivals and ends

    def add(self, request: Request) -> None:
        """Puts a request in the queue; it must fit into the cache when it is alone there."""
        assert request.number not in self.requests, "a number is used once at a time"
        assert self.table.pages_for(len(request.tokens)) <= self.table.total, "validated before: it fits into the cache"
        request.turn.arrival = self._arrivals
        self._arrivals += 1
        self.requests[request.number] = request
        self.fairness.enter(request.caller)
        self.queue.add(request)

    def find(self, number: int) -> Request | None:
        """Returns the request of a number while it runs or waits."""
        return self.requests.get(number)

    def remove(self, request: Request, *, discard: bool = False) -> None:
        """Ends a request, wherever it is. With `discard` its pages are not kept as prompt cache either."""
        del self.requests[request.number]
        if request.pages is None:
            self.queue.remove(request)
        else:
            self.running.remove(request)
            self._release(request, discard=discard)
        self.fairness.leave(request.caller)

    def _release(self, request: Request, *, discard: bool = False) -> None:
        assert request.pages is not None
        request.count_pages()
        sound = request.in_flight.sound
        if not discard:
            # The token that ended it may be in flight, though nobody asked for what follows.
            computed = min(request.num_computed, request.num_tokens - 1, sound)
            self.table.publish_tail(request.pages, request.tokens, computed)
        dropped = self.table.close(request.pages, discard=discard)
        if request.in_flight.corrupted or request.num_computed > sound:
            self._unsound += dropped
        request.pages = None

    # --- steps

    def schedule(self) -> list[Chunk]:
        """Chooses the chunks of the next step and reserves their pages; empty when nothing waits or runs."""
        budget = Budget(self.limits.max_batch_tokens)
        self._admitted.clear()
        self._lacking = None
        prefills = self._decodes(budget)
        admitting = True
        while budget.tokens > 0:
            request, waiting = self.fairness.next_of(prefills), self.queue.head if admitting else None
            if waiting is not None and self.fairness.keeps_from(waiting, self.limits.max_running - len(self.running)):
                waiting = None
            if waiting is not None and (request is None or self.fairness.precedes(waiting, request)):
                admitting = self._admission(waiting, budget)
                if admitting:
                    self._prefill(waiting, budget)
            elif request is not None:
                prefills.remove(request)
                self._prefill(request, budget)
            else:
                break
        waited_for = budget.chunks or any(request.in_flight.pending or request.held for request in self.running)
        assert waited_for or not self.requests, "the first in order always gets on"
        if self.table.states is not None:
            self._advance_states(budget, self.table.states)
        return list(budget.chunks.values())

    def _advance_states(self, budget: Budget, states: StateTable) -> None:
        for chunk in budget.chunks.values():
            pages = chunk.request.pages
            assert pages is not None and pages.state is not None
            chunk.state = states.advance(pages.state, chunk.start, chunk.length, chunk.samples, saves=not pages.bypass)

    def _decodes(self, budget: Budget) -> list[Request]:
        """Applies the first rule; returns the running requests that owe more than a token, in order."""
        prefills: list[Request] = []
        chunks, size, crowd = budget.chunks, self.table.page_size, self.limits.crowd
        resting = frozenset[int]() if crowd is None else self.fairness.rest(self.running, crowd)
        for request in list(self.running):
            computed, pages, in_flight = request.num_computed, request.pages, request.in_flight
            waits = request.number in resting or request.held or (in_flight.waits and in_flight.pending)
            if waits or ((in_flight.pending or in_flight.ended) and request.complete):
                continue
            if request.num_tokens + in_flight.pending != computed + 1 or not computed or request.scoring:
                prefills.append(request)
                continue
            if pages is None:  # the victim of an earlier one in this very step
                continue
            if computed == pages.count * size:
                self._make_room(request, computed + 1, budget)
                if request.pages is None:
                    continue
            chunks[request.number] = Chunk(request, computed, 1, 1)
            budget.tokens -= 1
            self.fairness.charge(request, computed + 1)
        self._add_drafts(budget, sum(map(self.lacks, prefills)))
        return prefills

    def _add_drafts(self, budget: Budget, wanted: int) -> None:
        """Lengthens the chunks of decodes by their drafts, where pages are at hand beside those that others want, up to
        half of all tokens."""
        left = budget.tokens - (self.limits.max_batch_tokens + 1) // 2
        most = left if self.table.states is None else self.table.states.journal - 1
        for chunk in budget.chunks.values():
            request = chunk.request
            if not request.drafts:
                continue
            assert request.pages is not None
            drafts = min(request.drafts, left, most)
            pages = self.table.pages_for(chunk.start + 1 + drafts)
            at_hand = pages - request.pages.count + wanted <= self.table.available
            if drafts < 1 or not at_hand or not self.table.reserve(request.pages, chunk.start + 1 + drafts):
                request.drafts = 0
                continue
            request.drafts = drafts
            chunk.length, chunk.samples = 1 + drafts, 1 + drafts
            left -= drafts
            budget.tokens -= drafts

    def _prefill(self, request: Request, budget: Budget) -> None:
        """Applies the second rule to a request that has a place; without tokens left, a later step has its turn."""
        left = budget.left(request)
        if request.pages is None or not left:
            return
        start, length, size = request.num_computed, request.owed, self.table.page_size
        if length > left:
            length = (start + left) // size * size - start
            length = length if length > 0 else left
        self._make_room(request, start + length, budget)
        if request.pages is not None:
            samples = int(length == request.owed)
            checked = self.limits.checks and not samples
            budget.spend(Chunk(request, start, length, samples, request.scoring, checked))
            self.fairness.charge(request, start + length)

    def _admission(self, request: Request, budget: Budget) -> bool:
        """Applies the third rule: returns whether a waiting request runs now, others making place if need be."""
        return self._admit(request) or (self._make_place(request, budget) and self._admit(request))

    def has_room(self) -> bool:
        """Tells whether every running request gets the pages for its next chunk, and the next waiting one its place,
        without taking them from another one."""
        head = self.queue.head
        if head is not None and self.fairness.several and self._ceding(head) is not None:
            return False
        return sum(map(self.lacks, self.running)) <= self.table.available

    def lacks(self, request: Request) -> int:
        """Counts the pages that a running request wants for its next chunk."""
        if request.pages is None or request.complete:
            return 0
        tokens = request.num_computed + min(request.owed, self.limits.max_batch_tokens)
        return max(0, self.table.pages_for(tokens) - request.pages.count)

    def launch(self, chunks: list[Chunk]) -> None:
        """Records that the step is launched: what follows finds its keys and values, and the tokens that it samples are
        pending; behind drafts, how many these are is not known."""
        for chunk in chunks:
            request = chunk.request
            request.num_computed = chunk.start + chunk.length
            if chunk.samples:
                request.in_flight.pending += 1
                request.in_flight.waits = chunk.samples > 1

    def drop(self, chunks: list[Chunk]) -> None:
        """Records that nothing is sampled behind these chunks of a step after all: their last tokens will be computed
        again."""
        for chunk in chunks:
            request = chunk.request
            chunk.dropped = True
            request.drafts = 0
            request.in_flight.pending -= 1
            request.num_computed = min(request.num_computed, request.num_tokens - 1)

    def count_drafts(self, request: Request, proposed: int, accepted: int) -> None:
        """Counts one round of speculation on a request."""
        request.statistics.draft_tokens_proposed += proposed
        request.statistics.draft_tokens_accepted += accepted
        self.statistics.draft_tokens_proposed += proposed
        self.statistics.draft_tokens_accepted += accepted

    def take_copies(self) -> list[PageCopy]:
        """Returns the copies to be made before the last `schedule`'s chunks are computed; read all, then write."""
        copies, self._copies = self._copies, []
        return copies

    def take_unsound(self) -> list[int]:
        """Returns the free pages that are to be cleared now, before anything is copied, moved or computed."""
        unsound, self._unsound = self._unsound, []
        return unsound

    def take_state_copies(self) -> list[StateCopy]:
        """Returns the states to be copied at the same time, in this order."""
        copies, self._state_copies = self._state_copies, []
        return copies

    def land(self, chunks: list[Chunk]) -> None:
        """Records that the step is done and its tokens are appended: they are no longer pending, and what is known of
        its sound chunks is published. Rejected drafts are not what is known, and their keys and values count for
        nothing."""
        self.statistics.steps += 1
        size = self.table.page_size
        for chunk in chunks:
            request, in_flight = chunk.request, chunk.request.in_flight
            if chunk.samples and not chunk.dropped:
                in_flight.pending -= 1
            if request.pages is None or in_flight.ended:
                continue
            known = request.num_tokens - 1
            if request.num_computed > known + in_flight.pending:
                request.num_computed = known + in_flight.pending
            computed = chunk.start + chunk.length
            if computed > known:
                computed = known
            request.statistics.forward_passes += 1
            if not chunk.sound:
                continue
            in_flight.sound = computed
            if computed // size > request.pages.published:
                self.table.publish(request.pages, request.tokens, computed)

    def _make_room(self, request: Request, tokens: int, budget: Budget) -> None:
        """Reserves pages for `tokens` tokens of `request`, if need be by taking them from others, or from `request`
        itself."""
        while request.pages is not None and not self.table.reserve(request.pages, tokens):
            self._preempt(self.fairness.victim(self.running), budget)

    def _make_place(self, request: Request, budget: Budget) -> bool:
        """Takes from others what a waiting request lacks, if that is fair; returns whether anybody gave it up."""
        before = len(self.running)
        if self.fairness.several:
            while (victim := self._ceding(request)) is not None and not victim.in_flight.pending:
                self.statistics.places_ceded += 1
                self._preempt(victim, budget)
        return len(self.running) < before

    def _ceding(self, request: Request) -> Request | None:
        """Returns the running request that gives up its place, or its pages, for a waiting one that lacks them; None if
        none is lacking or nobody has to."""
        if len(self.running) >= self.limits.max_running:
            holds, wanted = dict.fromkeys((each.number for each in self.running), 1), 1
        elif self._lacking is not None and self._lacking[0] is request:
            wanted = self._lacking[1]
            if wanted + len(self.running) <= self.table.available:
                return None
            holds = {each.number: each.pages.count for each in self.running if each.pages is not None}
        else:
            return None
        candidates = [each for each in self.running[1:] if each.number not in self._admitted]
        return self.fairness.ceding(request, wanted, candidates, self.running, holds)

    def _preempt(self, request: Request, budget: Budget) -> None:
        """Takes a request's pages and its chunk, and puts it back in the queue."""
        assert not request.in_flight.pending, "has_room was asked before"
        assert request.number not in self._admitted, "what it shares is not copied yet"
        self.running.remove(request)
        self._release(request)
        request.num_computed = request.in_flight.sound = request.drafts = 0
        if request.matcher is not None:
            request.matcher.held = False
        request.statistics.preemptions += 1
        self.statistics.preemptions += 1
        self.queue.add(request)
        budget.give_back(request)

    def _admit(self, request: Request) -> bool:
        """Moves a waiting request to the running ones, with pages for all it owes; False if these, or a place, are
        lacking."""
        if len(self.running) >= self.limits.max_running:
            return False
        sharing, leader = request.sharing, request.sharing.leader
        # What is cached has no logits: it is of no use to tokens whose logprobs are still to be told.
        usable = request.known[: request.scored] if request.scoring else request.known
        pages = self.table.open(
            usable,
            salt=sharing.salt,
            bypass=sharing.bypass,
            sibling=leader.pages if leader is not None else None,
            shared=min(leader.num_computed, request.prompt_tokens) if leader is not None else 0,
            length=request.num_tokens,
        )
        reserve = len(self.running)
        wanted = self.table.pages_for(request.num_tokens) - pages.count
        # When nothing runs, whatever is there must do: the request fits, and nobody else could give pages back.
        if self.running and wanted + reserve > self.table.available:
            self.table.close(pages)
            self._lacking = request, wanted
            return False
        if not self.table.reserve(pages, request.num_tokens):
            raise AssertionError("validated before: it fits into the cache")
        self.queue.remove(request)
        request.pages = pages
        if pages.similar is not None:
            # What an evicted page has stays until the step writes; what a page gets that is copied to comes only then.
            target = int(pages.held[pages.cached_tokens // self.table.page_size])
            filled = {copy.target: copy.source for copy in self._copies}
            self._copies.append(PageCopy(filled.get(pages.similar.page, pages.similar.page), target))
        if (copy := self.table.seat(pages)) is not None:
            self._state_copies.append(copy)
        request.num_computed = request.in_flight.sound = cached = pages.found_tokens
        request.turn.charged = max(request.turn.charged, cached)
        self._admitted.add(request.number)
        if not request.statistics.preemptions:
            request.statistics.cached_prompt_tokens = min(cached, request.prompt_tokens)
            self.statistics.prompt_tokens += request.prompt_tokens
            self.statistics.cached_prompt_tokens += request.statistics.cached_prompt_tokens
        place = len(self.running)
        while place and self.running[place - 1].order > request.order:
            place -= 1
        self.running.insert(place, request)
        self.queue.count_overtaking(request)
        return True

"""What the next step computes.

One rule and no modes: a request owes the keys and values of its tokens (`owed = num_tokens - num_computed`), and every
step hands out a budget of tokens. A prefill owes many, a decode owes one, a preempted request owes everything again.

    1. Running requests that owe one token (decodes) get it first; no prefill can hold up a stream. Then their drafts
       get what there is without taking a page from anybody, up to half of the budget.
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

Overtaking is bounded: after MAX_OVERTAKES later arrivals of higher priority went first, a request gets the highest one.
Within a priority callers take turns, which their counts bound.

No torch, no clock, no randomness: given the same arrivals, every rank of a tensor-parallel engine decides alike.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field

from tandem.worker.engine.fairness import Fairness
from tandem.worker.engine.page_check import check_pages
from tandem.worker.engine.pages import PageCopy, PageTable
from tandem.worker.engine.request import MAX_PRIORITY, Request

MAX_OVERTAKES = 64
SCORED_TOKENS = 64  # prompt tokens in a step whose logits are wanted: a row of logits can be half a megabyte


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of one step."""

    max_batch_tokens: int
    max_running: int

    def __post_init__(self) -> None:
        if self.max_running < 1:
            raise ValueError(f"max_running must be at least 1, not {self.max_running}")
        if self.max_batch_tokens < self.max_running:
            raise ValueError(
                f"max_batch_tokens ({self.max_batch_tokens}) must be at least max_running ({self.max_running}): "
                "every running request may decode in every step"
            )


@dataclass(slots=True, eq=False)
class Chunk:
    """`length` tokens of `request` from `start` on, of which the logits of the last `samples` are wanted: 1 if they
    reach its last token, so that the next is drawn, and one more for each of its drafts; else 0."""

    request: Request
    start: int
    length: int
    samples: int
    scores: bool = False  # the logits of all its tokens are wanted, for the logprobs of the prompt
    dropped: bool = False  # nothing is sampled behind it after all; its last token will be computed again

    @property
    def logits(self) -> int:
        """How many of its last tokens' logits are wanted."""
        return self.length if self.scores else self.samples


@dataclass(slots=True)
class SchedulerStatistics:
    """Counters since the scheduler was made."""

    steps: int = 0
    prompt_tokens: int = 0  # of admitted requests, each once
    cached_prompt_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    places_ceded: int = 0  # of them, for a waiting request of another caller
    drafts_proposed: int = 0
    drafts_accepted: int = 0
    overlapped_steps: int = 0  # launched before the step before them had landed
    overlap_wasted_tokens: int = 0  # sampled for requests that had ended in the step before


@dataclass(slots=True, eq=False)
class Scheduler:
    """Owns the requests from arrival to end, and through the page table their pages."""

    table: PageTable
    limits: SchedulerLimits
    running: list[Request] = field(default_factory=list)  # in order of service
    statistics: SchedulerStatistics = field(default_factory=SchedulerStatistics)
    fairness: Fairness = field(default_factory=Fairness)
    # By priority and caller, heaps by arrival.
    _waiting: dict[int, dict[str, list[tuple[int, Request]]]] = field(default_factory=dict)
    _requests: dict[int, Request] = field(default_factory=dict)
    _copies: list[PageCopy] = field(default_factory=list)
    _lacking: tuple[Request, int] | None = None  # the waiting request that did not fit, and how many pages it wanted
    _admitted: set[int] = field(default_factory=set)  # numbers, in the step that is being scheduled
    _arrivals: int = 0
    _waiting_tokens: int = 0

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._requests) - len(self.running)

    @property
    def waiting_tokens(self) -> int:
        """Tokens that the waiting requests owe."""
        return self._waiting_tokens

    @property
    def has_work(self) -> bool:
        """Any request, running or waiting."""
        return bool(self._requests)

    # ------------------------------------------------------------------------------------------------ arrivals and ends

    def add(self, request: Request) -> None:
        """Puts a request in the queue; it must fit into the cache when it is alone there."""
        assert request.number not in self._requests, "a number is used once at a time"
        assert self.table.pages_for(len(request.tokens)) <= self.table.total, "validated before: it fits into the cache"
        request.arrival = self._arrivals
        self._arrivals += 1
        self._requests[request.number] = request
        self.fairness.enter(request.caller)
        self._wait(request)

    def find(self, number: int) -> Request | None:
        """The request of a number while it runs or waits."""
        return self._requests.get(number)

    def remove(self, request: Request, *, discard: bool = False) -> list[int]:
        """Ends a request, wherever it is; returns the pages that became blank. With `discard` its pages are not kept
        as prompt cache either."""
        del self._requests[request.number]
        dropped: list[int] = []
        if request.pages is None:
            self._leave_queue(request)
        else:
            self.running.remove(request)
            dropped = self._release(request, discard=discard)
        self.fairness.leave(request.caller)
        return dropped

    def _wait(self, request: Request) -> None:
        self._waiting_tokens += request.owed
        self.fairness.wait(request.caller)
        queues = self._waiting.setdefault(request.priority, {})
        heapq.heappush(queues.setdefault(request.caller, []), (request.arrival, request))

    def _leave_queue(self, request: Request) -> None:
        self._waiting_tokens -= request.owed
        self.fairness.start(request.caller)
        queues = self._waiting[request.priority]
        queue = queues[request.caller]
        if queue[0][1] is request:
            heapq.heappop(queue)
        else:
            queue.remove((request.arrival, request))
            heapq.heapify(queue)
        if not queue:
            del queues[request.caller]
            if not queues:
                del self._waiting[request.priority]

    def _head(self) -> Request | None:
        """The waiting request that is next."""
        if not self._waiting:
            return None
        queues = self._waiting[max(self._waiting)]
        caller = min(queues, key=lambda each: (self.fairness.served(each), queues[each][0][0]))
        return queues[caller][0][1]

    def _release(self, request: Request, *, discard: bool = False) -> list[int]:
        assert request.pages is not None
        request.count_pages()
        if not discard:
            # The token that ended it may be in flight, though nobody asked for what follows.
            computed = min(request.num_computed, request.num_tokens - 1)
            self.table.publish_tail(request.pages, request.tokens, computed)
        dropped = self.table.close(request.pages, discard=discard)
        request.pages = None
        return dropped

    # ------------------------------------------------------------------------------------------------ steps

    def schedule(self) -> list[Chunk]:
        """Chooses the chunks of the next step and reserves their pages; empty when nothing waits or runs."""
        planned: dict[int, Chunk] = {}
        self._admitted.clear()
        self._lacking = None
        used = 0
        size = self.table.page_size
        prefills: list[Request] = []
        for request in list(self.running):
            computed, pages = request.num_computed, request.pages
            if request.complete or request.held:
                continue
            if request.num_tokens + request.pending != computed + 1 or not computed or request.scoring:
                prefills.append(request)
                continue
            if pages is None:  # the victim of an earlier one in this very step
                continue
            if computed == pages.count * size:
                used -= self._make_room(request, computed + 1, planned)
                if request.pages is None:
                    continue
            planned[request.number] = Chunk(request, computed, 1, 1)
            self.fairness.charge(request, computed + 1)
            used += 1
        used += self._add_drafts(list(planned.values()), self.limits.max_batch_tokens // 2 - used)
        self._add_prefills(prefills, planned, used)
        waited_for = any(request.pending or request.held for request in self.running)
        assert planned or waited_for or not self._requests, "the first in order always gets on"
        return list(planned.values())

    def _add_prefills(self, prefills: list[Request], planned: dict[int, Chunk], used: int) -> None:
        """Plans the chunks of running requests that owe more than a token, and of waiting ones, in turn."""
        scored = 0
        admitting = True
        while used < self.limits.max_batch_tokens:
            request = self._next_prefill(prefills)
            head = self._head() if admitting else None
            if head is not None and (request is None or self.fairness.precedes(head, request)):
                if not self._admit(head):
                    before = len(self.running)
                    used -= self._make_place(head, planned)
                    admitting = len(self.running) < before and self._admit(head)
                    if not admitting:
                        continue
                request = head
            elif request is not None:
                prefills.remove(request)
            else:
                break
            budget = self.limits.max_batch_tokens - used
            if request.scoring:
                budget = min(budget, SCORED_TOKENS - scored)
            if request.pages is None or budget == 0:  # its turn comes in a later step
                continue
            length = self._chunk_length(request, budget)
            used -= self._make_room(request, request.num_computed + length, planned)
            if request.pages is not None:
                planned[request.number] = self._chunk(request, length)
                self.fairness.charge(request, request.num_computed + length)
                used += length
                scored += length if request.scoring else 0

    def _next_prefill(self, prefills: list[Request]) -> Request | None:
        """Of running requests in order of service."""
        if not prefills or not self.fairness.several:
            return prefills[0] if prefills else None
        served = self.fairness.served
        return min(prefills, key=lambda each: (-each.priority, served(each.caller), each.arrival))

    def has_room(self) -> bool:
        """Whether every running request gets the pages for its next chunk, and the next waiting one its place, without
        taking them from another one."""
        head = self._head()
        if head is not None and self.fairness.several and self._ceding(head) is not None:
            return False
        wanted = 0
        for request in self.running:
            if request.pages is not None and not request.complete:
                tokens = request.num_computed + min(request.owed, self.limits.max_batch_tokens)
                wanted += max(0, self.table.pages_for(tokens) - request.pages.count)
        return wanted <= self.table.available

    def launch(self, chunks: list[Chunk]) -> None:
        """The step is on its way: what is launched behind it finds its keys and values, and the tokens that it samples
        are pending."""
        row = 0
        for chunk in chunks:
            request = chunk.request
            request.num_computed = chunk.start + chunk.length
            if chunk.samples:
                request.pending += 1
                request.pending_row = row
            row += chunk.samples

    def count_drafts(self, request: Request, proposed: int, accepted: int) -> None:
        """One round of speculation on a request is over."""
        assert request.drafting is not None
        request.drafting.learn(proposed, accepted, request.num_tokens)
        request.statistics.drafts_proposed += proposed
        request.statistics.drafts_accepted += accepted
        self.statistics.drafts_proposed += proposed
        self.statistics.drafts_accepted += accepted

    def take_copies(self) -> list[PageCopy]:
        """The copies that must be made before the chunks of the last `schedule` are computed; read all, then write."""
        copies, self._copies = self._copies, []
        return copies

    def land(self, chunks: list[Chunk]) -> None:
        """The step is done and its tokens are appended and no longer pending: what is known of its chunks is published.
        Rejected drafts are not what is known, and their keys and values count for nothing."""
        self.statistics.steps += 1
        size = self.table.page_size
        for chunk in chunks:
            request = chunk.request
            if request.pages is None or request.ended:
                continue
            known = request.num_tokens - 1
            if request.num_computed > known + request.pending:
                request.num_computed = known + request.pending
            computed = chunk.start + chunk.length
            if computed > known:
                computed = known
            request.statistics.forward_passes += 1
            if computed // size > request.pages.published:
                self.table.publish(request.pages, request.tokens, computed)

    def _add_drafts(self, chunks: list[Chunk], budget: int) -> int:
        """Lengthens the chunks of decodes by their drafts, where pages are at hand; returns how many drafts go in."""
        added = 0
        for chunk in chunks:
            request = chunk.request
            if not request.drafts:
                continue
            assert request.pages is not None
            drafts = min(request.drafts, budget - added)
            if drafts < 1 or not self.table.reserve(request.pages, chunk.start + 1 + drafts):
                request.drafts = 0
                continue
            request.drafts = drafts
            chunk.length, chunk.samples = 1 + drafts, 1 + drafts
            added += drafts
        return added

    @staticmethod
    def _chunk(request: Request, length: int) -> Chunk:
        start = request.num_computed
        return Chunk(request, start, length, int(length == request.owed), request.scoring)

    def _chunk_length(self, request: Request, budget: int) -> int:
        """Tokens of `request` for this step, at most `budget`; to a page boundary where it is cut."""
        if request.owed <= budget:
            return request.owed
        size = self.table.page_size
        aligned = (request.num_computed + budget) // size * size - request.num_computed
        return aligned if aligned > 0 else budget

    def _make_room(self, request: Request, tokens: int, planned: dict[int, Chunk]) -> int:
        """Reserves pages for `tokens` tokens of `request`, if need be by taking them from others, or from `request`
        itself. Returns how many planned tokens the victims lose."""
        lost = 0
        while request.pages is not None and not self.table.reserve(request.pages, tokens):
            lost += self._preempt(self._victim(), planned)
        return lost

    def _victim(self) -> Request:
        """Who loses its pages when there are none."""
        last = self.running[-1]
        if not self.fairness.several:
            return last
        lowest = [each for each in self.running[1:] if each.priority == last.priority]
        return max(lowest, key=self._served_and_late, default=last)

    def _served_and_late(self, request: Request) -> tuple[int, int]:
        return self.fairness.served(request.caller), request.arrival

    def _make_place(self, request: Request, planned: dict[int, Chunk]) -> int:
        """Lets others give up what a waiting request lacks, as far as that is fair. Returns how many planned tokens
        they lose."""
        lost = 0
        if self.fairness.several:
            while (victim := self._ceding(request)) is not None and not victim.pending:
                self.statistics.places_ceded += 1
                lost += self._preempt(victim, planned)
        return lost

    def _ceding(self, request: Request) -> Request | None:
        """The running request that gives up its place, or its pages, for a waiting one that lacks them; None if none
        is lacking or nobody has to."""
        if len(self.running) >= self.limits.max_running:
            holds, wanted = dict.fromkeys((each.number for each in self.running), 1), 1
        elif self._lacking is not None and self._lacking[0] is request:
            wanted = self._lacking[1]
            if wanted + len(self.running) <= self.table.available:
                return None
            holds = {each.number: each.pages.count for each in self.running if each.pages is not None}
        else:
            return None
        held: Counter[str] = Counter()
        for each in self.running:
            held[each.caller] += holds[each.number]
        served = self.fairness.served
        return max(
            (
                each
                for each in self.running[1:]
                if each.priority <= request.priority
                and each.number not in self._admitted
                and served(each.caller) >= served(request.caller)
                and held[each.caller] - holds[each.number] >= held[request.caller] + wanted
            ),
            key=lambda each: (-each.priority, *self._served_and_late(each)),
            default=None,
        )

    def _preempt(self, request: Request, planned: dict[int, Chunk]) -> int:
        """Takes a request's pages and lets it wait again. Returns how many planned tokens it loses."""
        assert not request.pending, "has_room was asked before"
        assert request.number not in self._admitted, "what it shares is not copied yet"
        self.running.remove(request)
        self._release(request)
        request.num_computed = request.drafts = 0
        request.held = False
        request.statistics.preemptions += 1
        self.statistics.preemptions += 1
        self._wait(request)
        chunk = planned.pop(request.number, None)
        return chunk.length if chunk else 0

    def _admit(self, request: Request) -> bool:
        """Moves a waiting request to the running ones, with pages for all it owes; False if these, or a place, are
        lacking."""
        if len(self.running) >= self.limits.max_running:
            return False
        leader = request.leader.pages if request.leader is not None else None
        shared = min(request.leader.num_computed, request.prompt_tokens) if request.leader is not None else 0
        # What is cached has no logits: it is of no use to tokens whose logprobs are still to be told.
        usable = request.known[: request.scored] if request.scoring else request.known
        pages = self.table.open(usable, salt=request.salt, bypass=request.bypass, sibling=leader, shared=shared)
        reserve = len(self.running)
        wanted = self.table.pages_for(request.num_tokens) - pages.count
        # When nothing runs, whatever is there must do: the request fits, and nobody else could give pages back.
        if self.running and wanted + reserve > self.table.available:
            self.table.close(pages)
            self._lacking = request, wanted
            return False
        if not self.table.reserve(pages, request.num_tokens):
            raise AssertionError("validated before: it fits into the cache")
        self._leave_queue(request)
        request.pages = pages
        cached = pages.cached_tokens
        if pages.similar is not None:
            # The source may have been evicted for this very request; its content is there until the step writes.
            self._copies.append(
                PageCopy(pages.similar.page, int(pages.held[pages.cached_tokens // self.table.page_size]))
            )
            cached += pages.similar.tokens
        request.num_computed = cached
        request.charged = max(request.charged, cached)
        self._admitted.add(request.number)
        if request.drafting is not None:
            request.drafting.computed = cached
        if not request.statistics.preemptions:
            request.statistics.cached_prompt_tokens = min(cached, request.prompt_tokens)
            self.statistics.prompt_tokens += request.prompt_tokens
            self.statistics.cached_prompt_tokens += request.statistics.cached_prompt_tokens
        self._insert_running(request)
        self._count_overtaking(request)
        return True

    def _insert_running(self, request: Request) -> None:
        place = len(self.running)
        while place and self.running[place - 1].order > request.order:
            place -= 1
        self.running.insert(place, request)

    def _count_overtaking(self, admitted: Request) -> None:
        """Bounds how often a waiting request is overtaken by later arrivals of higher priority. Only the oldest of each
        priority counts, since those behind it become the oldest."""
        for priority in [priority for priority in self._waiting if priority < admitted.priority]:
            arrival, request = min(queue[0] for queue in self._waiting[priority].values())
            if arrival < admitted.arrival:
                request.overtaken += 1
                if request.overtaken >= MAX_OVERTAKES:
                    self._leave_queue(request)
                    request.priority = MAX_PRIORITY
                    self._wait(request)

    # ------------------------------------------------------------------------------------------------ integrity

    def check(self) -> None:
        """Derives every number anew; raises AssertionError with what is wrong."""
        check_pages(self.table)
        waiting = [request for queues in self._waiting.values() for queue in queues.values() for _, request in queue]
        self.fairness.check(waiting, self.running)
        assert len(waiting) == self.waiting, "a request is neither waiting nor running"
        assert {r.number for r in waiting} | {r.number for r in self.running} == set(self._requests)
        assert self._waiting_tokens == sum(request.owed for request in waiting), "waiting tokens miscounted"
        assert [r.order for r in self.running] == sorted(r.order for r in self.running), "running out of order"
        assert len(self.running) <= self.limits.max_running
        for request in waiting:
            assert request.pages is None and request.num_computed == 0, "a waiting request holds pages"
            assert not request.pending and not request.ended, "a waiting request is in flight"
        for request in self.running:
            assert request.pages is not None and request.owed >= 0, "a running request has no pages"
            assert request.num_computed <= request.pages.count * self.table.page_size, "computed tokens without pages"
        held = sum(request.pages is not None for request in self._requests.values())
        assert held == len(self.running), "pages of a request that does not run"

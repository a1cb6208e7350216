"""Runs the engine: scheduler, model and sampler, one step after the other.

    submit -> [launch: propose drafts, schedule, forward, masks beside it -> sample -> land: append, publish] -> finish

With overlap, the next step is launched before one is landed (`in_flight.py`).

An `Engine` belongs to one thread. It knows neither processes nor the wire: `loop.py` and `handle.py` carry its
requests and results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tandem.worker.engine.account import FinishReason
from tandem.worker.engine.constraints import StepConstraints
from tandem.worker.engine.defragmentation import defragment, is_fragmented
from tandem.worker.engine.ends import End, Failure
from tandem.worker.engine.fork import Forks
from tandem.worker.engine.grammars import Grammars
from tandem.worker.engine.in_flight import Flight, work
from tandem.worker.engine.integrity import check_scheduler
from tandem.worker.engine.outcome import BROKEN, decide, resume, take_tokens
from tandem.worker.engine.pages import PageCopy, PageTable
from tandem.worker.engine.request import Request, RequestStatistics
from tandem.worker.engine.sampler import Sampled, SamplingTable
from tandem.worker.engine.scheduler import Scheduler, SchedulerLimits
from tandem.worker.engine.scoring import PromptScores
from tandem.worker.engine.speculation.costs import Costs, MeasuredCosts, StepCost
from tandem.worker.engine.speculation.draft_model import DraftModel
from tandem.worker.engine.speculation.proposals import Speculation
from tandem.worker.model.runner import ModelRunner

TIDY_PAGES = 64  # moved between two looks at what has come
HELD_WAIT_SECONDS = 0.005  # between two looks at what has come, while all requests are held


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a request."""

    number: int
    reason: FinishReason | Failure
    matched_token: int | None
    matched_sequence: int | None
    trim: int  # of its last output tokens, which were held back and are not part of the answer
    statistics: RequestStatistics
    detail: str  # of a failure, in words for the caller

    @classmethod
    def of(cls, request: Request, end: End) -> Finish:
        """Makes the end of a request as of now."""
        request.statistics.finished = time.monotonic()
        request.count_pages()
        matched = (end.matched_token, end.matched_sequence, end.trim)
        return cls(request.number, end.reason, *matched, request.statistics, end.detail)


@dataclass(slots=True)
class StepResult:
    """What one step produced: row i of `sampled` is a token of the request `numbers[i]`."""

    numbers: npt.NDArray[np.uint64]
    sampled: Sampled
    finished: list[Finish] = field(default_factory=list)
    prompts: list[PromptScores] = field(default_factory=list)
    # Of requests with stop sequences: how many of their last tokens may still become one, and must not be sent.
    held: list[tuple[int, int]] = field(default_factory=list)
    prefill_tokens: int = 0  # composition of the batch
    decode_tokens: int = 0
    schedule_seconds: float = 0.0  # phases
    forward_seconds: float = 0.0
    sample_seconds: float = 0.0
    cost: StepCost | None = None  # of a step of nothing but decodes

    @property
    def empty(self) -> bool:
        """Tells whether nothing was computed and nobody has ended."""
        return not (self.prefill_tokens or self.decode_tokens or self.finished)


class Engine:
    """Runs requests until they finish."""

    def __init__(
        self,
        runner: ModelRunner,
        table: PageTable,
        limits: SchedulerLimits,
        *,
        grammars: Grammars | None = None,
        draft_runner: ModelRunner | None = None,
        draft_context_length: int = 0,
        overlap: bool = False,
        costs: Costs | None = None,
        learns: bool = True,
    ) -> None:
        """`draft_runner` has a cache of as many pages as the table, and a model of the same vocabulary. With `overlap`,
        steps are launched before the one before them is read, where that can be. `costs` of drafts are measured where
        none are given; one of several ranks does not learn them by its own clock but is told (`learn`)."""
        self.table = table
        self.grammars = grammars or Grammars(0, ())
        self.grammars.statistics = table.statistics
        self.scheduler = Scheduler(table, limits)
        self._runner = runner
        self._sampling = SamplingTable(limits.max_running)
        self._draft_runner = draft_runner
        self._speculation = Speculation(costs or MeasuredCosts(), limits.max_batch_tokens // 2, table.statistics)
        self._learns = learns
        if draft_runner is not None:
            self._speculation.model = DraftModel(
                draft_runner,
                self.scheduler,
                self._sampling,
                max_batch_tokens=limits.max_batch_tokens,
                context_length=draft_context_length,
            )
        self.overlap = overlap
        self._flight: Flight | None = None
        self._forks = Forks()
        self._ended: list[Finish] = []  # outside of a step
        self.note: Callable[[Sequence[int]], None] = lambda numbers: None  # told before what is computed first
        self._idle = False  # the last step found nothing to compute
        self._landed_at = 0.0  # when the last step was done
        self._tidied_at = 0

    @property
    def has_work(self) -> bool:
        """Tells whether a step would do anything."""
        return self.scheduler.has_work or self._flight is not None or bool(self._ended)

    def submit(self, request: Request, *others: Request) -> None:
        """Puts a request in the queue, and `others`, samples of the same prompt, once that is computed. Their numbers
        must not be in use."""
        end = resume(request)
        for each in (request, *others):
            each.statistics.arrived, each.ending = time.monotonic(), end
        if end is not None and not request.scoring:
            self._ended += [Finish.of(each, end) for each in (request, *others)]
            return
        self._forks.hold(request, others)
        self.scheduler.add(request)

    def abort(self, number: int) -> None:
        """Ends a request as CANCELLED; a number that is not in use is ignored, since it may have just finished."""
        request = self.scheduler.find(number)
        if request is not None:
            if not request.in_flight.ended:
                self._end(request, self._ended, End(FinishReason.CANCELLED))
        elif (held := self._forks.take(number)) is not None:
            self._ended.append(Finish.of(held, End(FinishReason.CANCELLED)))

    def tidy(self) -> bool:
        """Lays out the prompt cache in contiguous runs, a few pages at a time, while nothing runs; returns whether
        there is more to do."""
        if self._tidied_at == self.table.chains.published_ever or self.scheduler.has_work:
            return False
        if not is_fragmented(self.table):
            self._tidied_at = self.table.chains.published_ever
            return False
        self._copy(defragment(self.table, TIDY_PAGES))
        return True

    def check(self) -> None:
        """Raises AssertionError if the bookkeeping is wrong."""
        check_scheduler(self.scheduler)

    def step(self) -> StepResult:
        """Does one forward pass for whatever is owed and returns what it gives."""
        ended, self._ended = self._ended, []
        alone, launched_at = self._flight is None, time.monotonic()
        self.grammars.patience.begin()
        if alone:
            self._listen(ended, HELD_WAIT_SECONDS if self._idle else 0.0)
        flight = self._flight or self._launch()
        self._idle = flight is None
        if flight is None:
            return StepResult(np.empty(0, np.uint64), Sampled.nothing(), ended)
        began = time.monotonic()
        flight.sample(self._sampling, self.scheduler.drop)
        self._flight = self._launch_behind(flight, ended) if self.overlap else None
        launched = self._flight.seconds if self._flight is not None else 0.0
        hidden = flight.runs_on
        result = self._land(flight, ended)
        if self._flight is not None:
            self._flight.constraints = StepConstraints.begin(self._flight.chunks, self.grammars)
        now = time.monotonic()
        result.sample_seconds = now - began - launched
        seconds = now - (launched_at if alone else self._landed_at)
        self._landed_at = now
        self.grammars.patience.stepped(seconds, hidden=hidden)
        if not result.prefill_tokens and (not alone or self._flight is None):
            decodes = len(flight.chunks)
            result.cost = StepCost(decodes, result.decode_tokens - decodes, seconds)
            if self._learns:
                self.learn(result.cost)
        return result

    def learn(self, cost: StepCost) -> None:
        """Learns what a step took, for the choice of drafts; all ranks must be told the same before the same step."""
        self._speculation.costs.learn(cost)

    def _listen(self, ended: list[Finish], seconds: float) -> None:
        """Reads the answers of matchers that steps wait for, after waiting so long at most; ends the requests that fail
        by them, and marks those that are held."""
        if guided := [request for request in self.scheduler.running if request.matcher is not None]:
            self.grammars.listen(guided, seconds)
            self._decide(guided, ended)
            self.grammars.hold(guided)

    def _decide(self, guided: Sequence[Request], ended: list[Finish]) -> None:
        """Ends the requests whose matchers have told that they end."""
        for request in guided:
            if not request.in_flight.ended and (end := decide(request)) is not None:
                self._end(request, ended, end)

    def _launch_behind(self, flight: Flight, ended: list[Finish]) -> Flight | None:
        """Launches a step before the one in flight has landed, where that may be and anybody can be in it."""
        self._listen(ended, 0.0)
        may = self._speculation.lets_overlap(self.scheduler.running) and self.scheduler.has_room()
        return self._launch(flight) if may else None

    def _launch(self, before: Flight | None = None) -> Flight | None:
        """Launches a step behind the one `before` that has not landed; None if nothing is owed."""
        began = time.monotonic()
        self._speculation.propose(self.scheduler.running, behind=before is not None)
        chunks = self.scheduler.schedule()
        if not chunks:
            return None
        scheduled = time.monotonic()
        for chunk in chunks:
            if not chunk.request.statistics.scheduled:
                chunk.request.statistics.scheduled = scheduled
        self._clear_unsound()
        self._copy(self.scheduler.take_copies())
        if states := self.scheduler.take_state_copies():
            self._runner.copy_states([copy.source for copy in states], [copy.target for copy in states])
        flown = [*before.chunks, *chunks] if before is not None else chunks
        self.note([chunk.request.number for chunk in flown if not chunk.request.statistics.first_token])
        constraints = StepConstraints.begin(chunks, self.grammars) if before is None else None
        ids = before.tokens.ids if before is not None and before.tokens is not None else None
        self.scheduler.statistics.overlapped_steps += before is not None and before.runs_on
        logits = self._runner.forward([work(chunk) for chunk in chunks], ids)
        self.scheduler.launch(chunks)
        return Flight(chunks, constraints, logits, scheduled - began, time.monotonic() - scheduled)

    def _land(self, flight: Flight, ended: list[Finish]) -> StepResult:
        """Appends what a step has sampled, and ends the requests that this finishes."""
        sampled = flight.tokens.read() if flight.tokens is not None else Sampled.nothing()
        result = StepResult(np.empty(0, np.uint64), sampled, ended, flight.prompts)
        ends = self._collect(flight, result, time.monotonic())
        ends += [(chunk.request, BROKEN) for chunk in flight.broken if not chunk.request.in_flight.ended]
        self.scheduler.land(flight.chunks)
        for chunk in flight.chunks:
            in_flight = chunk.request.in_flight
            if chunk.samples and not chunk.dropped and in_flight.ended and not in_flight.pending:
                self._remove(chunk.request)
        for request, end in ends:
            self._end(request, ended, end)
        for request in self._forks.started():
            self.scheduler.add(request)
        self._ask(flight, ended)
        chunks = flight.chunks
        result.prefill_tokens = sum(chunk.length for chunk in chunks if chunk.length > max(1, chunk.samples))
        result.decode_tokens = sum(chunk.length for chunk in chunks) - result.prefill_tokens
        result.schedule_seconds, result.forward_seconds = flight.schedule_seconds, flight.forward_seconds
        return result

    def _ask(self, flight: Flight, ended: list[Finish]) -> None:
        """Tells matchers what was sampled, and ends the requests whose grammar is complete."""
        asked = (chunk.request for chunk in flight.sampling if chunk.request.matcher is not None)
        if guided := [request for request in asked if not request.in_flight.ended]:
            self.grammars.ask(guided)
            self._decide(guided, ended)

    def _clear_unsound(self) -> None:
        """Clears pages before anybody else may get them: a NaN that is masked would still spoil what he computes."""
        if unsound := self.scheduler.take_unsound():
            self._runner.zero(unsound)

    def _copy(self, copies: Sequence[PageCopy]) -> None:
        """Copies pages in every cache that the table drives."""
        if copies:
            for runner in (self._runner, self._draft_runner):
                if runner is not None:
                    runner.copy([copy.source for copy in copies], [copy.target for copy in copies])

    def _collect(self, flight: Flight, result: StepResult, now: float) -> list[tuple[Request, End]]:
        """Appends the sampled tokens, puts into `result` what goes out of them, and returns which requests end."""
        keep: list[int] = []
        numbers: list[int] = []
        ends: list[tuple[Request, End]] = []
        ids = result.sampled.ids.tolist()
        finite, possible = result.sampled.finite.tolist(), result.sampled.possible.tolist()
        row = 0
        for chunk in flight.sampling:
            request, rows = chunk.request, slice(row, row + chunk.samples)
            row += chunk.samples
            if request.in_flight.ended:
                self.scheduler.statistics.overlap_wasted_tokens += chunk.samples
                if all(finite[rows]):
                    request.in_flight.sound = request.num_computed
                else:
                    request.in_flight.corrupted = True
                continue
            taken, end = take_tokens(request, ids[rows], finite[rows], possible[rows], flight.exhausted[rows])
            chunk.sound = end is None or not end.broken
            keep.extend(range(rows.start, rows.start + taken))
            numbers.extend([request.number] * taken)
            if not request.statistics.first_token:
                request.statistics.first_token = now
            if chunk.samples > 1:
                proposed, accepted = chunk.samples - 1, max(0, taken - 1)
                self.scheduler.count_drafts(request, proposed, accepted)
                self._speculation.learn(request, proposed, accepted)
            if end is not None:
                ends.append((request, end))
            elif request.stopping.sequences is not None and not request.stopping.include_stop:
                result.held.append((request.number, request.stopping.sequences.held(request.stop_state)))
        self.scheduler.statistics.output_tokens += len(keep)
        result.numbers = np.array(numbers, dtype=np.uint64)
        if len(keep) < len(ids):
            result.sampled = result.sampled.take(keep)
        return ends

    def _end(self, request: Request, ended: list[Finish], end: End) -> None:
        """Reports the end of a request, wherever it is, and removes it unless a step in flight still writes for it."""
        ended.append(Finish.of(request, end))
        request.in_flight.ended, request.in_flight.corrupted = True, end.broken
        if not request.in_flight.pending:
            self._remove(request)
        for other in self._forks.release(request):
            self.scheduler.add(other)

    def _remove(self, request: Request) -> None:
        """Frees what an ended request holds."""
        self.scheduler.remove(request, discard=request.in_flight.corrupted or request.sharing.private)
        self._clear_unsound()
        self._sampling.free(request)
        self._speculation.forget(request)
        self.grammars.close(request)

"""The engine: scheduler, model and sampler, one step after the other.

    submit -> [propose drafts -> schedule -> forward, masks beside it -> sample -> append -> advance] ... -> finish

An `Engine` belongs to one thread. It knows neither processes nor the wire: `process.py` and `handle.py` carry its
requests and results.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.engine.constraints import Masks, StepConstraints
from worker_svc.engine.defragmentation import defragment, is_fragmented
from worker_svc.engine.draft_model import DraftModel
from worker_svc.engine.fork import Forks
from worker_svc.engine.grammar import Grammars
from worker_svc.engine.outcome import End, resume, take_tokens
from worker_svc.engine.pages import PageCopy, PageTable
from worker_svc.engine.request import FinishReason, Request, RequestStatistics
from worker_svc.engine.runner import Runner
from worker_svc.engine.sampler import Rows, Sampled, SamplingTable, sample
from worker_svc.engine.scheduler import Chunk, Scheduler, SchedulerLimits
from worker_svc.engine.scoring import PromptScores, score_prompts
from worker_svc.engine.speculation import Speculation
from worker_svc.model.runner import Work

TIDY_PAGES = 64  # moved between two looks at what has come


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a request."""

    handle: int
    reason: FinishReason
    matched_token: int | None
    matched_sequence: int | None
    trim: int  # of its last output tokens, which were held back and are not part of the answer
    statistics: RequestStatistics
    detail: str  # of an ERROR, in words for the caller

    @classmethod
    def of(cls, request: Request, end: End) -> Finish:
        """Now."""
        request.statistics.finished = time.monotonic()
        matched = (end.matched_token, end.matched_sequence, end.trim)
        return cls(request.handle, end.reason, *matched, request.statistics, end.detail)


@dataclass(slots=True)
class StepResult:
    """What one step produced: row i of `sampled` is a token of the request `handles[i]`."""

    handles: npt.NDArray[np.uint64]
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


class Engine:
    """Runs requests until they finish."""

    def __init__(
        self,
        runner: Runner,
        table: PageTable,
        limits: SchedulerLimits,
        *,
        grammars: Grammars | None = None,
        draft_runner: Runner | None = None,
        draft_context_length: int = 0,
    ) -> None:
        """`draft_runner` has a cache of as many pages as the table, and a model of the same vocabulary."""
        self.table = table
        self.grammars = grammars or Grammars(0, ())
        self.scheduler = Scheduler(table, limits)
        self._runner = runner
        self._sampling = SamplingTable(limits.max_running)
        self._draft_runner = draft_runner
        self._speculation = Speculation()
        if draft_runner is not None:
            self._speculation.model = DraftModel(
                draft_runner,
                table,
                self._sampling,
                max_batch_tokens=limits.max_batch_tokens,
                context_length=draft_context_length,
            )
        self._forks = Forks()
        self._ended: list[Finish] = []  # outside of a step
        self._tidied_at = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.has_work or bool(self._ended)

    def submit(self, request: Request, *others: Request) -> None:
        """Puts a request in the queue, and `others`, samples of the same prompt, once that is computed. Handles must
        not be in use."""
        for each in (request, *others):
            each.statistics.arrived = time.monotonic()
        end = resume(request)
        if end is not None:
            self._ended.append(Finish.of(request, end))
            return
        self._forks.hold(request, others)
        self.scheduler.add(request)

    def refuse(self, request: Request, why: str) -> None:
        """Ends a request that was not submitted as an ERROR."""
        self._ended.append(Finish.of(request, End(FinishReason.ERROR, detail=why)))

    def abort(self, handle: int) -> None:
        """Ends a request as CANCELLED; a handle that is not in use is ignored, since it may have just finished."""
        request = self.scheduler.find(handle)
        if request is not None:
            self._end(request, self._ended, End(FinishReason.CANCELLED))
        elif (held := self._forks.take(handle)) is not None:
            self._ended.append(Finish.of(held, End(FinishReason.CANCELLED)))

    def tidy(self) -> bool:
        """Something useful to do while nothing runs: lays out the prompt cache in contiguous runs, a few pages at a
        time; returns whether there is more to do."""
        if self._tidied_at == self.table.published_ever or self.scheduler.has_work:
            return False
        if not is_fragmented(self.table):
            self._tidied_at = self.table.published_ever
            return False
        self._copy(defragment(self.table, TIDY_PAGES))
        return True

    def clear_cache(self) -> int:
        """Forgets every cached page; returns how many there were."""
        return self.table.clear()

    def check(self) -> None:
        """Raises AssertionError if the bookkeeping is wrong."""
        self.scheduler.check()

    def step(self) -> StepResult:
        """One forward pass for whatever is owed now."""
        began = time.monotonic()
        ended, self._ended = self._ended, []
        self._speculation.propose(self.scheduler.running)
        chunks = self.scheduler.schedule()
        scheduled = time.monotonic()
        if not chunks:
            return StepResult(np.empty(0, np.uint64), Sampled.nothing(), ended)
        for chunk in chunks:
            if not chunk.request.statistics.scheduled:
                chunk.request.statistics.scheduled = scheduled
        self._copy(self.scheduler.take_copies())
        constraints = StepConstraints.begin(chunks, self.grammars)
        logits = self._runner.forward([_work(chunk) for chunk in chunks])
        forwarded = time.monotonic()
        masks, exhausted = constraints.finish(logits.shape[1])
        sampling = [chunk for chunk in chunks if chunk.samples]
        with torch.inference_mode():
            prompts, logits = score_prompts(chunks, logits)
            sampled = sample(logits, _rows(sampling, masks), self._sampling) if sampling else Sampled.nothing()
        now = time.monotonic()
        result = StepResult(np.empty(0, np.uint64), sampled, ended, prompts)
        ends = self._collect(sampling, exhausted.tolist(), result, now)
        self.scheduler.advance(chunks)
        for request, end in ends:
            self._end(request, ended, end)
        for request in self._forks.started():
            self.scheduler.add(request)
        result.prefill_tokens = sum(chunk.length for chunk in chunks if chunk.length > max(1, chunk.samples))
        result.decode_tokens = sum(chunk.length for chunk in chunks) - result.prefill_tokens
        result.schedule_seconds = scheduled - began
        result.forward_seconds = forwarded - scheduled
        result.sample_seconds = now - forwarded
        return result

    def _copy(self, copies: Sequence[PageCopy]) -> None:
        """Copies pages in every cache that the table drives."""
        if copies:
            for runner in (self._runner, self._draft_runner):
                if runner is not None:
                    runner.copy([copy.source for copy in copies], [copy.target for copy in copies])

    def _collect(
        self, chunks: list[Chunk], exhausted: list[bool], result: StepResult, now: float
    ) -> list[tuple[Request, End]]:
        """Appends the sampled tokens, puts into `result` what goes out of them, and returns which requests end."""
        keep: list[int] = []
        handles: list[int] = []
        ends: list[tuple[Request, End]] = []
        ids = result.sampled.ids.tolist()
        finite, possible = result.sampled.finite.tolist(), result.sampled.possible.tolist()
        row = 0
        for chunk in chunks:
            request, rows = chunk.request, slice(row, row + chunk.samples)
            taken, end = take_tokens(request, ids[rows], finite[rows], possible[rows], exhausted[rows])
            keep.extend(range(row, row + taken))
            handles.extend([request.handle] * taken)
            row += chunk.samples
            if not request.statistics.first_token:
                request.statistics.first_token = now
            if chunk.samples > 1:
                self.scheduler.count_drafts(request, chunk.samples - 1, max(0, taken - 1))
            if end is not None:
                ends.append((request, end))
            elif request.stopping.sequences is not None and not request.stopping.include_stop:
                result.held.append((request.handle, request.stopping.sequences.held(request.stop_state)))
        self.scheduler.statistics.output_tokens += len(keep)
        result.handles = np.array(handles, dtype=np.uint64)
        result.sampled = result.sampled.take(keep)
        return ends

    def _end(self, request: Request, ended: list[Finish], end: End) -> None:
        """Takes a request out, wherever it is."""
        dropped = self.scheduler.remove(request, discard=end.broken or request.private)
        if end.broken:  # a masked NaN would still poison the next owner
            self._runner.zero(dropped)
        self._sampling.free(request)
        ended.append(Finish.of(request, end))
        for other in self._forks.release(request):
            self.scheduler.add(other)


def _work(chunk: Chunk) -> Work:
    assert chunk.request.pages is not None
    tokens = chunk.request.tokens[chunk.start : chunk.start + chunk.length]
    return Work(tokens, chunk.start, chunk.request.pages.held, chunk.logits)


def _rows(chunks: Sequence[Chunk], masks: Masks | None) -> Rows:
    """One row for the next token of each chunk's request, and one behind each of its drafts."""
    samples = np.array([chunk.samples for chunk in chunks], dtype=np.int64)
    first = np.cumsum(samples) - samples
    known = np.array([chunk.request.num_tokens for chunk in chunks], dtype=np.int64)
    positions = np.arange(samples.sum()) + np.repeat(known - first, samples)
    return Rows([chunk.request for chunk in chunks for _ in range(chunk.samples)], positions, masks)

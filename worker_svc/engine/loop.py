"""The engine: scheduler, model and sampler, one step after the other.

    submit -> [schedule -> forward -> sample -> advance -> results] ... -> results with a finish

An `Engine` belongs to one thread. It knows neither processes nor the wire: `process.py` and `handle.py` carry its
requests and results.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.engine.defragmentation import defragment, is_fragmented
from worker_svc.engine.pages import PageTable
from worker_svc.engine.request import FinishReason, Request, RequestStatistics
from worker_svc.engine.sampler import Rows, Sampled, SamplingTable, sample
from worker_svc.engine.scheduler import Chunk, Scheduler, SchedulerLimits
from worker_svc.model.runner import Work

TIDY_PAGES = 64  # moved between two looks at what has come


class Runner(Protocol):
    """What computes; `ModelRunner` does."""

    def forward(self, work: Sequence[Work]) -> torch.Tensor:
        """Logits `[>= sum of samples, vocabulary]` of the last tokens of each work that samples, in order."""
        ...

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies whole pages; reads all sources before it writes any target."""
        ...

    def zero(self, pages: Sequence[int]) -> None:
        """Clears pages."""
        ...


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a request."""

    handle: int
    reason: FinishReason
    matched_token: int | None
    statistics: RequestStatistics
    detail: str = ""  # of an ERROR, in words for the caller


@dataclass(slots=True)
class StepResult:
    """What one step produced: row i of `sampled` is a token of the request `handles[i]`."""

    handles: npt.NDArray[np.uint64]
    sampled: Sampled
    finished: list[Finish] = field(default_factory=list)
    prefill_tokens: int = 0  # composition of the batch
    decode_tokens: int = 0
    schedule_seconds: float = 0.0  # phases
    forward_seconds: float = 0.0
    sample_seconds: float = 0.0


class Engine:
    """Runs requests until they finish."""

    def __init__(self, runner: Runner, table: PageTable, limits: SchedulerLimits) -> None:
        self.table = table
        self.scheduler = Scheduler(table, limits)
        self._runner = runner
        self._sampling = SamplingTable(limits.max_running)
        self._ended: list[Finish] = []  # outside of a step
        self._tidied_at = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.has_work or bool(self._ended)

    def submit(self, request: Request) -> None:
        """Puts a request in the queue; its handle must not be in use."""
        request.statistics.arrived = time.monotonic()
        if request.output_tokens >= request.stopping.max_tokens:
            # Another worker produced everything and was lost before it could say so.
            self._ended.append(_finish(request, FinishReason.MAX_TOKENS))
            return
        self.scheduler.add(request)

    def abort(self, handle: int) -> None:
        """Ends a request as CANCELLED; a handle that is not in use is ignored, since it may have just finished."""
        request = self.scheduler.find(handle)
        if request is not None:
            self._end(request, self._ended, FinishReason.CANCELLED)

    def tidy(self) -> bool:
        """Something useful to do while nothing runs: lays out the prompt cache in contiguous runs, a few pages at a
        time; returns whether there is more to do."""
        if self._tidied_at == self.table.published_ever or self.scheduler.has_work:
            return False
        if not is_fragmented(self.table):
            self._tidied_at = self.table.published_ever
            return False
        if copies := defragment(self.table, TIDY_PAGES):
            self._runner.copy([copy.source for copy in copies], [copy.target for copy in copies])
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
        chunks = self.scheduler.schedule()
        scheduled = time.monotonic()
        if not chunks:
            return StepResult(np.empty(0, np.uint64), Sampled.nothing(), ended)
        for chunk in chunks:
            if not chunk.request.statistics.scheduled:
                chunk.request.statistics.scheduled = scheduled
        if copies := self.scheduler.take_copies():
            self._runner.copy([copy.source for copy in copies], [copy.target for copy in copies])
        logits = self._runner.forward([_work(chunk) for chunk in chunks])
        forwarded = time.monotonic()
        sampling = [chunk.request for chunk in chunks if chunk.samples]
        with torch.inference_mode():
            sampled = sample(logits, Rows.next_tokens(sampling), self._sampling) if sampling else Sampled.nothing()
        self.scheduler.advance(chunks)
        now = time.monotonic()
        result = self._collect(sampling, sampled, ended, now)
        result.prefill_tokens = sum(chunk.length for chunk in chunks if chunk.length > 1)
        result.decode_tokens = sum(chunk.length for chunk in chunks if chunk.length == 1)
        result.schedule_seconds = scheduled - began
        result.forward_seconds = forwarded - scheduled
        result.sample_seconds = now - forwarded
        return result

    def _collect(self, requests: list[Request], sampled: Sampled, ended: list[Finish], now: float) -> StepResult:
        """Appends the sampled tokens, ends what is finished, and gathers what goes out."""
        keep: list[int] = []
        for row, (request, token, finite) in enumerate(
            zip(requests, sampled.ids.tolist(), sampled.finite.tolist(), strict=True)
        ):
            if not finite:
                self._fail(request, ended)
            elif self._append(request, token, ended, now):
                keep.append(row)
        handles = np.fromiter((request.handle for request in requests), dtype=np.uint64, count=len(requests))
        self.scheduler.statistics.output_tokens += len(keep)
        return StepResult(handles[keep], sampled.take(keep), ended)

    def _append(self, request: Request, token: int, ended: list[Finish], now: float) -> bool:
        """Adds a token and ends the request if that was its last one; returns whether the token is output."""
        stopping = request.stopping
        request.append(token)
        if not request.statistics.first_token:
            request.statistics.first_token = now
        if token in stopping.stop_ids or token in stopping.eos_ids:
            reason = FinishReason.STOP_TOKEN if token in stopping.stop_ids else FinishReason.EOS
            self._end(request, ended, reason, matched=token)
            return stopping.include_stop
        if request.output_tokens >= stopping.max_tokens:
            self._end(request, ended, FinishReason.MAX_TOKENS)
        return True

    def _end(self, request: Request, ended: list[Finish], reason: FinishReason, *, matched: int | None = None) -> None:
        self.scheduler.remove(request)
        self._sampling.free(request)
        ended.append(_finish(request, reason, matched=matched))

    def _fail(self, request: Request, ended: list[Finish]) -> None:
        """The request's logits are not finite: none of its pages may be shown to anybody."""
        self._runner.zero(self.scheduler.remove(request, discard=True))
        self._sampling.free(request)
        ended.append(_finish(request, FinishReason.ERROR, detail="the model's logits are not finite"))


def _finish(request: Request, reason: FinishReason, *, matched: int | None = None, detail: str = "") -> Finish:
    request.statistics.finished = time.monotonic()
    return Finish(request.handle, reason, matched, request.statistics, detail)


def _work(chunk: Chunk) -> Work:
    assert chunk.request.pages is not None
    tokens = chunk.request.tokens[chunk.start : chunk.start + chunk.length]
    return Work(tokens, chunk.start, chunk.request.pages.held, chunk.samples)

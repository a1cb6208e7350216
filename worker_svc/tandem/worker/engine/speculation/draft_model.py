"""Proposes drafts by a small model.

It has a cache of its own with the same pages under the same numbers, so one page table drives both: what is copied,
cleared or moved in one cache is in the other. Its keys and values chase those of the request: before it guesses it
computes what it has not seen yet, a prompt in one piece or several. Pages that were filled by requests without drafts
hold nothing of use to it, which costs accepted drafts and nothing else.

The model's own head (`model/head.py`) is such a model, too, but that it guesses from the second token on, and that what
it has computed behind the last known token is computed again, given the model's own hidden states.

It draws by the request's own sampling and with the numbers that the large model will draw with, so the two agree as
often as their distributions do.

On a GPU its steps follow each other without the host: each takes the ids that the one before it has drawn from where
they lie, and the host reads the drafts of all when the last step is launched. Where a draw looks at the tokens before
it, or waits for torch's operations (`sampler/waits.py`), they are read at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from tandem.worker.engine.pages import PageTable, SequencePages
from tandem.worker.engine.request import Request
from tandem.worker.engine.sampler import Launched, Rows, SamplingTable, launch
from tandem.worker.model.head import HeadRunner
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.work import Work


class Requests(Protocol):
    """Tells what requests hold and want, as the scheduler does."""

    table: PageTable
    running: list[Request]

    def lacks(self, request: Request) -> int:
        """Counts the pages that a running request wants for its next chunk."""
        ...


@dataclass(slots=True)
class _Guess:
    """The drafts of one place, which may be on their way to the host."""

    requests: list[Request]
    place: int
    launched: Launched
    read: bool = False
    broken: set[int] = field(default_factory=set)  # numbers of requests


class DraftModel:
    """Proposes drafts by a second model."""

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Requests,
        sampling: SamplingTable,
        *,
        max_batch_tokens: int,
        context_length: int,
    ) -> None:
        """`runner` has a cache of as many pages as the scheduler's table."""
        self._runner = runner
        self._scheduler = scheduler
        self._sampling = sampling
        self._max_batch_tokens = max_batch_tokens
        self._context_length = context_length
        self._is_head = isinstance(runner, HeadRunner)
        self._first = 1 if self._is_head else 0  # the token behind which it first guesses
        # By number: the pages that a request has, and how many tokens have keys and values there.
        self._computed: dict[int, tuple[SequencePages, int]] = {}

    def forget(self, request: Request) -> None:
        """Forgets a request that is over."""
        self._computed.pop(request.number, None)

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> None:
        """Writes up to `counts[i]` drafts behind the known tokens of `requests[i]`, and how many into `.drafts`."""
        asked = self._catch_up(requests, counts)
        guesses: list[_Guess] = []
        for place in range(max((count for _, count in asked), default=0)):
            guessing = [request for request, count in asked if count > place]
            guess = self._guess(guessing, place, guesses[-1] if guesses else None)
            guesses.append(guess)
            if guess.launched.waited or any(request.sampling.banned_sequences for request in guessing):
                self._read(guess)
        for guess in reversed(guesses):  # who has waited for the last has waited for all
            self._read(guess)
        for request, count in asked:
            assert request.pages is not None
            request.drafts = count
            computed = request.num_tokens + (0 if self._is_head else count - 1)
            self._computed[request.number] = request.pages, computed
            if any(request.number in guess.broken for guess in guesses):
                # A masked NaN would still poison the next owner of the pages.
                self._runner.zero(request.pages.held.tolist())
                self._computed[request.number] = request.pages, 0

    def _catch_up(self, requests: Sequence[Request], counts: Sequence[int]) -> list[tuple[Request, int]]:
        """Computes what the model has not seen of the requests but for their last tokens; returns who is ready then,
        and for how many drafts."""
        work: list[Work] = []
        ready: list[tuple[Request, int]] = []
        budget = self._max_batch_tokens
        for request, count in zip(requests, counts, strict=True):
            pages = request.pages
            assert pages is not None
            last = request.num_tokens - 1
            count = min(count, self._context_length - request.num_tokens)
            if count < 1 or last < self._first or not self._reserve(request, last + count):
                continue
            known, computed = self._computed.get(request.number, (None, 0))
            # Behind the tokens that were accepted stands what was rejected. Of new pages, what was found there counts.
            start = min(computed if known is pages else pages.found_tokens, last)
            length = min(last - start, budget)
            if length:
                work.append(Work(request.tokens[start : start + length], start, pages.held, 0))
                budget -= length
            self._computed[request.number] = pages, start + length
            if start + length == last:
                ready.append((request, count))
        if work:
            self._runner.forward(work)
        return ready

    def _reserve(self, request: Request, tokens: int) -> bool:
        """Reserves pages for a request's tokens, drafts among them, where they are at hand beside those that the others
        want for their next chunks: who is in flight cannot be preempted. Returns whether the request has them."""
        table, pages, running = self._scheduler.table, request.pages, self._scheduler.running
        assert pages is not None
        missing = table.pages_for(tokens) - pages.count
        if missing > 0:
            missing += sum(self._scheduler.lacks(each) for each in running if each is not request)
        return missing <= table.available and table.reserve(pages, tokens)

    def _guess(self, requests: list[Request], place: int, before: _Guess | None) -> _Guess:
        """Launches the step that guesses draft number `place` of each request, from the token before it."""
        unread = before is not None and not before.read
        rows = {request.number: row for row, request in enumerate(before.requests)} if before and unread else {}
        work = []
        for request in requests:
            assert request.pages is not None
            at = request.num_tokens - 1 + place
            work.append(Work(request.tokens[at : at + 1], at, request.pages.held, 1, rows.get(request.number)))
        logits = self._runner.forward(work, before.launched.ids if before and unread else None)
        positions = np.array([request.num_tokens + place for request in requests], dtype=np.int64)
        with torch.inference_mode():
            return _Guess(requests, place, launch(logits, Rows(requests, positions), self._sampling))

    def _read(self, guess: _Guess) -> None:
        """Writes the drafts of one place to their requests, unless that was done."""
        if guess.read:
            return
        guess.read = True
        sampled = guess.launched.read()
        for request, token, finite in zip(guess.requests, sampled.ids.tolist(), sampled.finite.tolist(), strict=True):
            request.tokens[request.num_tokens + guess.place] = token
            if not finite:
                guess.broken.add(request.number)

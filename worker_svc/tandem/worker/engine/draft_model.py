"""A small model that guesses for a large one.

It has a cache of its own with the same pages under the same numbers, so one page table drives both: what is copied,
cleared or moved in one cache is in the other. Its keys and values chase those of the request: before it guesses it
computes what it has not seen yet, a prompt in one piece or several. Pages that were filled by requests without drafts
hold nothing of use to it, which costs accepted drafts and nothing else.

It draws by the request's own sampling and with the numbers that the large model will draw with, so the two agree as
often as their distributions do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tandem.worker.engine.pages import PageTable
from tandem.worker.engine.request import Request
from tandem.worker.engine.sampler import Rows, SamplingTable, sample
from tandem.worker.model.runner import ModelRunner, Work


class DraftModel:
    """`Proposer` of a second model."""

    def __init__(
        self,
        runner: ModelRunner,
        table: PageTable,
        sampling: SamplingTable,
        *,
        max_batch_tokens: int,
        context_length: int,
    ) -> None:
        self._runner = runner
        self._table = table
        self._sampling = sampling
        self._max_batch_tokens = max_batch_tokens
        self._context_length = context_length

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> None:
        """Writes up to `counts[i]` drafts behind the known tokens of `requests[i]`, and how many into `.drafts`."""
        asked = self._catch_up(requests, counts)
        for place in range(max((count for _, count in asked), default=0)):
            guessing = [request for request, count in asked if count > place]
            self._guess(guessing, place)

    def _catch_up(self, requests: Sequence[Request], counts: Sequence[int]) -> list[tuple[Request, int]]:
        """Computes what the model has not seen of the requests but for their last tokens; who is ready then, and for
        how many drafts."""
        work: list[Work] = []
        ready: list[tuple[Request, int]] = []
        budget = self._max_batch_tokens
        for request, count in zip(requests, counts, strict=True):
            drafting, pages = request.drafting, request.pages
            assert drafting is not None and pages is not None
            last = request.num_tokens - 1
            count = min(count, self._context_length - request.num_tokens)
            if count < 1 or not self._table.reserve(pages, last + count):
                continue
            # Behind the tokens that were accepted stands what was rejected.
            start = drafting.computed = min(drafting.computed, last)
            length = min(last - start, budget)
            if length:
                work.append(Work(request.tokens[start : start + length], start, pages.held, 0))
                drafting.computed += length
                budget -= length
            if drafting.computed == last:
                ready.append((request, count))
        if work:
            self._runner.forward(work)
        return ready

    def _guess(self, requests: list[Request], place: int) -> None:
        """Draft number `place` of each request, from the token before it."""
        work = []
        for request in requests:
            assert request.pages is not None
            at = request.num_tokens - 1 + place
            work.append(Work(request.tokens[at : at + 1], at, request.pages.held, 1))
        logits = self._runner.forward(work)
        positions = np.array([request.num_tokens + place for request in requests], dtype=np.int64)
        with torch.inference_mode():
            sampled = sample(logits, Rows(requests, positions), self._sampling)
        for request, token, finite in zip(requests, sampled.ids.tolist(), sampled.finite.tolist(), strict=True):
            assert request.drafting is not None and request.pages is not None
            request.tokens[request.num_tokens + place] = token
            request.drafts = place + 1
            request.drafting.computed = request.num_tokens + place
            if not finite:  # a masked NaN would still poison the next owner of the pages
                self._runner.zero(request.pages.held.tolist())
                request.drafting.computed = 0

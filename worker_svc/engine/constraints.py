"""Which ids each row of a step may choose, beyond what the sampler masks by itself.

    guided decoding        what the grammar allows after the row's output; made by a thread beside the forward pass
    stop sequences         before min_tokens, no id that would complete one
    ignore_eos             the grammar's end may not be an EOS id, if it allows anything else

A row for which grammar and min_tokens or ignore_eos leave nothing is *exhausted*: its request ends instead. So does
one whose grammar has reached a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker_svc.engine.grammar import Grammars, Matcher
from worker_svc.engine.request import Request
from worker_svc.engine.scheduler import Chunk

Masks = npt.NDArray[np.int32]


@dataclass(slots=True)
class StepConstraints:
    """The masks of one step, which are being made."""

    _rows: list[tuple[Request, int, list[int]]]  # of constrained requests: request, first row, its drafts
    _count: int  # rows of the step
    _grammars: Grammars
    _filled: Future[Masks] | None

    @classmethod
    def begin(cls, chunks: Sequence[Chunk], grammars: Grammars) -> StepConstraints:
        """Starts the work that needs no logits."""
        rows: list[tuple[Request, int, list[int]]] = []
        jobs: list[tuple[Matcher, int, list[int]]] = []
        row = 0
        for chunk in chunks:
            request = chunk.request
            if chunk.samples and _constrained(request):
                drafts = request.tokens[request.num_tokens : request.num_tokens + chunk.samples - 1].tolist()
                rows.append((request, row, drafts))
                if request.matcher is not None:
                    jobs.append((request.matcher, row, drafts))
            row += chunk.samples
        filled = grammars.fill(jobs, row) if jobs else None
        return cls(rows, row, grammars, filled)

    def finish(self, vocabulary_size: int) -> tuple[Masks | None, npt.NDArray[np.bool_]]:
        """Masks `[rows, ceil(vocabulary / 32)]`, None where nothing is constrained, and which rows are exhausted."""
        exhausted = np.zeros(self._count, dtype=np.bool_)
        if not self._rows:
            return None, exhausted
        masks = self._filled.result() if self._filled is not None else None
        if masks is None:
            masks = np.full((self._count, -(-vocabulary_size // 32)), -1, dtype=np.int32)
        for request, first, drafts in self._rows:
            self._refine(request, masks[first : first + len(drafts) + 1], drafts)
            if request.matcher is not None:
                rows = slice(first, first + len(drafts) + 1)
                exhausted[rows] = ~masks[rows].any(axis=1) if not request.matcher.error else True
        # An exhausted row's token is not used, but it must be drawn from something.
        masks[exhausted] = -1
        return masks, exhausted

    def _refine(self, request: Request, masks: Masks, drafts: list[int]) -> None:
        """Takes away, in place, from the request's masks `[drafts + 1, words]`."""
        stopping = request.stopping
        early = stopping.min_tokens - request.output_tokens  # rows that stand before min_tokens
        if request.matcher is not None:
            if not stopping.eos_ids:
                _forbid(masks, self._grammars.eos_ids)
            if early > 0:
                _forbid(masks[:early], stopping.masked_ids)
        if stopping.sequences is not None and early > 0:
            state = request.stop_state
            for row in range(min(early, len(masks))):
                _forbid(masks[row : row + 1], stopping.sequences.completing(state))
                if row < len(drafts):
                    state = stopping.sequences.after(state, drafts[row])


def _constrained(request: Request) -> bool:
    stopping = request.stopping
    early = request.output_tokens < stopping.min_tokens
    return request.matcher is not None or (stopping.sequences is not None and early)


def _forbid(masks: Masks, ids: Iterable[int]) -> None:
    bits = masks.view(np.uint32)
    for token in ids:
        bits[:, token // 32] &= np.uint32(0xFFFFFFFF ^ (1 << token % 32))

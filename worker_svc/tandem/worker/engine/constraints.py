"""Computes which ids each row of a step may choose, beyond what the sampler masks by itself.

    guided decoding        what the grammar allows after the row's output; made by its process beside the forward pass
    stop sequences         before min_tokens, no id that would complete one
    reasoning              at the end of its budget, the next of the ids that end it and no other; where it may come
                           before a guided answer, the first of the ids that begin it too, and behind that the others
    ignore_eos             the grammar's end may not be an EOS id, if it allows anything else

All of it is begun when the output before the step's rows is known: beside the forward pass, of which nothing depends on
it. A row for which grammar and min_tokens or ignore_eos leave nothing is *exhausted*: its request ends instead. A row
whose mask has not come soon after the forward pass (`guides/patience.py`) is *dropped*, so that the others go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tandem.worker.engine.budget import Chunk
from tandem.worker.engine.grammars import Grammars
from tandem.worker.engine.guides.matcher import Matcher
from tandem.worker.engine.guides.patience import LONGEST_WAIT_SECONDS
from tandem.worker.engine.request import Request

Masks = npt.NDArray[np.int32]
RowNumbers = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Constrained:
    """A chunk with rows to mask: the first of them, and the drafts behind which the others are."""

    chunk: Chunk
    row: int
    drafts: list[int]

    @property
    def rows(self) -> slice:
        return slice(self.row, self.row + len(self.drafts) + 1)


@dataclass(slots=True)
class StepConstraints:
    """Makes the masks of one step."""

    _constrained: list[_Constrained]
    _count: int  # rows of the step
    _chunks: int
    _grammars: Grammars

    @classmethod
    def begin(cls, chunks: Sequence[Chunk], grammars: Grammars) -> StepConstraints:
        """Starts the work that needs no logits."""
        constrained: list[_Constrained] = []
        row = 0
        for chunk in chunks:
            request = chunk.request
            if chunk.samples and not request.in_flight.ended and _is_constrained(request, chunk.samples):
                drafts = request.tokens[request.num_tokens : request.num_tokens + chunk.samples - 1].tolist()
                constrained.append(_Constrained(chunk, row, drafts))
            row += chunk.samples
        if constrained:
            guided = [each for each in constrained if each.chunk.request.matcher is not None]
            grammars.want([each.chunk.request for each in guided])
            for each in guided:
                if each.drafts:
                    grammars.walk(each.chunk.request, each.drafts)
        return cls(constrained, row, len(chunks), grammars)

    def finish(self, vocabulary_size: int) -> tuple[Masks | None, list[bool], list[Chunk], RowNumbers | None]:
        """Returns, for the rows that are kept: masks `[rows, ceil(vocabulary / 32)]` (None where nothing is
        constrained), and which are exhausted; the chunks that are to be dropped, and the numbers of the rows that are
        kept (None if it is all of them)."""
        if not self._constrained:
            return None, [False] * self._count, [], None
        self._await()
        masks = np.full((self._count, -(-vocabulary_size // 32)), -1, dtype=np.int32)
        exhausted = np.zeros(self._count, dtype=np.bool_)
        dropped, kept = [], np.ones(self._count, dtype=np.bool_)
        for each in self._constrained:
            request, matcher = each.chunk.request, each.chunk.request.matcher
            if request.in_flight.ended:
                continue
            if matcher is not None:
                if matcher.mask is None or matcher.over or not matcher.ready:
                    self._leave_out(matcher)
                    dropped.append(each.chunk)
                    kept[each.rows] = False
                    continue
                for row, mask in zip(
                    range(each.row, each.rows.stop), [matcher.mask, *matcher.draft_masks], strict=False
                ):
                    masks[row] = mask
            self._refine(request, masks[each.rows], each.drafts)
            if matcher is not None:
                exhausted[each.rows] = ~masks[each.rows].any(axis=1)
        # An exhausted row's token is not used, but it must be drawn from something.
        masks[exhausted] = -1
        if not dropped:
            return masks, exhausted.tolist(), [], None
        return masks[kept], exhausted[kept].tolist(), dropped, np.flatnonzero(kept)

    def _await(self) -> None:
        """Waits until all matchers have answered, or the step's patience is over; longer where nobody else is in it."""
        guided = [each.chunk.request for each in self._constrained if each.chunk.request.matcher is not None]
        waiting = [request for request in guided if not request.in_flight.ended and not _settled(request)]
        if waiting:
            longest = LONGEST_WAIT_SECONDS if len(waiting) == self._chunks else self._grammars.patience.seconds
            self._grammars.hear(longest, lambda: all(map(_settled, waiting)))

    def _leave_out(self, matcher: Matcher) -> None:
        if not matcher.over:
            matcher.leave_out()
            self._grammars.statistics.guide_left_out_rows += 1

    def _refine(self, request: Request, masks: Masks, drafts: list[int]) -> None:
        """Forbids ids in place in the request's masks `[drafts + 1, words]`."""
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
        if request.thinking is not None:
            rules, thought = request.thinking.rules, request.thinking.state
            for row in range(len(masks)):
                if (token := rules.forced(thought)) is not None:
                    _force(masks[row], token)
                elif (token := rules.opening(thought)) is not None:
                    _allow(masks[row], token)
                if row < len(drafts):
                    thought = rules.after(thought, drafts[row])


def _is_constrained(request: Request, samples: int) -> bool:
    stopping = request.stopping
    if request.ending is not None:
        return False
    early = request.output_tokens < stopping.min_tokens
    thinking = request.thinking
    forced = thinking is not None and not thinking.rules.free(thinking.state, samples)
    return request.matcher is not None or (stopping.sequences is not None and early) or forced


def _settled(request: Request) -> bool:
    """Tells whether the request's matcher has said all that this step can need."""
    matcher = request.matcher
    assert matcher is not None
    return matcher.ready or (matcher.known and request.output_tokens >= request.stopping.max_tokens)


def _force(mask: npt.NDArray[np.int32], token: int) -> None:
    mask[:] = 0
    _allow(mask, token)


def _allow(mask: npt.NDArray[np.int32], token: int) -> None:
    mask.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)


def _forbid(masks: Masks, ids: Iterable[int]) -> None:
    bits = masks.view(np.uint32)
    for token in ids:
        bits[:, token // 32] &= np.uint32(0xFFFFFFFF ^ (1 << token % 32))

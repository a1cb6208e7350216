"""Turns a step's chunks into one forward pass of the model.

Rows are padded to a multiple for which a row's bits do not depend on how many others there are, which
`row_invariance.py` finds. Padding rows write to the cache's padding page and are attended to by nobody.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.checkpoints.model_parts.heads import AttentionKind
from tandem.worker.model.attention import Plan, Segment
from tandem.worker.model.changes import AdaptedRows
from tandem.worker.model.decodes import Decodes
from tandem.worker.model.inference import in_inference_mode
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.states import StateCache, StatePlan
from tandem.worker.model.work import Step, Tokens, Work

if TYPE_CHECKING:
    from tandem.worker.model.operations import StateMoves
    from tandem.worker.model.transformer import Transformer

MOST_DECODES = 256  # rows of a step of decodes on a GPU that is recorded, and that the check at start tries


def decode_rows(most: int, multiple: int) -> list[int]:
    """Returns the numbers of rows with which a GPU computes steps of up to `most` decodes, padded to a multiple: 1, 2,
    4, 8, then every 16; each a multiple itself."""
    wanted = [1, 2, 4, 8, *range(16, most + 16, 16)]
    return sorted({-(-min(rows, most) // multiple) * multiple for rows in wanted})


def first_rows(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the first row of each of several runs of rows, one behind the other."""
    return np.cumsum(lengths) - lengths


def state_plan(rows: Sequence[int], work: Sequence[Work], states: StateCache | None) -> StatePlan:
    """Plans the states of a step; `rows[i]` is the first row of work i."""
    works = [(row, len(item.tokens), item.position, item.state) for row, item in zip(rows, work, strict=True)]
    return StatePlan(works, states)


class ModelRunner:
    """Runs a model with its cache."""

    def __init__(self, model: Transformer, cache: KVCache, states: StateCache | None = None) -> None:
        self.model = model
        self.cache = cache
        self.states = states
        self.device = cache.device
        self.row_multiple = model.operations.row_multiple
        self._kinds = frozenset(model.config.attention_kinds)
        self._decodes: Decodes | None = None  # the last step, where the next one may go on with it
        model.rotations.reach(cache.shape.pages * cache.shape.page_size)

    @property
    def tried_decodes(self) -> list[int]:
        """Returns how many decodes in a step the check at start tries on a GPU: one for each number of rows."""
        return decode_rows(MOST_DECODES, self.row_multiple)

    def prepare(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Records what can be recorded, which is nothing here. `progress(recordings done, in all)`."""

    def forget(self) -> None:
        """Drops what was recorded."""

    @in_inference_mode
    def forward(self, work: Sequence[Work], sampled: torch.Tensor | None = None) -> torch.Tensor:
        """Computes the keys and values of all work, and the logits `[>= sum of samples, vocabulary]` of the
        last tokens of each that samples, in order; further rows are padding, and all hold until the next call.
        `sampled` `[rows]` (int64, on the device) are the ids that works with a `row` take theirs from."""
        decodes, self._decodes = self._decodes, None
        if decodes is not None and decodes.go_on(work):
            step, self._decodes = decodes.step, decodes
        else:
            step = self._prepared(work)
        if sampled is not None:
            self._take_sampled(step.ids, step.rows, work, sampled)
        states = None if self.model.config.recurrence is None else self._state_moves(step.rows, work)
        given = step.ids, step.positions, self.cache, step.slots, step.plans, step.logit_rows, states, step.late
        return self.model.forward(*given, step.adapted)

    def _prepared(self, work: Sequence[Work]) -> Step:
        """Prepares a step, which the next one may go on with."""
        lengths = [len(item.tokens) for item in work]
        rows = [0, *itertools.accumulate(lengths)]
        total = rows.pop()
        tokens = self._tokens(work, lengths, rows, total)
        segments = [
            Segment(row, length, item.position, item.pages)
            for row, length, item in zip(rows, lengths, work, strict=True)
        ]
        logit_rows = late = None
        if sum(item.samples for item in work) < total:
            samples = np.array([item.samples for item in work], dtype=np.int64)
            first = first_rows(samples)
            behind = np.array(rows, dtype=np.int64) + np.array(lengths, dtype=np.int64) - samples
            wanted = np.arange(samples.sum()) + np.repeat(behind - first, samples)
            logit_rows = np.zeros(self._padded(len(wanted)), dtype=np.int64)
            logit_rows[: len(wanted)] = wanted
            if self.model.config.shared_layers:
                late = self._plans(
                    [
                        Segment(row, count, item.position + len(item.tokens) - count, item.pages)
                        for row, count, item in zip(first.tolist(), samples.tolist(), work, strict=True)
                        if count
                    ]
                )
        ids, positions, slots = map(self._to_device, tokens)
        wanted_there = None if logit_rows is None else self._to_device(logit_rows)
        adapted = self._adapted(work, rows)
        step = Step(ids, positions, slots, self._plans(segments), wanted_there, late, rows, adapted)
        if self.device.type == "cpu":
            self._decodes = Decodes.of(step, work, tokens, self.cache.shape.page_size)
        return step

    def _tokens(self, work: Sequence[Work], lengths: Sequence[int], rows: Sequence[int], total: int) -> Tokens:
        """Returns the tokens of a step, `total` of them, padding behind them; `rows[i]` is the first row of work i."""
        size, padded = self.cache.shape.page_size, self._padded(total)
        tokens = Tokens(*(np.zeros(shape, dtype=np.int64) for shape in (padded, padded, (2, padded))))
        ids, positions, slots = tokens
        if padded > total:
            slots[0, total:] = self.cache.padding_page
            slots[1, total:] = np.arange(padded - total) % size
        if total == len(work):  # a token each: lists are quicker than what it takes to repeat and to join
            starts = [item.position for item in work]
            ids[:total] = [item.tokens[0] for item in work]
            positions[:total] = starts
            slots[:, :total] = (
                [item.pages[start // size] for item, start in zip(work, starts, strict=True)],
                [start % size for start in starts],
            )
            return tokens
        first = np.array([item.position - row for item, row in zip(work, rows, strict=True)], dtype=np.int64)
        ids[:total] = np.concatenate([item.tokens for item in work])
        positions[:total] = np.arange(total) + np.repeat(first, lengths)
        places = positions[:total] // size
        slots[0, :total] = np.concatenate(
            [item.pages[places[row : row + length]] for item, row, length in zip(work, rows, lengths, strict=True)]
        )
        slots[1, :total] = positions[:total] % size
        return tokens

    def _adapted(self, work: Sequence[Work], rows: Sequence[int]) -> dict[int, AdaptedRows]:
        """Returns the rows of each adapter, padded as all rows are; `rows[i]` is the first row of work i."""
        if work and work[0].adapter >= 0 and all(item.adapter == work[0].adapter for item in work):
            return {work[0].adapter: AdaptedRows(None, rows[-1] + len(work[-1].tokens))}
        own: dict[int, list[npt.NDArray[np.int64]]] = {}
        for item, row in zip(work, rows, strict=True):
            if item.adapter >= 0:
                own.setdefault(item.adapter, []).append(np.arange(row, row + len(item.tokens)))
        found: dict[int, AdaptedRows] = {}
        for adapter, parts in own.items():
            together = np.concatenate(parts)
            index = np.pad(together, (0, self._padded(len(together)) - len(together)), mode="edge")
            found[adapter] = AdaptedRows(self._to_device(index), len(together))
        return found

    def _plans(self, segments: Sequence[Segment]) -> dict[AttentionKind, Plan]:
        operations, heads = self.model.operations, self.model.config.num_heads
        return {kind: operations.plan(segments, self.cache, kind.query_heads or heads, kind) for kind in self._kinds}

    def _state_moves(self, rows: Sequence[int], work: Sequence[Work]) -> StateMoves:
        return self.model.operations.plan_states(state_plan(rows, work, self.states), self.device)

    def _take_sampled(
        self, ids: torch.Tensor, rows: Sequence[int], work: Sequence[Work], sampled: torch.Tensor
    ) -> None:
        """Copies the sampled ids that work asks for into `ids`; `rows[i]` is the first row of work i."""
        taken = [(row, item.row) for row, item in zip(rows, work, strict=True) if item.row is not None]
        if taken:
            places = self._to_device(np.array(taken, dtype=np.int64).T.copy())
            ids.index_copy_(0, places[0], sampled.index_select(0, places[1]))

    def _to_device(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        there = torch.from_numpy(array)
        if self.device.type == "cpu":
            return there
        # What is not pinned may be waited for, and with it all that was launched.
        return there.pin_memory().to(self.device, non_blocking=True)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies whole pages; reads all sources before it writes any target."""
        self.cache.copy(sources, targets)

    def copy_states(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies states, one after the other."""
        assert self.states is not None
        self.states.copy(sources, targets)

    def zero(self, pages: Sequence[int]) -> None:
        """Clears pages that hold numbers that are not finite."""
        self.cache.zero(pages)

    def _padded(self, rows: int) -> int:
        return -(-rows // self.row_multiple) * self.row_multiple

"""Attention to tokens that an indexer chooses, on CUDA (`kernels/selection.py`).

What is chosen for a token is a list of places in the cache, in the order of positions, and attention takes it for the
pages of a sequence of its own, each of one token: the kernel is that of decodes. Tokens with few before them have lists
too, of all of these, so that a token is computed alike whatever is beside it, and a recorded step can have any tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tandem.worker.model.attention import Plan, Scores, Segment
from tandem.worker.model.cuda.kernels.selection import Rows, choose_places
from tandem.worker.model.kv_formats import Parts
from tandem.worker.model.paged_plan import Ints
from tandem.worker.model.selection import Far

_MOST_SCORES = 1 << 25  # that there is room for at once


def listed(segments: Sequence[Segment], width: int, most: int) -> tuple[Ints, Ints]:
    """Returns the rows `[N, 2]` of segments' tokens, whose tables are `width` pages long, as `Rows` has them, and their
    blocks `[N, 6]` (`paged_plan.py`), whose tables are the lists."""
    tokens = Far.of(segments)
    rows = np.stack((tokens.positions, tokens.owners * width), axis=1).astype(np.int32)
    blocks = np.zeros((len(rows), 6), dtype=np.int32)
    blocks[:, 0], blocks[:, 1] = tokens.rows, 1
    blocks[:, 2] = np.minimum(tokens.positions, most - 1)
    blocks[:, 3] = tokens.rows * most
    return rows, blocks


def scores_room(rows: int, width: int) -> tuple[int, int]:
    """Returns the shape of the room for the scores of some of so many rows, of up to `width` tokens each."""
    return max(1, min(rows, _MOST_SCORES // max(1, width))), width


class KernelSelectingPlan:
    """A step's attention, of which one layer chooses before any attends."""

    chooses = True  # whatever the tokens: a recorded step has others the next time

    def __init__(self, attending: Plan, these: Rows, places: torch.Tensor, scores: torch.Tensor, programs: int) -> None:
        """`places` `[N, most]` are the lists, which `attending` looks at; `scores` is room for those of some rows."""
        self._attending, self._these, self._places, self._scores = attending, these, places, scores
        self._programs = programs

    def choose(self, keys: torch.Tensor, queries: torch.Tensor, weights: torch.Tensor) -> None:
        """See `Selecting`. Rows behind those of the lists are padding."""
        count, at_once = len(self._places), len(self._scores)
        for first in range(0, count, at_once):
            some = slice(first, min(first + at_once, count))
            these = Rows(self._these.rows[some], self._these.tables)
            scores = self._scores[: some.stop - first]
            choose_places(queries[some], weights[some], keys, these, scores, self._places[some], self._programs)

    def attend(self, keys: Parts, values: Parts, q: torch.Tensor, scores: Scores) -> torch.Tensor:
        """See `Plan`; values are the first numbers of keys."""
        apart = tuple(part.view(-1, 1, 1, part.shape[-1]) for part in keys)
        return self._attending.attend(apart, apart, q, scores)

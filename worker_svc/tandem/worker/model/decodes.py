"""A step of decodes that goes on: the same sequences in the same pages, each with one more token.

Then the tensors and plans of the last step become those of the next one where they lie, by adding 1 to where each
sequence stands. To make them anew takes 100 us and more where everything that they are made of has fallen out of the
processor's caches meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.checkpoints.model_parts.heads import AttentionKind
from tandem.worker.model.attention import MovingPlan, Plan

if TYPE_CHECKING:
    from tandem.worker.model.runner import Work


class Tokens(NamedTuple):
    """The tokens of a step: `[N]` each, slots `[2, N]`."""

    ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]


class There(NamedTuple):
    """The same on the device."""

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor


class Decodes:
    """The last step of decodes on a CPU, whose tensors share the memory of its arrays."""

    def __init__(
        self,
        work: Sequence[Work],
        tokens: Tokens,
        there: There,
        plans: Mapping[AttentionKind, MovingPlan],
        page_size: int,
    ) -> None:
        self.there, self.plans = there, plans
        self.rows = list(range(len(work)))  # the first row of each work
        self._pages, self._next = [item.pages for item in work], [item.position + 1 for item in work]
        self._page_size = page_size
        # Of a few numbers, each by itself is quicker than an operation on all.
        self._ids, self._positions = memoryview(tokens.ids), memoryview(tokens.positions)
        self._places = memoryview(tokens.slots[1])

    @classmethod
    def of(
        cls, work: Sequence[Work], tokens: Tokens, there: There, plans: Mapping[AttentionKind, Plan], page_size: int
    ) -> Decodes | None:
        """Returns what may go on of a step; None if nothing can."""
        moving = {kind: plan for kind, plan in plans.items() if isinstance(plan, MovingPlan)}
        alone = all(len(item.tokens) == 1 == item.samples for item in work)
        return cls(work, tokens, there, moving, page_size) if alone and len(moving) == len(plans) else None

    def go_on(self, work: Sequence[Work]) -> bool:
        """Makes it the step of this work, if that is what comes next in the same pages; else it can go on no more."""
        if len(work) != len(self._next):
            return False
        for row, item in enumerate(work):
            position, place = self._next[row], self._next[row] % self._page_size
            if item.pages is not self._pages[row] or item.position != position or not place:
                return False
            if len(item.tokens) != 1 or item.samples != 1:
                return False
            self._ids[row], self._positions[row], self._places[row] = item.tokens.item(), position, place
            self._next[row] += 1
        for plan in self.plans.values():
            plan.move_on()
        return True

"""A step of decodes that goes on: the same sequences in the same pages, each with one more token.

Then the tensors and plans of the last step become those of the next one where they lie, by adding 1 to where each
sequence stands. To make them anew takes 100 us and more where everything that they are made of has fallen out of the
processor's caches meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.checkpoints.model_parts.heads import AttentionKind
from tandem.worker.model.attention import MovingPlan, Plan

if TYPE_CHECKING:
    from tandem.worker.model.runner import Work

Pages = npt.NDArray[np.int64]


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


@dataclass(slots=True)
class Decodes:
    """The last step of decodes on a CPU, whose tensors share the memory of its arrays."""

    tokens: Tokens
    there: There
    plans: Mapping[AttentionKind, Plan]
    rows: list[int]  # the first row of each work: its number
    _pages: list[Pages]
    _next: list[int]  # positions
    _page_size: int

    @classmethod
    def of(
        cls,
        work: Sequence[Work],
        tokens: Tokens,
        there: There,
        plans: Mapping[AttentionKind, Plan],
        page_size: int,
    ) -> Decodes | None:
        """Returns what may go on of a step; None if it cannot."""
        alone = all(len(item.tokens) == 1 == item.samples for item in work)
        if not alone or not all(isinstance(plan, MovingPlan) for plan in plans.values()):
            return None
        pages, positions = [item.pages for item in work], [item.position + 1 for item in work]
        return cls(tokens, there, plans, list(range(len(work))), pages, positions, page_size)

    def go_on(self, work: Sequence[Work]) -> bool:
        """Makes it the step of this work, if that is what comes next in the same pages; returns whether it is."""
        count, size = len(work), self._page_size
        if count != len(self._next):
            return False
        for item, pages, position in zip(work, self._pages, self._next, strict=True):
            same = item.pages is pages and item.position == position and position % size
            if not same or len(item.tokens) != 1 or item.samples != 1:
                return False
        self._next = [position + 1 for position in self._next]
        ids, positions, slots = self.tokens
        ids[:count] = [item.tokens[0] for item in work]
        positions[:count] += 1
        slots[1, :count] += 1
        for plan in self.plans.values():
            assert isinstance(plan, MovingPlan)
            plan.move_on()
        return True

"""A step of decodes that goes on: the same sequences in the same pages, each with one more token.

Then the tensors and plans of the last step become those of the next one where they lie, by adding 1 to where each
sequence stands. To make them anew takes 100 us and more where everything that they are made of has fallen out of the
processor's caches meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.worker.model.attention import MovingPlan
from tandem.worker.model.work import Step, Tokens, Work


class Decodes:
    """The last step of decodes on a CPU, whose tensors share the memory of its arrays."""

    def __init__(
        self, step: Step, plans: Sequence[MovingPlan], work: Sequence[Work], tokens: Tokens, page_size: int
    ) -> None:
        self.step, self._plans, self._page_size = step, plans, page_size
        self._pages, self._next = [item.pages for item in work], [item.position + 1 for item in work]
        # Of a few numbers, each by itself is quicker than an operation on all.
        self._ids, self._positions, self._places = tokens.ids.data, tokens.positions.data, tokens.slots[1].data

    @classmethod
    def of(cls, step: Step, work: Sequence[Work], tokens: Tokens, page_size: int) -> Decodes | None:
        """Returns what may go on of a step; None if nothing can."""
        plans = [plan for plan in step.plans.values() if isinstance(plan, MovingPlan)]
        alone = work and all(len(item.tokens) == 1 == item.samples for item in work)
        return cls(step, plans, work, tokens, page_size) if alone and len(plans) == len(step.plans) else None

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
        for plan in self._plans:
            plan.move_on()
        return True

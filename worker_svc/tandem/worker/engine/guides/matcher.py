"""Tracks where one request stands in its grammar, as far as its guide's process has said. All ranks keep it alike."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tandem.worker.engine.guides.guide import Guide

Mask = npt.NDArray[np.int32]  # [words]


@dataclass(slots=True)
class Matcher:
    """`asked` tokens of output were told to the process; `known` and what follows is what it said of them.

    *late*: a step wanted the mask and it had not come; the request is left out of steps until it has. A request that
    was left out of several is *slow*: its next mask is not waited for by anybody, and it gets no drafts.
    """

    guide: Guide
    session: int
    asked: int = -1
    decided: bool = True  # whether the end that the last tokens may be has been looked for
    known: bool = False
    ended: bool = False  # the grammar allows nothing more
    error: str = ""  # why it cannot go on
    ours: bool = False  # and it is not the guide's fault
    forced: list[int] = field(default_factory=list)  # tokens that must follow, in all likelihood
    mask: Mask | None = None
    drafts: list[int] = field(default_factory=list)  # behind which masks were asked for
    walks: int = 0  # times that this was done
    walked: bool = False
    draft_masks: list[Mask] = field(default_factory=list)  # after each draft that is allowed
    draft_ends: list[bool] = field(default_factory=list)  # whether the grammar has ended after it
    late: bool = False
    held: bool = False  # steps go without the request
    slow: bool = False
    left_out: int = 0  # steps

    def move(self) -> None:
        """Drops what is known, since the output has grown."""
        self.decided = self.known = self.ended = self.walked = False
        self.mask = None
        self.drafts, self.forced, self.draft_masks, self.draft_ends = [], [], [], []
        self.late, self.left_out = self.slow, 0

    def restart(self) -> None:
        """Drops that anything was asked: it begins later."""
        self.asked = -1
        self.move()

    @property
    def over(self) -> bool:
        """Tells whether it cannot go on."""
        return bool(self.error) or (self.known and self.ended and self.asked > 0)

    @property
    def ready(self) -> bool:
        """Tells whether all that a step needs of it is there."""
        return self.over or (self.mask is not None and (self.walked or not self.drafts))

    def ends_after(self, draft: int) -> bool:
        """Tells whether the grammar has ended after drafts[draft]."""
        return draft < len(self.draft_ends) and self.draft_ends[draft]

    def leave_out(self) -> None:
        """Records that a step goes without the request."""
        self.late = True
        self.drafts, self.draft_masks, self.draft_ends, self.walked = [], [], [], False

    def wait(self) -> bool:
        """Tells whether it is still to be left out of a step."""
        if not self.late:
            return False
        if not self.ready:
            self.left_out += 1
            return True
        self.late, self.slow = False, self.left_out > 1
        return False

"""Stores the states of sequences in layers that have such (`mixers.py`).

A *slot* holds one state in all such layers: the recurrent state, the last inputs of the convolution (its tail), and a
*journal*. The journal is what makes speculation exact: the tokens at a chunk's end that may turn out to be wrong (its
last token and its drafts) are computed, but the state in the slot stays before them, and what they put into it is kept
aside. The next chunk begins by repeating those that turned out to be right. So a rejected draft costs nothing, and no
state is ever copied to be safe.

Which slot belongs to whom is the business of `engine/states.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.checkpoints.model_parts.recurrences import Recurrence

STATELESS = -1  # the slot of work that begins with nothing and leaves nothing


class StateWork(NamedTuple):
    """Where a chunk's state comes from and what is kept of it; positions are in tokens of the sequence."""

    slot: int = STATELESS
    position: int = 0  # of the state in the slot; the journal has the tokens from there to the chunk's beginning
    commit: int = 0  # of the state that stays in the slot; the chunk's tokens behind it go to the journal
    # Positions up to `commit`, ascending, and the slots that get the states there too.
    saves: tuple[tuple[int, int], ...] = ()


STATELESS_WORK = StateWork()


@dataclass(frozen=True, slots=True)
class StateShape:
    """The sizes that determine the memory of states."""

    sizes: Recurrence
    slots: int
    journal: int  # tokens

    @property
    def bytes_per_slot(self) -> int:
        """Returns the bytes of one state over all layers, the journal included."""
        sizes = self.sizes
        tail = (sizes.kernel - 1 + self.journal) * sizes.channels
        return 4 * len(sizes.layers) * (math.prod(sizes.state) + tail + self.journal * sizes.factors)

    @property
    def bytes(self) -> int:
        """Returns the bytes that `StateCache` allocates."""
        return self.slots * self.bytes_per_slot


class StateCache:
    """Holds the states of all slots, in float32 whatever the model computes in."""

    def __init__(self, shape: StateShape, device: torch.device | str) -> None:
        self.shape = shape
        self.device = torch.device(device)
        sizes, slots = shape.sizes, shape.slots

        def room(*size: int) -> list[torch.Tensor]:
            return [torch.zeros((slots, *size), device=self.device) for _ in sizes.layers]

        self.recurrent = room(*sizes.state)
        self.tails = room(sizes.kernel - 1 + shape.journal, sizes.channels)
        self.journals = room(shape.journal, sizes.factors)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies states one after the other, so that a source may be the target of a later copy."""
        for source, target in zip(sources, targets, strict=True):
            for parts in (self.recurrent, self.tails):
                for part in parts:
                    part[target] = part[source]


class StatePlan:
    """What a step does to states, once for all layers."""

    def __init__(self, works: Sequence[tuple[int, int, int, StateWork]], cache: StateCache | None) -> None:
        """`works`: first row in the step's batch, tokens, position and state of each piece of work."""
        self.cache = cache
        self.works = np.empty((len(works), 9), dtype=np.int64)
        saves: list[tuple[int, int]] = []
        place = 0
        for line, (row, length, position, state) in zip(self.works, works, strict=True):
            start = position if state.slot == STATELESS else state.position
            replayed = position - start
            assert 0 <= replayed <= (cache.shape.journal if cache is not None else 0), "what is before is not there"
            first = len(saves)
            saves += [(at - start, slot) for at, slot in state.saves]
            fresh = state.slot == STATELESS or start == 0
            line[:] = (state.slot, fresh, row, length, replayed, state.commit - start, place, first, len(saves))
            place += replayed + length
        self.saves = np.array(saves, dtype=np.int64).reshape(-1, 2)
        self.tokens = place
        self.rows = sum(length for _, length, _, _ in works)  # of the step's batch that have work
        self._room: torch.Tensor | None = None

    @property
    def owners(self) -> npt.NDArray[np.int64]:
        """Returns the number of the work that each token is of, `[tokens]`, those that are repeated included."""
        return np.repeat(np.arange(len(self.works)), self.works[:, 3] + self.works[:, 4])

    def room(self, width: int) -> torch.Tensor:
        """Returns room `[tokens, width]` that all layers of the step use in turn."""
        if self._room is None:
            self._room = torch.empty((self.tokens, width))
        return self._room

    def lines(self) -> list[list[int]]:
        """Returns the works as numbers, in the order of `works`."""
        lines: list[list[int]] = self.works.tolist()
        return lines

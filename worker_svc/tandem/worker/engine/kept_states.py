"""Finds how far a prompt was computed before, where layers have states: a chain of pages can be used up to a position
whose state was kept (`states.py`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tandem.worker.engine.chains import Chains, Tokens
from tandem.worker.engine.states import StateTable


class Kept(NamedTuple):
    """A position in a sequence up to which everything is there."""

    position: int = 0
    slot: int | None = None  # that has the state there
    page: int | None = None  # that has the tokens from the last border to `position`, where that is no border


def furthest_kept(states: StateTable, chains: Chains, tokens: Tokens, chain: list[int], salt: str) -> Kept:
    """Returns the furthest position of `tokens` that has a snapshot, and marks that as used; `chain` are the published
    pages that `tokens` begins with."""
    size = chains.page_size
    best = Kept()
    for level in range(len(chain), -1, -1):
        wanted = tokens[level * size : len(tokens) - 1]
        for page in chains.children.get(chains.tail(chain[:level], salt), ()):
            snapshot = states.snapshots.get(page)
            if snapshot is None or snapshot.tokens > len(wanted):
                continue
            position = level * size + snapshot.tokens
            content = chains.pages[page].tokens[: snapshot.tokens]
            if position > best.position and np.array_equal(content, wanted[: snapshot.tokens]):
                best = Kept(position, snapshot.slot, page)
        if best.page is not None:
            states.snapshots.move_to_end(best.page)
            break
    return best

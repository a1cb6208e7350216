"""Counts, on a GPU, how often each id occurred in a request's window, for its penalties.

A step tells the table only which tokens came into the window and which left it, since the request's row of the table
was last used. What a request's row holds is kept here: tokens `[start, end)`. Where that is nothing, or does not lie
behind the new window's, the row is cleared and the window counted anew.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.engine.sampler.rows import Rows
from tandem.worker.engine.sampler.sent import sent

Ids = npt.NDArray[np.int64]


class Counts:
    """A table `[rows, vocabulary]` on the device; a request has a row of it while steps use it."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self.table = torch.zeros((rows, vocabulary), dtype=torch.int32, device=device)
        self._row: dict[int, int] = {}  # by request number, the one that was used longest ago first
        self._free = list(range(rows - 1, -1, -1))
        self._held: list[tuple[int, int] | None] = [(0, 0)] * rows  # None: somebody else's

    def forget(self, number: int) -> None:
        """Frees the row of a request that is over."""
        row = self._row.pop(number, None)
        if row is not None:
            self._free.append(row)
            self._held[row] = None

    def update(self, rows: Rows, penalized: Ids) -> Ids:
        """Brings the rows of these requests up to date, each of which is there once; returns which they are."""
        vocabulary = self.table.shape[1]
        numbers = [rows.requests[row].number for row in penalized.tolist()]
        used = [self._take(number) for number in numbers]
        clear: list[int] = []
        places: list[Ids] = []
        signs: list[npt.NDArray[np.int32]] = []
        for row, mine in zip(penalized.tolist(), used, strict=True):
            request, end = rows.requests[row], int(rows.positions[row])
            start = max(0, end - request.sampling.repetition_window)
            held_start, held_end = self._held[mine] or (0, 0)
            if self._held[mine] is None or not held_start <= start <= held_end <= end:
                if self._held[mine] != (0, 0):
                    clear.append(mine)
                held_start = held_end = start
            for first, last, sign in ((held_end, end, 1), (held_start, start, -1)):
                if last > first:
                    places.append(request.tokens[first:last].astype(np.int64) + mine * vocabulary)
                    signs.append(np.full(last - first, sign, dtype=np.int32))
            self._held[mine] = start, end
        device = self.table.device
        if clear:
            self.table.index_fill_(0, sent(np.array(clear, dtype=np.int64), device), 0)
        if places:
            from tandem.worker.model.cuda.kernels.changes import add_at  # Triton is not installed without CUDA

            add_at(self.table, sent(np.concatenate(places), device), sent(np.concatenate(signs), device))
        return np.array(used, dtype=np.int64)

    def _take(self, number: int) -> int:
        row = self._row.pop(number, None)
        if row is None and self._free:
            row = self._free.pop()
        elif row is None:  # preempted requests keep theirs until somebody needs it
            row = self._row.pop(next(iter(self._row)))
            self._held[row] = None
        self._row[number] = row
        return row

"""Rows of a matrix in panels of 16, `[ceil(rows / 16), columns, 16]`: the order in which the compiled products read."""

from __future__ import annotations

import torch

from tandem.worker.checkpoints.memory import WEIGHTS, give_back
from tandem.worker.model.cpu.native import PANEL, put_into_panels, rows_of_panels


def empty_panels(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Room for so many rows, zero."""
    return WEIGHTS.zeros((-(-rows // PANEL), columns, PANEL), dtype)


def fill_panels(panels: torch.Tensor, row: int, rows: torch.Tensor) -> None:
    """Stores rows `[n, columns]` from `row` on."""
    first = min(len(rows), -row % PANEL)  # of a panel that others have begun
    whole = (len(rows) - first) // PANEL
    _scatter(panels, row, rows[:first])
    panel, done = (row + first) // PANEL, first + whole * PANEL
    put_into_panels(rows[first:done].to(panels.dtype).contiguous(), panels[panel : panel + whole])
    _scatter(panels, row + done, rows[done:])


def _scatter(panels: torch.Tensor, row: int, rows: torch.Tensor) -> None:
    for place, numbers in enumerate(rows, row):
        panels[place // PANEL, :, place % PANEL] = numbers


def panel_rows(panels: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Some rows `[n, columns]`."""
    return rows_of_panels(index, panels.view(len(panels), -1, 1, 1, PANEL))


def first_panels(panels: torch.Tensor, rows: int) -> torch.Tensor:
    """Those that hold the first rows; the others go."""
    kept = -(-rows // PANEL)
    give_back(panels[kept:])
    return panels[:kept]

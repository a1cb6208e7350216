"""Weights of bf16, fp16 and fp32 for the compiled products of processors with AVX-512 (`native/panels_wide.c`)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from tandem.worker.checkpoints.memory import WEIGHTS, give_back
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.native import PANEL, WIDE_TILE

_PAIR = 2 * PANEL
_WORDS = {torch.float32: torch.int32, torch.bfloat16: torch.int32, torch.float16: torch.int16}


class WidePanels(torch.nn.Module):
    """A matrix `[out, in]` in pairs of panels, `[pairs, steps, 2, words, 16]`: of bf16 two inputs are a word and 16
    words a step, of fp16 and fp32 each input is both."""

    panels: torch.Tensor
    row_multiple = 1  # see `Linear.row_multiple`
    __call__: Callable[..., torch.Tensor]

    def __init__(self, rows: int, columns: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._rows, self._columns = rows, columns
        words = WIDE_TILE // 2 if dtype == torch.bfloat16 else 1
        steps = -(-columns // WIDE_TILE) if dtype == torch.bfloat16 else columns
        shape = (-(-rows // _PAIR), steps, 2, words, PANEL)
        self.register_buffer("panels", WEIGHTS.zeros(shape, _WORDS[dtype]).view(dtype))

    def __len__(self) -> int:
        return self._rows

    @property
    def _words(self) -> torch.Tensor:
        return self.panels.view(_WORDS[self.panels.dtype])

    def fill(self, row: int, rows: torch.Tensor) -> None:
        """Stores rows from `row` on."""
        stored = self._words
        _, steps, _, words, _ = stored.shape
        width = steps * words * stored.itemsize // rows.itemsize
        rows = F.pad(rows, (0, width - self._columns)) if width > self._columns else rows.contiguous()
        numbers = rows.view(stored.dtype).view(-1, steps, words)
        first = min(len(rows), -row % _PAIR)  # of a pair that others have begun
        whole = (len(rows) - first) // _PAIR
        pair, done = (row + first) // _PAIR, first + whole * _PAIR
        self._scatter(row, numbers[:first])
        inner = numbers[first:done].view(whole, 2, PANEL, steps, words)
        stored[pair : pair + whole] = inner.permute(0, 3, 1, 4, 2)
        self._scatter(row + done, numbers[done:])

    def _scatter(self, row: int, numbers: torch.Tensor) -> None:
        place = torch.arange(row, row + len(numbers))
        self._words[place // _PAIR, :, place // PANEL % 2, :, place % PANEL] = numbers

    def truncate(self, rows: int) -> None:
        """Keeps the first rows only."""
        kept = -(-rows // _PAIR)
        give_back(self.panels[kept:])
        self.panels, self._rows = self.panels[:kept], rows

    def settle(self) -> None:
        """Nothing is left to do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[N, in] -> [N, out]` in x's dtype; sums are of fp32."""
        return native.wide_product(x.float(), self.panels, self._rows).to(x.dtype)

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """Some rows `[N, in]`."""
        return native.rows_of_panels(index, self._words).view(self.panels.dtype)[:, : self._columns]

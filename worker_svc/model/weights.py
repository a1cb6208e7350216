"""Fills a model's weights from a checkpoint without a second copy of them.

A weight is allocated when its first rows come and filled piece by piece, the memory of each piece being given back to
the checkpoint. Matrices that `Linear.settle` replaces by rearranged copies lie in one staging buffer until then:
freed one by one, they would leave holes behind that the C library keeps, a fifth of a small model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import torch

from worker_svc.checkpoints.ggml_blocks import QuantizedTensor
from worker_svc.model.linear import Linear

_PIECE_BYTES = 16 << 20  # of a mapped file that are copied at once
_STAGING_BYTES = 32 << 20  # larger ones are given back to the system at once (glibc's largest mmap threshold)


class Weighted(Protocol):
    """A module with one weight."""

    weight: torch.nn.Parameter


class WeightFiller:
    """Allocates and fills the weights of modules that were built on the meta device."""

    def __init__(self, device: torch.device | str, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._rows_left: dict[Weighted, int] = {}
        self._staging = torch.empty(0, dtype=dtype)
        self._staged: Weighted | None = None  # whose weight lies in the staging buffer

    def fill(
        self,
        module: Weighted,
        row: int,
        source: torch.Tensor | QuantizedTensor,
        release: Callable[[torch.Tensor | QuantizedTensor], None],
    ) -> None:
        """Copies `source` `[rows, ...]` to the module's weight from `row` on, in the wanted dtype.

        Raises OverflowError when a number becomes infinite in float16.
        """
        if module not in self._rows_left:
            self._rows_left[module] = len(module.weight)
            module.weight = torch.nn.Parameter(self._allocate(module), requires_grad=False)
        weight = module.weight.data
        for start, stored in _pieces(source):
            piece = stored.dequantize() if isinstance(stored, QuantizedTensor) else stored
            part = weight[row + start : row + start + len(piece)]
            part.copy_(piece)
            if self._dtype == torch.float16 and piece.dtype != self._dtype and not part.isfinite().all():
                raise OverflowError("numbers that do not fit into float16")
            release(stored)
        self._rows_left[module] -= len(source)
        if isinstance(module, Linear) and not self._rows_left[module]:
            module.settle()
            if self._staged is module:
                self._staged = None

    def _allocate(self, module: Weighted) -> torch.Tensor:
        shape, numel = module.weight.shape, module.weight.numel()
        stageable = numel * self._dtype.itemsize <= _STAGING_BYTES and self._staged is None
        if not (stageable and isinstance(module, Linear) and module.will_rearrange(self._device)):
            return torch.empty(shape, dtype=self._dtype, device=self._device)
        if not len(self._staging):
            self._staging = torch.empty(_STAGING_BYTES // self._dtype.itemsize, dtype=self._dtype)
        self._staged = module
        return self._staging[:numel].view(shape)


def _pieces(source: torch.Tensor | QuantizedTensor) -> Iterator[tuple[int, torch.Tensor | QuantizedTensor]]:
    """First row and rows of slices of at most about `_PIECE_BYTES` in float32."""
    rows = max(1, _PIECE_BYTES // (4 * math.prod(source.shape[1:])))
    for start in range(0, len(source), rows):
        yield start, source[start : start + rows]

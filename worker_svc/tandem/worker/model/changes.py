"""What adapters that stay beside a model (LoRA) add to what one of its matrices gives, for their own rows alone:

    y = x W^T        and for the rows of an adapter        y += scale * (x A^T) B^T

The products are those of the model's other matrices, in the same dtype, so that a row's bits depend on nothing else. A
step that has such rows is computed piece by piece; the bits of the others stay the same (`cpu/stack.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch


class AdaptedRows(NamedTuple):
    """The rows of one adapter in a step: `rows` `[M]` int64, of which the first `own` are its own, and the others
    padding. None: all rows of the step."""

    rows: torch.Tensor | None
    own: int


@dataclass(slots=True)
class Adapted:
    """Which rows of the step that is computed belong to which adapter, by its number from 0 on."""

    rows: Mapping[int, AdaptedRows] = field(default_factory=dict)


class Change(torch.nn.Module):
    """What an adapter adds to some of a matrix's outputs, from `first` on. Where it changes several parts of the matrix
    (queries, keys and values), their A lie below each other, and B has a block for each of them."""

    scales: torch.Tensor

    def __init__(self, first: int, a: torch.nn.Module, b: torch.nn.Module, scales: torch.Tensor) -> None:
        """`scales` `[r]` float32, of what A gives."""
        super().__init__()
        self.first, self.a, self.b = first, a, b
        self.register_buffer("scales", scales)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[N, in] -> [N, outputs]`."""
        inner = self.a(x)
        more: torch.Tensor = self.b((inner * self.scales).to(inner.dtype))
        return more


class Changes(torch.nn.Module):
    """What adapters add to one matrix's product."""

    def __init__(self, adapted: Adapted) -> None:
        super().__init__()
        self._adapted = adapted
        self._of: dict[int, Change] = {}

    def put(self, adapter: int, change: Change) -> None:
        """Takes what an adapter changes."""
        self._of[adapter] = change
        self.add_module(str(adapter), change)

    @property
    def active(self) -> bool:
        """Tells whether the step that is computed has rows that it changes."""
        return not self._of.keys().isdisjoint(self._adapted.rows)

    def add(self, x: torch.Tensor, product: torch.Tensor) -> None:
        """Adds to `product` `[N, out]` what the rows of `x` `[N, in]` that belong to adapters are given."""
        for adapter, (rows, own) in self._adapted.rows.items():
            change = self._of.get(adapter)
            if change is None:
                continue
            more = change(x if rows is None else x.index_select(0, rows)).to(product.dtype)
            part = product[:, change.first : change.first + more.shape[1]]
            if rows is None:
                part += more
            else:
                part.index_add_(0, rows[:own], more[:own])

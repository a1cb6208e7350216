"""What the engine needs of whatever computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from tandem.worker.model.runner import Work


class Runner(Protocol):
    """What computes; `ModelRunner` does."""

    def forward(self, work: Sequence[Work], sampled: torch.Tensor | None = None) -> torch.Tensor:
        """Logits `[>= sum of samples, vocabulary]` of the last tokens of each work that samples, in order. `sampled`
        `[rows]` (int64, on the device) are the ids from which works with a `row` take their token."""
        ...

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies whole pages; reads all sources before it writes any target."""
        ...

    def zero(self, pages: Sequence[int]) -> None:
        """Clears pages."""
        ...

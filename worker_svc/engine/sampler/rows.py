"""What the sampler is asked, and what it answers: one row a token that is to be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker_svc.engine.request import Request


@dataclass(frozen=True, slots=True)
class Rows:
    """Row i chooses the token at the absolute position `positions[i]` of `requests[i]`, given its tokens before that.

    A request may have several rows, one for each draft that is verified; then the drafts stand in `request.tokens`
    beyond `num_tokens`.
    """

    requests: Sequence[Request]
    positions: npt.NDArray[np.int64]  # [rows]
    # [rows, ceil(vocabulary / 32)]: bit id % 32 of word id // 32 is set if the id is allowed, as llguidance writes it.
    # A row without a grammar has every bit set.
    mask: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.requests)

    @classmethod
    def next_tokens(cls, requests: Sequence[Request]) -> Rows:
        """One row a request, for its next token."""
        positions = np.fromiter((request.num_tokens for request in requests), dtype=np.int64, count=len(requests))
        return cls(requests, positions)


@dataclass(slots=True)
class Sampled:
    """One entry a row, in parallel arrays."""

    ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]  # NaN where not asked for
    finite: npt.NDArray[np.bool_]  # false: the model's numbers are broken, the id means nothing

    def take(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> Sampled:
        """Some of the rows, in this order."""
        return Sampled(self.ids[rows], self.logprobs[rows], self.finite[rows])

    @classmethod
    def nothing(cls) -> Sampled:
        """No row."""
        return cls(np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.bool_))

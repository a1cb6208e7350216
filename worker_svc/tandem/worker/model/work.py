"""What a step computes: as it is asked for, sequence by sequence, and as a model is given it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.checkpoints.model_parts.heads import AttentionKind
from tandem.worker.model.attention import Plan
from tandem.worker.model.changes import AdaptedRows
from tandem.worker.model.states import STATELESS_WORK, StateWork


class Work(NamedTuple):
    """Tokens of one sequence to compute: `tokens` `[length]` from `position` on, into `pages`; logits of the last
    `samples` (0 to length) of them are wanted. With `row`, the first token is that row of what was sampled last, and
    what stands in its place in `tokens` is not looked at. Without a `state`, a model that has them begins with none and
    keeps none. `adapter`: the number of the one that changes it; -1: none.

    What `pages` holds is not changed: where a sequence's pages are others, it is another array.
    """

    tokens: npt.NDArray[np.int32]
    position: int
    pages: npt.NDArray[np.int64]
    samples: int
    row: int | None = None
    state: StateWork = STATELESS_WORK
    adapter: int = -1


class Tokens(NamedTuple):
    """The tokens of a step: `[N]` each, slots `[2, N]`."""

    ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]


class Step(NamedTuple):
    """What a model is given of a step (`Transformer.forward`), on the device."""

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    plans: Mapping[AttentionKind, Plan]
    logit_rows: torch.Tensor | None
    late: Mapping[AttentionKind, Plan] | None
    rows: list[int]  # the first row of each work
    adapted: Mapping[int, AdaptedRows]

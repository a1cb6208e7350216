"""Loads adapters that stay beside a model: A and B of each matrix, in the form that the model's matrices have."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from tandem.worker.checkpoints.adapters import LowRank
from tandem.worker.model.changes import Change, Changes
from tandem.worker.model.linear import Linear
from tandem.worker.model.transformer import Transformer
from tandem.worker.model.weights import WeightFiller

_RANK_MULTIPLE = 32  # to which ranks are padded with zeros, since products of panels take whole ones


def add_adapter(model: Transformer, number: int, changes: Mapping[str, LowRank], filler: WeightFiller) -> None:
    """Puts an adapter, by its number from 0 on, beside the matrices that it changes, by their canonical names."""
    destinations = model.destinations()
    for name, change in changes.items():
        matrix, first = destinations[name].module, destinations[name].row
        assert isinstance(matrix, Linear)
        if matrix.changes is None:
            matrix.changes = Changes(model.adapted)
        more = -len(change.a) % _RANK_MULTIPLE
        a = _linear(F.pad(change.a, (0, 0, 0, more)), model.dtype, filler)
        b = _linear(F.pad(change.b, (0, more)), model.dtype, filler)
        matrix.changes.put(number, Change(first, len(change.b), change.scale, a, b))


def _linear(rows: torch.Tensor, dtype: torch.dtype, filler: WeightFiller) -> Linear:
    made = Linear(rows.shape[1], rows.shape[0], dtype)
    filler.fill(made, 0, rows, lambda piece: None)
    return made

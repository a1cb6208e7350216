"""Loads adapters that stay beside a model: A and B of each matrix, in the form that the model's matrices have."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from tandem.worker.checkpoints.adapters import LowRank
from tandem.worker.checkpoints.checkpoint import CheckpointError
from tandem.worker.model.changes import Change, Changes
from tandem.worker.model.linear import Linear
from tandem.worker.model.transformer import Transformer
from tandem.worker.model.weights import WeightFiller

_RANK_MULTIPLE = 32  # to which ranks are padded with zeros, since products of panels take whole ones


def add_adapter(model: Transformer, number: int, changes: Mapping[str, LowRank], filler: WeightFiller) -> None:
    """Puts an adapter, by its number from 0 on, beside the matrices that it changes, by their canonical names. Raises
    CheckpointError."""
    destinations = model.destinations()
    for name, change in changes.items():
        matrix, first = destinations[name].module, destinations[name].row
        assert isinstance(matrix, Linear)
        if matrix.changes is None:
            matrix.changes = Changes(model.adapted)
        a, b = change.a, change.b
        more = -len(a) % _RANK_MULTIPLE
        try:
            both = [_linear(F.pad(*each), model.dtype, filler) for each in ((a, (0, 0, 0, more)), (b, (0, more)))]
        except OverflowError as error:
            raise CheckpointError(f"{change.of} has {error}") from error
        matrix.changes.put(number, Change(first, len(b), change.scale, *both))


def _linear(rows: torch.Tensor, dtype: torch.dtype, filler: WeightFiller) -> Linear:
    made = Linear(rows.shape[1], rows.shape[0], dtype)
    filler.fill(made, 0, rows, lambda piece: None)
    return made

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
    parts: dict[Linear, list[tuple[int, LowRank]]] = {}
    for name, change in changes.items():
        matrix = destinations[name].module
        assert isinstance(matrix, Linear)
        parts.setdefault(matrix, []).append((destinations[name].row, change))
    for matrix, some in parts.items():
        if matrix.changes is None:
            matrix.changes = Changes(model.adapted)
        matrix.changes.put(number, _joined(some, model.dtype, filler))


def _joined(parts: list[tuple[int, LowRank]], dtype: torch.dtype, filler: WeightFiller) -> Change:
    """Makes one change of those of parts of a matrix, which begin at these rows."""
    parts = sorted(parts, key=lambda part: part[0])
    above, beside = [change.a for _, change in parts], [change.b for _, change in parts]
    first, last = parts[0][0], parts[-1][0] + len(beside[-1])
    ranks = [len(a) for a in above]
    more = -sum(ranks) % _RANK_MULTIPLE
    b, column = beside[0].new_zeros((last - first, sum(ranks) + more)), 0
    for (row, _), block in zip(parts, beside, strict=True):
        b[row - first : row - first + len(block), column : column + block.shape[1]] = block
        column += block.shape[1]
    scales = torch.zeros(sum(ranks) + more)
    scales[: sum(ranks)] = torch.tensor([change.scale for _, change in parts]).repeat_interleave(torch.tensor(ranks))
    try:
        a = _linear(F.pad(torch.cat(above), (0, 0, 0, more)), dtype, filler)
        return Change(first, a, _linear(b, dtype, filler), scales.to(filler.device))
    except OverflowError as error:
        raise CheckpointError(f"{parts[0][1].of} has {error}") from error


def _linear(rows: torch.Tensor, dtype: torch.dtype, filler: WeightFiller) -> Linear:
    made = Linear(rows.shape[1], rows.shape[0], dtype)
    filler.fill(made, 0, rows, lambda piece: None)
    return made

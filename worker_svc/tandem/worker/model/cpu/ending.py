"""What follows a model's last layer, as the compiled library computes it: a norm, and the output."""

from __future__ import annotations

import ctypes

import torch

from tandem.worker.model.cpu.layer import MOST_ROWS
from tandem.worker.model.cpu.layer_parts import EndingStruct, NormStruct, NormVectors
from tandem.worker.model.cpu.matrices import matrices_of
from tandem.worker.model.cpu.native.layers import LANES
from tandem.worker.model.linear import Linear


class CompiledEnding:
    """The norm and the output as the library takes them. They must outlive it."""

    def __init__(self, struct: EndingStruct) -> None:
        self._struct = struct
        self._room: torch.Tensor | None = None
        self.address = ctypes.addressof(struct)

    @classmethod
    def of(cls, norm: NormVectors, output: Linear, eps: float, *, centred: bool) -> CompiledEnding | None:
        """None if the library does not serve them; `centred`: it is a LayerNorm."""
        vectors = [vector for vector in (*norm, output.bias and output.bias.weight) if vector is not None]
        pieces = matrices_of(output)
        if any(vector.dtype != torch.float32 for vector in vectors) or output.in_features % LANES:
            return None
        if len(pieces) != 1 or pieces[0].bits < 0:
            return None
        weight, bias = (None if vector is None else vector.data_ptr() for vector in norm)
        return cls(EndingStruct(NormStruct(weight, bias), pieces[0], output.in_features, eps, centred))

    def logits(self, rows: int) -> torch.Tensor:
        """Returns room for the logits of so many rows, where the next call puts them: `[rows, vocabulary]`. It is that
        of the last call, where that had as many."""
        if self._room is not None and self._room.shape[0] == rows:
            return self._room
        matrix = self._struct.output
        room = torch.empty((rows, matrix.width))
        self._struct.logits = room.data_ptr()
        logits = room if matrix.width == matrix.outputs else room[:, : matrix.outputs]
        self._room = logits if rows <= MOST_ROWS else None
        return logits

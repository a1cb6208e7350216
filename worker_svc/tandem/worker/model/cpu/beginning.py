"""What comes before a model's first layer, as the compiled library looks it up: the vectors of a step's tokens, and how
their positions rotate.

What it gives is kept for the next step of as many rows: while a step reads gigabytes of weights, everything else falls
out of the processor's caches, and each tensor that a step makes costs 20 to 50 us.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch

from tandem.worker.checkpoints.model_parts.positions import Rope
from tandem.worker.model.cpu.layer import MOST_ROWS
from tandem.worker.model.cpu.matrices import Matrix, matrix_of_rows
from tandem.worker.model.cpu.native.layers import Rotary
from tandem.worker.model.cpu.native.library import calls
from tandem.worker.model.rope import Rotation, Rotations
from tandem.worker.model.weights import Embedding

_Pointer = ctypes.c_void_p
_NO_POSITION = 2  # as in beginning.c


class _Turning(ctypes.Structure):
    """A way to rotate, and where its cosines and signed sines go."""

    rotary: int
    cos: int
    sin: int
    _fields_ = tuple((name, _Pointer) for name in ("rotary", "cos", "sin"))


class _Beginning(ctypes.Structure):
    embedding: Matrix
    turnings: ctypes.Array[_Turning]
    x: int
    _fields_ = (("embedding", Matrix), ("turnings", _Turning * 2), ("x", _Pointer), ("by", ctypes.c_float))


class Begun(NamedTuple):
    """What a step begins with; it holds until the next one of as many rows, and layers may overwrite it."""

    x: torch.Tensor  # [N, hidden]
    rotations: dict[Rope, Rotation]


class CompiledBeginning:
    """The embedding and the tables of positions as the library takes them. They must outlive it."""

    def __init__(self, embedding: Matrix, by: float, rotations: Rotations) -> None:
        self._struct = _Beginning(embedding=embedding, by=by)
        self._rotations = rotations
        self._turning: dict[Rope, Rotary] = {rope: table.rotary for rope, table in rotations.tables().items()}
        for turning, rotary in zip(self._struct.turnings, self._turning.values(), strict=False):
            turning.rotary = ctypes.addressof(rotary)
        self._address = ctypes.addressof(self._struct)
        self._rows = 0  # that there is room for
        self._room: Begun | None = None

    @classmethod
    def of(cls, embedding: Embedding, by: float, rotations: Rotations) -> CompiledBeginning | None:
        """Of an embedding whose vectors are multiplied `by` something; None if the library does not serve it."""
        matrix = matrix_of_rows(embedding)
        return None if matrix is None else cls(matrix, by, rotations)

    def begin(self, ids: torch.Tensor, positions: torch.Tensor) -> Begun:
        """Looks up tokens `ids` at `positions`, each `[N]` int64. Raises IndexError for those that are not there."""
        rows, threads = ids.shape[0], torch.get_num_threads()
        room = self._room if self._room is not None and self._rows == rows else self._made(rows)
        ids, positions = ids.contiguous(), positions.contiguous()
        failed = calls().tandem_begin(self._address, ids.data_ptr(), positions.data_ptr(), rows, threads)
        if failed:
            what, numbers = ("positions", positions) if failed == _NO_POSITION else ("tokens", ids)
            raise IndexError(f"{what} from {numbers.min()} to {numbers.max()}: the model does not have them all")
        return room

    def _made(self, rows: int) -> Begun:
        """Makes room for a step; that for many rows is too much to be kept."""
        x = torch.empty((rows, self._struct.embedding.inputs))
        rotations = self._rotations.unturned(rows)
        for turning, (rope, rotary) in zip(self._struct.turnings, self._turning.items(), strict=False):
            both = torch.empty((2, rows, 1, 2 * rotary.half))
            cos, sin = rotations[rope] = (both[0], both[1])
            turning.cos, turning.sin = cos.data_ptr(), sin.data_ptr()
        self._struct.x = x.data_ptr()
        room = Begun(x, rotations)
        self._rows, self._room = rows, room if rows <= MOST_ROWS else None
        return room

"""Reads tensors and writes their bytes to a file a piece at a time, for every writer."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import torch

from tandem.worker.checkpoints.checkpoint import Checkpoint, CheckpointError, StoredMatrix

PIECE_BYTES = 16 << 20  # of float32 numbers that are in memory at once

Progress = Callable[[int, int], None]  # bytes read so far, bytes in all
LEFT_OUT = "the head that guesses the token after next is left out"  # a note
# Makes what is written of some rows of a tensor, `[rows, ...]` and their indices.
Change = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class ConvertError(Exception):
    """A checkpoint cannot be written as that family; the message is one line."""


@dataclass(slots=True)
class Source:
    """An open checkpoint, and the dtype that its matrices are to have."""

    checkpoint: Checkpoint
    dtype: torch.dtype
    progress: Progress
    head: Checkpoint | None = None  # that guesses for the model
    notes: list[str] = field(default_factory=list)  # what the reader of the result should know

    def followed_by(self, other: Checkpoint) -> tuple[Source, Source]:
        """Returns this source and another one that is read behind it, whose progress is told together."""
        first, both = self.checkpoint.total_bytes, self.checkpoint.total_bytes + other.total_bytes
        return (
            replace(self, progress=lambda done, _: self.progress(done, both)),
            replace(self, checkpoint=other, progress=lambda done, _: self.progress(first + done, both)),
        )

    def tensors(self) -> Iterator[tuple[str, torch.Tensor | StoredMatrix]]:
        """Yields every canonical tensor; progress is told after each."""
        done = 0
        for name, tensor in self.checkpoint.tensors():
            yield name, tensor
            done += tensor.nbytes
            self.progress(done, self.checkpoint.total_bytes)

    def pieces(
        self,
        name: str,
        tensor: torch.Tensor | StoredMatrix,
        dtype: torch.dtype,
        order: torch.Tensor | None = None,
        change: Change | None = None,
    ) -> Iterator[torch.Tensor]:
        """Yields rows of a tensor, all in their order or those that `order` has, as contiguous uint8; raises
        CheckpointError for numbers beyond `dtype`."""
        rows = max(1, PIECE_BYTES // (4 * math.prod(tensor.shape[1:])))
        count = len(tensor) if order is None else len(order)
        for start in range(0, count, rows):
            end = min(start + rows, count)
            stored = tensor[start:end] if order is None else tensor[order[start:end]]
            plain = stored if isinstance(stored, torch.Tensor) else stored.dequantize()
            if change is not None:
                plain = change(plain, torch.arange(start, end) if order is None else order[start:end])
            piece = plain.to(dtype).contiguous()
            if dtype == torch.float16 and plain.dtype != dtype and not piece.isfinite().all():
                raise CheckpointError(f"{self.checkpoint.path}: {name} has numbers that do not fit into float16")
            yield piece.reshape(-1).view(torch.uint8)
            if order is None:
                self.checkpoint.release(stored)
        if order is not None:
            self.checkpoint.release(tensor)


def reserve(file: BinaryIO, size: int) -> None:
    """Reserves the room on the disk at once, so that a full one is known before the work; raises OSError."""
    if hasattr(os, "posix_fallocate") and size:
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)


def write_at(file: BinaryIO, offset: int, pieces: Iterator[torch.Tensor]) -> None:
    """Writes pieces one after the other from an offset on."""
    file.seek(offset)
    for piece in pieces:
        file.write(piece.numpy().data)


def flush(file: BinaryIO) -> None:
    """Waits until everything written is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Writes a small file, on the disk."""
    with path.open("wb") as file:
        file.write(text.encode())
        flush(file)

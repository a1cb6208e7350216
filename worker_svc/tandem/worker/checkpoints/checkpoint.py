"""The interface of a checkpoint, whatever its format: facts about a model, and an iterator of its tensors."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch

from tandem.worker.checkpoints.ggml_blocks import BlockKind
from tandem.worker.checkpoints.grouped import Float8Rows, Grouped
from tandem.worker.checkpoints.memory import zeros
from tandem.worker.checkpoints.model_config import ModelConfig

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class CheckpointError(Exception):
    """A checkpoint cannot be served. The message is one line: which file, what is wrong with it, what is expected."""

    def __init__(self, message: str) -> None:
        # Names inside a hostile file may hold anything; the message stays one line.
        super().__init__("".join(char if char.isprintable() else " " for char in message))


class StoredMatrix(Protocol):
    """A matrix `[rows, columns]` that is stored quantized; its numbers are made when they are asked for."""

    @property
    def shape(self) -> tuple[int, int]:
        """Returns rows and columns."""

    @property
    def nbytes(self) -> int:
        """Returns the stored bytes."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice | torch.Tensor) -> StoredMatrix:
        """Returns some rows, by a slice or by their numbers."""

    def columns(self, part: slice) -> StoredMatrix:
        """Returns some columns; raises ValueError where they begin or end within a group."""

    def dequantize(self) -> torch.Tensor:
        """Returns the numbers, float32."""

    def grouped(self) -> Grouped | None:
        """Returns the numbers as small integers and scales of groups; None where that cannot express them exactly."""

    def float8(self) -> Float8Rows | None:
        """Returns the numbers as floats of 8 bits, where they are stored so."""

    @property
    def mapped(self) -> tuple[torch.Tensor, ...]:
        """Returns the contiguous views of its file, for `release_mapped`."""


class Checkpoint(Protocol):
    """An open checkpoint whose tensors are known to be there, in the right shapes, before the first one is read."""

    @property
    def path(self) -> Path:
        """Returns the path of the folder or file."""

    @property
    def format(self) -> Literal["meta", "hugging_face", "gguf"]:
        """Returns the format: the family of files."""

    @property
    def config(self) -> ModelConfig:
        """Returns the model's sizes and constants."""

    @property
    def dtype(self) -> torch.dtype:
        """Returns the dtype of most of the stored bytes."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Returns the ids that end an answer; empty when the checkpoint does not say."""

    @property
    def bos_id(self) -> int | None:
        """Returns the id that begins a sequence; None when the checkpoint does not say."""

    @property
    def sampling_defaults(self) -> Mapping[str, float | int]:
        """Returns the model's own temperature, top_k, top_p, min_p and repetition_penalty, those that it states, and
        the repetition_window where the format means another one than ours."""

    @property
    def total_bytes(self) -> int:
        """Returns the stored size of all tensors that `tensors` gives."""

    @property
    def stored_as(self) -> Mapping[str, int]:
        """Returns the stored bytes by dtype, the most first."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor | StoredMatrix]]:
        """Yields every tensor of `config.tensor_shapes()`, by canonical name and in that order, as a read-only view of
        its file where possible. Raises CheckpointError."""

    def release(self, piece: torch.Tensor | StoredMatrix) -> None:
        """Releases the memory behind rows of a tensor of `tensors` that were copied; they can still be read."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What a file says about one of its tensors; a dtype that torch is not asked for stays text."""

    shape: tuple[int, ...]
    dtype: torch.dtype | BlockKind | str

    @property
    def bytes(self) -> int:
        """Returns its size in the file."""
        assert not isinstance(self.dtype, str)
        if isinstance(self.dtype, BlockKind):
            return math.prod(self.shape) // self.dtype.block_numbers * self.dtype.block_bytes
        return math.prod(self.shape) * self.dtype.itemsize


def match_tensors(path: Path, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, StoredTensor]) -> None:
    """Compares what a config promises with what the files hold, both by the names of the files.

    Raises CheckpointError for the first kind of difference: missing, extra, misshapen, of a dtype that is not served.
    """
    if missing := [name for name in expected if name not in found]:
        raise CheckpointError(f"{path}: {_listed(missing)} missing")
    if extra := [name for name in found if name not in expected]:
        raise CheckpointError(f"{path}: {_listed(extra)} not part of the model that the config describes")
    for name, shape in expected.items():
        stored = found[name]
        if stored.shape != shape:
            raise CheckpointError(
                f"{path}: tensor {name} has the shape {list(stored.shape)}, but the config makes it {list(shape)}"
            )
        if stored.dtype not in DTYPES.values() and not isinstance(stored.dtype, BlockKind):
            allowed = ", ".join(DTYPES)
            raise CheckpointError(f"{path}: tensor {name} is stored as {_dtype_name(stored.dtype)}; served: {allowed}")


def main_dtype(tensors: Iterable[StoredTensor]) -> torch.dtype:
    """Returns the dtype that holds most of the bytes; quantized ones are computed with in bfloat16."""
    sizes = dict.fromkeys(DTYPES.values(), 0)
    for tensor in tensors:
        sizes[tensor.dtype if isinstance(tensor.dtype, torch.dtype) else torch.bfloat16] += tensor.bytes
    return max(sizes, key=lambda dtype: sizes[dtype])


def bytes_by_dtype(tensors: Iterable[StoredTensor]) -> dict[str, int]:
    """Returns the stored bytes of each dtype, the most first."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        name = _dtype_name(tensor.dtype)
        sizes[name] = sizes.get(name, 0) + tensor.bytes
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def rows_in_order(tensor: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Copies `tensor[order]` to memory of its own."""
    return torch.index_select(tensor, 0, order, out=zeros((len(order), *tensor.shape[1:]), tensor.dtype))


def joined(parts: Sequence[torch.Tensor], dimension: int) -> torch.Tensor:
    """Does `torch.cat` to memory of its own."""
    shape = list(parts[0].shape)
    shape[dimension] = sum(part.shape[dimension] for part in parts)
    return torch.cat(list(parts), dimension, out=zeros(tuple(shape), parts[0].dtype))


def release_mapped(piece: torch.Tensor | StoredMatrix) -> None:
    """Drops the resident pages that lie wholly inside a tensor which is an unmodified view of a mapped file.

    Without this, a process that copies its weights counts them twice. They are read again when somebody looks. Never
    call it for memory that is not a file's: that would be zeroed.
    """
    if sys.platform != "linux":
        return  # other systems reclaim clean pages by themselves; the advice means something else there
    for view in (piece,) if isinstance(piece, torch.Tensor) else piece.mapped:
        assert view.is_contiguous()
        start = -(-view.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (view.data_ptr() + view.numel() * view.element_size()) // mmap.PAGESIZE * mmap.PAGESIZE
        if start < end:
            # Advice: if it fails, nothing is lost but the saving.
            _MADVISE(start, end - start, mmap.MADV_DONTNEED)


def _listed(names: list[str]) -> str:
    if len(names) == 1:
        return f"tensor {names[0]} is"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"tensors {', '.join(names[:3])}{more} are"


def _dtype_name(dtype: torch.dtype | BlockKind | str) -> str:
    return dtype.name if isinstance(dtype, BlockKind) else str(dtype).removeprefix("torch.")


if sys.platform == "linux":
    _MADVISE = ctypes.CDLL(None, use_errno=True).madvise
    _MADVISE.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    _MADVISE.restype = ctypes.c_int

"""Opens a GGUF model in one file, or in parts as llama.cpp's `llama-gguf-split` cuts it.

The parts are called NAME-00001-of-00003.gguf. Each has a header of its own tensors, `split.no` (from 0), `split.count`
and `split.tensors.count` (of all parts); the first one has the model's keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tandem.common.gguf import PART_NAME, GgufError, GgufHeader, GgufTensor, read_header
from tandem.worker.checkpoints.checkpoint import CheckpointError


@dataclass(frozen=True, slots=True)
class Located:
    """A tensor and the file that it lies in."""

    tensor: GgufTensor
    file: torch.Tensor  # [bytes] uint8
    path: Path


@dataclass(frozen=True, slots=True)
class GgufFiles:
    """The keys of the first part and the tensors of all of them."""

    path: Path  # of the first part
    metadata: dict[str, Any]
    tensors: dict[str, Located]


def open_files(path: Path, wanted: Callable[[str], bool]) -> GgufFiles:
    """Reads the headers; `path` is the file or any of its parts. Raises CheckpointError."""
    header = _read(path, wanted)
    count = header.metadata.get("split.count", 1)
    if type(count) is not int or count <= 1:
        return GgufFiles(path, header.metadata, _located(path, header))
    match = PART_NAME.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        raise CheckpointError(
            f"{path}: is one of {count} parts, which must be called NAME-00001-of-{count:05d}.gguf and so on"
        )
    parts = [path.with_name(f"{match[1]}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    metadata: dict[str, Any] = {}
    tensors: dict[str, Located] = {}
    for number, part in enumerate(parts):
        if not part.is_file():
            raise CheckpointError(f"{part}: is missing, of {count} parts")
        header = _read(part, wanted)
        if (header.metadata.get("split.no"), header.metadata.get("split.count")) != (number, count):
            raise CheckpointError(
                f"{part}: does not say that it is part {number + 1} of {count} (split.no, split.count)"
            )
        metadata = metadata or header.metadata
        for name, tensor in _located(part, header).items():
            if name in tensors:
                raise CheckpointError(f"{part}: has the tensor {name}, which is in {tensors[name].path.name} too")
            tensors[name] = tensor
    return GgufFiles(parts[0], metadata, tensors)


def _read(path: Path, wanted: Callable[[str], bool]) -> GgufHeader:
    try:
        return read_header(path, wanted)
    except GgufError as error:
        raise CheckpointError(str(error)) from None


def _located(path: Path, header: GgufHeader) -> dict[str, Located]:
    file = _mapped(path)
    return {name: Located(tensor, file, path) for name, tensor in header.tensors.items()}


def _mapped(path: Path) -> torch.Tensor:
    """Maps the whole file, `[bytes]` uint8, privately."""
    try:
        return torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{path}: cannot be mapped: {str(error).splitlines()[0]}") from error

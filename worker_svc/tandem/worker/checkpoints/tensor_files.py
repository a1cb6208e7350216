"""Files of tensors beside a `config.json`: safetensors, or what `torch.save` wrote, one or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from tandem.worker.checkpoints.checkpoint import CheckpointError, StoredTensor
from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.pickled import load_tensors

_DTYPES: Mapping[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}
_SERVED = frozenset(_DTYPES.values())
_OF_WEIGHTS = (".bin", ".safetensors", ".pth", ".gguf")


class TensorFile(Protocol):
    """An open file of named tensors."""

    def keys(self) -> Iterable[str]:
        """Returns their names."""

    def get_tensor(self, name: str) -> torch.Tensor:
        """Returns one, as a read-only view of the file where it can be."""

    def stored(self, name: str) -> StoredTensor:
        """Returns what the file says of one."""


def open_files(path: Path, names: Iterable[str]) -> dict[str, TensorFile]:
    """Returns every tensor's name and the open file in the folder `path` that holds it: the first of `names` that is
    there, or those that its index lists. Raises CheckpointError."""
    names = tuple(names)
    for name in names:
        single, index = path / name, path / f"{name}.index.json"
        if single.exists():
            file = _open(single)
            return dict.fromkeys(file.keys(), file)
        if index.exists():
            return _open_shards(path, Fields.read(index))
    try:
        others = sorted(file.name for file in path.iterdir() if file.suffix in _OF_WEIGHTS)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    there = f"; there is {', '.join(others[:3])}, which is not served" if others else ""
    raise CheckpointError(f"{path}: neither {' nor '.join(names)} nor an index of either is there{there}")


def read_tensor(path: Path, file: TensorFile, name: str, shown: str) -> torch.Tensor:
    """Returns a tensor of a file, which errors call `shown`. Raises CheckpointError."""
    try:
        return file.get_tensor(name)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise CheckpointError(f"{path}: tensor {shown} cannot be read: {error}") from error


def _open_shards(path: Path, index: Fields) -> dict[str, TensorFile]:
    weight_map = index.object("weight_map")
    shards: dict[str, TensorFile] = {}
    for name, shard in weight_map.values.items():
        if not isinstance(shard, str) or shard in ("", ".", "..") or Path(shard).name != shard:
            raise weight_map.error(name, f"must be the name of a file in the same folder, but is {shard!r}")
        if shard not in shards:
            shards[shard] = _open(path / shard)
    held: dict[str, str] = {}
    for shard, file in shards.items():
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            if name in held:
                raise CheckpointError(f"{path / shard}: has the tensor {name}, which is in {held[name]} too")
            held[name] = shard
    for name, shard in weight_map.values.items():
        if held.get(name) != shard:
            raise CheckpointError(f"{path / shard}: tensor {name} is missing, which {index.path.name} says is there")
    return {name: shards[shard] for name, shard in held.items()}


class _Pickled:
    """A file of `torch.save`."""

    def __init__(self, file: Path) -> None:
        self._tensors = load_tensors(file)

    def keys(self) -> Iterable[str]:
        return self._tensors

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def stored(self, name: str) -> StoredTensor:
        tensor = self._tensors[name]
        return StoredTensor(tuple(tensor.shape), tensor.dtype if tensor.dtype in _SERVED else str(tensor.dtype))


class _Safetensors:
    def __init__(self, file: Path) -> None:
        self._file: Any = safe_open(file, framework="pt", device="cpu")

    def keys(self) -> Iterable[str]:
        names: list[str] = self._file.keys()
        return names

    def get_tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor

    def stored(self, name: str) -> StoredTensor:
        header = self._file.get_slice(name)
        dtype: str = header.get_dtype()
        return StoredTensor(tuple(header.get_shape()), _DTYPES.get(dtype, dtype))


def _open(file: Path) -> TensorFile:
    if file.suffix == ".bin":
        return _Pickled(file)
    try:
        with file.open("rb"):
            pass  # safe_open calls a file that may not be read a missing one
        return _Safetensors(file)
    except FileNotFoundError:
        raise CheckpointError(f"{file}: no such file") from None
    except (PermissionError, IsADirectoryError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{file}: damaged or truncated: {error}") from error

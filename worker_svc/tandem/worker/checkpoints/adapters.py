"""Adapters that were trained beside a model (LoRA, https://arxiv.org/abs/2106.09685), as PEFT writes them. Their
changes are added to the model's tensors when these are read:

    W' = W + scale * B A      A [r, in], B [out, r]; scale = lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora

Of a matrix that is stored the other way round, and of an embedding, `(B A)^T` is added. A tensor that was trained whole
(`modules_to_save`, biases) takes the place of the model's.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.worker.checkpoints.checkpoint import CheckpointError, StoredTensor, release_mapped
from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.hugging_face_fields.adapters import ADAPTER
from tandem.worker.checkpoints.known_fields import check_fields
from tandem.worker.checkpoints.tensor_files import TensorFile, open_files, read_tensor

_log = logging.getLogger(__name__)

_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_PREFIX = "base_model.model."
_PART = re.compile(r"(.+)\.lora_(embedding_)?([AB])(?:\.default)?(?:\.weight)?")
_WHOLE = re.compile(r"(.+?)(?:\.base_layer|\.modules_to_save(?:\.default)?)?\.(weight|bias)")
_PATTERN = re.compile(r"\^?(?:\w|\\?\.)+")
_FLOATS = frozenset((torch.float32, torch.float16, torch.bfloat16))


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor of the adapter's files."""

    path: Path
    file: TensorFile
    name: str

    @property
    def stored(self) -> StoredTensor:
        return self.file.stored(self.name)

    def read(self) -> torch.Tensor:
        return read_tensor(self.path, self.file, self.name, self.name)


@dataclass(frozen=True, slots=True)
class _Update:
    """What is added to a matrix."""

    a: _Tensor
    b: _Tensor
    scale: float
    turned: bool  # the matrix is `[in, out]`

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns that of the matrix; raises ValueError where A and B do not go together."""
        (rank, columns), (rows, other) = self.a.stored.shape, self.b.stored.shape
        if rank != other:
            raise ValueError
        return (columns, rows) if self.turned else (rows, columns)

    def added_to(self, matrix: torch.Tensor) -> torch.Tensor:
        a, b = self.a.read().float(), self.b.read().float()
        left, right = (a.t(), b.t()) if self.turned else (b, a)
        return torch.addmm(matrix.float(), left, right, alpha=self.scale).to(matrix.dtype)


class Adapted:
    """A tensor of a model with an adapter's change, as a file that has it alone; what is read is a copy."""

    def __init__(self, base: TensorFile, change: _Update | _Tensor) -> None:
        self._base = base
        self._change = change

    def keys(self) -> Iterable[str]:
        return self._base.keys()

    def stored(self, name: str) -> StoredTensor:
        return self._base.stored(name)

    def get_tensor(self, name: str) -> torch.Tensor:
        whole = self._base.get_tensor(name)
        if isinstance(self._change, _Tensor):
            return self._change.read().to(whole.dtype, copy=True)
        found = self._change.added_to(whole)
        release_mapped(whole)
        return found


def adapted_tensors(files: Mapping[str, TensorFile], path: Path) -> dict[str, TensorFile]:
    """Returns the tensors of a model that the adapter in the folder `path` changes. `files` has those of the model by
    their names. Raises CheckpointError."""
    config = Fields.read(path / "adapter_config.json")
    check_fields(config, ADAPTER)
    changes = _changes(config, open_files(path, _WEIGHTS))
    for name, change in changes.items():
        of = f"{path}: the change of {name}"
        if name not in files:
            packed = any(each.startswith(name.removesuffix("weight")) for each in files)
            raise CheckpointError(f"{of}: the model {'has it quantized' if packed else 'has no such tensor'}")
        ours = files[name].stored(name)
        if ours.dtype not in _FLOATS:
            raise CheckpointError(f"{of}: the model has it quantized, as {ours.dtype}")
        try:
            shape = change.stored.shape if isinstance(change, _Tensor) else change.shape
        except ValueError:
            raise CheckpointError(f"{of}: lora_A and lora_B have other shapes than [r, in] and [out, r]") from None
        if shape != ours.shape:
            raise CheckpointError(f"{of} has the shape {list(shape)}, but the tensor has {list(ours.shape)}")
    _log.info("%s changes %d tensors", path, len(changes))
    return {name: Adapted(files[name], change) for name, change in changes.items()}


def _changes(config: Fields, files: Mapping[str, TensorFile]) -> dict[str, _Update | _Tensor]:
    """Returns the changes by the names of the model's tensors."""
    parts: dict[tuple[str, bool], dict[str, _Tensor]] = {}
    found: dict[str, _Update | _Tensor] = {}
    for name, file in files.items():
        tensor = _Tensor(config.path.parent, file, name)
        if tensor.stored.dtype not in _FLOATS:
            raise CheckpointError(f"{config.path.parent}: {name} is stored as {tensor.stored.dtype}")
        ours = name.removeprefix(_PREFIX)
        if part := _PART.fullmatch(ours):
            parts.setdefault((part[1], part[2] is not None), {})[part[3]] = tensor
        elif (whole := _WHOLE.fullmatch(ours)) and "lora_" not in ours:
            found[f"{whole[1]}.{whole[2]}"] = tensor
        else:
            raise CheckpointError(f"{config.path.parent}: {name} is of a kind of adapter that is not served")
    for (module, embedding), both in parts.items():
        if both.keys() != {"A", "B"}:
            missing = f"lora_{'embedding_' if embedding else ''}{'B' if 'A' in both else 'A'}"
            raise CheckpointError(f"{config.path.parent}: {module} has no {missing}")
        rank = int(_of_module(config, "rank_pattern", module, config.integer("r", 8)))
        if both["A"].stored.shape[:1] != (rank,):
            raise config.error("r", f"is {rank} for {module}, but lora_A has another rank")
        turned = embedding or config.boolean("fan_in_fan_out", False)
        found[f"{module}.weight"] = _Update(both["A"], both["B"], _scale(config, module, rank), turned)
    if not found:
        raise CheckpointError(f"{config.path.parent}: has no tensors")
    return found


def _scale(config: Fields, module: str, rank: int) -> float:
    alpha = _of_module(config, "alpha_pattern", module, config.number("lora_alpha", 8.0))
    return alpha / math.sqrt(rank) if config.boolean("use_rslora", False) else alpha / rank


def _of_module(config: Fields, key: str, module: str, usual: float) -> float:
    """Returns what the first pattern that fits a module says."""
    patterns = config.object(key)
    for pattern in patterns.values:
        if not _PATTERN.fullmatch(pattern):  # others could take for ever
            raise patterns.error(pattern, "is not served; served are names of modules")
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            return patterns.number(pattern)
    return usual

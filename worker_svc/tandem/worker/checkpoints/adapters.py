"""Adapters that were trained beside a model (LoRA, https://arxiv.org/abs/2106.09685), as PEFT writes them:

    W' = W + scale * B A      A [r, in], B [out, r]; scale = lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora

One adapter's changes are added to the model's tensors when these are read. Of a matrix that is stored the other way
round, and of an embedding, `(B A)^T` is added. A tensor that was trained whole (`modules_to_save`, biases) takes the
place of the model's. Or A and B of several stay beside the model, and what they give is added to what its matrices give
(`LowRank`).
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

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
# The matrices whose changes may stay beside the model, by their canonical names.
_BESIDE = re.compile(r"layers\.\d+\.(attention\.(q|k|v|gate|output)|mlp\.(gate|up|down))")
_FLOATS = frozenset((torch.float32, torch.float16, torch.bfloat16))


Rows: TypeAlias = Callable[[torch.Tensor], torch.Tensor]  # takes those of one matrix out of those of a stored tensor
# What the model's files call a tensor, by the name that an adapter has for it; None: it is of what is not loaded.
Named: TypeAlias = Callable[[str], str | None]


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


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to a matrix `[out, in]` of the model: `scale * b a`, with a `[r, in]` and b `[out, r]`. Both
    are read when they are asked for: those of many adapters may be more than the model."""

    of: str  # where it is from, for errors
    update: _Update
    rows: Rows

    @property
    def a(self) -> torch.Tensor:
        return self.update.a.read()

    @property
    def b(self) -> torch.Tensor:
        return self.rows(self.update.b.read()).contiguous()

    @property
    def scale(self) -> float:
        return self.update.scale


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


def adapted_tensors(files: Mapping[str, TensorFile], path: Path, named: Named) -> dict[str, TensorFile]:
    """Returns the tensors of a model that the adapter in the folder `path` changes. `files` has those of the model by
    their names. Raises CheckpointError."""
    changes = _read(path, named)
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


def low_rank(
    path: Path,
    named: Named,
    parts_of: Callable[[str], Mapping[str, Rows]],
    shapes: Mapping[str, tuple[int, ...]],
    is_turned: Callable[[str], bool],
) -> dict[str, LowRank]:
    """Returns what the adapter in the folder `path` adds to matrices of the model, by their canonical names.

    `parts_of` tells the matrices that lie in a tensor of the files, and how the rows of each are taken out of it;
    `is_turned` whether the files have it the other way round; `shapes` are those of the matrices. Raises
    CheckpointError for what can only be added to the weights.
    """
    found: dict[str, LowRank] = {}
    for stored, change in _read(path, named).items():
        of = f"{path}: the change of {stored}"
        parts = parts_of(stored)
        if isinstance(change, _Tensor) or not parts or not all(map(_BESIDE.fullmatch, parts)):
            what = "of attention and of feed-forward parts without experts"
            raise CheckpointError(
                f"{of} cannot be kept beside the model, but those of matrices {what} can; use adapter"
            )
        if change.turned != is_turned(stored):
            raise CheckpointError(f"{of}: fan_in_fan_out is {change.turned}, which the model's files contradict")
        a, b = change.a.stored.shape, change.b.stored.shape
        whole = sum(shapes[name][0] for name in parts)
        if len(a) != 2 or len(b) != 2 or a[0] != b[1]:
            raise CheckpointError(f"{of}: lora_A and lora_B have other shapes than [r, in] and [out, r]")
        for name, rows in parts.items():
            if (b[0], a[1]) != (whole, shapes[name][1]):
                has = [b[0], a[1]]
                raise CheckpointError(f"{of} has the shape {has}, but the matrix has {[whole, shapes[name][1]]}")
            found[name] = LowRank(of, change, rows)
    _log.info("%s stays beside the model and changes %d matrices", path, len(found))
    return found


def _read(path: Path, named: Named) -> dict[str, _Update | _Tensor]:
    """Returns an adapter's changes by the names of tensors in the model's files."""
    config = Fields.read(path / "adapter_config.json")
    check_fields(config, ADAPTER)
    found: dict[str, _Update | _Tensor] = {}
    for theirs, change in _changes(config, open_files(path, _WEIGHTS)).items():
        if (name := named(theirs)) is None:
            continue
        if name in found:
            raise CheckpointError(f"{path}: changes {name} twice, under two names")
        found[name] = change
    if not found:
        raise CheckpointError(f"{path}: changes nothing that is loaded of the model")
    return found


def _changes(config: Fields, files: Mapping[str, TensorFile]) -> dict[str, _Update | _Tensor]:
    """Returns the changes by the names that tensors have in the model that was trained."""
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
        if rank < 1 or both["A"].stored.shape[:1] != (rank,):
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

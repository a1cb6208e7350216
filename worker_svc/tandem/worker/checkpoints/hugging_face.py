"""Reads Hugging Face's layout: `config.json`, `generation_config.json` and one or several safetensors files.

- Weights are in `model.safetensors`, or spread over files that `model.safetensors.index.json` lists.
- RoPE pairs are half a head apart, which is also our convention.
- `dtype` and `torch_dtype` of the config are not looked at: the files know better.
- Which fields are known: `hugging_face_fields.py`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open

from tandem.worker.checkpoints.checkpoint import (
    CheckpointError,
    StoredMatrix,
    StoredTensor,
    bytes_by_dtype,
    main_dtype,
    match_tensors,
    release_mapped,
    rows_in_order,
)
from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.hugging_face_architectures import EMBEDDING, OUTPUT
from tandem.worker.checkpoints.hugging_face_config import architecture_of, read_config
from tandem.worker.checkpoints.hugging_face_fields import GENERATION
from tandem.worker.checkpoints.known_fields import check_fields
from tandem.worker.checkpoints.packed import PackedMatrix, Packing, packing_of
from tandem.worker.checkpoints.row_order import halves_order
from tandem.worker.checkpoints.sampling_defaults import sampling_defaults

_log = logging.getLogger(__name__)

_IGNORED = re.compile(r"(.+\.)?rotary_emb\.inv_freq")  # a table that older exports carry; we compute our own
_DTYPES: Mapping[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
}


class HuggingFaceCheckpoint:
    """An open folder in Hugging Face's layout; see `Checkpoint`."""

    format: Literal["hugging_face"] = "hugging_face"

    def __init__(self, path: Path) -> None:
        """Reads everything but the weights themselves. Raises CheckpointError."""
        self.path = path
        config = Fields.read(path / "config.json")
        self._architecture = architecture_of(config)
        self._files = _open_files(path)  # stored name -> the open file that has it
        stored = {name: _stored(file, name) for name, file in self._files.items()}
        self._embedding = EMBEDDING
        tied = config.boolean("tie_word_embeddings", self._architecture.tied)
        if tied and OUTPUT in stored:
            if EMBEDDING not in stored:
                self._embedding = OUTPUT
            elif stored[OUTPUT] == stored[EMBEDDING] and self._equal(OUTPUT, EMBEDDING):
                del stored[OUTPUT]
            else:
                tied = False
                _log.warning(
                    "%s: tie_word_embeddings is true, but %s differs from %s; both are used", path, OUTPUT, EMBEDDING
                )
        self.config = read_config(config, self._architecture, tied)
        shapes = {self._stored_name(name): shape for name, shape in self.config.tensor_shapes().items()}
        self._packed: dict[str, PackedMatrix] = {}
        self._copy: torch.Tensor | None = None  # rows in another order than they lie in the file
        packing = packing_of(config)
        if packing is not None and self._architecture.interleaved:
            raise config.error("quantization_config", f"of {self._architecture.class_name} is not served")
        self.stored_as = bytes_by_dtype(tensor for tensor in stored.values() if not isinstance(tensor.dtype, str))
        if packing is not None:
            self._unpack(packing, shapes, stored)
        match_tensors(path, shapes, stored)
        self.dtype = main_dtype(stored.values())
        self.total_bytes = sum(tensor.bytes for tensor in stored.values())
        self.total_bytes += sum(matrix.nbytes for matrix in self._packed.values())
        generation_file = path / "generation_config.json"
        generation = Fields.read(generation_file) if generation_file.exists() else Fields(generation_file, {})
        check_fields(generation, GENERATION)
        self.eos_ids = self._special_ids("eos_token_id", generation, config)
        self.bos_id = next(iter(self._special_ids("bos_token_id", generation, config)), None)
        samples = generation.boolean("do_sample", True)
        self.sampling_defaults = sampling_defaults(generation) if samples else {}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor | StoredMatrix]]:
        """Implements `Checkpoint.tensors`."""
        for name in self.config.tensor_shapes():
            stored_name = self._stored_name(name)
            packed = self._packed.get(stored_name)
            if packed is not None:
                yield name, packed
            elif self._architecture.interleaved and name.endswith((".q", ".k", ".q_bias", ".k_bias")):
                heads = self.config.num_heads if ".q" in name else self.config.num_kv_heads
                mapped = self._read(stored_name)
                self._copy = rows_in_order(mapped, halves_order(heads, self.config.head_dim))
                release_mapped(mapped)
                yield name, self._copy
            elif self._architecture.norms_from_one and name.endswith("norm"):
                self._copy = self._read(stored_name).float() + 1
                yield name, self._copy
            else:
                yield name, self._read(stored_name)

    def release(self, piece: torch.Tensor | StoredMatrix) -> None:
        """Implements `Checkpoint.release`."""
        if not (isinstance(piece, torch.Tensor) and self._copy is not None and _same_memory(piece, self._copy)):
            release_mapped(piece)

    def _stored_name(self, name: str) -> str:
        return self._embedding if name == "embedding" else self._architecture.stored_name(name)

    def _special_ids(self, key: str, generation: Fields, config: Fields) -> tuple[int, ...]:
        """Reads ids from generation_config.json, else config.json, else takes the architecture's defaults."""
        vocab_size = self.config.vocab_size
        for fields in (generation, config):
            if fields.has(key):
                return fields.token_ids(key, vocab_size)
        default = self._architecture.special_ids.get(key)
        if key in config.values or default is None or default >= vocab_size:
            return ()  # null says that there is none
        return (default,)

    def _unpack(self, packing: Packing, shapes: dict[str, tuple[int, ...]], stored: dict[str, StoredTensor]) -> None:
        """Takes the matrices that are packed out of what is expected and what is stored. Raises CheckpointError."""
        for name in [name for name in shapes if name.removesuffix("weight") + "qweight" in stored]:
            base = name.removesuffix("weight")
            if base + "bias" in stored and base + "bias" not in shapes:
                # Some tools write a bias of zeros for every matrix.
                if self._read(base + "bias").any():
                    raise CheckpointError(f"{self.path}: tensor {base}bias is not part of the model, and not zero")
                del stored[base + "bias"]
            rows, columns = shapes.pop(name)
            if rows % 8 or columns % 8:
                raise CheckpointError(f"{self.path}: {base}qweight is [{rows}, {columns}]; packed are eights of both")
            expected = {base + part: shape for part, shape in packing.shapes(rows, columns).items()}
            if base + "g_idx" not in stored and not packing.reordered:
                expected.pop(base + "g_idx", None)
            found = {part: stored.pop(part) for part in expected if part in stored}
            # Whole numbers are what is wanted here; their shapes are compared as all shapes are.
            for part, tensor in found.items():
                if (tensor.dtype == torch.int32) == part.endswith("scales"):
                    raise CheckpointError(
                        f"{self.path}: tensor {part} is stored as {tensor.dtype}, not as it is packed"
                    )
            match_tensors(
                self.path, expected, {part: replace(tensor, dtype=torch.float32) for part, tensor in found.items()}
            )
            parts = {part.removeprefix(base): self._read(part) for part in expected}
            try:
                self._packed[name] = PackedMatrix.of(packing, parts)
            except ValueError as error:
                raise CheckpointError(f"{self.path}: {base}g_idx {error}") from error

    def _read(self, stored_name: str) -> torch.Tensor:
        try:
            tensor: torch.Tensor = self._files[stored_name].get_tensor(stored_name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise CheckpointError(f"{self.path}: tensor {stored_name} cannot be read: {error}") from error
        return tensor

    def _equal(self, one: str, other: str) -> bool:
        first, second = self._read(one), self._read(other)
        same = torch.equal(first, second)
        release_mapped(first)
        release_mapped(second)
        return same


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tells whether both are views of the same storage."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _open_files(path: Path) -> dict[str, Any]:
    """Returns every stored tensor's name and the open safetensors file that holds it."""
    single, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if single.exists():
        file = _open(single)
        return {name: file for name in file.keys() if not _IGNORED.fullmatch(name)}  # noqa: SIM118 (not a mapping)
    if not index.exists():
        others = sorted(
            file.name for file in path.iterdir() if file.suffix in (".bin", ".safetensors", ".pth", ".gguf")
        )
        there = f"; there is {', '.join(others[:3])}, which is not served" if others else ""
        raise CheckpointError(f"{path}: neither {single.name} nor {index.name} is there{there}")
    return _open_shards(path, Fields.read(index))


def _open_shards(path: Path, index: Fields) -> dict[str, Any]:
    weight_map = index.object("weight_map")
    shards: dict[str, Any] = {}
    for name, shard in weight_map.values.items():
        if not isinstance(shard, str) or shard in ("", ".", "..") or Path(shard).name != shard:
            raise weight_map.error(name, f"must be the name of a file in the same folder, but is {shard!r}")
        if shard not in shards:
            shards[shard] = _open(path / shard)
    held: dict[str, str] = {}
    for shard, file in shards.items():
        for name in file.keys():  # noqa: SIM118
            if name in held:
                raise CheckpointError(f"{path / shard}: has the tensor {name}, which is in {held[name]} too")
            held[name] = shard
    for name, shard in weight_map.values.items():
        if held.get(name) != shard:
            raise CheckpointError(f"{path / shard}: tensor {name} is missing, which {index.path.name} says is there")
    return {name: shards[shard] for name, shard in held.items() if not _IGNORED.fullmatch(name)}


def _open(file: Path) -> Any:
    try:
        with file.open("rb"):
            pass  # safe_open calls a file that may not be read a missing one
        return safe_open(file, framework="pt", device="cpu")
    except FileNotFoundError:
        raise CheckpointError(f"{file}: no such file") from None
    except (PermissionError, IsADirectoryError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{file}: damaged or truncated: {error}") from error


def _stored(file: Any, name: str) -> StoredTensor:
    header = file.get_slice(name)
    dtype: str = header.get_dtype()
    return StoredTensor(tuple(header.get_shape()), _DTYPES.get(dtype, dtype))

"""Writes Hugging Face's layout: `config.json`, `generation_config.json`, safetensors of at most 5 GB each."""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from tandem.worker.checkpoints.hugging_face import row_order, shapes_in_files
from tandem.worker.checkpoints.hugging_face_architectures import ARCHITECTURES
from tandem.worker.checkpoints.hugging_face_hybrids import Piece, pieces, state_pieces
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.places import places_with_latents, transposed_by_head
from tandem.worker.convert.described import describe
from tandem.worker.convert.pieces import Source, flush, reserve, write_at, write_text

_SHARD_BYTES = 5_000_000_000
_DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64"}


def write_hugging_face(source: Source, folder: Path) -> None:
    """Fills an empty folder. Raises ConvertError, CheckpointError, OSError."""
    checkpoint = source.checkpoint
    described = describe(checkpoint.config)
    name = str(source.dtype).removeprefix("torch.")
    described |= {"torch_dtype": name, "bos_token_id": checkpoint.bos_id, "eos_token_id": _ids(checkpoint.eos_ids)}
    generation: dict[str, Any] = {"bos_token_id": checkpoint.bos_id, "eos_token_id": _ids(checkpoint.eos_ids)}
    if defaults := {**checkpoint.sampling_defaults}:
        defaults.pop("repetition_window", None)  # the format has one alone
        generation |= {"do_sample": True, **defaults}
    write_text(folder / "config.json", json.dumps(described, indent=2) + "\n")
    write_text(folder / "generation_config.json", json.dumps(generation, indent=2) + "\n")
    _write_tensors(source, folder)


def _ids(ids: tuple[int, ...]) -> int | list[int] | None:
    return list(ids) if len(ids) > 1 else ids[0] if ids else None


def _write_tensors(source: Source, folder: Path) -> None:
    layout = _Layout(source.checkpoint.config, source.dtype)
    sizes = {name: math.prod(shape) * layout.dtype(name).itemsize for name, shape in layout.shapes.items()}
    shards = _shards(sizes)
    files = ["model.safetensors"]
    if len(shards) > 1:
        files = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    with ExitStack() as stack:
        places: dict[str, tuple[BinaryIO, int]] = {}
        opened: list[BinaryIO] = [stack.enter_context((folder / file_name).open("w+b")) for file_name in files]
        for file, names in zip(opened, shards, strict=True):
            places |= {name: (file, offset) for name, offset in _begin(file, layout, names).items()}
        joined: dict[tuple[str, int | None], _Joined] = {}
        for name, tensor in source.tensors():
            target = layout.target(name, len(tensor))
            file, offset = places[target.stored]
            shape = layout.shapes[target.stored]
            if target.expert is not None:
                offset += target.expert * (sizes[target.stored] // shape[0])
                shape = shape[1:]
            if target.from_one:
                assert isinstance(tensor, torch.Tensor)
                tensor = tensor.float() - 1
            pieces = source.pieces(name, tensor, layout.dtype(target.stored), target.order)
            if target.rows is None:
                write_at(file, offset, pieces)
                continue
            key = target.stored, target.expert
            if key not in joined:
                joined[key] = _Joined(torch.empty(shape[::-1] if target.transposed else shape, dtype=source.dtype))
            part = torch.cat(list(pieces)).view(source.dtype).view(tuple(tensor.shape))
            if name.endswith("key_up"):
                part = transposed_by_head(part, source.checkpoint.config.num_heads)
            if joined[key].fill(target.rows, part):
                whole = joined.pop(key).whole
                whole = whole.t().contiguous() if target.transposed else whole
                write_at(file, offset, iter([whole.reshape(-1).view(torch.uint8)]))
        assert not joined
        for file in opened:
            flush(file)
    if len(shards) > 1:
        where = {layout.file_name(name): file for file, names in zip(files, shards, strict=True) for name in names}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": where}
        write_text(folder / "model.safetensors.index.json", json.dumps(index, indent=2) + "\n")


def _begin(file: BinaryIO, layout: _Layout, names: list[str]) -> dict[str, int]:
    """Writes a file's header and reserves its room; returns where each tensor begins."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in names:
        dtype = layout.dtype(name)
        end = at + math.prod(layout.shapes[name]) * dtype.itemsize
        header[name] = {"dtype": _DTYPES[dtype], "shape": layout.shapes[name], "data_offsets": [at, end]}
        at = end
    named = {layout.file_name(name): value for name, value in header.items()}
    text = json.dumps(named, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    reserve(file, 8 + len(text) + at)
    file.write(len(text).to_bytes(8, "little") + text)
    return {name: 8 + len(text) + header[name]["data_offsets"][0] for name in names}


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a canonical tensor is written."""

    stored: str
    expert: int | None
    rows: slice | torch.Tensor | None  # of a tensor that several make; None: it is all of it
    order: torch.Tensor | None  # of its own rows; None: as they are
    transposed: bool
    from_one: bool


@dataclass(slots=True)
class _Joined:
    """A stored tensor, or one expert's, that several canonical ones make."""

    whole: torch.Tensor
    filled: int = 0

    def fill(self, rows: slice | torch.Tensor, part: torch.Tensor) -> bool:
        """Puts rows in; tells whether all are there."""
        self.whole[rows] = part
        self.filled += len(part)
        return self.filled == len(self.whole)


class _Layout:
    """What the files of a model have, and where each canonical tensor is in them: the reader's rules, backwards."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        self._config, self._architecture, self._dtype = config, ARCHITECTURES[config.architecture], dtype
        found: dict[str, Piece] = {}
        if self._architecture.hybrid:
            found = pieces(self._architecture, config, ())
        elif config.recurrence is not None:
            found = state_pieces(self._architecture, config)
        others = {name: shape for name, shape in config.tensor_shapes().items() if name not in found}
        how = {"by_turns": self._architecture.experts_by_turns, "by_kv_head": self._architecture.grouped_qkv}
        self._pieces = found
        self._places, shapes = places_with_latents(config, others, self._architecture.stored_name, **how)
        shapes = shapes_in_files(self._architecture, shapes | {piece.stored: piece.shape for piece in found.values()})
        first = (found[name].stored if name in found else self._places[name].stored for name in config.tensor_shapes())
        self.shapes = {name: shapes[name] for name in dict.fromkeys(first)}

    def file_name(self, stored: str) -> str:
        """Returns what a tensor is called in the files."""
        return self._architecture.their_name(stored, parallel_norms=self._config.parallel_norms)

    def dtype(self, stored: str) -> torch.dtype:
        """Returns what a tensor is written in."""
        return torch.int64 if stored.endswith(self._architecture.whole_numbers) else self._dtype

    def target(self, name: str, rows: int) -> _Target:
        """Returns where a tensor with so many rows is written."""
        piece = self._pieces.get(name)
        if piece is not None:
            return _Target(piece.stored, None, piece.rows, None, transposed=False, from_one=piece.from_one)
        place = self._places[name]
        order = row_order(self._config, self._architecture, name, rows)
        is_matrix = len(self.shapes[place.stored]) == (2 if place.expert is None else 3)
        transposed = is_matrix and self._architecture.is_transposed(place.stored, place.expert)
        parts = place.rows if place.rows is not None else slice(None) if transposed else None
        from_one = self._architecture.norms_from_one and name.endswith("norm")
        inverse = None if order is None else order.argsort()
        return _Target(place.stored, place.expert, parts, inverse, transposed, from_one)


def _shards(sizes: dict[str, int]) -> list[list[str]]:
    """Yields names in order, cut where a file would grow too large."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > _SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards

"""Writes a GGUF file as llama.cpp expects it: matrices in one dtype; vectors, biases and routers in float32.

Keys: `gguf_keys.py`. Where tensors go: the reader's `gguf_layout.py`, backwards. The header is read back before any
weights are written, so that nothing is said that is not so. Tokenizers: `tokenizers.py`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tandem.common.gguf import ARRAY, DEFAULT_ALIGNMENT, MAGIC, STRING, read_raw
from tandem.worker.checkpoints.checkpoint import CheckpointError
from tandem.worker.checkpoints.gguf_architectures import ARCHITECTURES
from tandem.worker.checkpoints.gguf_config import LONGROPE, ROPE_DIVISORS, read_config
from tandem.worker.checkpoints.gguf_file import GgufCheckpoint
from tandem.worker.checkpoints.gguf_layout import GgufLayout
from tandem.worker.checkpoints.gguf_parts import open_files
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.convert.byte_pairs import UnknownTokenizerError
from tandem.worker.convert.comparison import difference
from tandem.worker.convert.gguf_folded import divisors_of, factors, folded
from tandem.worker.convert.gguf_keys import describe
from tandem.worker.convert.pieces import LEFT_OUT, Change, ConvertError, Source, flush, reserve, write_at
from tandem.worker.convert.tokenizers import gguf_vocabulary

_KINDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}
_FILE_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 32}
# What `general.architecture` says: the name that the reader's table has for ours, or of another one that says the same.
_WITH_EXPERTS = {"nemotron_h": "nemotron_h_moe"}  # which are another one there
_ONLY_READ = ("qwen2vl", "qwen3vl", "qwen3vlmoe")  # what is written is the text model alone
CONVERTED = {
    **{row.sharing: kind for kind, row in ARCHITECTURES.items() if row.sharing},
    **{row.windowed: kind for kind, row in ARCHITECTURES.items() if row.windowed},
    **{row.with_experts: kind for kind, row in ARCHITECTURES.items() if row.with_experts},
    **{row.name: kind for kind, row in ARCHITECTURES.items() if kind not in (*_WITH_EXPERTS.values(), *_ONLY_READ)},
    **dict.fromkeys(("mistral", "ministral", "mixtral", "internlm3"), "llama"),
    "solar_open": "glm4moe",
    **dict.fromkeys(("deepseek_v2", "glm4_moe_lite", "youtu"), "deepseek2"),
}
# Matrices that stay float32, as llama.cpp has them, by parts of their names.
_FILTERS = ("ssm_conv1d", "ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v")
_SMALL = ("altup_predict_coef", "altup_correct_coef")
_PLAIN = frozenset((*_FILTERS, *_SMALL, "ffn_gate_inp", "ssm_a", "ssm_d", "ssm_norm", "conv", "bias"))
# Of which llama.cpp's converter writes the head that guesses, as a block behind the others.
_WITH_HEAD = ("glm4moe", "qwen35", "qwen35moe")
_UINT32, _INT32, _FLOAT32, _BOOL = 4, 5, 6, 7


@dataclass(frozen=True, slots=True)
class _Tensor:
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int  # from the beginning of the tensors

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_gguf(source: Source, path: Path) -> None:
    """Writes the file. Raises ConvertError, CheckpointError, OSError."""
    config = source.checkpoint.config
    kind = CONVERTED.get(config.architecture)
    if kind is None:
        raise ConvertError(
            f"{config.architecture} is served, but not converted: GGUF files of it are not known; converted are "
            f"{', '.join(CONVERTED)}"
        )
    if config.experts is not None:
        kind = _WITH_EXPERTS.get(kind, kind)
    said, notes = folded(config, ARCHITECTURES[kind])
    source.notes.extend(notes)
    metadata = describe(said, kind) | {"general.name": path.stem, "general.file_type": _FILE_TYPES[source.dtype]}
    vectors = _vectors(config)
    try:
        layout = GgufLayout(said, ARCHITECTURES[kind])
    except KeyError as error:
        raise ConvertError(f"GGUF's {kind} architecture has no tensor for {error.args[0]}") from None
    parts = [(source, config, layout)]
    if source.head is not None and kind in _WITH_HEAD:
        whole, head = source.followed_by(source.head)
        its = source.head.config
        parts = [(whole, config, layout), (head, its, GgufLayout(its, ARCHITECTURES[kind], first=config.num_layers))]
        metadata |= _with_block(metadata, kind, config.num_layers)
    elif source.head is not None:
        source.notes.append(LEFT_OUT)
    if layout.numbers:
        metadata |= _listed(source, layout)
    unread = _unread(said) if ARCHITECTURES[kind].keys_everywhere else {}
    tensors = _stored(vectors, [layout for _, _, layout in parts], unread, source.dtype)
    with path.open("w+b") as file:
        header = _header(metadata, _tokenizer(source), tensors)
        last = max(tensors.values(), key=lambda tensor: tensor.offset)
        size = len(header) + last.offset + last.bytes
        file.write(header)
        file.truncate(size)
        for name, numbers in vectors.items():
            raw = torch.tensor(numbers, dtype=torch.float32).view(torch.uint8)
            write_at(file, len(header) + tensors[name].offset, iter([raw]))
        file.flush()
        _read_back(path, said, kind, vectors)
        reserve(file, size)
        for each, its_config, its_layout in parts:
            for name, tensor in each.tensors():
                if name in its_layout.numbers:
                    continue  # which the header has
                part = _part(its_config, its_layout, name, len(tensor))
                stored = tensors[part.stored]
                offset, row = len(header) + stored.offset, stored.bytes // stored.shape[0]
                if part.expert is not None:
                    offset, row = offset + part.expert * row, row // stored.shape[1]
                for first, order in (*_runs(part.rows), *_unknown(name, len(tensor), stored)):
                    write_at(file, offset + first * row, each.pieces(name, tensor, stored.dtype, order, part.change))
        flush(file)


def _listed(source: Source, layout: GgufLayout) -> dict[str, Any]:
    """Returns the keys that have a number of each layer, which are tensors elsewhere."""
    found: dict[str, dict[int, float]] = {}
    for name, tensor in source.checkpoint.tensors():
        if name in layout.numbers:
            key, layer = layout.numbers[name]
            assert isinstance(tensor, torch.Tensor)
            found.setdefault(key, {})[layer] = float(tensor)
    return {key: [numbers[layer] for layer in sorted(numbers)] for key, numbers in found.items()}


def _with_block(metadata: Mapping[str, Any], kind: str, layers: int) -> dict[str, Any]:
    """Returns the keys that a block behind so many changes."""
    keys: dict[str, Any] = {f"{kind}.block_count": layers + 1, f"{kind}.nextn_predict_layers": 1}
    recurrent = f"{kind}.attention.recurrent_layers"
    return keys | ({recurrent: [*metadata[recurrent], False]} if recurrent in metadata else {})


def _read_back(path: Path, said: ModelConfig, kind: str, vectors: Mapping[str, tuple[float, ...]]) -> None:
    """Raises ConvertError where a reader would make another model of the header, the name of which is not looked at."""
    try:
        files = open_files(path, lambda key: not key.startswith("tokenizer."))
        again, _ = read_config(path, files, lambda name: vectors.get(name, ()))
        if found := difference(said, replace(again, architecture=said.architecture)):
            raise ConvertError(f"GGUF's {kind} architecture cannot have {found}, as this {said.architecture} has")
        GgufCheckpoint(path)  # the tensors, behind the config whose differences explain what is missing among them
    except CheckpointError as error:
        problem = str(error).removeprefix(f"{path}: ")
        raise ConvertError(f"{said.architecture} cannot be described: {problem}") from error


def write_vocabulary(metadata: Mapping[str, bytes], path: Path) -> None:
    """Writes a GGUF file of nothing but a vocabulary; values have their types in front, as from `read_raw`."""
    with path.open("wb") as file:
        file.write(MAGIC + struct.pack("<IQQ", 3, 0, len(metadata)))
        for key, value in metadata.items():
            file.write(_text(key) + value)
        flush(file)


@dataclass(frozen=True, slots=True)
class _Part:
    """Where a canonical tensor is written, and as what."""

    stored: str
    expert: int | None
    rows: torch.Tensor | None  # which rows of the stored tensor, or of the expert's, ours are; None: all of them
    change: Change | None


def _part(config: ModelConfig, layout: GgufLayout, name: str, rows: int) -> _Part:
    piece, factor = layout.pieces.get(name), factors(config, name)
    columns = None if piece is None or piece.columns is None else piece.columns.argsort()
    decays = piece is not None and piece.is_decay

    def change(plain: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        if columns is not None:
            return plain[:, columns]
        if decays:
            return plain.float().exp().neg()
        if isinstance(factor, torch.Tensor):
            return plain.float() * factor[which].unsqueeze(1)
        return plain.float() * factor

    changed = change if columns is not None or decays or not isinstance(factor, float) or factor != 1 else None
    if piece is not None:
        return _Part(piece.stored, None, piece.rows, changed)
    place, order = layout.places[name], layout.order(name, rows)
    if not isinstance(place.rows, slice):
        return _Part(place.stored, place.expert, order, changed)
    return _Part(
        place.stored, place.expert, place.rows.start + (torch.arange(rows) if order is None else order), changed
    )


def _runs(rows: torch.Tensor | None) -> Iterator[tuple[int, torch.Tensor | None]]:
    """Yields runs of neighbouring stored rows: the first, and which of ours they are."""
    if rows is None:
        yield 0, None
        return
    order = rows.argsort()
    placed = rows[order]
    breaks = (placed.diff() != 1).nonzero().flatten() + 1
    for run, which in zip(placed.tensor_split(breaks), order.tensor_split(breaks), strict=True):
        yield int(run[0]), which


def _unknown(name: str, rows: int, stored: _Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields the rows of words that layers are not given anything for but what the first one has (`gguf_folded.py`)."""
    if name == "per_layer.embedding" and rows < stored.shape[0]:
        yield rows, torch.zeros(stored.shape[0] - rows, dtype=torch.int64)


def _vectors(config: ModelConfig) -> dict[str, tuple[float, ...]]:
    """Returns tensors that say how RoPE turns."""
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "longrope":
        return dict(zip(LONGROPE, (scaling.factors, scaling.long_factors), strict=True))
    divisors = divisors_of(config)
    further = (config.window_rotary_dim - config.rotated) // 2  # which layers with a window would have, if any had
    return {ROPE_DIVISORS: (*divisors, *(1.0,) * further)} if divisors else {}


def _unread(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns what layers that look at another one's keys would have for their own, which a file must have to be
    loaded: zeros."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(config.num_layers - config.shared_layers, config.num_layers):
        heads, block = config.layer_heads[layer], f"blk.{layer}"
        for part in ("attn_k", "attn_v"):
            shapes[f"{block}.{part}.weight"] = (heads.number * heads.size, config.hidden_size)
        shapes[f"{block}.attn_k_norm.weight"] = (heads.size,)
    return shapes


def _stored(
    vectors: Mapping[str, tuple[float, ...]],
    layouts: Sequence[GgufLayout],
    unread: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
) -> dict[str, _Tensor]:
    """Returns where each stored tensor goes."""
    shapes: dict[str, tuple[int, ...]] = {name: (len(numbers),) for name, numbers in vectors.items()}
    for layout in layouts:
        shapes |= layout.shapes
    shapes |= unread
    tensors: dict[str, _Tensor] = {}
    offset = 0
    for stored, shape in shapes.items():
        plain = len(shape) == 1 or not _PLAIN.isdisjoint(stored.split("."))
        tensors[stored] = _Tensor(shape, torch.float32 if plain else dtype, offset)
        offset += -(-tensors[stored].bytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
    return tensors


def _tokenizer(source: Source) -> dict[str, Any]:
    """Returns the vocabulary's keys: ready bytes from a GGUF file, values from a tokenizer.json or tokenizer.model."""
    path = source.checkpoint.path
    file = next(iter(path.glob("*.gguf")), None) if path.is_dir() else path
    if file is not None:
        return read_raw(file, lambda key: key.startswith("tokenizer."))
    try:
        return gguf_vocabulary(path, source.checkpoint.config, source.checkpoint.eos_ids)
    except UnknownTokenizerError as problem:
        source.notes.append(f"the file has no tokenizer: {problem}; serve it with --tokenizer {path}")
        return {}


def _header(metadata: Mapping[str, Any], tokenizer: Mapping[str, Any], tensors: Mapping[str, _Tensor]) -> bytes:
    keys = [_text(key) + _value(value) for key, value in (*metadata.items(), *tokenizer.items())]
    infos = [
        _text(name)
        + struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        + struct.pack("<IQ", _KINDS[tensor.dtype], tensor.offset)
        for name, tensor in tensors.items()
    ]
    header = MAGIC + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join((*keys, *infos))
    return header + b"\0" * (-len(header) % DEFAULT_ALIGNMENT)


def _text(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    match value:
        case bytes():
            return value  # with its type already
        case str():
            return struct.pack("<I", STRING) + _text(value)
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _UINT32, value)
        case float():
            return struct.pack("<If", _FLOAT32, value)
        case list() if isinstance(value[0], bytes):
            return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(_text(text) for text in value)
        case list() if isinstance(value[0], bool):
            return struct.pack(f"<IIQ{len(value)}?", ARRAY, _BOOL, len(value), *value)
        case list():
            kind, code = (_FLOAT32, "f") if isinstance(value[0], float) else (_INT32, "i")
            return struct.pack("<IIQ", ARRAY, kind, len(value)) + struct.pack(f"<{len(value)}{code}", *value)
    raise TypeError(type(value).__name__)

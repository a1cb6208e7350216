"""Writes a GGUF file as llama.cpp expects it: matrices in one dtype; vectors, biases and routers in float32.

The tokenizer goes along when the source is a GGUF file or has a SentencePiece `tokenizer.model`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tandem.common.gguf import ARRAY, DEFAULT_ALIGNMENT, MAGIC, STRING, read_raw
from tandem.worker.checkpoints.gguf_config import ROPE_DIVISORS, rope_divisors
from tandem.worker.checkpoints.gguf_file import stored_name
from tandem.worker.checkpoints.layer_parts import yarn_attention_factor
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.row_order import neighbours_order
from tandem.worker.convert.byte_pairs import UnknownTokenizerError
from tandem.worker.convert.pieces import ConvertError, Source, flush, reserve, write_at
from tandem.worker.convert.tokenizers import gguf_vocabulary

_KINDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}
_FILE_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 32}
CONVERTED = {
    "llama": "llama",
    "mistral": "llama",
    "ministral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
}
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
    metadata = describe(config) | {"general.name": path.stem, "general.file_type": _FILE_TYPES[source.dtype]}
    divisors = _divisors(config)
    tensors = _layout(config, source.dtype, len(divisors))
    permuted = CONVERTED[config.architecture] == "llama"
    with path.open("w+b") as file:
        header = _header(metadata, _tokenizer(source), tensors)
        last = max(tensors.values(), key=lambda tensor: tensor.offset)
        reserve(file, len(header) + last.offset + last.bytes)
        file.write(header)
        if divisors:
            raw = torch.tensor(divisors, dtype=torch.float32).view(torch.uint8)
            write_at(file, len(header) + tensors[ROPE_DIVISORS].offset, iter([raw]))
        for name, tensor in source.tensors():
            place, expert = stored_name(name)
            stored = tensors[place]
            offset = len(header) + stored.offset
            if expert is not None:
                offset += expert * (stored.bytes // stored.shape[0])
            order = None
            if permuted and name.endswith((".q", ".k", ".q_bias", ".k_bias")):
                order = neighbours_order(len(tensor) // config.head_dim, config.head_dim)
            write_at(file, offset, source.pieces(name, tensor, stored.dtype, order))
        flush(file)


def write_vocabulary(metadata: Mapping[str, bytes], path: Path) -> None:
    """Writes a GGUF file of nothing but a vocabulary; values have their types in front, as from `read_raw`."""
    with path.open("wb") as file:
        file.write(MAGIC + struct.pack("<IQQ", 3, 0, len(metadata)))
        for key, value in metadata.items():
            file.write(_text(key) + value)
        flush(file)


def describe(config: ModelConfig) -> dict[str, Any]:
    """Returns the keys that describe the model. Raises ConvertError for what llama.cpp does not know."""
    name = CONVERTED.get(config.architecture)
    if name is None:
        raise ConvertError(
            f"{config.architecture} is served, but not converted: what it has beyond Llama is not written as llama.cpp "
            f"has it; converted are {', '.join(CONVERTED)}"
        )
    if any(config.windows):
        raise ConvertError(f"GGUF's {name} architecture has no sliding window, which this {config.architecture} has")
    values: dict[str, Any] = {
        "context_length": config.context_length,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": float(config.rope_theta),
        "vocab_size": config.vocab_size,
    }
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "dynamic":
        raise ConvertError("GGUF cannot say dynamic RoPE scaling")
    if scaling is not None and scaling.kind in ("linear", "yarn"):
        values |= {"rope.scaling.type": scaling.kind, "rope.scaling.factor": float(scaling.factor)}
        usual = yarn_attention_factor(scaling.factor) if scaling.kind == "yarn" else 1.0
        values["rope.scaling.attn_factor"] = scaling.attention_factor / usual
    if scaling is not None and scaling.kind == "yarn":
        if not scaling.truncate:
            raise ConvertError("GGUF cannot say YaRN without truncation")
        values |= {
            "rope.scaling.original_context_length": scaling.original_context_length,
            "rope.scaling.yarn_beta_fast": float(scaling.beta_fast),
            "rope.scaling.yarn_beta_slow": float(scaling.beta_slow),
        }
    if name != "llama" and _divisors(config):
        raise ConvertError(f"GGUF's {name} architecture knows no llama3 RoPE scaling")
    experts = config.experts
    if experts is not None:
        if experts.dense_layers or not experts.normalized:
            what = "layers without experts" if experts.dense_layers else "experts whose weights are not normalized"
            raise ConvertError(f"GGUF's {name} architecture cannot have {what}")
        values |= {"expert_count": experts.count, "expert_used_count": experts.per_token}
        values |= {"expert_feed_forward_length": experts.intermediate_size}
    return {"general.architecture": name} | {f"{name}.{key}": value for key, value in values.items()}


def _divisors(config: ModelConfig) -> list[float]:
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "llama3":
        return rope_divisors(config.head_dim, config.rope_theta, scaling)
    return [] if scaling is None else list(scaling.factors)


def _layout(config: ModelConfig, dtype: torch.dtype, divisors: int) -> dict[str, _Tensor]:
    """Returns where each stored tensor goes; the experts of a layer share one."""
    shapes: dict[str, tuple[int, ...]] = {ROPE_DIVISORS: (divisors,)} if divisors else {}
    for name, shape in config.tensor_shapes().items():
        place, expert = stored_name(name)
        if expert is None:
            shapes[place] = shape
        else:
            assert config.experts is not None
            shapes[place] = (config.experts.count, *shape)
    tensors: dict[str, _Tensor] = {}
    offset = 0
    for stored, shape in shapes.items():
        plain = len(shape) == 1 or stored.endswith("ffn_gate_inp.weight")
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
        case list():
            kind, code = (_FLOAT32, "f") if isinstance(value[0], float) else (_INT32, "i")
            return struct.pack("<IIQ", ARRAY, kind, len(value)) + struct.pack(f"<{len(value)}{code}", *value)
    raise TypeError(type(value).__name__)

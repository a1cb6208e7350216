"""Writes Hugging Face's layout: `config.json`, `generation_config.json`, safetensors of at most 5 GB each."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from tandem.worker.checkpoints.hugging_face_architectures import ARCHITECTURES
from tandem.worker.checkpoints.layer_parts import RopeScaling
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.convert.pieces import ConvertError, Source, flush, reserve, write_at, write_text

_SHARD_BYTES = 5_000_000_000
CONVERTED = ("llama", "mistral", "ministral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
UNSAID = "what it has beyond Llama is not written in this layout's words"
_DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def write_hugging_face(source: Source, folder: Path) -> None:
    """Fills an empty folder. Raises ConvertError, CheckpointError, OSError."""
    checkpoint = source.checkpoint
    described = describe(checkpoint.config)
    name = str(source.dtype).removeprefix("torch.")
    described |= {"torch_dtype": name, "bos_token_id": checkpoint.bos_id, "eos_token_id": _ids(checkpoint.eos_ids)}
    generation: dict[str, Any] = {"bos_token_id": checkpoint.bos_id, "eos_token_id": _ids(checkpoint.eos_ids)}
    if checkpoint.sampling_defaults:
        generation |= {"do_sample": True, **checkpoint.sampling_defaults}
    write_text(folder / "config.json", json.dumps(described, indent=2) + "\n")
    write_text(folder / "generation_config.json", json.dumps(generation, indent=2) + "\n")
    _write_tensors(source, folder)


def describe(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields of `config.json`. Raises ConvertError for what this layout cannot say."""
    architecture = ARCHITECTURES[config.architecture]
    if architecture.name not in CONVERTED:
        raise ConvertError(
            f"{architecture.name} is served, but not converted: {UNSAID}; converted are {', '.join(CONVERTED)}"
        )
    if (config.qkv_bias, config.output_bias) not in _possible_biases(config):
        raise ConvertError(
            f"{architecture.class_name} cannot have biases of only some of q, k, v and the output, as this model has"
        )
    values: dict[str, Any] = {
        "architectures": [architecture.class_name],
        "model_type": architecture.name,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tie_embeddings,
    }
    if architecture.attention_bias is not None:
        values["attention_bias"] = config.qkv_bias
    if architecture.name == "qwen2" and config.head_dim * config.num_heads != config.hidden_size:
        raise ConvertError(f"{architecture.class_name} has no head_dim, but this model's is {config.head_dim}")
    values |= _windows(config) | _experts(config)
    if config.rope_scaling is not None:
        values |= _scaling(config.rope_scaling)
    return values


def _possible_biases(config: ModelConfig) -> tuple[tuple[bool, bool], ...]:
    architecture = ARCHITECTURES[config.architecture]
    if architecture.qkv_bias:
        return ((True, False),)
    return ((False, False), (True, True)) if architecture.attention_bias is not None else ((False, False),)


def _windows(config: ModelConfig) -> dict[str, Any]:
    windows = {window for window in config.windows if window}
    match config.architecture:
        case "llama":
            return {}
        case "mistral" | "mixtral":
            return {"sliding_window": next(iter(windows), None)}
        case "qwen3_moe":
            return {"use_sliding_window": bool(windows), "sliding_window": next(iter(windows), None)}
    kinds = ["sliding_attention" if window else "full_attention" for window in config.windows]
    if config.architecture == "ministral":
        return {"sliding_window": next(iter(windows), None), "layer_types": kinds or None}
    if not windows:
        return {"use_sliding_window": False}
    return {"use_sliding_window": True, "sliding_window": windows.pop(), "layer_types": kinds}


def _experts(config: ModelConfig) -> dict[str, Any]:
    experts = config.experts
    if experts is None:
        return {}
    if config.architecture == "mixtral":
        return {"num_local_experts": experts.count, "num_experts_per_tok": experts.per_token}
    return {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.per_token,
        "moe_intermediate_size": experts.intermediate_size,
        "norm_topk_prob": experts.normalized,
        "mlp_only_layers": list(experts.dense_layers),
        "decoder_sparse_step": 1,
    }


def _scaling(scaling: RopeScaling) -> dict[str, Any]:
    if scaling.factors:
        raise ConvertError(f"config.json cannot say {len(scaling.factors)} divisors of RoPE's frequencies")
    if scaling.kind != "yarn" and scaling.attention_factor != 1:
        raise ConvertError(f"config.json cannot say {scaling.kind} RoPE scaling with an attention factor")
    values: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    match scaling.kind:
        case "dynamic":
            return {"rope_scaling": values, "max_position_embeddings": scaling.original_context_length}
        case "llama3":
            values |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
            values["original_max_position_embeddings"] = scaling.original_context_length
        case "yarn":
            values |= {
                "original_max_position_embeddings": scaling.original_context_length,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "attention_factor": scaling.attention_factor,
                "truncate": scaling.truncate,
            }
    return {"rope_scaling": values}


def _ids(ids: tuple[int, ...]) -> int | list[int] | None:
    return list(ids) if len(ids) > 1 else ids[0] if ids else None


def _write_tensors(source: Source, folder: Path) -> None:
    architecture = ARCHITECTURES[source.checkpoint.config.architecture]
    shapes = source.checkpoint.config.tensor_shapes()
    shards = _shards({name: math.prod(shape) * source.dtype.itemsize for name, shape in shapes.items()})
    files = ["model.safetensors"]
    if len(shards) > 1:
        files = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    tensors = source.tensors()
    for file_name, names in zip(files, shards, strict=True):
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        at = 0
        for name in names:
            end = at + math.prod(shapes[name]) * source.dtype.itemsize
            header[architecture.stored_name(name)[0]] = {
                "dtype": _DTYPES[source.dtype],
                "shape": shapes[name],
                "data_offsets": [at, end],
            }
            at = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with (folder / file_name).open("w+b") as file:
            reserve(file, 8 + len(text) + at)
            file.write(len(text).to_bytes(8, "little") + text)
            for expected in names:
                name, tensor = next(tensors)
                assert name == expected
                write_at(file, file.tell(), source.pieces(name, tensor, source.dtype))
            flush(file)
    for _ in tensors:
        raise AssertionError("more tensors than the config describes")
    if len(shards) > 1:
        places = {
            architecture.stored_name(name)[0]: file for file, names in zip(files, shards, strict=True) for name in names
        }
        total = sum(math.prod(shape) for shape in shapes.values()) * source.dtype.itemsize
        index = {"metadata": {"total_size": total}, "weight_map": places}
        write_text(folder / "model.safetensors.index.json", json.dumps(index, indent=2) + "\n")


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

"""`python -m tandem.worker.convert.inspection PATH`: what `tandem inspect` starts. Its output is one JSON object.

Memory is that of the weights as the worker keeps them: matrices in the named precision, everything else in two bytes
(four for float32). int8 has a float32 scale a row or a group (`--quantize-group`), int4 two float16 numbers for each
group, 64 by default, and an output in int8. "as stored" is there for GGUF files whose own integers are kept.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

from tandem.common import machine
from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.checkpoints.checkpoint import Checkpoint
from tandem.worker.checkpoints.ggml_blocks import BLOCK_KINDS
from tandem.worker.checkpoints.grouped import DEFAULT_INT4_GROUP, GROUPS
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.model.kv_cache import CacheShape
from tandem.worker.model.kv_formats import FEW_BITS, kv_format

# Of a number, in memory, where a CPU's products are compiled. Elsewhere those of the second line have 16, and Q4_K and
# IQ4_XS 6 and 5.
_KEPT_BITS = {"Q8_0": 8.5, "Q4_0": 4.5, "Q4_1": 5, "Q4_K": 4.5, "IQ4_NL": 4.5, "IQ4_XS": 4.3125, "MXFP4": 4.25}
_KEPT_BITS |= {"NVFP4": 4.5, "Q1_0": 4.125}
_KEPT_BITS |= {"Q5_0": 8.5, "Q5_1": 9, "Q2_K": 4.875, "Q3_K": 4.5625, "Q5_K": 8.5, "Q6_K": 6.5625}
_FREE_FRACTION = 0.9  # of the memory that weights and cache may take together
_TOKENIZERS = ("tokenizer.model", "tokenizer.json", "vocab.json")


def inspect(path: Path, group: int = 0) -> dict[str, Any]:
    """Returns everything that is known without reading the weights; `group` is the worker's `quantize_group`. Raises
    CheckpointError."""
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    weights = weight_bytes(config, group)
    if kept := kept_bytes(checkpoint):
        weights["as stored"] = kept
    kv = kv_bytes_per_token(config)
    return {
        "path": str(path),
        "format": checkpoint.format,
        "architecture": config.architecture,
        "parameters": sum(math.prod(shape) for shape in config.tensor_shapes().values()),
        "active_parameters": _active_parameters(config),
        "stored_bytes": checkpoint.total_bytes,
        "stored_as": dict(checkpoint.stored_as),
        "vocabulary": config.vocab_size,
        "context_length": config.context_length,
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rope_theta": config.rope_theta,
        "rope_scaling": config.rope_scaling.description if config.rope_scaling else None,
        "windows": sorted({window for window in config.windows if window}),
        "experts": None if config.experts is None else [config.experts.count, config.experts.per_token],
        "tied_embeddings": config.tie_embeddings,
        "bos_id": checkpoint.bos_id,
        "eos_ids": list(checkpoint.eos_ids),
        "sampling_defaults": dict(checkpoint.sampling_defaults),
        "tokenizer": _tokenizer(checkpoint),
        "weight_bytes": weights,
        "kv_bytes_per_token": kv,
        "machine": [
            {**device, "fits": _fits(device["free_bytes"], weights, kv, config.context_length)} for device in _devices()
        ],
    }


def weight_bytes(config: ModelConfig, group: int = 0) -> dict[str, int]:
    """Returns the bytes of all weights in memory, by precision; `group` 0: the defaults of int8 and int4."""
    sizes = dict.fromkeys(("float32", "bfloat16", "fp8", "int8", "int4"), 0)
    for name, shape in config.tensor_shapes().items():
        numbers = math.prod(shape)
        sizes["float32"] += 4 * numbers
        sizes["bfloat16"] += 2 * numbers
        looked_up = name == "positions" or (name == "embedding" and not config.tie_embeddings)
        if len(shape) == 1 or name.endswith(("router", "index_weights")) or looked_up:
            for precision in ("fp8", "int8", "int4"):
                sizes[precision] += 2 * numbers
        else:
            channels = numbers + 4 * shape[0]
            of_words = name in ("embedding", "output", "per_layer.embedding")
            sizes["fp8"] += 2 * numbers if of_words else channels
            sizes["int8"] += _grouped_bytes(shape, 8, group) if group else channels
            sizes["int4"] += channels if of_words else _grouped_bytes(shape, 4, group or DEFAULT_INT4_GROUP)
    return sizes


def _grouped_bytes(shape: tuple[int, ...], bits: int, group: int) -> int:
    """Returns the bytes of a matrix, rows filled up to whole groups, each with 4 bytes: a float32 or two float16."""
    groups = shape[0] * -(-shape[1] // group)
    return groups * (group * bits // 8 + 4)


def kept_bytes(checkpoint: Checkpoint) -> int:
    """Returns the bytes in memory of a GGUF file whose quantized matrices stay as they are; 0 where none does.

    Kinds that are made of groups of 32 or 16 keep them; the others become numbers of two bytes.
    """
    if not _KEPT_BITS.keys() & checkpoint.stored_as.keys():
        return 0
    total = 0.0
    for name, size in checkpoint.stored_as.items():
        kind = BLOCK_KINDS.get(name)
        if kind is None:
            total += size
        else:
            total += size // kind.block_bytes * kind.block_numbers * _KEPT_BITS.get(name, 16) / 8
    return int(total)


def kv_bytes_per_token(config: ModelConfig) -> dict[str, int]:
    """Returns the bytes of keys and values of one token over all layers, by how they are stored."""
    formats = {"float32": kv_format("auto", torch.float32), "bfloat16": kv_format("auto", torch.bfloat16)}
    if config.compression is None:
        formats |= {form.name: form for form in FEW_BITS}
    return {
        name: CacheShape(config.cache_heads, 1, 1, stored).bytes_per_token
        for name, stored in formats.items()
        if not any(heads.size % stored.multiple for heads in config.cache_heads)
    }


def _active_parameters(config: ModelConfig) -> int:
    """Counts the parameters used for one token: of the experts only the chosen ones, of the embedding one row."""
    experts = config.experts
    total = 0
    for name, shape in config.tensor_shapes().items():
        size = math.prod(shape)
        if ".experts." in name and experts is not None:
            size = size * experts.per_token // experts.count
        if name not in ("per_layer.embedding", "positions") and (name != "embedding" or config.tie_embeddings):
            total += size
    return total


def _tokenizer(checkpoint: Checkpoint) -> str | None:
    path = checkpoint.path
    if path.is_file():
        return path.name
    here = [name for name in _TOKENIZERS if (path / name).is_file()] or [file.name for file in path.glob("*.gguf")]
    return here[0] if here else None


def _devices() -> list[dict[str, Any]]:
    """Returns the devices that could compute the model: this machine's memory, and its GPUs."""
    memory = {"device": "cpu", "bytes": machine.memory(), "free_bytes": machine.obtainable_memory()}
    gpus = []
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(number)
            name = torch.cuda.get_device_name(number)
            gpus.append({"device": f"cuda:{number}", "name": name, "bytes": total, "free_bytes": free})
    return [memory, *gpus]


def _fits(free: int, weights: dict[str, int], kv: dict[str, int], context: int) -> dict[str, int]:
    """Returns the tokens of cache that fit beside the weights, by precision; 0: less than one context."""
    room = int(free * _FREE_FRACTION)
    fits = {}
    for name, size in weights.items():
        tokens = (room - size) // kv["float32" if name == "float32" else "bfloat16"]
        fits[name] = tokens if tokens >= min(context, 1024) else 0
    return fits


def main(arguments: list[str]) -> int:
    """Prints the report; returns the exit code: 0, or 1 after {"error": one line}."""
    parser = argparse.ArgumentParser(prog="python -m tandem.worker.convert.inspection")
    parser.add_argument("path", type=Path)
    parser.add_argument("--quantize-group", type=int, choices=(0, *GROUPS), default=0)
    options = parser.parse_args(arguments)
    try:
        print(json.dumps(inspect(options.path, options.quantize_group)))  # noqa: T201  (our protocol)
    except CheckpointError as error:
        print(json.dumps({"error": str(error)}))  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

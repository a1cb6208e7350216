"""Hugging Face's layout: `config.json`, `generation_config.json` and one or several safetensors files.

- Weights are in `model.safetensors`, or spread over files that `model.safetensors.index.json` lists.
- RoPE pairs are half a head apart, which is also our convention.
- Old folders say `rope_theta` and `rope_scaling`, new ones `rope_parameters`.
- `dtype` and `torch_dtype` of the config are not looked at: the files know better.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open

from worker_svc.checkpoints.checkpoint import (
    CheckpointError,
    StoredTensor,
    main_dtype,
    match_tensors,
    release_mapped,
)
from worker_svc.checkpoints.fields import Fields, build
from worker_svc.checkpoints.ggml_blocks import QuantizedTensor
from worker_svc.model.config import ModelConfig, RopeScaling

_log = logging.getLogger(__name__)

_KEYS = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "context_length": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "tie_embeddings": "tie_word_embeddings",
}
_ARCHITECTURE = "LlamaForCausalLM"
_IGNORED = re.compile(r"(.+\.)?rotary_emb\.inv_freq")  # a table that older exports carry; we compute our own
_DTYPES: Mapping[str, torch.dtype] = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_LAYER_NAMES = {
    "attention.norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "mlp.norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
_DEFAULT_IDS = {"bos_token_id": 1, "eos_token_id": 2}  # of transformers' LlamaConfig
_EMBEDDING, _OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


class HuggingFaceCheckpoint:
    """An open folder in Hugging Face's layout; see `Checkpoint`."""

    format: Literal["hugging_face"] = "hugging_face"

    def __init__(self, path: Path) -> None:
        """Reads everything but the weights themselves. Raises CheckpointError."""
        self.path = path
        config = Fields.read(path / "config.json")
        _refuse_what_is_not_served(config)
        self._files = _open_files(path)  # stored name -> the open file that has it
        stored = {name: _stored(file, name) for name, file in self._files.items()}
        self._embedding = _EMBEDDING
        tied = config.boolean("tie_word_embeddings", False)
        if tied and _OUTPUT in stored:
            if _EMBEDDING not in stored:
                self._embedding = _OUTPUT
            elif stored[_OUTPUT] == stored[_EMBEDDING] and self._equal(_OUTPUT, _EMBEDDING):
                del stored[_OUTPUT]
            else:
                tied = False
                _log.warning(
                    "%s: tie_word_embeddings is true, but %s differs from %s; both are used", path, _OUTPUT, _EMBEDDING
                )
        self.config = _config(config, tied)
        shapes = self.config.tensor_shapes()
        match_tensors(path, {self._stored_name(name): shape for name, shape in shapes.items()}, stored)
        self.dtype = main_dtype(stored.values())
        self.total_bytes = sum(tensor.bytes for tensor in stored.values())
        generation_file = path / "generation_config.json"
        generation = Fields.read(generation_file) if generation_file.exists() else Fields(generation_file, {})
        self.eos_ids = _special_ids("eos_token_id", generation, config, self.config.vocab_size)
        self.bos_id = next(iter(_special_ids("bos_token_id", generation, config, self.config.vocab_size)), None)
        self.sampling_defaults = _sampling_defaults(generation)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor | QuantizedTensor]]:
        """See `Checkpoint.tensors`."""
        for name in self.config.tensor_shapes():
            yield name, self._read(self._stored_name(name))

    def release(self, piece: torch.Tensor | QuantizedTensor) -> None:
        """See `Checkpoint.release`."""
        release_mapped(piece)

    def _stored_name(self, name: str) -> str:
        if name.startswith("layers."):
            _, layer, part = name.split(".", 2)
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"
        return {"embedding": self._embedding, "output": _OUTPUT, "norm": "model.norm.weight"}[name]

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


def _refuse_what_is_not_served(config: Fields) -> None:
    architectures = config.values.get("architectures")
    if architectures:
        if architectures != [_ARCHITECTURE]:
            raise config.error("architectures", f"{architectures} is not served; served is {_ARCHITECTURE}")
    elif config.text("model_type") != "llama":
        raise config.error("model_type", f"{config.values.get('model_type')!r} is not served; served is llama")
    if config.values.get("quantization_config"):
        raise config.error("quantization_config", "is set; quantized weights are not served yet")
    for key in ("attention_bias", "mlp_bias"):
        if config.boolean(key, False):
            raise config.error(key, "is true; biases are not served yet")
    if config.text("hidden_act", "silu") != "silu":
        raise config.error("hidden_act", f"{config.text('hidden_act')!r} is not served; served is silu")


def _config(config: Fields, tied: bool) -> ModelConfig:
    hidden_size, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", None)
    if head_dim is None:
        if hidden_size < 1 or heads < 1 or hidden_size % heads:
            raise config.error("hidden_size", f"{hidden_size} cannot be split over num_attention_heads {heads}")
        head_dim = hidden_size // heads
    rope = config.object("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    return build(
        ModelConfig,
        config,
        _KEYS,
        architecture="llama",
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        context_length=config.integer("max_position_embeddings"),
        norm_eps=config.number("rms_norm_eps"),
        rope_theta=rope.number("rope_theta", config.number("rope_theta", 10000.0)),
        rope_scaling=_rope_scaling(rope),
        tie_embeddings=tied,
    )


def _rope_scaling(rope: Fields) -> RopeScaling | None:
    kind = rope.text("rope_type", rope.text("type", "default"))
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        raise rope.error("partial_rotary_factor", "is not 1; rotating a part of the head is not served yet")
    if kind == "default":
        return None
    keys = {
        "rope_scaling.factor": "factor",
        "rope_scaling.low_freq_factor": "low_freq_factor",
        "rope_scaling.high_freq_factor": "high_freq_factor",
        "rope_scaling.original_context_length": "original_max_position_embeddings",
    }
    if kind == "linear":
        return build(RopeScaling, rope, keys, kind=kind, factor=rope.number("factor"))
    if kind == "llama3":
        return build(
            RopeScaling,
            rope,
            keys,
            kind=kind,
            factor=rope.number("factor"),
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_context_length=rope.integer("original_max_position_embeddings"),
        )
    raise rope.error("rope_type", f"{kind!r} is not served yet; served are default, linear and llama3")


def _special_ids(key: str, generation: Fields, config: Fields, vocab_size: int) -> tuple[int, ...]:
    """Ids from generation_config.json, else from config.json, else what a Llama has by default."""
    for fields in (generation, config):
        if fields.has(key):
            return fields.token_ids(key, vocab_size)
    if key in config.values or _DEFAULT_IDS[key] >= vocab_size:
        return ()  # null says that there is none
    return (_DEFAULT_IDS[key],)


def _sampling_defaults(generation: Fields) -> dict[str, float | int]:
    """What the model's makers sample with, unless they say that they do not sample."""
    if not generation.boolean("do_sample", True):
        return {}
    ranges = {
        "temperature": (0.0, None),
        "top_p": (0.0, 1.0),
        "min_p": (0.0, 1.0),
        "repetition_penalty": (0.0, None),
    }
    defaults: dict[str, float | int] = {}
    for key, (least, most) in ranges.items():
        value = generation.number(key, None)
        if value is None:
            continue
        if value < least or (most is not None and value > most) or (key == "repetition_penalty" and value == 0):
            raise generation.error(key, f"is out of range: {value:g}")
        defaults[key] = value
    top_k = generation.integer("top_k", None)
    if top_k is not None:
        if top_k < 0:
            raise generation.error("top_k", f"must be at least 0, but is {top_k}")
        defaults["top_k"] = top_k
    return defaults


def _open_files(path: Path) -> dict[str, Any]:
    """Every stored tensor's name and the open safetensors file that holds it."""
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
    held = {name: shard for shard, file in shards.items() for name in file.keys()}  # noqa: SIM118
    for name, shard in weight_map.values.items():
        if held.get(name) != shard:
            raise CheckpointError(f"{path / shard}: tensor {name} is missing, which {index.path.name} says is there")
    return {name: shards[shard] for name, shard in held.items() if not _IGNORED.fullmatch(name)}


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt", device="cpu")
    except FileNotFoundError:
        raise CheckpointError(f"{file}: no such file") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{file}: damaged or truncated: {error}") from error


def _stored(file: Any, name: str) -> StoredTensor:
    header = file.get_slice(name)
    dtype: str = header.get_dtype()
    return StoredTensor(tuple(header.get_shape()), _DTYPES.get(dtype, dtype))

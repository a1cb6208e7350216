"""GGUF files of transformers' models, written by the gguf package the way llama.cpp's converter does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.checkpoints.ggml_blocks import BLOCK_KINDS
from tests.worker_svc.checkpoints.gguf_described import describe
from tests.worker_svc.checkpoints.gguf_kinds import architecture_of
from tests.worker_svc.checkpoints.gguf_tensors import Permuted, named_tensors
from tests.worker_svc.checkpoints.random_blocks import dequantized, random_blocks

PLAIN = {
    "ffn_gate_inp",
    "ssm_conv1d",
    "ssm_conv1d_q",
    "ssm_conv1d_k",
    "ssm_conv1d_v",
    "ssm_a",
    "ssm_d",
    "ssm_norm",
    "altup_predict_coef",
    "altup_correct_coef",
}  # always F32


def save_gguf(
    model: Any,
    path: Path,
    kind: str = "F32",
    metadata: Mapping[str, Any] | None = None,
    extra: Mapping[str, npt.NDArray[np.float32]] | None = None,
    split_max_tensors: int = 0,
    others: Mapping[str, str] | None = None,
    *,
    latents_apart: bool = True,
    without: tuple[str, ...] = (),
) -> Path:
    """Writes `model`, whose matrices become what the file says: quantized ones lose precision in the model too, and
    kinds that the gguf package cannot quantize to are random blocks. `metadata` wins over what describes the model;
    `others` are the kinds of matrices whose names have such a part. Not `latents_apart`: as llama.cpp once had them.
    Tensors whose names have a part of `without` are left out."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture_of(config), split_max_tensors=split_max_tensors)
    describe(writer, config)
    if not latents_apart:
        _describe_as_once(writer, config)
    if config.model_type == "apertus":
        activations = [layer.mlp.act_fn for layer in model.model.layers]
        for name in ("alpha_p", "alpha_n", "beta", "eps"):
            writer.add_array(f"xielu.{name}", [getattr(each, name).item() for each in activations])
    for key, value in (metadata or {}).items():
        writer.kv_data[0].pop(key, None)
        add_field(writer, key, value)
    for name, tensor in named_tensors(model, latents_apart=latents_apart):
        if any(part in name for part in without):
            continue
        own = next((other for part, other in (others or {}).items() if part in name), kind)
        quantized = "F32" if is_plain(name, tensor) else own
        data = _encoded(tensor, quantized, len(name))
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[quantized])
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def is_plain(name: str, tensor: torch.Tensor) -> bool:
    """Whether llama.cpp's converter leaves a tensor in F32, whatever the kind of the file."""
    return tensor.dim() < 2 or name.endswith((".bias", ".shortconv.conv.weight")) or bool(PLAIN & set(name.split(".")))


def _describe_as_once(writer: gguf.GGUFWriter, config: Any) -> None:
    for key in ("head_count_kv", "key_length", "value_length", "key_length_mla", "value_length_mla"):
        writer.kv_data[0].pop(f"deepseek2.attention.{key}")
    writer.add_head_count_kv(config.num_attention_heads)
    writer.add_key_length(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length(config.v_head_dim)


def add_field(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Adds a field of metadata, of the type that the value has."""
    add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    add.get(type(value), writer.add_array)(key, value)


def _encoded(tensor: torch.Tensor, kind: str, seed: int) -> npt.NDArray[Any]:
    """The numbers as they are stored; what is lost is lost in the model too."""
    plain = tensor.as_subclass(torch.Tensor).float().numpy()
    quantization = gguf.GGMLQuantizationType[kind]
    if kind == "F32":
        return np.ascontiguousarray(plain)
    if kind in _SCALES:
        sizes = BLOCK_KINDS[kind]
        rows = plain.size // plain.shape[-1]
        blocks = random_blocks(kind, plain.size // sizes.block_numbers, seed, scale=_SCALES[kind])
        data = blocks.reshape(*plain.shape[:-1], -1) if rows else blocks
    else:
        data = gguf.quantize(np.ascontiguousarray(plain), quantization)
    _write_back(tensor, torch.from_numpy(dequantized(data, kind).copy()).view(plain.shape))
    return data


# Scales of blocks that give numbers of about 0.06: activations of a model of width 256 neither die nor burst.
_SCALES = {
    **{"Q2_K": 4e-3, "Q3_K": 8e-4, "Q4_K": 2e-4, "Q5_K": 1e-4, "Q6_K": 4e-5},
    **{"IQ2_XXS": 1.5e-3, "IQ2_XS": 1.5e-3, "IQ2_S": 1.5e-3, "IQ3_XXS": 5e-4, "IQ3_S": 5e-4},
    **{"IQ1_S": 8e-3, "IQ1_M": 8e-3, "IQ4_NL": 1e-3, "IQ4_XS": 5e-5, "MXFP4": 0.0, "NVFP4": 0.0, "Q1_0": 6e-2},
}


def _write_back(tensor: torch.Tensor, numbers: torch.Tensor) -> None:
    if isinstance(tensor, Permuted):
        heads = tensor.heads  # type: ignore[attr-defined]
        swapped = numbers.reshape(heads, len(numbers) // heads // 2, 2, *numbers.shape[1:]).swapaxes(1, 2)
        tensor.origin.copy_(swapped.reshape(numbers.shape))  # type: ignore[attr-defined]
    else:
        tensor.copy_(numbers)

"""Reads how NVIDIA's Model Optimizer (ModelOpt) stores quantized matrices of a Hugging Face folder.

What is quantized how is said in `quantization_config` of `config.json`, in `hf_quant_config.json`, or in both:

| `quant_algo` | W `[out, in]` |
|---|---|
| FP8, FP8_PER_CHANNEL_PER_TOKEN | `weight` e4m3; `weight_scale` of all, or of each row |
| FP8_PB_WO | `weight` e4m3; `weight_scale` of squares of 128, `[out / 128, 1, in / 128, 1]` |
| MXFP8 | `weight` e4m3; `weight_scale` `[out, in / 32]`, powers of two |
| NVFP4, W4A16_NVFP4, W4A8_NVFP4_FP8 | `weight` `[out, in / 2]` of two e2m1; `weight_scale` `[out, in / 16]`, or of |
| | 32, e4m3, times `weight_scale_2`, one number |
| MXFP4, W4A8_MXFP4_FP8 | the same numbers; `weight_scale` `[out, in / 32]`, powers of two |
| MIXED_PRECISION | each as `quantized_layers` says |

Which matrix is stored how is seen from its parts: those that are excluded are plain. Some algorithms want activations
multiplied by numbers of their own first (AWQ, SVD); these are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tandem.worker.checkpoints.checkpoint import StoredMatrix, StoredTensor
from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.grouped import E8M0, FLOAT8
from tandem.worker.checkpoints.hugging_face_fields.quantization import (
    MODEL_OPTIMIZER,
    MODEL_OPTIMIZER_FILE,
    MODEL_OPTIMIZER_GROUP,
    MODEL_OPTIMIZER_LAYER,
    QUANTIZED_ACTIVATIONS,
    QUANTIZED_WEIGHTS,
)
from tandem.worker.checkpoints.known_fields import check_fields
from tandem.worker.checkpoints.scaled import E4M3
from tandem.worker.checkpoints.scheme_parts import (
    FLOATS,
    ONE,
    Part,
    e2m1,
    e2m1_parts,
    in_powers,
    powers_part,
    scale_part,
    scaled,
)

HF_QUANT_CONFIG = "hf_quant_config.json"
_BLOCK = (128, 128)
_MIXED = "MIXED_PRECISION"
_OF_LAYERS = (
    *("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MXFP8"),
    *("NVFP4", "W4A16_NVFP4", "W4A8_NVFP4_FP8", "MXFP4", "W4A8_MXFP4_FP8"),
)


@dataclass(frozen=True, slots=True)
class ModelOptimizerScheme:
    """The forms of the table above. `unused`: tensors that say how keys and values in a cache are rounded."""

    parts: tuple[str, ...] = ("weight", "weight_scale", "weight_scale_2", "input_scale")
    unused: re.Pattern[str] = re.compile(r".+\.[kv]_scale")

    def expected(self, shape: tuple[int, ...], found: Mapping[str, StoredTensor]) -> dict[str, Part]:
        weight, its = found.get("weight"), found.get("weight_scale")
        if weight is None or weight.dtype not in (FLOAT8, torch.uint8):
            return {}
        in_powers = its is not None and its.dtype in (E8M0, torch.float8_e8m0fnu)
        inputs = {name: Part(ONE, FLOATS) for name in ("input_scale",) if name in found}
        if weight.dtype == torch.uint8:
            numbers, scale = e2m1_parts(shape, E8M0 if in_powers else FLOAT8)
            factor = {} if in_powers else {"weight_scale_2": Part(ONE, FLOATS)}
            return {"weight": numbers, "weight_scale": scale} | factor | inputs
        if in_powers:
            return {"weight": Part((shape,), (FLOAT8,)), "weight_scale": powers_part(shape)} | inputs
        scale = scale_part(shape, _BLOCK)
        squares = tuple((rows, 1, columns, 1) for rows, columns in scale.shapes[:1])
        scale = Part(scale.shapes + squares, scale.dtypes)
        return {"weight": Part((shape,), (FLOAT8,)), "weight_scale": scale} | inputs

    def matrix(self, shape: tuple[int, int], parts: Mapping[str, torch.Tensor]) -> StoredMatrix:
        numbers, scale = parts["weight"], parts["weight_scale"]
        if numbers.dtype == torch.uint8:
            return e2m1(shape, numbers, scale, parts.get("weight_scale_2"), parts)
        if scale.dtype in (E8M0, torch.float8_e8m0fnu):
            return in_powers(shape, numbers, scale, parts)
        if scale.dim() == 4:
            scale = scale.flatten(0, 1).flatten(1)
        return scaled(E4M3, shape, numbers, scale, parts, _BLOCK)


def model_optimizer_scheme(config: Fields, beside: Fields | None = None) -> ModelOptimizerScheme:
    """Reads `quantization_config`, or what `hf_quant_config.json` holds, and, where both are there, that they agree.
    Raises CheckpointError for what is not served."""
    fields = _checked(config)
    if beside is not None:
        other = _checked(beside)
        if _algorithm(fields) != _algorithm(other):
            raise fields.error(
                "quant_algo", f"is {_algorithm(fields)}, but that of {HF_QUANT_CONFIG} is {_algorithm(other)}"
            )
    return ModelOptimizerScheme()


def _checked(config: Fields) -> Fields:
    """Returns the fields that say what is quantized how, all of them known and served."""
    fields = config
    if config.has("quantization"):
        check_fields(config, MODEL_OPTIMIZER_FILE)
        fields = config.object("quantization")
    check_fields(fields, MODEL_OPTIMIZER)
    named = _algorithm(fields)
    if named not in (None, _MIXED, *_OF_LAYERS):
        raise fields.error("quant_algo", f"{named!r} is not served; served are {', '.join((*_OF_LAYERS, _MIXED))}")
    layers = fields.object("quantized_layers")
    for name in layers.values:
        layer = layers.object(name)
        check_fields(layer, MODEL_OPTIMIZER_LAYER)
        if (named := _algorithm(layer)) not in _OF_LAYERS:
            raise layer.error("quant_algo", f"{named!r} is not served; served are {', '.join(_OF_LAYERS)}")
    groups = fields.object("config_groups")
    for name in groups.values:
        group = groups.object(name)
        check_fields(group, MODEL_OPTIMIZER_GROUP)
        check_fields(group.object("weights"), QUANTIZED_WEIGHTS)
        check_fields(group.object("input_activations"), QUANTIZED_ACTIVATIONS)
    return fields


def _algorithm(fields: Fields) -> str | None:
    named = fields.text("quant_algo")
    return None if named is None else named.upper()

"""Reads what files of llama.cpp's `mimo2` (MiMo-V2-Flash) say beyond those of other architectures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.gguf_further import Facts, unfolded
from tandem.worker.checkpoints.model_config import KVHeads, ModelConfig

_HEADS, _VALUE = "attention.head_count_kv", "attention.value_length"


def with_long_values(fields: Fields) -> Fields:
    """Returns the keys of a file with the heads of layers with a window, and values that are as long as keys."""
    values = dict(unfolded(fields).values)
    if "attention.key_length" in values:
        values[_VALUE] = values["attention.key_length"]
    return fields.with_values(values)


def mimo(fields: Fields, config: ModelConfig, facts: Facts) -> Mapping[str, Any]:
    """Heads of keys of either kind of layers, values that are shorter and multiplied, and which layers have sinks and
    experts, which tensors say."""
    layers, windows, experts = config.num_layers, config.windows, config.experts
    said = fields.values.get(_HEADS)
    each = said if isinstance(said, list) else [said] * layers
    if len(each) != layers or len(windows) != layers:
        raise fields.error(_HEADS, f"must be one for each of {layers} layers, some of which have a window")
    with_window, without = (
        {one for one, window in zip(each, windows, strict=True) if (window > 0) is has} for has in (True, False)
    )
    if len(with_window) > 1 or len(without) > 1:
        raise fields.error(_HEADS, "must be the same for all layers with a window, and without")
    number = next(iter(without), config.num_kv_heads // 2)
    sinks = {f"blk.{layer}.attn_sinks.weight" in facts.shapes for layer in range(layers) if windows[layer]}
    if experts is None or sinks != {True}:
        raise fields.error("expert_count" if experts is None else "attention.sliding_window", "names no such layer")
    dense = tuple(layer for layer in range(layers) if f"blk.{layer}.ffn_gate_inp.weight" not in facts.shapes)
    return {
        "full_heads": KVHeads(number, config.head_dim),
        "value_dim": fields.integer(_VALUE),
        "mixing_multiplier": fields.number("attention.value_scale", 0.0) or 1.0,
        "experts": replace(experts, dense_layers=dense),
    }

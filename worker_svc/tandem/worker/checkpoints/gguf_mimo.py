"""Reads what files of llama.cpp's `mimo2` (MiMo-V2-Flash) say beyond those of other architectures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.gguf_further import Facts, heads_without_window, unfolded
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.heads import KVHeads

_VALUE = "attention.value_length"


def with_long_values(fields: Fields) -> Fields:
    """Returns the keys of a file with the heads of layers with a window, and values that are as long as keys."""
    values = dict(unfolded(fields).values)
    if "attention.key_length" in values:
        values[_VALUE] = values["attention.key_length"]
    return fields.with_values(values)


def mimo(fields: Fields, config: ModelConfig, facts: Facts) -> Mapping[str, Any]:
    """Heads of keys of either kind of layers, values that are shorter and multiplied, and which layers have sinks and
    experts, which tensors say."""
    experts, number = config.experts, heads_without_window(fields, config) or config.num_kv_heads // 2
    if experts is None:
        raise fields.error("expert_count", "is missing, without which this architecture is not served")
    sinks = {f"blk.{layer}.attn_sinks.weight" in facts.shapes for layer, window in enumerate(config.windows) if window}
    if sinks != {True}:
        raise fields.error("attention.sliding_window_pattern", "must name layers with sinks, and one at least")
    layers = range(config.num_layers)
    dense = tuple(layer for layer in layers if f"blk.{layer}.ffn_gate_inp.weight" not in facts.shapes)
    return {
        "full_heads": KVHeads(number, config.head_dim),
        "value_dim": fields.integer(_VALUE),
        "mixing_multiplier": fields.number("attention.value_scale", 0.0) or 1.0,
        "experts": replace(experts, dense_layers=dense),
    }

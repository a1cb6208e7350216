"""Reads what files of llama.cpp's `step35` (Step 3.5 Flash) and `laguna` say of each layer: heads of queries, which
layers have a window, limits of gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.gguf_further import Facts
from tandem.worker.checkpoints.model_config import ModelConfig

HEADS, PATTERN = "attention.head_count", "attention.sliding_window_pattern"
_TURNING, _TURNING_IN_WINDOWS = "rope.dimension_count", "rope.dimension_count_swa"
_LIMITS = {"swiglu_limits": "swiglu_clamp_exp", "shared_swiglu_limits": "swiglu_clamp_shexp"}
_USUAL_PERIOD = 4  # of Laguna's layers


def step_keys(fields: Fields) -> Fields:
    """Returns the keys of a file of Step 3.5 in words of all: llama.cpp rotates half of what it says in layers without
    a window. Lists have an entry of each layer that drafts, too."""
    values, layers = dict(fields.values), _layers(fields)
    for key in (HEADS, PATTERN, *_LIMITS.values()):
        if isinstance(values.get(key), list):
            values[key] = values[key][:layers]
    said = fields.integer(_TURNING, fields.integer("attention.key_length", 0))
    values |= {_TURNING: said // 2, _TURNING_IN_WINDOWS: fields.integer(_TURNING_IN_WINDOWS, said)}
    return _with_first_heads(fields.with_values(values))


def laguna_keys(fields: Fields) -> Fields:
    """Returns the keys of a file of Laguna in words of all: of so many layers the first has no window, as llama.cpp has
    it; without a window none has."""
    values = dict(fields.values)
    if not fields.integer("attention.sliding_window", 0):
        values.pop(PATTERN, None)
    else:
        every = fields.integer(PATTERN, _USUAL_PERIOD)
        if every < 0:
            raise fields.error(PATTERN, f"must be at least 0, but is {every}")
        values[PATTERN] = [not every or layer % every > 0 for layer in range(max(fields.integer("block_count"), 0))]
    return _with_first_heads(fields.with_values(values))


def step(fields: Fields, config: ModelConfig, _facts: Facts) -> Mapping[str, Any]:
    """Heads and limits of each layer, and what layers with a window rotate."""
    said = step_keys(fields)
    limits = {ours: _limits(fields, key, config.num_layers) for ours, key in _LIMITS.items()}
    return _heads(fields, config) | limits | _windows_part(said, config)


def laguna(fields: Fields, config: ModelConfig, facts: Facts) -> Mapping[str, Any]:
    """Heads of each layer, what layers with a window rotate, and whether gates are of heads, which a tensor says."""
    gates = {facts.shapes.get(f"blk.{layer}.attn_gate.weight", (0,))[0] for layer in range(config.num_layers)}
    heads = _heads(fields, config)
    by_head = gates == set(heads["query_heads"] or (config.num_heads,))
    return heads | {"gate_by_head": by_head} | _windows_part(fields, config)


def _layers(fields: Fields) -> int:
    """Returns how many there are without those that draft."""
    return max(fields.integer("block_count") - fields.integer("nextn_predict_layers", 0), 0)


def _with_first_heads(fields: Fields) -> Fields:
    """Returns the keys with the heads of the first layer, where they are of each."""
    heads = fields.values.get(HEADS)
    return fields.with_values(fields.values | {HEADS: heads[0]}) if isinstance(heads, list) and heads else fields


def _heads(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    heads = fields.values.get(HEADS)
    if not isinstance(heads, list):
        return {"query_heads": ()}
    of_layers = tuple(heads[: config.num_layers])
    if len(of_layers) != config.num_layers or any(type(one) is not int for one in of_layers):
        raise fields.error(HEADS, f"must be one number, or one for each of {config.num_layers} layers")
    return {"query_heads": of_layers if len(set(of_layers)) > 1 else ()}


def _windows_part(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    if not config.windows:
        return {}
    part = fields.integer(_TURNING_IN_WINDOWS, config.rotated)
    return {"window_rotary_dim": 0 if part == config.rotated else part}


def _limits(fields: Fields, key: str, layers: int) -> tuple[float, ...]:
    said = fields.values.get(key, 0.0)
    listed = said[:layers] if isinstance(said, list) else [said] * layers  # one number for all that are equal
    if len(listed) != layers or any(type(one) not in (int, float) for one in listed):
        raise fields.error(key, f"must be a limit for each of {layers} layers")
    return tuple(map(float, listed)) if any(listed) else ()

"""Reads what the text models of Llama 4 say beyond other architectures."""

from __future__ import annotations

from typing import Any

from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.rope import QueryGrowth

_EXPERT_KEYS = {
    "experts.count": "num_local_experts",
    "experts.per_token": "num_experts_per_tok",
    "experts.intermediate_size": "intermediate_size",
}
_GROWTH_KEYS = {"query_growth.beta": "attn_scale", "query_growth.every": "floor_scale"}
_KINDS = ("full_attention", "chunked_attention")


def llama4(config: Fields, rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`; `rope` are its RoPE parameters."""
    layers = config.integer("num_hidden_layers")
    normed = config.boolean("use_qk_norm", True)
    if normed and rope.text("rope_type", rope.text("type")) == "yarn":  # whose factor norms behind it would take away
        raise rope.error("rope_type", "'yarn' is not served with use_qk_norm")
    rotated = _rotated(config, layers)
    return {
        "intermediate_size": config.integer("intermediate_size_mlp", 16384),
        "unrotated_layers": tuple(layer for layer, turns in enumerate(rotated) if not turns),
        "windows": _chunks(config, rotated),
        "qk_norm": "unit" if normed else None,
        "query_growth": _growth(config) if _tuned(config) else None,
        "experts": _experts(config, layers),
    }


def _rotated(config: Fields, layers: int) -> list[bool]:
    listed = config.values.get("no_rope_layers")
    if not listed:
        every = config.integer("no_rope_layer_interval", 4)
        if every < 1:
            raise config.error("no_rope_layer_interval", f"must be at least 1, but is {every}")
        return [(layer + 1) % every > 0 for layer in range(layers)]
    if not isinstance(listed, list) or len(listed) < layers or any(type(one) is not int for one in listed):
        raise config.error("no_rope_layers", f"must be a list of 1 (rotated) or 0 for each of the {layers} layers")
    return [bool(one) for one in listed[:layers]]


def _chunks(config: Fields, rotated: list[bool]) -> tuple[int, ...]:
    """Returns the size of each layer's chunks; 0 where it sees the whole context."""
    kinds = config.kinds("layer_types", _KINDS, len(rotated), [_KINDS[turns] for turns in rotated])
    size = config.integer("attention_chunk_size", 8192)
    if size < 1:
        raise config.error("attention_chunk_size", f"must be at least 1, but is {size}")
    return tuple(size if kind == _KINDS[1] else 0 for kind in kinds)


def _tuned(config: Fields) -> bool:
    """Older files have a number, of which nothing but 0 matters."""
    key = "attn_temperature_tuning"
    return config.integer(key) > 0 if type(config.values.get(key)) is int else config.boolean(key, True)


def _growth(config: Fields) -> QueryGrowth:
    scale, floor = config.number("attn_scale", 0.1), config.integer("floor_scale", 8192)
    return build(QueryGrowth, config, _GROWTH_KEYS, beta=scale, every=floor, ahead=1, unrotated_alone=True)


def _experts(config: Fields, layers: int) -> Experts:
    size = config.integer("intermediate_size")
    return build(
        Experts,
        config,
        _EXPERT_KEYS,
        count=config.integer("num_local_experts", 16),
        per_token=config.integer("num_experts_per_tok", 1),
        intermediate_size=size,
        normalized=False,
        dense_layers=_dense_layers(config, layers),
        score="sigmoid",
        shared_size=size,
        weighs_input=True,
    )


def _dense_layers(config: Fields, layers: int) -> tuple[int, ...]:
    listed = config.values.get("moe_layers")
    if listed is None:
        step = config.integer("interleave_moe_layer_step", 1)
        if step < 1:
            raise config.error("interleave_moe_layer_step", f"must be at least 1, but is {step}")
        listed = list(range(step - 1, layers, step))
    if not isinstance(listed, list) or any(type(layer) is not int for layer in listed):
        raise config.error("moe_layers", "must be a list of layers' numbers")
    with_experts = set(listed)
    return tuple(layer for layer in range(layers) if layer not in with_experts)

"""Reads the experts of ERNIE 4.5, whose fields have names of their own."""

from __future__ import annotations

from typing import Any

from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.model_parts.experts import Experts

_KEYS = {
    "experts.count": "moe_num_experts",
    "experts.per_token": "moe_k",
    "experts.intermediate_size": "moe_intermediate_size",
    "experts.shared_size": "moe_num_shared_experts",
}


def ernie4_5_moe(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`."""
    size, shared = config.integer("moe_intermediate_size", 1536), config.integer("moe_num_shared_experts", 2)
    if shared < 0:
        raise config.error("moe_num_shared_experts", f"must be at least 0, but is {shared}")
    return {
        "experts": build(
            Experts,
            config,
            _KEYS,
            count=config.integer("moe_num_experts", 64),
            per_token=config.integer("moe_k", 6),
            intermediate_size=size,
            normalized=True,
            biased=True,
            shared_size=size * shared,
            dense_layers=_dense_layers(config),
        )
    }


def _dense_layers(config: Fields) -> tuple[int, ...]:
    layers = range(config.integer("num_hidden_layers"))
    first, last = config.integer("moe_layer_start_index", 1), config.integer("moe_layer_end_index", -1)
    every = config.integer("moe_layer_interval", 1)
    for key, value, least in (
        ("moe_layer_start_index", first, 0),
        ("moe_layer_end_index", last, -1),  # the last of all
        ("moe_layer_interval", every, 1),
    ):
        if value < least:
            raise config.error(key, f"must be at least {least}, but is {value}")
    with_experts = range(first, (len(layers) if last == -1 else last + 1))
    return tuple(layer for layer in layers if layer not in with_experts or (layer + 1) % every)

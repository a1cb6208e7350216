"""Reads what Cohere 2 with experts says beyond other architectures."""

from __future__ import annotations

from typing import Any

from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.model_parts.experts import Experts

_KEYS = {
    "experts.count": "num_experts",
    "experts.per_token": "num_experts_per_tok",
    "experts.intermediate_size": "intermediate_size",
    "experts.shared_size": "num_shared_experts",
}
_WINDOW, _FULL = _ATTENTION = ("sliding_attention", "full_attention")
_FEED_FORWARD = ("dense", "sparse")


def said_once(config: Fields) -> Fields:
    """Returns the config with the epsilon of its norms in one field, that of RMS norms where it is there, and theta
    among the RoPE parameters alone: what transformers writes beside these is a default."""
    eps = "rms_norm_eps" if config.has("rms_norm_eps") else "layer_norm_eps"
    values = config.values | {"layer_norm_eps": config.number(eps, 1e-5)}
    if config.object("rope_parameters").has("rope_theta"):
        values.pop("rope_theta", None)
    return config.with_values(values)


def cohere2_moe(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`: norms, windows, which layers rotate, experts."""
    layers = config.integer("num_hidden_layers")
    first = config.integer("first_k_dense_replace", 0)
    apart, every = config.integer("prefix_dense_sliding_window_pattern", 1), config.integer("sliding_window_pattern", 4)
    for key, number, least in (
        ("first_k_dense_replace", first, 0),
        ("prefix_dense_sliding_window_pattern", apart, 1),
        ("sliding_window_pattern", every, 1),
    ):
        if number < least:
            raise config.error(key, f"must be at least {least}, but is {number}")
    places = [(layer + 1, apart) if layer < first else (layer - first + 1, every) for layer in range(layers)]
    usual = [_ATTENTION[place % pattern == 0] for place, pattern in places]
    kinds = config.kinds("layer_types", _ATTENTION, layers, usual)
    usual = [_FEED_FORWARD[layer >= first] for layer in range(layers)]
    parts = config.kinds("mlp_layer_types", _FEED_FORWARD, layers, usual)
    dense = tuple(layer for layer, part in enumerate(parts) if part == "dense")
    full = [layer for layer, kind in enumerate(kinds) if kind == _FULL]
    window = config.integer("sliding_window", None if "sliding_window" in config.values else 4096)
    if len(full) < layers and (window is None or window < 1):
        raise config.error("sliding_window", "must be at least 1, as layers have it")
    size = config.integer("intermediate_size")
    return {
        "norm": "rms" if config.has("rms_norm_eps") else "layer",
        "windows": tuple(0 if kind == _FULL else window for kind in kinds) if len(full) < layers else (),
        "unrotated_layers": tuple(layer for layer in full if apart != 1 or layer not in dense),
        "intermediate_size": config.integer("prefix_dense_intermediate_size", size),
        "experts": _experts(config, size, dense),
    }


def _experts(config: Fields, size: int, dense: tuple[int, ...]) -> Experts:
    score = config.text("expert_selection_fn", "softmax")
    if score not in ("softmax", "sigmoid"):
        raise config.error("expert_selection_fn", f"{score!r} is not served; served are softmax and sigmoid")
    how, shared = config.text("shared_expert_combination_strategy", "average"), config.integer("num_shared_experts", 0)
    if how not in ("average", "sum"):
        raise config.error("shared_expert_combination_strategy", f"{how!r} is not served; served are average and sum")
    if shared < 0:
        raise config.error("num_shared_experts", f"must be at least 0, but is {shared}")
    share = 0.5 if shared and how == "average" else 1.0
    return build(
        Experts,
        config,
        _KEYS,
        count=config.integer("num_experts", 8),
        per_token=config.integer("num_experts_per_tok", 2),
        intermediate_size=size,
        score=score,
        # a softmax is of the chosen ones alone
        normalized=score == "softmax" or config.boolean("norm_topk_prob", True),
        dense_layers=dense,
        shared_size=shared * size,
        scale=share,
        shared_multiplier=share,
    )

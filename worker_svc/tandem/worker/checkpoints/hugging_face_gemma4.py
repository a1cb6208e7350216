"""Reads what the text models of Gemma 4 say beyond other architectures."""

from __future__ import annotations

from typing import Any

from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.model_parts.beside_stream import PerLayerInputs
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.heads import KVHeads

_EXPERT_KEYS = {
    "experts.count": "num_experts",
    "experts.per_token": "top_k_experts",
    "experts.intermediate_size": "moe_intermediate_size",
}
_INPUT_KEYS = {
    "per_layer_inputs.size": "hidden_size_per_layer_input",
    "per_layer_inputs.vocab_size": "vocab_size_per_layer_input",
}


def gemma4(config: Fields, rope: Fields, windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`; `rope` are the parameters of layers without a window."""
    if windows and windows[-1]:
        raise config.error("layer_types", "must end with full_attention")
    hidden_size = config.integer("hidden_size")
    heads = _full_heads(config, windows)
    return {
        "embedding_multiplier": max(hidden_size, 1) ** 0.5,
        "full_heads": heads,
        "rotary_dim": turning(rope, heads.size),
        "values_are_keys": config.boolean("attention_k_eq_v", False),
        "shared_layers": config.integer("num_kv_shared_layers", 0),
        "shared_widening": 2 if config.boolean("use_double_wide_mlp", False) else 1,
        "per_layer_inputs": _inputs(config),
        "experts": _experts(config, hidden_size) if config.boolean("enable_moe_block", False) else None,
    }


def _full_heads(config: Fields, windows: tuple[int, ...]) -> KVHeads:
    """Reads the heads of layers without a window; newer files list them layer by layer, all alike."""
    usual = config.integer("num_key_value_heads")
    said = config.integer("num_global_key_value_heads", None) if config.boolean("attention_k_eq_v", False) else None
    heads = KVHeads(usual if said is None else said, config.integer("global_head_dim", 512))
    if not config.has("per_layer_config"):
        return heads
    layers, head_dim = config.object("per_layer_config").by_layer(), config.integer("head_dim", 256)
    if not layers:  # none differs
        return KVHeads(usual, head_dim)
    every = windows or (0,) * config.integer("num_hidden_layers")
    full = {layer for layer, window in enumerate(every) if not window}
    if layers.keys() != full:
        raise config.error("per_layer_config", "must be of those layers alone that have no window, and of all of them")
    found = set()
    for layer in layers.values():
        for key in layer.values.keys() - {"head_dim", "num_key_value_heads"}:
            raise layer.error(key, "differs by layer, which is not served")
        found.add(KVHeads(layer.integer("num_key_value_heads", usual), layer.integer("head_dim", head_dim)))
    if len(found) != 1 or (config.has("global_head_dim") and found != {heads}):
        raise config.error("per_layer_config", "must say the same of all layers without a window")
    return found.pop()


def turning(rope: Fields, head_dim: int) -> int | None:
    """Returns how many of a head's numbers turn; None: all."""
    if rope.text("rope_type", rope.text("type")) != "proportional":
        return None
    share = rope.number("partial_rotary_factor", 1.0)
    if not 0 < share <= 1:
        raise rope.error("partial_rotary_factor", f"must be more than 0 and at most 1, but is {share:g}")
    return 2 * int(share * head_dim // 2)


def _inputs(config: Fields) -> PerLayerInputs | None:
    size = config.integer("hidden_size_per_layer_input", 256)
    if not size:
        return None
    words = config.integer("vocab_size_per_layer_input", 262144)
    return build(PerLayerInputs, config, _INPUT_KEYS, size=size, vocab_size=words)


def _experts(config: Fields, hidden_size: int) -> Experts:
    return build(
        Experts,
        config,
        _EXPERT_KEYS,
        count=config.integer("num_experts"),
        per_token=config.integer("top_k_experts"),
        intermediate_size=config.integer("moe_intermediate_size"),
        normalized=True,
        activation="gelu_tanh",
        beside=True,
        weighed=True,
        logit_multiplier=max(hidden_size, 1) ** -0.5,
    )

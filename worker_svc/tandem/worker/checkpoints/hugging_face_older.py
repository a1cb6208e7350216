"""Reads what older models say by names of their own, or do not say: OLMo 1, GPT-NeoX, Falcon and GPT-J."""

from __future__ import annotations

from typing import Any

from tandem.worker.checkpoints.fields import Fields

_OF_GPT_NEOX = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}
_OF_GPT_J = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "n_inner": "intermediate_size",
}


def with_constant_eps(config: Fields) -> Fields:
    """Returns the config of an OLMo with the epsilon of its norms, which no file says."""
    return config.with_values(config.values | {"rms_norm_eps": 1e-5})


# --- GPT-NeoX


def gpt_neox_names(config: Fields) -> Fields:
    """Returns the config with the usual names, and biases of feed-forward parts, which all have."""
    found = config.renamed(_OF_GPT_NEOX)
    return found.with_values(found.values | {"mlp_bias": True})


def gpt_neox(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`."""
    parallel = config.boolean("use_parallel_residual", True)
    return {"parallel": parallel, "parallel_norms": parallel}


# --- GPT-J


def gpt_j_names(config: Fields) -> Fields:
    """Returns the config with the usual names, and what all have or have unless it is said."""
    found = config.renamed(_OF_GPT_J)
    values = {"rotary_dim": 64, **found.values, "mlp_bias": True}
    if not found.has("intermediate_size"):
        values["intermediate_size"] = 4 * found.integer("hidden_size")
    if values["rotary_dim"] is None:
        raise config.error("rotary_dim", "is null, which is not served")
    return found.with_values(values)


# --- Falcon


def falcon_names(config: Fields) -> Fields:
    """Returns the config with the usual names; which heads of keys there are is said in three ways."""
    heads, values = config.integer("num_attention_heads"), dict(config.values)
    inner = config.integer("ffn_hidden_size", None)
    if config.boolean("new_decoder_architecture", False):
        kv_heads = config.integer("num_kv_heads", heads)
    else:
        kv_heads = 1 if config.boolean("multi_query", True) else heads
    values |= {
        "num_key_value_heads": kv_heads,
        "intermediate_size": 4 * config.integer("hidden_size") if inner is None else inner,
        "use_bias": config.boolean("bias", False),
        "max_position_embeddings": config.integer("max_position_embeddings", 2048),
        "layer_norm_epsilon": config.number("layer_norm_epsilon", 1e-5),
    }
    return config.with_values(values)


def falcon(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`: whether the parts of a layer stand side by side, and by how many norms."""
    newer, parallel = config.boolean("new_decoder_architecture", False), config.boolean("parallel_attn", True)
    norms = config.integer("num_ln_in_parallel_attn", 2 if newer else 1)
    if newer and not parallel:
        raise config.error("parallel_attn", "is false, which is not served with new_decoder_architecture")
    if norms not in ((1, 2) if newer else (1,)):
        served = "1 and 2" if newer else "1, without new_decoder_architecture"
        raise config.error("num_ln_in_parallel_attn", f"is {norms}, which is not served; served: {served}")
    return {"parallel": parallel, "parallel_norms": parallel and norms == 2}

"""Reads what files of llama.cpp's `deepseek2` say of latents (DeepSeek V2 and V3, Kimi K2, GLM-4.7-Flash, Youtu), and
those of `deepseek32` and `glm-dsa` of an indexer beside, and those of `mistral4`.

Newer files have the heads' keys and values apart, as they are multiplied: `attn_k_b` `[heads, rank, unrotated]` and
`attn_v_b` `[heads, value, rank]`; their sizes are `key_length_mla` and `value_length_mla`, `key_length` being that of a
latent. Older ones have both in `attn_kv_b`, and the sizes of heads in `key_length` and `value_length`.

RoPE's pairs of an indexer are half of what is rotated apart in `deepseek32`, and neighbours in `glm-dsa`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.gguf_further import Facts
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.indexer import Indexer
from tandem.worker.checkpoints.model_parts.latents import Latents
from tandem.worker.checkpoints.model_parts.rope import QueryGrowth, yarn_attention_factor

LAYER_NAMES = {
    "attention.query_latent": "attn_q_a.weight",
    "attention.query_norm": "attn_q_a_norm.weight",
    "attention.query_up": "attn_q_b.weight",
    "attention.latent": "attn_kv_a_mqa.weight",
    "attention.latent_norm": "attn_kv_a_norm.weight",
    "attention.key_up": "attn_k_b.weight",
    "attention.value_up": "attn_v_b.weight",
    "router_bias": "exp_probs_b.bias",
}
INDEX_NAMES = {
    "attention.index_query": "indexer.attn_q_b.weight",
    "attention.index_key": "indexer.attn_k.weight",
    "attention.index_norm": "indexer.k_norm.weight",
    "attention.index_norm_bias": "indexer.k_norm.bias",
    "attention.index_weights": "indexer.proj.weight",
}
BOTH = "attn_kv_b.weight"  # keys and values in one, in older files
HEADS_APART = ("attention.key_up", "attention.value_up")  # that lie head by head in newer ones
_HEADS = "attention.head_count_kv"
KEYS = {
    "latents.rank": "attention.kv_lora_rank",
    "latents.rotated": "rope.dimension_count",
    "latents.unrotated": "attention.key_length_mla",
    "latents.value": "attention.value_length_mla",
    "latents.query_rank": "attention.q_lora_rank",
    "experts.groups": "expert_group_count",
    "experts.groups_per_token": "expert_group_used_count",
}
GROWTH_KEYS = {
    "query_growth.beta": "attention.temperature_scale",
    "query_growth.every": "attention.temperature_length",
}
INDEX_KEYS = {
    "indexer.heads": "attention.indexer.head_count",
    "indexer.size": "attention.indexer.key_length",
    "indexer.most": "attention.indexer.top_k",
    "indexer.layers": "attention.indexer.types",
}
# How llama.cpp tells GLM-4.7-Flash, whose files do not say how experts are scored: its layers and vocabulary.
_FLASH = (47, 154880)
# With so long a context, files of GLM do not say which layers choose where it is every fourth, as in GLM-5.2.
_LONG = 1 << 20


def with_one_head(fields: Fields) -> Fields:
    """Returns the keys of a file with one kv head of latents in the place of the heads'; without experts, what is said
    of them is left out."""
    values, size = (
        dict(fields.values),
        fields.integer("attention.kv_lora_rank") + fields.integer("rope.dimension_count"),
    )
    if "attention.key_length_mla" in values:
        rank = fields.integer("attention.kv_lora_rank")
        for key, only in (("attention.key_length", size), ("attention.value_length", rank), (_HEADS, 1)):
            if fields.integer(key) != only:
                raise fields.error(key, f"is {fields.integer(key)}, but with latents of these sizes it is {only}")
    elif fields.integer(_HEADS, fields.integer("attention.head_count")) != fields.integer("attention.head_count"):
        raise fields.error(_HEADS, "is not attention.head_count, which it is in files without key_length_mla")
    values |= {_HEADS: 1, "attention.key_length": size, "attention.value_length": size}
    if not fields.integer("expert_count", 0):
        for key in ("expert_feed_forward_length", "expert_used_count"):
            values.pop(key, None)
    return fields.with_values(values)


def latents(fields: Fields, config: ModelConfig, _facts: Facts, scored: int = 1) -> Mapping[str, Any]:
    """Latents, the factor of scores that YaRN has with them, and how experts are chosen; `scored`: by which of
    llama.cpp's functions, where files do not say it."""
    rotated, apart = fields.integer("rope.dimension_count"), "attention.key_length_mla" in fields.values
    suffix = "_mla" if apart else ""
    key, value = (fields.integer(f"attention.{which}_length{suffix}") for which in ("key", "value"))
    sizes = build(
        Latents,
        fields,
        KEYS,
        rank=fields.integer("attention.kv_lora_rank"),
        rotated=rotated,
        unrotated=key - rotated,
        value=value,
        query_rank=fields.integer("attention.q_lora_rank", 0),
    )
    scale, scaling = float(sizes.query**-0.5), config.rope_scaling
    if scaling is not None and scaling.kind == "yarn":
        # Ten times what it is: llama.cpp's converter multiplies by a tenth, and by another one where it is used.
        multiplier = 10 * fields.number("rope.scaling.yarn_log_multiplier")
        factor = 1 + multiplier * (yarn_attention_factor(scaling.factor) - 1)
        scale, scaling = scale * factor * factor, replace(scaling, attention_factor=1.0)
    experts = None if config.experts is None else _chosen(fields, config, config.experts, scored)
    names = {"softmax": "deepseek_v2", "sigmoid": "deepseek_v3"}
    return {
        "architecture": "youtu" if experts is None else names[experts.score],
        "latents": sizes,
        "attention_multiplier": scale,
        "rope_scaling": scaling,
        "experts": experts,
    }


def mistral4(fields: Fields, config: ModelConfig, facts: Facts) -> Mapping[str, Any]:
    """Latents, experts that are chosen by a softmax, and queries that grow with their position where a file says so."""
    said = dict(latents(fields, config, facts))
    experts: Experts | None = said["experts"]
    if experts is None or experts.score != "softmax":
        raise fields.error("expert_gating_func", "must be 1 (softmax), of experts")
    growth, beta = None, fields.number("attention.temperature_scale", 0.0)
    if beta:
        every = fields.integer("attention.temperature_length")
        growth = build(QueryGrowth, fields, GROWTH_KEYS, beta=beta, every=every)
    more = {"experts": replace(experts, best_of_group=2), "query_growth": growth}
    return said | more | {"architecture": config.architecture}


def deepseek32(fields: Fields, config: ModelConfig, facts: Facts) -> Mapping[str, Any]:
    """Latents, and an indexer in every layer."""
    return _indexed(fields, config, facts, tuple(range(config.num_layers)))


def glm_dsa(fields: Fields, config: ModelConfig, facts: Facts) -> Mapping[str, Any]:
    """Latents, and an indexer in layers that are listed."""
    key, layers = INDEX_KEYS["indexer.layers"], config.num_layers
    usual = [config.context_length < _LONG or layer < 2 or (layer - 2) % 4 == 0 for layer in range(layers)]
    listed = fields.values.get(key, usual)
    listed = listed if isinstance(listed, list) else [listed] * layers  # one number for all that are equal
    if len(listed) != layers or any(one not in (0, 1) for one in listed):
        raise fields.error(key, f"must be true or false for each of {layers} layers")
    return _indexed(fields, config, facts, tuple(layer for layer in range(layers) if listed[layer]))


def _indexed(fields: Fields, config: ModelConfig, facts: Facts, choosing: tuple[int, ...]) -> Mapping[str, Any]:
    heads, size, most = (fields.integer(INDEX_KEYS[f"indexer.{name}"]) for name in ("heads", "size", "most"))
    indexer = build(Indexer, fields, INDEX_KEYS, heads=heads, size=size, most=most, layers=choosing)
    said = {**latents(fields, config, facts, scored=2)}
    return {**said, "architecture": config.architecture, "indexer": indexer}


def _chosen(fields: Fields, config: ModelConfig, experts: Experts, scored: int) -> Experts:
    flash = (config.num_layers, config.vocab_size) == _FLASH
    scored = fields.integer("expert_gating_func", 2 if flash else scored)
    if scored not in (1, 2):
        raise fields.error("expert_gating_func", f"is {scored}; served are 1 (softmax) and 2 (sigmoid)")
    softmax = scored == 1
    return build(
        Experts,
        fields,
        KEYS,
        **{name: getattr(experts, name) for name in experts.__dataclass_fields__}
        | {
            "score": "softmax" if softmax else "sigmoid",
            "biased": not softmax,
            "groups": fields.integer("expert_group_count", 0) or 1,
            "groups_per_token": fields.integer("expert_group_used_count", 0) or 1,
            "best_of_group": 1 if softmax else 2,
        },
    )

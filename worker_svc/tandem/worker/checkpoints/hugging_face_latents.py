"""Reads what models with latents (DeepSeek V2 to V3.2, Kimi K2, GLM-4.7-Flash, GLM-5, Mistral 4, Youtu,
MiniCPM3) say of them."""

from __future__ import annotations

import math
from typing import Any

from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.model_parts.indexer import Indexer
from tandem.worker.checkpoints.model_parts.latents import Latents
from tandem.worker.checkpoints.model_parts.rope import yarn_attention_factor

KEYS = {
    "latents.rank": "kv_lora_rank",
    "latents.rotated": "qk_rope_head_dim",
    "latents.unrotated": "qk_nope_head_dim",
    "latents.value": "v_head_dim",
    "latents.query_rank": "q_lora_rank",
    "indexer.heads": "index_n_heads",
    "indexer.size": "index_head_dim",
    "indexer.most": "index_topk",
    "indexer.layers": "indexer_types",
}
_INDEXED = ("indexed_attention", "deepseek_sparse_attention")  # layers with an indexer, now and once
_INDEXERS = ("full", "shared")  # a layer's own, or that of the last layer before it that has one


def read_latents(config: Fields, heads: int) -> Latents:
    """Reads their sizes; null says of `q_lora_rank` that queries are made of the stream."""
    no_latent = "q_lora_rank" in config.values and not config.has("q_lora_rank")
    query_rank = 0 if no_latent else config.integer("q_lora_rank")
    if query_rank < 1 and not no_latent:
        raise config.error("q_lora_rank", f"must be null or at least 1, but is {query_rank}")
    latents = build(
        Latents,
        config,
        KEYS,
        rank=config.integer("kv_lora_rank"),
        rotated=config.integer("qk_rope_head_dim"),
        unrotated=config.integer("qk_nope_head_dim"),
        value=config.integer("v_head_dim"),
        query_rank=query_rank,
    )
    said = {"num_key_value_heads": heads, "head_dim": latents.rotated, "qk_head_dim": latents.query}
    for key, only in said.items():
        if config.integer(key, only) != only:
            raise config.error(key, f"is {config.integer(key)}, but with latents of these sizes it is {only}")
    return latents


def deepseek_v32(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`: an indexer in every layer."""
    layers = config.integer("num_hidden_layers")
    return {"indexer": _indexer(config, layers, 64, tuple(range(layers)))}


def glm_moe_dsa(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`: an indexer in layers that are listed, drawn, or come again and again."""
    layers = config.integer("num_hidden_layers")
    kinds, drawn = config.values.get("indexer_types"), config.values.get("index_topk_pattern")
    key = "indexer_types" if kinds is not None or drawn is None else "index_topk_pattern"
    if kinds is None and drawn is not None:
        letters = {kind[0].upper(): kind for kind in _INDEXERS}
        kinds = [letters.get(letter) for letter in drawn] if isinstance(drawn, str) else drawn
    elif kinds is None:
        every, first = max(config.integer("index_topk_freq", 1), 1), config.integer("index_skip_topk_offset", 2)
        kinds = ["shared" if max(layer - first + 1, 0) % every else "full" for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in _INDEXERS for kind in kinds):
        raise config.error(key, f"must say {' or '.join(_INDEXERS)} for each of the {layers} layers")
    choosing = tuple(layer for layer, kind in enumerate(kinds) if kind == "full")
    return {"indexer": _indexer(config, layers, 32, choosing)}


def without_head_dim(config: Fields) -> Fields:
    """Returns the config of a Mistral 4, whose `head_dim` is that of a head's query, without it."""
    return _without_head_dim(config, sum(_parts_of_head(config)))


def without_part_of_head(config: Fields) -> Fields:
    """Returns the config of a GLM-5 without `head_dim`, which is that of either part of a head: of the rotated one, or
    of the other one (5.2)."""
    return _without_head_dim(config, *_parts_of_head(config))


def _parts_of_head(config: Fields) -> tuple[int, int]:
    return config.integer("qk_rope_head_dim"), config.integer("qk_nope_head_dim")


def _without_head_dim(config: Fields, *sizes: int) -> Fields:
    if config.integer("head_dim", sizes[0]) not in sizes:
        said = f"is {config.integer('head_dim')}, but with latents of these sizes it is {' or '.join(map(str, sizes))}"
        raise config.error("head_dim", said)
    return config.with_values({key: value for key, value in config.values.items() if key != "head_dim"})


def mistral4(config: Fields, rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns no field of `ModelConfig`: what is said of the part of a head that rotates is what is said of latents."""
    rotated = config.integer("qk_rope_head_dim")
    query = config.integer("qk_nope_head_dim") + rotated
    for fields in (config, rope):  # older files have it beside the others
        share = fields.number("partial_rotary_factor", rotated / query)
        if int(query * share) != rotated:
            raise fields.error("partial_rotary_factor", f"is {share:g}, but {rotated} of {query} numbers rotate")
    return {}


def _indexer(config: Fields, layers: int, heads: int, choosing: tuple[int, ...]) -> Indexer:
    """Reads the sizes, of which `heads` is a default."""
    kinds = config.values.get("layer_types")
    if kinds is not None and kinds not in [[name] * layers for name in _INDEXED]:
        raise config.error("layer_types", f"must name indexed_attention for each of the {layers} layers")
    return build(
        Indexer,
        config,
        KEYS,
        heads=config.integer("index_n_heads", heads),
        size=config.integer("index_head_dim", 128),
        most=config.integer("index_topk", 2048),
        layers=choosing,
    )


def score_multiplier(latents: Latents, rope: Fields) -> float:
    """Returns what queries times keys are multiplied by; the factor of all dimensions that YaRN has is in it twice."""
    scale = float(latents.query**-0.5)
    stretched, every = rope.number("factor", 1.0), rope.number("mscale_all_dim", 0.0)
    if not every or rope.text("rope_type", rope.text("type", "default")) == "default":
        return scale
    factor = every * (yarn_attention_factor(stretched) - 1) + 1
    if not math.isfinite(factor) or factor <= 0:
        raise rope.error("mscale_all_dim", f"must make a factor of more than 0, but {every:g} makes {factor:g}")
    return scale * factor * factor


def minicpm3(config: Fields) -> Fields:
    """Returns the config of a MiniCPM3 with what it says of multipliers in the words of others."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    layers = config.integer("num_hidden_layers")
    sizes = {"hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": layers}
    for key, size in sizes.items():
        if size < 1:
            raise config.error(key, f"must be at least 1, but is {size}")
    values = dict(config.values)
    values.setdefault("v_head_dim", hidden // heads)
    values["embedding_multiplier"] = config.number("scale_emb", 12.0)
    deep, base = _or_none(config, "scale_depth", 1.4), _or_none(config, "dim_model_base", 256.0)
    if base is not None and base <= 0:
        raise config.error("dim_model_base", f"must be more than 0, but is {base:g}")
    values["residual_multiplier"] = 1.0 if deep is None else deep / math.sqrt(layers)
    values["logits_scaling"] = 1.0 if base is None else hidden / base
    return config.with_values(values)


def _or_none(config: Fields, key: str, usual: float) -> float | None:
    """Returns a number whose null says that there is none, unlike its absence."""
    return None if key in config.values and not config.has(key) else config.number(key, usual)

"""Reads models whose positions are vectors that are added to those of tokens: GPT-2, GPT-BigCode, GPT-Neo and OPT."""

from __future__ import annotations

from typing import Any

from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.model_parts.limits import LIMITS

_OF_GPT_2 = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "n_inner": "intermediate_size",
}
_OF_GPT_NEO = {"num_heads": "num_attention_heads", "num_layers": "num_hidden_layers"}
_OPT_OFFSET = 2  # rows of the table before that of the first position


def positions(config: Fields, offset: int = 0) -> dict[str, Any]:
    """Returns fields of `ModelConfig`: a row of the table for each position."""
    return {"learned_positions": config.integer("max_position_embeddings") + offset, "position_offset": offset}


def _without_size(config: Fields) -> Fields:
    """Returns the config without a size of feed-forward parts by the name that others have, which is not looked at."""
    return config.with_values({key: value for key, value in config.values.items() if key != "intermediate_size"})


def _usual_sizes(config: Fields) -> Fields:
    """Returns the config with the size of feed-forward parts, and the epsilon, that all have unless it is said."""
    values = {"layer_norm_epsilon": 1e-5, **config.values}
    if not config.has("intermediate_size"):
        values["intermediate_size"] = 4 * config.integer("hidden_size")
    return config.with_values(values)


# --- GPT-2


def gpt_2_names(config: Fields) -> Fields:
    """Returns the config with the usual names, and what all have or have unless it is said."""
    found = _without_size(config).renamed(_OF_GPT_2)
    return _usual_sizes(found.with_values({"max_position_embeddings": 1024, **found.values, "use_bias": True}))


def gpt_2(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`."""
    divided = config.boolean("scale_attn_weights", True)
    return positions(config) | {"attention_multiplier": None if divided else 1.0}


def gpt_bigcode_names(config: Fields) -> Fields:
    """Returns the config with the usual names; a key and a value for all heads, or one for each."""
    found = gpt_2_names(config)
    kv_heads = 1 if config.boolean("multi_query", True) else found.integer("num_attention_heads")
    return found.with_values(found.values | {"num_key_value_heads": kv_heads})


# --- GPT-Neo


def gpt_neo_names(config: Fields) -> Fields:
    """Returns the config with the usual names, and biases of feed-forward parts, which all have."""
    found = config.renamed(_OF_GPT_NEO)
    return _usual_sizes(found.with_values({"max_position_embeddings": 2048, **found.values, "mlp_bias": True}))


def gpt_neo(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`: which layers have a window, and scores that are not divided."""
    window = config.integer("window_size", 256)
    if window < 1:
        raise config.error("window_size", f"must be at least 1, but is {window}")
    windows = tuple(window if kind == "local" else 0 for kind in _kinds(config))
    return positions(config) | {
        "windows": windows if any(windows) else (),
        "attention_multiplier": 1.0,
        "output_bias": True,
    }


def _kinds(config: Fields) -> list[str]:
    """Returns each layer's kind of attention, global or local: `[[kinds that take turns, how often], ...]` says it."""
    layers, kinds = config.integer("num_hidden_layers"), list[str]()
    listed = config.values.get("attention_types")
    if listed is None:
        listed = [[["global", "local"], 12]]
    problem = f"must be a list of [[global or local, ...], times], for {layers} layers in all"
    if not isinstance(listed, list):
        raise config.error("attention_types", problem)
    for each in listed:
        match each:
            case [list() as turns, int() as times] if turns and 0 <= times <= LIMITS["num_layers"]:
                kinds += turns * times if len(turns) <= LIMITS["num_layers"] else []
            case _:
                raise config.error("attention_types", problem)
        if len(kinds) > LIMITS["num_layers"]:
            break
    if len(kinds) != layers or any(kind not in ("global", "local") for kind in kinds):
        raise config.error("attention_types", problem)
    if config.values.get("attention_layers") not in (None, kinds):
        raise config.error("attention_layers", "are not those that attention_types has")
    return kinds


# --- OPT


def opt_names(config: Fields) -> Fields:
    """Returns the config with the usual names and the epsilon that all have. Raises CheckpointError for OPT-350M."""
    found = _without_size(config).renamed({"ffn_dim": "intermediate_size"})
    width = found.integer("hidden_size")
    if not found.boolean("do_layer_norm_before", True):
        raise config.error("do_layer_norm_before", "is false, which OPT-350M alone has: norms of sums are not served")
    if found.integer("word_embed_proj_dim", width) != width:
        said = config.integer("word_embed_proj_dim")
        raise config.error("word_embed_proj_dim", f"is {said}, which is not served; hidden_size {width} is")
    values = found.values | {"layer_norm_eps": 1e-5, "use_bias": found.boolean("enable_bias", True)}
    return found.with_values(values)


def opt(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`."""
    return positions(config, _OPT_OFFSET)

"""Reads what MiniMax-01 and MiniMax-M1 say of their layers: which have lightning attention, and by what the norms are
multiplied that take the stream's place, and what parts give."""

from __future__ import annotations

from typing import Any

import torch

from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.model_parts.recurrences import Lightning
from tandem.worker.checkpoints.model_parts.stream import KeptNorms

_KINDS = ("linear_attention", "full_attention")  # as published files count them
_PARTS = {"attention": "full_attn", "state": "linear_attn", "feed_forward": "mlp"}
_PUBLISHED = {"full_attn": "full_attention", "linear_attn": "linear_attention", "mlp": "mlp"}
_KEYS = {f"kept_norms.{ours}": f"{theirs}_alpha_factor" for ours, theirs in _PARTS.items()}
_KEYS |= {"lightning.heads": "num_attention_heads", "lightning.output_multiplier": "linear_attn_beta_factor"}


def with_usual_names(config: Fields) -> Fields:
    """Returns the config with the names that transformers has."""
    names = {
        f"layernorm_{published}_{which}": f"{theirs}_{which}_factor"
        for theirs, published in _PUBLISHED.items()
        for which in ("alpha", "beta")
    }
    config = config.renamed(names)
    numbers = config.values.get("attn_type_list")
    if numbers is None:
        return config
    layers = config.integer("num_hidden_layers")
    if not isinstance(numbers, list) or len(numbers) != layers or any(one not in (0, 1) for one in numbers):
        raise config.error("attn_type_list", f"must be 1 (attention) or 0 for each of the {layers} layers")
    kinds = [_KINDS[one] for one in numbers]
    if config.values.get("layer_types") not in (None, kinds):
        raise config.error("attn_type_list", "and layer_types contradict each other")
    return config.with_values(config.values | {"layer_types": kinds})


def minimax(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`."""
    layers, heads = config.integer("num_hidden_layers"), config.integer("num_attention_heads")
    usual = [_KINDS[layer % 2 == 0] for layer in range(layers)]
    kinds = config.kinds("layer_types", _KINDS, layers, usual)
    states = tuple(layer for layer, kind in enumerate(kinds) if kind == _KINDS[0])
    head_dim = config.integer("head_dim", config.integer("hidden_size") // max(heads, 1))
    by = config.number("linear_attn_beta_factor", 1.0)
    sizes = {"layers": states, "heads": heads, "head_dim": head_dim, "output_multiplier": by}
    alphas = {ours: config.number(f"{theirs}_alpha_factor", 1.0) for ours, theirs in _PARTS.items()}
    window = config.integer("sliding_window", None)
    if window is not None and window < 1:
        raise config.error("sliding_window", f"must be at least 1, but is {window}")
    return {
        "recurrence": build(Lightning, config, _KEYS, **sizes) if states else None,
        "kept_norms": build(KeptNorms, config, _KEYS, **alphas),
        "mixing_multiplier": config.number("full_attn_beta_factor", 1.0),
        "windows": () if window is None else tuple(window if kind == _KINDS[1] else 0 for kind in kinds),
    }


def rows_by_head(sizes: Lightning) -> torch.Tensor:
    """Returns which rows of the stored matrix, each head's query, key and value below each other, are values, keys and
    queries."""
    heads = torch.arange(sizes.heads)[:, None] * 3 * sizes.head_dim
    return torch.cat([(heads + part * sizes.head_dim + torch.arange(sizes.head_dim)).flatten() for part in (2, 1, 0)])

"""Reads what Kimi Linear says of its layers: latents that know no position in some, a delta rule with a decay of each
channel of the keys in the others."""

from __future__ import annotations

from typing import Any

from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.known_fields import USED, check_fields, rules
from tandem.worker.checkpoints.model_parts.recurrences import KimiDelta

KEYS = {
    "kimi_delta.heads": "linear_num_heads",
    "kimi_delta.head_dim": "linear_head_dim",
    "kimi_delta.kernel": "linear_conv_kernel_dim",
}
_USUAL_NAMES = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
# Of which nothing is computed: no layer rotates, and heads have the sizes that are said of latents.
_IDLE = ("head_dim", "rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings")
_KINDS = ("linear_attention", "full_attention")
_BY_KIND = {"kda_layers": _KINDS[0], "full_attn_layers": _KINDS[1]}
_SIZES = {
    "linear_head_dim": ("head_dim", 128),
    "linear_num_heads": ("num_heads", 32),
    "linear_conv_kernel_dim": ("short_conv_kernel_size", 4),
}


def with_usual_names(config: Fields) -> Fields:
    """Returns the config with the names that others have, and without what nothing is computed with."""
    config = config.renamed(_USUAL_NAMES)
    usual = {"q_lora_rank": None}
    return config.with_values(usual | {key: value for key, value in config.values.items() if key not in _IDLE})


def kimi_linear(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`. What published files say of states in an object of its own comes first."""
    layers = config.integer("num_hidden_layers")
    inner = config.object("linear_attn_config")
    check_fields(inner, rules(USED, "head_dim num_heads short_conv_kernel_size", *_BY_KIND))
    usual = [_KINDS[layer > 0 and layer % 4 == 0] for layer in range(layers)]
    if not config.has("layer_types") and all(key in inner.values for key in _BY_KIND):
        usual = _listed(inner, layers)
    kinds = config.kinds("layer_types", _KINDS, layers, usual)
    sizes = {key: inner.integer(theirs, config.integer(key, usual)) for key, (theirs, usual) in _SIZES.items()}
    states = tuple(layer for layer, kind in enumerate(kinds) if kind == _KINDS[0])
    made = {name.removeprefix("kimi_delta."): sizes[key] for name, key in KEYS.items()}
    recurrence = build(KimiDelta, config, KEYS, layers=states, **made) if states else None
    return {"recurrence": recurrence, "unrotated_layers": tuple(range(layers))}


def _listed(inner: Fields, layers: int) -> list[Any]:
    """Returns each layer's kind by two lists of their numbers, from 1 on."""
    kinds: list[Any] = [None] * layers
    for key, kind in _BY_KIND.items():
        numbers = inner.values[key]
        if not isinstance(numbers, list) or any(type(one) is not int or not 1 <= one <= layers for one in numbers):
            raise inner.error(key, f"must be a list of layers' numbers, from 1 to {layers}")
        for number in numbers:
            if kinds[number - 1] not in (None, kind):
                raise inner.error(key, f"has layer {number}, which is of another kind too")
            kinds[number - 1] = kind
    if None in kinds:
        raise inner.error("kda_layers", f"and full_attn_layers do not have layer {kinds.index(None) + 1}")
    return kinds

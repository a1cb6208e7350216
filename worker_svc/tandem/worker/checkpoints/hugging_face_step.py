"""Reads what Step 3.5 Flash and the text model of Step 3.7 say in words of their own, published and as transformers
writes them: heads of queries, thetas and what rotates by the kind of layer, gates that have limits in some layers.

Lists have an entry of each layer that drafts behind those of the others, too.
"""

from __future__ import annotations

from typing import Any

from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.hugging_face_kinds import (
    FULL,
    KINDS,
    PART,
    WINDOWED,
    query_heads,
    windows_part,
    with_parts,
)
from tandem.worker.checkpoints.model_parts.limits import LIMITS

_THETA, _FIRST_WITH_EXPERTS = 10000.0, 3  # unless said
# Other names of one number, and ours.
_NAMES = {
    "num_attention_groups": "num_key_value_heads",
    "moe_num_experts": "n_routed_experts",
    "num_local_experts": "n_routed_experts",
    "moe_top_k": "num_experts_per_tok",
    "share_expert_dims": "share_expert_dim",
}
_LISTS = (
    *("layer_types", "mlp_layer_types", "swiglu_limits", "swiglu_limits_shared"),
    *("rope_theta", "partial_rotary_factors"),
)
_USUAL = {kind: {"rope_type": "default", "rope_theta": _THETA} for kind in KINDS}


def with_one_spelling(config: Fields) -> Fields:
    """Returns the config as transformers would write it."""
    config = config.renamed(_NAMES)
    values = dict(config.values)
    layers, drafting = config.integer("num_hidden_layers"), config.integer("num_nextn_predict_layers", 0)
    if not 0 < layers <= LIMITS["num_layers"]:
        raise config.error("num_hidden_layers", f"must be from 1 to {LIMITS['num_layers']}, but is {layers}")
    for key in _LISTS:
        if isinstance(values.get(key), list) and drafting > 0 and len(values[key]) == layers + drafting:
            values[key] = values[key][:layers]
    config = config.with_values(values)
    kinds = config.kinds("layer_types", KINDS, layers, [FULL] * layers)
    if not config.has("mlp_layer_types"):
        values["mlp_layer_types"] = _parts(config, layers)
    by_kind = config.object("rope_parameters").values
    if not all(isinstance(by_kind.get(kind), dict) for kind in set(kinds)):
        if by_kind:
            raise config.error("rope_parameters", f"must say {' and '.join(sorted(set(kinds)))} apart")
        values["rope_parameters"] = _older_rope(config, kinds)
    else:
        for key in ("rope_theta", "rope_scaling", "partial_rotary_factors"):
            if config.has(key):
                raise config.error(key, "is beside rope_parameters; one of them is expected")
    values |= dict.fromkeys(("rope_theta", "rope_scaling"))
    return with_parts(config.with_values(values), _USUAL, kinds)


def step(config: Fields, _rope: Fields, windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`."""
    layers, heads = config.integer("num_hidden_layers"), config.integer("num_attention_heads")
    head_dim, kv_heads = config.integer("head_dim", 128), config.integer("num_key_value_heads", heads)
    others = config.object("attention_other_setting")
    usual = others.integer("num_attention_heads", heads)
    in_windows = config.integer("num_sliding_attention_heads", usual)
    if others.has("num_attention_heads") and usual != in_windows:
        raise config.error("num_sliding_attention_heads", f"is {in_windows}, but attention_other_setting says {usual}")
    alike = {"num_attention_groups": kv_heads, "head_dim": head_dim, "true_head_dim": head_dim}
    for key, only in (alike | {"attention_type": WINDOWED}).items():
        if others.values.get(key, only) != only:
            raise others.error(key, f"is {others.values[key]}, but of all layers it is {only}")
    kinds = config.kinds("layer_types", KINDS, layers, [FULL] * layers)
    of_layers = [in_windows if kind == WINDOWED else heads for kind in kinds]
    if config.has("per_layer_config") and _said_again(config.object("per_layer_config"), heads, layers) != of_layers:
        raise config.error("per_layer_config", "is not what other fields say of layers with a window")
    scalar = config.number("query_pre_attn_scalar", float(head_dim))
    if scalar <= 0:
        raise config.error("query_pre_attn_scalar", f"must be more than 0, but is {scalar:g}")
    limits = {"swiglu_limits": "swiglu_limits", "shared_swiglu_limits": "swiglu_limits_shared"}
    return {
        **query_heads(of_layers),
        **windows_part(config, head_dim, windows),
        **{ours: _limits(config, key, layers) for ours, key in limits.items()},
        "attention_multiplier": None if scalar == head_dim else scalar**-0.5,
    }


def _said_again(config: Fields, heads: int, layers: int) -> list[int] | None:
    """Returns the heads of queries by what transformers writes of layers that differ; None where it is more."""
    said = config.by_layer()
    if any(each.values.keys() - {"num_attention_heads"} for each in said.values()):
        return None
    usual = Fields(config.path, {})
    return [said.get(layer, usual).integer("num_attention_heads", heads) for layer in range(layers)]


def _parts(config: Fields, layers: int) -> list[str]:
    """Returns what stands behind attention in each layer: those with experts are counted, perhaps in a text."""
    said = config.values.get("moe_layers_enum")
    listed = said.split(",") if isinstance(said, str) else said
    if listed is None:
        listed = range(_FIRST_WITH_EXPERTS, layers)
    try:
        sparse = {int(one) for one in listed if str(one).strip()}
    except (TypeError, ValueError):
        raise config.error("moe_layers_enum", "must be numbers of layers with commas between them") from None
    return ["sparse" if layer in sparse else "dense" for layer in range(layers)]


def _older_rope(config: Fields, kinds: list[str]) -> dict[str, Any]:
    """Returns RoPE's parameters of each kind of layers, where there is a theta of each layer, or one, and a scaling of
    layers without a window."""
    found: dict[str, Any] = {}
    for kind in set(kinds):
        theta = _of_kind(config, "rope_theta", kinds, kind)
        part = _of_kind(config, "partial_rotary_factors", kinds, kind)
        found[kind] = {"rope_type": "default", "rope_theta": _THETA if theta is None else theta}
        found[kind] |= {} if part is None else {PART: part}
    if config.has("rope_scaling") and FULL in found:
        found[FULL] |= config.object("rope_scaling").values
    return found


def _of_kind(config: Fields, key: str, kinds: list[str], kind: str) -> float | None:
    """Reads a number that may be one of each layer, the same in layers of a kind."""
    listed = config.values.get(key)
    if not isinstance(listed, list):
        return config.number(key, None)
    if len(listed) != len(kinds):
        raise config.error(key, f"must be a list of a number for each of the {len(kinds)} layers")
    numbers = Fields(config.path, {f"{key}[{layer}]": one for layer, one in enumerate(listed)})
    of_kind = {numbers.number(f"{key}[{layer}]") for layer, each in enumerate(kinds) if each == kind}
    if len(of_kind) > 1:
        raise config.error(key, f"differs among the layers with {kind}, which is not served")
    return of_kind.pop()


def _limits(config: Fields, key: str, layers: int) -> tuple[float, ...]:
    """Reads a limit of each layer; 0 and null: none. Returns none at all where no layer has one."""
    if not config.has(key):
        return ()
    listed = config.values[key]
    if not isinstance(listed, list) or len(listed) != layers:
        raise config.error(key, f"must be a list of a limit for each of the {layers} layers")
    numbers = Fields(config.path, {f"{key}[{layer}]": one or 0.0 for layer, one in enumerate(listed)})
    limits = tuple(numbers.number(name) for name in numbers.values)
    return limits if any(limits) else ()

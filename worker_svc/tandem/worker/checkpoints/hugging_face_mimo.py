"""Reads what MiMo-V2-Flash says in words of its own: layers with windows have twice as many heads of keys, one more
score in each head's softmax, and a theta of their own; values are shorter than keys, and multiplied."""

from __future__ import annotations

from typing import Any

from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.model_parts.heads import KVHeads

_KINDS = ("sliding_attention", "full_attention")
_PARTS = ("dense", "sparse")
_THETAS = {"full_attention": 5000000.0, "sliding_attention": 10000.0}
_SIZES = (("num_key_value_heads", 4), ("head_dim", 192), ("v_head_dim", 128))
_VALUE_SCALE = 0.707  # unless said; null says 1
_PART = 0.334  # of a head that rotates, unless said
# Lists of a 1 or 0 for each layer that say again what another field says or has by default, and what a 1 of theirs is.
_DRAWN = {
    "hybrid_layer_pattern": ("layer_types", "sliding_attention"),
    "moe_layer_freq": ("mlp_layer_types", "sparse"),
}


def with_one_share(config: Fields) -> Fields:
    """Returns the config with what of a head rotates beside the RoPE parameters, which say it for each kind of layers,
    and with what it leaves unsaid."""
    said = config.object("rope_parameters")
    for key in said.values.keys() - set(_KINDS):
        raise said.error(key, "is beside parameters that differ by layer, which is not served")
    shares, parameters = {}, {}
    for kind, theta in _THETAS.items():
        each = said.object(kind)
        if said.values and not each.values:
            raise said.error(kind, "is missing")
        if each.text("rope_type", each.text("type", "default")) != "default":
            raise each.error("rope_type", f"{each.text('rope_type')!r} is not served; served is default")
        shares[kind] = each.number("partial_rotary_factor", _PART)
        rest = {key: value for key, value in each.values.items() if key != "partial_rotary_factor"}
        parameters[kind] = {"rope_type": "default", "rope_theta": theta} | rest
    if len(set(shares.values())) > 1:
        raise said.error("sliding_attention", "rotates another part of heads than full_attention, which is not served")
    values = {"attention_value_scale": _VALUE_SCALE} | config.values
    values |= {"rope_parameters": parameters, "partial_rotary_factor": shares["full_attention"], "rope_theta": None}
    for key, usual in (("rms_norm_eps", 1e-5), ("attention_value_scale", 1.0)):
        if values.get(key) is None:
            values[key] = usual
    return config.with_values(values)


def mimo(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`."""
    layers = config.integer("num_hidden_layers")
    usual = [_KINDS[layer == 0 or (layer + 1) % 6 == 0] for layer in range(layers)]
    kinds = config.kinds("layer_types", _KINDS, layers, usual)
    parts = config.kinds("mlp_layer_types", _PARTS, layers, ["dense", *["sparse"] * (layers - 1)])
    for key, said in {"hybrid_layer_pattern": kinds, "moe_layer_freq": parts}.items():
        other, one = _DRAWN[key]
        drawn = [int(kind == one) for kind in said]
        if config.values.get(key, drawn) != drawn:
            raise config.error(key, f"is not what {other} says, or has by default")
    behind = config.integer("sliding_window_size", None)
    window = config.integer("sliding_window", 129) if behind is None else behind + 1
    if window < 1:
        raise config.error("sliding_window", f"must be at least 1, but is {window}")
    heads, size, value = (config.integer(*each) for each in _SIZES)
    alike = {"swa_num_attention_heads": config.integer("num_attention_heads"), "swa_num_key_value_heads": 2 * heads}
    for key, only in (alike | {"swa_head_dim": size, "swa_v_head_dim": value}).items():
        if config.integer(key, only) != only:
            raise config.error(key, f"is {config.integer(key)}, but of heads of these sizes it is {only}")
    windows = tuple(window if kind == _KINDS[0] else 0 for kind in kinds) if _KINDS[0] in kinds else ()
    return {
        "windows": windows,
        "num_kv_heads": 2 * heads if windows else heads,
        "full_heads": KVHeads(heads, size) if windows else None,
        "value_dim": value,
        "mixing_multiplier": config.number("attention_value_scale"),
    }

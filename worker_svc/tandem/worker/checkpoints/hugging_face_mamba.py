"""Reads what models with Mamba-2 layers say beyond other architectures: Bamba, Granite 4, Nemotron-H and Falcon-H1.

Bamba         some layers, whose numbers are listed, have attention, the others a state
Granite 4     some layers have a state instead of attention; experts and a shared one, or an ordinary part
Nemotron-H    a layer is a state, attention, or a feed-forward part with experts or without, nothing else
Falcon-H1     every layer has attention and a state beside each other, and multipliers everywhere
"""

from __future__ import annotations

import math
from typing import Any

from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.limits import LIMITS
from tandem.worker.checkpoints.model_parts.recurrences import Mamba

_KEYS = {
    "mamba.heads": "mamba_n_heads",
    "mamba.head_dim": "mamba_d_head",
    "mamba.groups": "mamba_n_groups",
    "mamba.state_size": "mamba_d_state",
    "mamba.kernel": "mamba_d_conv",
    "mamba.least_dt": "time_step_limit",
    "mamba.multipliers": "ssm_multipliers",
    "mamba.output_multiplier": "ssm_out_multiplier",
}
_NEMOTRON_KEYS = {
    "mamba.heads": "mamba_num_heads",
    "mamba.head_dim": "mamba_head_dim",
    "mamba.groups": "n_groups",
    "mamba.state_size": "ssm_state_size",
    "mamba.kernel": "conv_kernel",
    "mamba.least_dt": "time_step_min",
}
_EXPERT_KEYS = {
    "experts.count": "num_local_experts",
    "experts.per_token": "num_experts_per_tok",
    "experts.intermediate_size": "intermediate_size",
    "experts.shared_size": "shared_intermediate_size",
}
_NEMOTRON_EXPERT_KEYS = {
    "experts.count": "n_routed_experts",
    "experts.per_token": "num_experts_per_tok",
    "experts.intermediate_size": "moe_intermediate_size",
    "experts.shared_size": "moe_shared_expert_intermediate_size",
    "experts.latent": "moe_latent_size",
    "experts.groups": "n_group",
    "experts.groups_per_token": "topk_group",
    "experts.scale": "routed_scaling_factor",
}
_MOST_MULTIPLIER = 1e6
# The names of what layers are: transformers 5's, and older ones.
_STATE, _ATTENTION, _FEED_FORWARD = ("linear_attention", "mamba"), ("full_attention", "attention"), ("mlp",)
_EXPERTS = ("moe",)


# --- Bamba


def bamba(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`."""
    layers, key = config.integer("num_hidden_layers"), "attn_layer_indices"
    listed = config.values.get(key)
    if not isinstance(listed, list) or any(type(one) is not int or not 0 <= one < layers for one in listed):
        raise config.error(key, f"must be a list of layers from 0 to {layers - 1}, those that have attention")
    kinds: list[tuple[str, ...]] = [_ATTENTION if layer in listed else _STATE for layer in range(layers)]
    size = config.integer("mamba_expand", 2) * config.integer("hidden_size")
    return {"recurrence": _mamba(config, kinds, size, 128)}


# --- Granite 4


def granite_hybrid(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`."""
    layers = config.integer("num_hidden_layers")
    shared = config.integer("shared_intermediate_size", 1024)
    if not 1 <= shared <= LIMITS["intermediate_size"]:
        raise config.error("shared_intermediate_size", f"must be from 1 to {LIMITS['intermediate_size']}, not {shared}")
    count = config.integer("num_local_experts", 8)
    experts = None
    if count != 0:
        experts = build(
            Experts,
            config,
            _EXPERT_KEYS,
            count=count,
            per_token=config.integer("num_experts_per_tok", 2),
            intermediate_size=config.integer("intermediate_size"),
            normalized=True,
            shared_size=shared,
        )
    kinds = _kinds(config, "layer_types", config.values.get("layer_types"), layers, (_STATE, _ATTENTION))
    rotated = config.text("position_embedding_type") == "rope"
    return {
        "experts": experts,
        "intermediate_size": config.integer("intermediate_size") if experts is not None else shared,
        "unrotated_layers": () if rotated else tuple(range(layers)),
        "recurrence": _mamba(config, kinds, config.integer("mamba_expand", 2) * config.integer("hidden_size"), 128),
    }


# --- Falcon-H1


def falcon_h1(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`."""
    layers, heads = config.integer("num_hidden_layers"), config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", config.integer("hidden_size") // heads)
    size = config.integer("mamba_d_ssm", 1024)
    if "mamba_d_ssm" in config.values and not config.has("mamba_d_ssm"):  # null: as wide as others are
        size = config.integer("mamba_expand", 2) * config.integer("hidden_size")
    enters, leaves = (_positive(config, f"attention_{which}_multiplier") for which in ("in", "out"))
    gate, down = _numbers(config, "mlp_multipliers", 2)
    z, x, b, c, dt = _numbers(config, "ssm_multipliers", 5)
    before = _positive(config, "ssm_in_multiplier")
    norm = "none"
    if config.boolean("mamba_rms_norm", False):
        key = "mamba_norm_before_gate"  # null is as good as false
        norm = "before" if config.boolean(key, key not in config.values) else "after"
    more = {
        "norm": norm,
        "multipliers": tuple(before * one for one in (z, x, b, c, dt)),
        "output_multiplier": _positive(config, "ssm_out_multiplier"),
        "beside_attention": True,
        "output_bias": config.boolean("projectors_bias", False),
    }
    return {
        # Both queries and keys are made of what is multiplied, and so are values.
        "attention_multiplier": head_dim**-0.5 * enters**2 * _positive(config, "key_multiplier"),
        "mixing_multiplier": enters * leaves,
        "gate_multiplier": gate,
        "feed_forward_multiplier": down,
        "logit_multiplier": _positive(config, "lm_head_multiplier"),
        "recurrence": _mamba(config, [_STATE] * layers, size, 128, **more),
    }


def _positive(config: Fields, key: str) -> float:
    value = config.number(key, 1.0)
    if not 1 / _MOST_MULTIPLIER <= value <= _MOST_MULTIPLIER:  # so that products of some stay finite and above 0
        limits = f"from {1 / _MOST_MULTIPLIER:g} to {_MOST_MULTIPLIER:g}"
        raise config.error(key, f"must be {limits}, but is {value:g}")
    return value


def _numbers(config: Fields, key: str, count: int) -> tuple[float, ...]:
    listed = config.values.get(key)
    if listed is None:
        return (1.0,) * count
    if not isinstance(listed, list) or len(listed) != count:
        raise config.error(key, f"must be a list of {count} numbers")
    each = Fields(config.path, {f"{key}[{place}]": value for place, value in enumerate(listed)})
    return tuple(_positive(each, place) for place in each.values)


# --- Nemotron-H


def with_layers(config: Fields) -> Fields:
    """Returns the config of a Nemotron-H with the number of layers, which its list or pattern of them says."""
    kinds = _nemotron_kinds(config)
    said = config.integer("num_hidden_layers", len(kinds))
    if said != len(kinds):
        raise config.error("num_hidden_layers", f"is {said}, but {len(kinds)} layers are listed")
    return Fields(config.path, config.values | {"num_hidden_layers": said})


def nemotron_h(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`."""
    kinds = _nemotron_kinds(config)
    if _ATTENTION not in kinds:
        key = "hybrid_override_pattern" if config.values.get("layers_block_type") is None else "layers_block_type"
        raise config.error(key, "names no layer that has attention; one at least must have it")
    bias = config.boolean("use_bias", False)
    heads, head_dim = config.integer("mamba_num_heads", 128), config.integer("mamba_head_dim", 64)
    recurrence = build(
        Mamba,
        config,
        _NEMOTRON_KEYS,
        layers=tuple(layer for layer, kind in enumerate(kinds) if kind is _STATE),
        heads=heads,
        head_dim=head_dim,
        groups=config.integer("n_groups", 8),
        state_size=config.integer("ssm_state_size", 128),
        kernel=config.integer("conv_kernel", 4),
        filter_bias=config.boolean("use_conv_bias", True),
        input_bias=bias,
        output_bias=bias,
        least_dt=config.number("time_step_min", 0.001),
    )
    dense = tuple(layer for layer, kind in enumerate(kinds) if kind is _FEED_FORWARD)
    experts = _nemotron_experts(config, dense) if _EXPERTS in kinds else None
    return {
        "recurrence": recurrence if recurrence.layers else None,
        "feed_forward_alone": tuple(layer for layer, kind in enumerate(kinds) if kind in (_FEED_FORWARD, _EXPERTS)),
        "unrotated_layers": tuple(range(len(kinds))),
        "experts": experts,
        # Of no layer; as GGUF files have it.
        **({"intermediate_size": experts.intermediate_size} if experts is not None and not dense else {}),
    }


def _nemotron_experts(config: Fields, dense: tuple[int, ...]) -> Experts:
    sizes: dict[str, int] = {}
    for name, key, usual in (
        ("shared_size", "moe_shared_expert_intermediate_size", 7688),
        ("latent", "moe_latent_size", None),
    ):
        size = config.integer(key, usual)
        if size is not None and size < 1:
            raise config.error(key, f"must be at least 1, but is {size}")
        sizes[name] = size or 0
    return build(
        Experts,
        config,
        _NEMOTRON_EXPERT_KEYS,
        count=config.integer("n_routed_experts", 8),
        per_token=config.integer("num_experts_per_tok", 2),
        intermediate_size=config.integer("moe_intermediate_size", 7688),
        normalized=config.boolean("norm_topk_prob", "norm_topk_prob" not in config.values),
        dense_layers=dense,
        score="sigmoid",
        biased=True,
        groups=config.integer("n_group", 1),
        groups_per_token=config.integer("topk_group", 1),
        scale=config.number("routed_scaling_factor", 1.0),
        activation="relu2",
        gated=False,
        **sizes,
    )


def _nemotron_kinds(config: Fields) -> list[tuple[str, ...]]:
    listed, pattern = config.values.get("layers_block_type"), config.text("hybrid_override_pattern")
    served = (_STATE, _ATTENTION, _FEED_FORWARD, _EXPERTS)
    if listed is not None or pattern is None:
        return _kinds(config, "layers_block_type", listed, None, served)
    by_letter = {"M": _STATE, "*": _ATTENTION, "-": _FEED_FORWARD, "E": _EXPERTS}
    if not 1 <= len(pattern) <= LIMITS["num_layers"] or set(pattern) - by_letter.keys():
        raise config.error("hybrid_override_pattern", f"must have a letter of {' '.join(by_letter)} for each layer")
    return [by_letter[letter] for letter in pattern]


# --- all


def _kinds(
    config: Fields, key: str, listed: object, layers: int | None, served: tuple[tuple[str, ...], ...]
) -> list[tuple[str, ...]]:
    """Reads what each layer is."""
    by_name = {name: kind for kind in served for name in kind}
    many = isinstance(listed, list) and 1 <= len(listed) <= LIMITS["num_layers"]
    if not isinstance(listed, list) or not many or (layers is not None and len(listed) != layers):
        raise config.error(key, f"must be a list with one of {', '.join(by_name)} for each layer")
    for name in listed:
        if not isinstance(name, str) or name not in by_name:
            raise config.error(key, f"has {str(name)[:40]!r}, which is not served; served are {', '.join(by_name)}")
    return [by_name[name] for name in listed]


def _mamba(config: Fields, kinds: list[tuple[str, ...]], size: int, heads: int, **more: Any) -> Mamba | None:
    """Reads the state space of layers with `size` channels."""
    layers = tuple(layer for layer, kind in enumerate(kinds) if kind is _STATE)
    if not layers:
        return None
    heads = config.integer("mamba_n_heads", heads)
    if heads < 1 or size % heads:
        raise config.error("mamba_n_heads", f"{heads} do not share {size} channels")
    head_dim = size // heads
    if config.values.get("mamba_d_head") != "auto" and config.integer("mamba_d_head", head_dim) != head_dim:
        raise config.error("mamba_d_head", f"must be {head_dim}, which {heads} heads of {size} channels have")
    least, most = _limits(config)
    bias = config.boolean("mamba_proj_bias", False)
    values: dict[str, Any] = {"input_bias": bias, "output_bias": bias} | more
    return build(
        Mamba,
        config,
        _KEYS,
        layers=layers,
        heads=heads,
        head_dim=head_dim,
        groups=config.integer("mamba_n_groups", 1),
        state_size=config.integer("mamba_d_state", 256),
        kernel=config.integer("mamba_d_conv", 4),
        filter_bias=config.boolean("mamba_conv_bias", True),
        least_dt=least,
        most_dt=most,
        **values,
    )


def _limits(config: Fields) -> tuple[float, float]:
    """Reads the limits of dt; JSON has no infinity, which transformers writes as an object."""
    key = "time_step_limit"
    limits = config.values.get(key, [0.0, math.inf])
    if not isinstance(limits, list) or len(limits) != 2:
        raise config.error(key, "must be two numbers")
    infinite = [one in (math.inf, {"__float__": "Infinity"}) for one in limits]
    each = Fields(config.path, {f"{key}[{place}]": one for place, one in enumerate(limits)})
    least, most = (
        math.inf if endless else each.number(place) for endless, place in zip(infinite, each.values, strict=True)
    )
    if not 0 <= least <= most:
        raise config.error(key, "must be two numbers from 0 on, the smaller one first")
    return least, most

"""Reads what files of Llama 4, Gemma 4, Ministral 3, Qwen3-Next, Qwen3.5 and a few dense models say beyond those of
other architectures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.beside_stream import PerLayerInputs
from tandem.worker.checkpoints.model_parts.heads import KVHeads
from tandem.worker.checkpoints.model_parts.recurrences import DeltaNet
from tandem.worker.checkpoints.model_parts.rope import QueryGrowth, RopeScaling, yarn_attention_factor

DELTA_NET_KEYS = {
    "delta_net.key_heads": "ssm.group_count",
    "delta_net.value_heads": "ssm.time_step_rank",
    "delta_net.key_dim": "ssm.state_size",
    "delta_net.value_dim": "ssm.inner_size",
    "delta_net.kernel": "ssm.conv_kernel",
}
_UNTURNED = 1e20  # a divisor that leaves nothing of a frequency


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a file beside the keys of its architecture."""

    divisors: tuple[float, ...]  # of RoPE's frequencies
    shapes: Mapping[str, tuple[int, ...]]  # of its tensors


# From the architecture's keys and the config that they make by the rules of all: further fields of it.
Further = Callable[[Fields, ModelConfig, Facts], Mapping[str, Any]]


def unfolded(fields: Fields) -> Fields:
    """Returns the keys of a file whose layers differ, with the number of the first layer that has one, or of those with
    a window, where there is one for each."""
    values = dict(fields.values)
    for key in ("attention.head_count_kv", "feed_forward_length"):
        if isinstance(values.get(key), list) and values[key]:
            values[key] = next((one for one in values[key] if one), 0)
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        if f"{key}_swa" in values:
            values[key] = values[f"{key}_swa"]
    windows = fields.values.get("attention.sliding_window_pattern")
    heads = fields.values.get("attention.head_count_kv")
    if isinstance(windows, list) and isinstance(heads, list) and len(heads) == len(windows) and any(windows):
        values["attention.head_count_kv"] = heads[windows.index(True)]
    return fields.with_values(values)


def llama4(fields: Fields, config: ModelConfig, _facts: Facts) -> Mapping[str, Any]:
    """Layers in chunks; llama.cpp has the constants of the published models."""
    experts, step = config.experts, fields.integer("interleave_moe_layer_step")
    if experts is None:
        raise fields.error("expert_count", "is missing, without which this architecture is not served")
    if step < 1:
        raise fields.error("interleave_moe_layer_step", f"must be at least 1, but is {step}")
    dense = tuple(layer for layer in range(config.num_layers) if (layer + 1) % step)
    return {
        # llama.cpp tells the models apart by their experts: those with 128 have no norms
        "qk_norm": None if experts.count == 128 else "unit",
        "query_growth": QueryGrowth(beta=0.1, every=8192, ahead=1, unrotated_alone=True),
        "experts": replace(experts, shared_size=experts.intermediate_size, dense_layers=dense),
    }


def hunyuan3(fields: Fields, config: ModelConfig, facts: Facts) -> Mapping[str, Any]:
    """Which layers are dense, which tensors say: llama.cpp knows no key of it."""
    if config.experts is None:
        raise fields.error("expert_count", "is missing, without which this architecture is not served")
    layers = range(config.num_layers)
    dense = tuple(layer for layer in layers if f"blk.{layer}.ffn_gate_inp.weight" not in facts.shapes)
    return {"experts": replace(config.experts, dense_layers=dense)}


def ministral3(fields: Fields, config: ModelConfig, _facts: Facts) -> Mapping[str, Any]:
    """Queries that grow beyond the context that was trained first; YaRN with a factor of its own."""
    scaling = config.rope_scaling
    beta = fields.number("attention.temperature_scale", 0.0)
    if scaling is None or scaling.kind != "yarn":
        if beta:
            raise fields.error("attention.temperature_scale", "is set, but rope.scaling.type is not yarn")
        return {}
    usual = fields.number("rope.scaling.yarn_log_multiplier", 1.0)
    return {
        "rope_scaling": replace(scaling, attention_factor=(1 + _grown(scaling)) / (1 + usual * _grown(scaling))),
        "query_growth": QueryGrowth(beta=beta, every=scaling.original_context_length) if beta else None,
    }


def _grown(scaling: RopeScaling) -> float:
    return yarn_attention_factor(scaling.factor) - 1


def gemma4(fields: Fields, config: ModelConfig, facts: Facts) -> Mapping[str, Any]:
    """Layers without a window have heads of their own; the last ones may look at the keys of earlier ones."""
    windows = config.windows
    if not windows or windows[-1]:
        raise fields.error("attention.sliding_window_pattern", "must end with false")
    if config.rope_scaling is not None:
        raise fields.error("rope.scaling.type", "is set, which is not served with this architecture")
    heads = heads_without_window(fields, config)
    assert heads is not None
    size = fields.integer("attention.key_length", config.head_dim)
    shared = fields.integer("attention.shared_kv_layers", 0)
    inner = [of_layer(fields, "feed_forward_length", config.num_layers, layer) for layer in range(config.num_layers)]
    widening = 2 if inner[-1] == 2 * inner[0] else 1
    usual = [inner[0] * (widening if layer >= config.num_layers - shared else 1) for layer in range(config.num_layers)]
    if inner != usual:
        raise fields.error("feed_forward_length", "differs by layer, but not as twice that of the first in shared ones")
    keys_alone = {
        f"blk.{layer}.attn_v.weight" not in facts.shapes
        for layer, window in enumerate(windows[: config.num_layers - shared])
        if not window
    }
    experts = config.experts
    return {
        "full_heads": KVHeads(heads, size),
        "rotary_dim": _turning(fields, facts.divisors, size),
        "rope_scaling": RopeScaling("proportional") if facts.divisors else None,
        "values_are_keys": True in keys_alone,
        "shared_layers": shared,
        "shared_widening": widening,
        "per_layer_inputs": per_layer_inputs(fields, facts),
        "embedding_multiplier": config.hidden_size**0.5,
        "attention_multiplier": 1.0,
        "experts": None
        if experts is None
        else replace(
            experts, activation="gelu_tanh", beside=True, weighed=True, logit_multiplier=config.hidden_size**-0.5
        ),
    }


def heads_without_window(fields: Fields, config: ModelConfig) -> int | None:
    """Returns the heads of keys that layers without a window have, if there are such, those with one having as many as
    `config` says."""
    key, with_window, without = "attention.head_count_kv", {config.num_kv_heads}, set[int]()
    for layer, window in enumerate(config.windows):
        (with_window if window else without).add(of_layer(fields, key, config.num_layers, layer))
    if len(with_window) > 1 or len(without) > 1:
        raise fields.error(key, "must be the same for all layers with a window, and without")
    return next(iter(without), None)


def of_layer(fields: Fields, key: str, layers: int, layer: int) -> int:
    """Reads a number that may be one of each layer."""
    value = fields.values.get(key)
    if not isinstance(value, list):
        return fields.integer(key)
    if len(value) != layers or any(type(one) is not int for one in value):
        raise fields.error(key, f"must be one number, or one for each of {layers} layers")
    number: int = value[layer]
    return number


def _turning(fields: Fields, divisors: tuple[float, ...], size: int) -> int | None:
    """Returns how many of a head's numbers turn: those whose frequency is divided by 1."""
    if not divisors:
        return None
    turning = divisors.count(1.0)
    rest = divisors[turning:]
    if len(divisors) != size // 2 or 1.0 in rest or any(one < _UNTURNED for one in rest):
        raise fields.error("rope_freqs.weight", "must be ones, then numbers that leave nothing of a frequency")
    return 2 * turning


def per_layer_inputs(fields: Fields, facts: Facts) -> PerLayerInputs | None:
    size = fields.integer("embedding_length_per_layer_input", 0)
    if not size:
        return None
    shape = facts.shapes.get("per_layer_token_embd.weight", (0,))
    keys = {"per_layer_inputs.size": "embedding_length_per_layer_input"}
    return build(PerLayerInputs, fields, keys, size=size, vocab_size=shape[0])


def hybrid(fields: Fields, config: ModelConfig, _facts: Facts) -> Mapping[str, Any]:
    """Layers with a gated delta rule, and attention in every fourth or in those that are listed."""
    every, layers = fields.integer("full_attention_interval", 4), config.num_layers
    if every < 1:
        raise fields.error("full_attention_interval", f"must be at least 1, but is {every}")
    listed = fields.values.get("attention.recurrent_layers")
    if listed is None:
        listed = [(layer + 1) % every > 0 for layer in range(layers)]
    if not isinstance(listed, list) or len(listed) < layers or any(one not in (0, 1) for one in listed):
        raise fields.error("attention.recurrent_layers", f"must be true or false for each of {layers} layers")
    heads, inner = fields.integer("ssm.time_step_rank"), fields.integer("ssm.inner_size")
    if heads < 1 or inner % heads:
        raise fields.error("ssm.inner_size", f"{inner} cannot be split over ssm.time_step_rank {heads}")
    return {
        "recurrence": build(
            DeltaNet,
            fields,
            DELTA_NET_KEYS,
            layers=tuple(layer for layer in range(layers) if listed[layer]),
            key_heads=fields.integer("ssm.group_count"),
            value_heads=heads,
            key_dim=fields.integer("ssm.state_size"),
            value_dim=inner // heads,
            kernel=fields.integer("ssm.conv_kernel"),
        ),
        "rotary_dim": config.rotated,
    }


def afmoe(_fields: Fields, config: ModelConfig, _facts: Facts) -> dict[str, Any]:
    """Returns what embeddings are multiplied by, which llama.cpp takes for granted."""
    return {"embedding_multiplier": config.hidden_size**0.5}


def exaone4(_fields: Fields, config: ModelConfig, _facts: Facts) -> dict[str, Any]:
    """Returns which layers do not rotate: those without a window beside others that have one."""
    return {"unrotated_layers": tuple(layer for layer, window in enumerate(config.windows) if not window)}


def gpt_neox(fields: Fields, config: ModelConfig, _facts: Facts) -> dict[str, Any]:
    """Returns whether a layer's parts are side by side, each by its norm. llama.cpp wants all biases."""
    if not (config.qkv_bias and config.output_bias and config.mlp_bias):
        raise fields.error("attn_qkv.bias", "or another bias is missing, without which llama.cpp loads no such file")
    parallel = fields.boolean("use_parallel_residual", True)
    return {"parallel": parallel, "parallel_norms": parallel}


def falcon(_fields: Fields, _config: ModelConfig, facts: Facts) -> dict[str, Any]:
    """Returns whether a layer's parts have a norm each."""
    return {"parallel_norms": "blk.0.attn_norm_2.weight" in facts.shapes}


def cohere2_moe(fields: Fields, config: ModelConfig, _facts: Facts) -> dict[str, Any]:
    """Returns which layers do not rotate: those without a window that have experts. What the shared expert gives is
    averaged with what the others do; a router without a number for its kind is by sigmoids."""
    experts = config.experts
    if experts is None:
        raise fields.error("expert_count", "is missing, without which this architecture is not served")
    kind, share = fields.integer("expert_gating_func", 2), 0.5 if experts.shared_size else 1.0
    if kind not in (1, 2):
        raise fields.error(
            "expert_gating_func", f"is {kind}, which is not served; served are 1 (softmax) and 2 (sigmoid)"
        )
    return {
        "unrotated_layers": tuple(
            layer
            for layer in range(config.num_layers)
            if not (config.windows and config.windows[layer]) and layer not in experts.dense_layers
        ),
        "experts": replace(
            experts,
            score="softmax" if kind == 1 else "sigmoid",
            scale=experts.scale * share,
            shared_multiplier=share,
        ),
    }


def granite_swa(fields: Fields, config: ModelConfig, _facts: Facts) -> dict[str, Any]:
    """Returns which layers do not rotate: those that a list says, or none."""
    pattern = fields.values.get("attention.rope_pattern", 1)
    pattern = pattern if isinstance(pattern, list) else [pattern] * config.num_layers  # one for all that are equal
    if len(pattern) != config.num_layers or any(one not in (0, 1) for one in pattern):
        raise fields.error("attention.rope_pattern", f"must be true or false for each of {config.num_layers} layers")
    return {"unrotated_layers": tuple(layer for layer, rotates in enumerate(pattern) if not rotates)}


def learned_positions(_fields: Fields, config: ModelConfig, facts: Facts) -> dict[str, Any]:
    """Returns how many positions have a row in the table of them."""
    return {"learned_positions": facts.shapes.get("position_embd.weight", (config.context_length,))[0]}


def stablelm(_fields: Fields, _config: ModelConfig, facts: Facts) -> dict[str, Any]:
    """Returns whether a layer's parts are side by side: they have one norm then."""
    return {"parallel": "blk.0.ffn_norm.weight" not in facts.shapes}

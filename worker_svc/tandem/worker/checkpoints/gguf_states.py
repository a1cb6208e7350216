"""Reads what files of LFM2, Granite 4 H, Nemotron-H and Falcon-H1 say beyond those of other architectures, and where
llama.cpp keeps the parts of their layers with states.

    z, channels and dt of Mamba-2   one matrix, as in transformers
    its decay and skip              [heads, 1]; the decay is minus the exponential of what ours has
    its norm                        [groups, channels of a group]; behind the gate, where there is one
    multipliers of Falcon-H1        its matrices are multiplied by them
    the last norm of LFM2           is called the embedding's

A layer without heads of keys has a state, if it is not a feed-forward part. dt has no limits. Of Nemotron 3, layers
with a router are feed-forward parts, whatever their feed_forward_length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch

from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.gguf_further import Facts
from tandem.worker.checkpoints.gguf_hybrids import GgufPiece
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.recurrences import Mamba, ShortConvolution

_INPUTS = "ssm_in.weight"
MAMBA_NAMES = {
    **dict.fromkeys(("mamba.z", "mamba.channels", "mamba.dt"), _INPUTS),
    "mamba.filter": "ssm_conv1d.weight",
    "mamba.filter_bias": "ssm_conv1d.bias",
    "mamba.rate": "ssm_a",
    "mamba.bias": "ssm_dt.bias",
    "mamba.skip": "ssm_d",
    "mamba.norm_weight": "ssm_norm.weight",
    "mamba.output": "ssm_out.weight",
}
LATENT_EXPERTS = {
    "router_bias": "exp_probs_b.bias",
    "into_experts": "ffn_latent_down.weight",
    "out_of_experts": "ffn_latent_up.weight",
}
LFM2_NAMES = {
    "short_convolution.gates_and_input": "shortconv.in_proj.weight",
    "short_convolution.filter": "shortconv.conv.weight",
    "short_convolution.output": "shortconv.out_proj.weight",
    "top.norm": "token_embd_norm.weight",  # of no layer
}
MAMBA_KEYS = {
    "mamba.heads": "ssm.time_step_rank",
    "mamba.head_dim": "ssm.inner_size",
    "mamba.groups": "ssm.group_count",
    "mamba.state_size": "ssm.state_size",
    "mamba.kernel": "ssm.conv_kernel",
    "recurrence.layers": "attention.head_count_kv",
    "feed_forward_alone": "feed_forward_length",
}
NEMOTRON_EXPERT_KEYS = {
    "experts.groups": "expert_group_count",
    "experts.groups_per_token": "expert_group_used_count",
    "experts.per_token": "expert_used_count",
    "experts.latent": "moe_latent_size",
}


def lfm2(fields: Fields, config: ModelConfig, _facts: Facts) -> Mapping[str, Any]:
    """Layers with a convolution between two gates."""
    layers = without_keys(fields, "attention.head_count_kv", config.num_layers)
    if not layers:
        return {}
    kernel = fields.integer("shortconv.l_cache")
    keys = {"short_convolution.kernel": "shortconv.l_cache"}
    sizes = build(ShortConvolution, fields, keys, layers=layers, channels=config.hidden_size, kernel=kernel)
    return {"recurrence": sizes}


def granite_hybrid(fields: Fields, config: ModelConfig, facts: Facts) -> Mapping[str, Any]:
    """Layers with a state, and others with attention, which are rotated unless the scaling is not "finetuned"."""
    rotated = fields.boolean("rope.scaling.finetuned", True)
    layers = without_keys(fields, "attention.head_count_kv", config.num_layers)
    return {
        "recurrence": _mamba(fields, facts, layers) if layers else None,
        "unrotated_layers": () if rotated else tuple(range(config.num_layers)),
    }


def nemotron_h(fields: Fields, config: ModelConfig, facts: Facts) -> Mapping[str, Any]:
    """Layers that are a state, attention or a feed-forward part, nothing else."""
    every = range(config.num_layers)
    no_keys = without_keys(fields, "attention.head_count_kv", config.num_layers)
    feeding = tuple(
        layer for layer in every if layer not in without_keys(fields, "feed_forward_length", config.num_layers)
    )
    if not set(feeding) <= set(no_keys):
        raise fields.error("feed_forward_length", "is given of layers with attention, which is not served")
    layers = tuple(layer for layer in no_keys if layer not in feeding)
    return {
        "recurrence": _mamba(fields, facts, layers) if layers else None,
        "feed_forward_alone": feeding,
        "unrotated_layers": tuple(every),
    }


def nemotron_h_moe(fields: Fields, config: ModelConfig, facts: Facts) -> Mapping[str, Any]:
    """The same, each feed-forward part being one of experts."""
    every = range(config.num_layers)
    if config.experts is None:
        raise fields.error("expert_count", "is missing, without which this architecture is not served")
    feeding = tuple(layer for layer in every if f"blk.{layer}.ffn_gate_inp.weight" in facts.shapes)
    no_keys = without_keys(fields, "attention.head_count_kv", config.num_layers)
    key = "feed_forward_length"
    said = set(every) - set(without_keys(fields, key, config.num_layers)) if fields.has(key) else set()
    if said - set(feeding):
        raise fields.error(key, f"is given of layer {min(said - set(feeding))}, which has no router")
    if not set(feeding) <= set(no_keys):
        raise fields.error("attention.head_count_kv", "is given of layers with a router, which is not served")
    layers = tuple(layer for layer in no_keys if layer not in feeding)
    groups, size = fields.integer("expert_group_count", 0) or 1, fields.integer("moe_latent_size", 0)
    experts = build(
        partial(replace, config.experts),
        fields,
        NEMOTRON_EXPERT_KEYS,
        groups=groups,
        groups_per_token=fields.integer("expert_group_used_count", 0) or 1,
        latent=size,
    )
    return {
        "recurrence": _mamba(fields, facts, layers) if layers else None,
        "feed_forward_alone": feeding,
        "unrotated_layers": tuple(every),
        "intermediate_size": experts.intermediate_size,  # of no layer
        "experts": experts,
    }


def falcon_h1(fields: Fields, config: ModelConfig, facts: Facts) -> Mapping[str, Any]:
    """Layers that have attention and a state beside each other."""
    norm: Literal["after", "none"] = "after" if "blk.0.ssm_norm.weight" in facts.shapes else "none"
    layers = tuple(range(config.num_layers))
    return {"recurrence": _mamba(fields, facts, layers, norm=norm, beside_attention=True)}


def without_keys(fields: Fields, key: str, layers: int) -> tuple[int, ...]:
    """Returns the layers for which a key says 0, the others having one number."""
    said = fields.values.get(key)
    each = said if isinstance(said, list) else [said] * layers
    if len(each) != layers or any(type(one) is not int for one in each) or len({one for one in each if one}) > 1:
        raise fields.error(key, f"must be 0 or one number for each of {layers} layers")
    return tuple(layer for layer, one in enumerate(each) if not one)


def _mamba(fields: Fields, facts: Facts, layers: tuple[int, ...], **more: Any) -> Mamba:
    heads, inner = fields.integer("ssm.time_step_rank"), fields.integer("ssm.inner_size")
    if heads < 1 or inner % heads:
        raise fields.error("ssm.inner_size", f"{inner} cannot be split over ssm.time_step_rank {heads}")
    return build(
        Mamba,
        fields,
        MAMBA_KEYS,
        layers=layers,
        heads=heads,
        head_dim=inner // heads,
        groups=fields.integer("ssm.group_count"),
        state_size=fields.integer("ssm.state_size"),
        kernel=fields.integer("ssm.conv_kernel"),
        filter_bias=f"blk.{layers[0]}.ssm_conv1d.bias" in facts.shapes,
        **more,
    )


def mamba_pieces(config: ModelConfig) -> dict[str, GgufPiece]:
    """Returns the pieces, by canonical name, of the tensors of Mamba-2 that are not stored as they are."""
    sizes = config.recurrence
    assert isinstance(sizes, Mamba)
    whole = (sizes.size + sizes.channels + sizes.heads, config.hidden_size)
    firsts = {"z": 0, "channels": sizes.size, "dt": sizes.size + sizes.channels}
    found = {}
    for name, shape in config.tensor_shapes().items():
        prefix, _, part = name.partition(".mamba.")
        stored = f"blk.{prefix.removeprefix('layers.')}.{MAMBA_NAMES.get(f'mamba.{part}', '')}"
        if part in firsts:
            rows = torch.arange(firsts[part], firsts[part] + shape[0])
            found[name] = GgufPiece(stored, whole, rows)
        elif part in ("rate", "skip"):
            found[name] = GgufPiece(stored, (*shape, 1), is_decay=part == "rate", vector=True)
        elif part == "norm_weight":
            found[name] = GgufPiece(stored, (sizes.groups, sizes.size // sizes.groups), vector=True)
    return found

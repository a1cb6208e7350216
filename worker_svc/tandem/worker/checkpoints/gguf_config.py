"""Converts the metadata of a GGUF file to a `ModelConfig`.

- Gemma's scores are divided by what is no key: llama.cpp goes by the number of layers.
- The scaling of Llama 3.1 is a tensor of divisors, `rope_freqs.weight`. Published ones are recognised. Scaling by
  keys comes on top of it.
- Which keys are known: `gguf_fields.py`. What some architectures say beyond others: `gguf_further.py`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tandem.worker.checkpoints.checkpoint import CheckpointError
from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.gguf_architectures import ARCHITECTURES
from tandem.worker.checkpoints.gguf_architectures.architecture import TOP_NAMES, GgufArchitecture, GgufExperts
from tandem.worker.checkpoints.gguf_fields import NEUTRAL_FAMILIES, known_keys
from tandem.worker.checkpoints.gguf_further import Facts, unfolded
from tandem.worker.checkpoints.gguf_parts import GgufFiles
from tandem.worker.checkpoints.known_fields import check_fields
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.limits import LIMITS
from tandem.worker.checkpoints.model_parts.rope import RopeScaling, yarn_attention_factor

ROPE_DIVISORS = "rope_freqs.weight"
LONGROPE = ("rope_factors_short.weight", "rope_factors_long.weight")
KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_layers": "block_count",
    "num_heads": "attention.head_count",
    "num_kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "rope_scaling.factor": "rope.scaling.factor",
    "rope_scaling.factors": ROPE_DIVISORS,
    "rope_scaling.original_context_length": "rope.scaling.original_context_length",
    "rope_scaling.attention_factor": "rope.scaling.attn_factor",
    "rope_scaling.beta_fast": "rope.scaling.yarn_beta_fast",
    "rope_scaling.beta_slow": "rope.scaling.yarn_beta_slow",
    "rotary_dim": "rope.dimension_count",
    "windows": "attention.sliding_window",
    "window_rope_theta": "rope.freq_base_swa",
    "attention_soft_cap": "attn_logit_softcapping",
    "qkv_limit": "attention.clamp_kqv",
    "logit_soft_cap": "final_logit_softcapping",
    "experts.shared_size": "expert_shared_feed_forward_length",
    "experts.scale": "expert_weights_scale",
    "experts.count": "expert_count",
    "experts.per_token": "expert_used_count",
    "experts.intermediate_size": "expert_feed_forward_length",
}


def read_config(
    path: Path, files: GgufFiles, row_of_numbers: Callable[[str], tuple[float, ...]]
) -> tuple[ModelConfig, GgufArchitecture]:
    """Returns what a file's metadata describe, and what llama.cpp's architecture of that name has; `row_of_numbers`
    reads a small tensor, or gives none. Raises CheckpointError."""
    metadata = files.metadata
    kind = metadata.get("general.architecture")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise CheckpointError(
            f"{path}: general.architecture {kind!r} is not served; served are {', '.join(ARCHITECTURES)}"
        )
    architecture = ARCHITECTURES[kind]
    name = architecture.name
    prefix = f"{kind}."
    plain = {key: plain_value(value) for key, value in metadata.items() if not key.startswith("tokenizer.")}
    check_fields(Fields(path, plain), known_keys(kind), NEUTRAL_FAMILIES)
    own = {key.removeprefix(prefix): value for key, value in plain.items() if key.startswith(prefix)}
    said = fields = Fields(path, own, prefix)
    sections = own.get("rope.dimension_sections")
    if architecture.halves_of_sections and isinstance(sections, list) and any(sections):
        architecture = replace(architecture, permuted=False)
    if architecture.folded:
        fields = unfolded(said)
    elif architecture.prepared is not None:
        fields = architecture.prepared(said)
    divisors = row_of_numbers(ROPE_DIVISORS)
    facts = Facts(divisors, {name: located.tensor.shape for name, located in files.tensors.items()})
    if divisors and not architecture.divisors:
        raise CheckpointError(f"{path}: tensor {ROPE_DIVISORS} is there, which llama.cpp does not know of {kind}")
    parts = {name.split(".", 2)[-1] for name in files.tensors if name.startswith("blk.")}  # of any layer
    embedding = files.tensors.get(TOP_NAMES["embedding"])
    if embedding is None or len(embedding.tensor.shape) != 2:
        raise CheckpointError(f"{path}: tensor {TOP_NAMES['embedding']} is missing or not a matrix")
    vocab_size = embedding.tensor.shape[0]
    if fields.integer("vocab_size", vocab_size) != vocab_size:
        raise fields.error("vocab_size", f"is {fields.integer('vocab_size')}, but the embedding has {vocab_size} rows")
    hidden_size, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    if hidden_size < 1 or heads < 1 or ("attention.key_length" not in own and hidden_size % heads):
        raise fields.error("embedding_length", f"{hidden_size} cannot be split over attention.head_count {heads}")
    head_dim = fields.integer("attention.key_length", hidden_size // heads)
    context_length = fields.integer("context_length")
    rotated = head_dim if architecture.unrotated else fields.integer("rope.dimension_count", head_dim)
    for key, value in (
        ("attention.value_length", fields.integer("attention.value_length", head_dim)),
        ("rope.dimension_count", head_dim if architecture.partly_rotated else rotated),
    ):
        if value != head_dim:
            raise fields.error(key, f"is {value}, but a head has {head_dim}; others are not served")
    turning = () if architecture.folded else divisors[: rotated // 2] if architecture.longer_divisors else divisors
    layers, every = fields.integer("block_count"), architecture.unrotated_every
    if architecture.drafting_layers:
        further = fields.integer("nextn_predict_layers", 0)
        if not 0 <= further < max(layers, 1):
            raise fields.error("nextn_predict_layers", f"must be from 0 to {layers - 1}, but is {further}")
        layers -= further
    windows = _windows(fields, architecture, layers, context_length)
    if windows and architecture.windowed:
        name = architecture.windowed
    theta = fields.number("rope.freq_base", 10000.0)
    window_theta = None
    if windows and architecture.window_rope is not None:
        window_theta = fields.number("rope.freq_base_swa", architecture.window_rope or theta)
    logit_scale = fields.number("logit_scale", 0.0) or 1.0
    multiplier = fields.number("attention.scale", 0.0) or None
    if architecture.gemma_width:
        wide = layers == architecture.gemma_width
        multiplier = float((hidden_size / heads if wide else max(head_dim, 1)) ** -0.5)
    caps = architecture.soft_caps
    eps = architecture.norm_eps
    if architecture.norm_eps_else and eps not in own:
        eps = architecture.norm_eps_else
    experts = _experts(fields, architecture.experts, layers)
    if experts is not None and kind == "llama":
        name = "mixtral"
    if experts is not None and architecture.with_experts:
        name = architecture.with_experts
    if experts is not None and experts.shared_size and architecture.sharing:
        name = architecture.sharing
    config = build(
        ModelConfig,
        fields,
        KEYS | {"norm_eps": eps},
        architecture=name,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        # 0: of no layer without experts, where these have another key
        intermediate_size=fields.integer("feed_forward_length", 0) or (experts.intermediate_size if experts else 0),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        context_length=context_length,
        norm_eps=fields.number(eps),
        rope_theta=theta,
        rope_scaling=(
            _longrope(fields, row_of_numbers(LONGROPE[0]), row_of_numbers(LONGROPE[1]), context_length)
            if architecture.longrope
            else _rope_scaling(fields, turning, context_length, architecture.truncate)
        ),
        rotary_dim=None if rotated == head_dim else rotated,
        tie_embeddings=TOP_NAMES["output"] not in files.tensors,
        qkv_bias=architecture.qkv_bias or not {"attn_q.bias", "attn_qkv.bias"}.isdisjoint(parts),
        output_bias="attn_output.bias" in parts,
        qk_norm="head"
        if architecture.may_norm and "blk.0.attn_q_norm.weight" in files.tensors
        else architecture.qk_norm,
        qkv_limit=fields.number("attention.clamp_kqv", 0.0),
        # 0: llama.cpp leaves it out
        embedding_multiplier=hidden_size**0.5
        if architecture.gemma_width
        else fields.number("embedding_scale", 0.0) or 1.0,
        residual_multiplier=fields.number("residual_scale", 0.0) or 1.0,
        attention_multiplier=multiplier,
        attention_soft_cap=fields.number("attn_logit_softcapping", caps[0]) if caps else 0.0,
        logit_soft_cap=fields.number("final_logit_softcapping", caps[1]) if caps else 0.0,
        logit_multiplier=1 / logit_scale if architecture.logit_scale_divides else logit_scale,
        mlp_bias="ffn_up.bias" in parts and "mlp.up_bias" in architecture.layer_names,
        windows=windows,
        window_rope_theta=window_theta,
        unrotated_layers=tuple(range(every - 1, layers, every)) if every and 0 < layers <= LIMITS["num_layers"] else (),
        experts=experts,
        **architecture.always,
        **({"norm": "rms" if eps == architecture.norm_eps else "layer"} if architecture.norm_by_eps else {}),
    )
    if architecture.further is not None:
        keys = KEYS | {"full_heads.head_dim": "attention.key_length", "shared_layers": "attention.shared_kv_layers"}
        keys |= {"inner_sizes": "feed_forward_length", "sparsity": "activation_sparsity_scale"}
        config = build(partial(replace, config), said, keys, **architecture.further(said, config, facts))
    return config, architecture


def plain_value(value: Any) -> Any:
    """Returns a float32 as the shortest number that it stands for, and an array of equal numbers as that number."""
    if isinstance(value, float):
        return float(str(np.float32(value))) if math.isfinite(value) else value
    if isinstance(value, array) and value:
        return value[0] if len(set(value)) == 1 else value.tolist()
    return value


def _windows(fields: Fields, architecture: GgufArchitecture, layers: int, context_length: int) -> tuple[int, ...]:
    """Returns each layer's sliding window; empty where there is none."""
    window, every = fields.integer("attention.sliding_window", architecture.window), architecture.full_every
    if not every and not architecture.windowed:
        if 0 < window < context_length:
            raise fields.error("attention.sliding_window", "is set, which llama.cpp does not know of this architecture")
        return ()
    if window < 1:
        if not architecture.windowed:
            raise fields.error("attention.sliding_window", f"must be at least 1, but is {window}")
        return ()
    numbers = range(1, min(max(layers, 0), LIMITS["num_layers"]) + 1)
    usual = [not every or number % every > 0 for number in numbers]
    pattern = fields.values.get("attention.sliding_window_pattern", usual)
    pattern = pattern if isinstance(pattern, list) else [pattern] * len(usual)  # one number for all that are equal
    if len(pattern) != len(usual) or any(one not in (0, 1) for one in pattern):
        raise fields.error("attention.sliding_window_pattern", f"must be true or false for each of {layers} layers")
    return tuple(window if windowed else 0 for windowed in pattern)


def _experts(fields: Fields, known: GgufExperts, layers: int) -> Experts | None:
    count = fields.integer("expert_count", 0)
    if not count:
        for key in ("expert_used_count", "expert_feed_forward_length"):
            if fields.integer(key, 0):
                raise fields.error(key, f"is {fields.integer(key)}, but there is no expert_count")
        return None
    size = fields.integer("expert_feed_forward_length", fields.integer("feed_forward_length", 0))
    values: dict[str, Any] = {**known.always}
    if known.shared is not None:
        whole = known.shared == "size"
        key = "expert_shared_feed_forward_length" if whole else "expert_shared_count"
        said = fields.integer(key, 0) if known.may_share else fields.integer(key)
        values["shared_size"] = said * (1 if whole else size)
    if known.scaled:
        values["scale"] = fields.number("expert_weights_scale", 0.0) or 1.0
    if known.dense_first:
        dense = fields.integer("leading_dense_block_count", 0)
        if not 0 <= dense <= max(layers, 0):
            raise fields.error("leading_dense_block_count", f"must be from 0 to {layers}, but is {dense}")
        values["dense_layers"] = tuple(range(min(dense, LIMITS["num_layers"])))
    normalized = known.normalized
    return build(
        Experts,
        fields,
        KEYS,
        count=count,
        per_token=fields.integer("expert_used_count"),
        intermediate_size=size,
        normalized=fields.boolean("expert_weights_norm", False) if normalized is None else normalized,
        **values,
    )


def _longrope(
    fields: Fields, short: tuple[float, ...], long: tuple[float, ...], context_length: int
) -> RopeScaling | None:
    """Returns the scaling by two tensors of factors, as Phi-3 has it."""
    kind = fields.text("rope.scaling.type", "none")
    if kind not in ("none", "longrope"):
        raise fields.error("rope.scaling.type", f"{kind!r} is not served; served are none and longrope")
    size = fields.number("rope.scaling.attn_factor", 1.0)
    if not short and not long:
        if size != 1:
            raise fields.error("rope.scaling.attn_factor", f"is {size:g}, but there are no {' and '.join(LONGROPE)}")
        return None
    original = fields.integer("rope.scaling.original_context_length", context_length)
    if 1 < original < context_length:
        grown = math.sqrt(1 + math.log(context_length / original) / math.log(original))
        size = grown if math.isclose(size, grown, rel_tol=1e-6) else size  # a float32 of it, as a rule
    return build(
        RopeScaling,
        fields,
        KEYS | {"rope_scaling.factors": LONGROPE[0], "rope_scaling.long_factors": LONGROPE[1]},
        kind="longrope",
        original_context_length=original,
        factors=tuple(map(plain_value, short)),
        long_factors=tuple(map(plain_value, long)),
        attention_factor=size,
        long_attention_factor=size,
    )


def _rope_scaling(
    fields: Fields, divisors: tuple[float, ...], context_length: int, truncate: bool
) -> RopeScaling | None:
    """Returns the scaling by keys, on top of the divisors: llama.cpp applies both."""
    factor, older = fields.number("rope.scaling.factor", None), fields.number("rope.scale_linear", None)
    if factor is not None and older not in (None, factor):
        raise fields.error("rope.scaling.factor", f"is {factor:g}, but rope.scale_linear is {older:g}")
    factor = next((one for one in (factor, older) if one is not None), 1.0)
    kind = fields.text("rope.scaling.type", "linear")
    size = fields.number("rope.scaling.attn_factor", 1.0)  # whatever the type
    match kind:
        case "none" | "linear":
            factor = factor if kind == "linear" else 1.0
            if factor == size == 1:
                if not divisors:
                    return None
                if published := known_divisors(divisors, fields.number("rope.freq_base", 10000.0)):
                    return published
            values: dict[str, Any] = {"attention_factor": size}
        case "yarn":
            # llama.cpp itself takes 32 and 1 for all of these architectures, whatever a file says of the two.
            values = {
                "original_context_length": fields.integer("rope.scaling.original_context_length", context_length),
                "attention_factor": yarn_attention_factor(factor) * size,
                "beta_fast": fields.number("rope.scaling.yarn_beta_fast", 32.0),
                "beta_slow": fields.number("rope.scaling.yarn_beta_slow", 1.0),
                "truncate": truncate,
            }
        case _:
            raise fields.error("rope.scaling.type", f"{kind!r} is not served; served are none, linear and yarn")
    kind = "yarn" if kind == "yarn" else "linear"
    return build(RopeScaling, fields, KEYS, kind=kind, factor=factor, factors=divisors, **values)


def rope_divisors(head_dim: int, theta: float, scaling: RopeScaling) -> list[float]:
    """Returns what the llama3 scaling divides each frequency by."""
    base = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    turns = scaling.original_context_length * base / (2 * np.pi)
    kept = np.clip((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0, 1)
    divisors: list[float] = (1 / (kept + (1 - kept) / scaling.factor)).tolist()
    return divisors


def known_divisors(divisors: tuple[float, ...], theta: float) -> RopeScaling | None:
    """Returns the llama3 scaling of a published model whose divisors these are."""
    for factor in (8.0, 16.0, 32.0):
        scaling = RopeScaling("llama3", factor)
        if np.allclose(divisors, rope_divisors(2 * len(divisors), theta, scaling), rtol=1e-5, atol=0):
            return scaling
    return None

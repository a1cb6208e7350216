"""Converts `config.json` to a `ModelConfig`: which architectures are served, and what each leaves unsaid.

RoPE is described by `rope_parameters` (transformers 5) or by `rope_theta` and `rope_scaling` (older). The fields that
are known are listed in `hugging_face_fields/`; every other one is refused by its name.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from tandem.worker.checkpoints.fields import REQUIRED, Fields, build
from tandem.worker.checkpoints.hugging_face_architectures import ARCHITECTURES
from tandem.worker.checkpoints.hugging_face_architectures.architecture import Architecture, ExpertFields
from tandem.worker.checkpoints.hugging_face_deepseek_v4 import KEYS as COMPRESSION_KEYS
from tandem.worker.checkpoints.hugging_face_deepseek_v4 import listed_layers
from tandem.worker.checkpoints.hugging_face_fields import CONFIG
from tandem.worker.checkpoints.hugging_face_fields.rope import ROPE, ROPE_OF
from tandem.worker.checkpoints.hugging_face_fields.shared import ACTIVATIONS
from tandem.worker.checkpoints.hugging_face_hybrids import delta_net, dense_layers, hybrid_experts, rotary_dim
from tandem.worker.checkpoints.hugging_face_latents import KEYS as LATENT_KEYS
from tandem.worker.checkpoints.hugging_face_latents import read_latents, score_multiplier
from tandem.worker.checkpoints.hugging_face_wrappers import WRAPPERS
from tandem.worker.checkpoints.known_fields import USED, check_fields
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.limits import LIMITS
from tandem.worker.checkpoints.model_parts.mlp import Activation, ClampedSwiGLU
from tandem.worker.checkpoints.model_parts.rope import QueryGrowth, RopeScaling, yarn_attention_factor

KEYS = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "full_heads.num_kv_heads": "num_global_key_value_heads",
    "full_heads.head_dim": "global_head_dim",
    "shared_layers": "num_kv_shared_layers",
    "inner_sizes": "intermediate_size",
    "sparsity": "activation_sparsity_pattern",
    "per_layer_inputs.vocab_size": "vocab_size_per_layer_input",
    "context_length": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "recurrence.layers": "layer_types",
    "tie_embeddings": "tie_word_embeddings",
    "windows": "sliding_window",
    "attention_soft_cap": "attn_logit_softcapping",
    "logit_soft_cap": "final_logit_softcapping",
    "experts.count": "num_experts",
    "experts.per_token": "num_experts_per_tok",
    "experts.intermediate_size": "moe_intermediate_size",
    "experts.shared_size": "shared_expert_intermediate_size",
    "experts.groups": "n_group",
    "experts.groups_per_token": "topk_group",
    "experts.scale": "routed_scaling_factor",
    "experts.jitter": "router_jitter_noise",
    "rotary_dim": "partial_rotary_factor",
    "rope_scaling.factors": "short_factor",
    "rope_scaling.long_factors": "long_factor",
}
ROPE_KEYS = {
    "rope_scaling.factor": "factor",
    "rope_scaling.low_freq_factor": "low_freq_factor",
    "rope_scaling.high_freq_factor": "high_freq_factor",
    "rope_scaling.original_context_length": "original_max_position_embeddings",
    "rope_scaling.beta_fast": "beta_fast",
    "rope_scaling.beta_slow": "beta_slow",
    "rope_scaling.attention_factor": "attention_factor",
    "rope_scaling.factors": "short_factor",
    "rope_scaling.long_factors": "long_factor",
    "rope_scaling.long_attention_factor": "long_mscale",
}

_Number = TypeVar("_Number", int, float)
_KINDS = ("dense", "sparse")  # of feed-forward parts


def architecture_of(config: Fields) -> Architecture:
    """Returns a folder's architecture; refuses what is not served, and every unknown field, by name."""
    found = _named(config)
    if found.name == "mistral" and config.has("layer_types"):
        found = ARCHITECTURES["ministral"]  # as transformers' AutoModel has it: Mistral itself has one window in all
    check_fields(config, CONFIG[found.name])
    if CONFIG[found.name].get("rope_interleave") is USED and "rope_interleave" in config.values:
        return replace(found, interleaved=config.boolean("rope_interleave", False))  # null: transformers takes it so
    return found


def _named(config: Fields) -> Architecture:
    classes, kind = config.values.get("architectures"), config.values.get("model_type")
    served = list(ARCHITECTURES.values())
    if not classes:
        found = next((each for each in served if kind in (each.name, *each.also_named)), None)
        if found is None:
            raise config.error("model_type", f"{str(kind)[:60]!r} is not served; served are {', '.join(ARCHITECTURES)}")
        return found
    # A class of transformers may be several of ours, which `model_type` tells apart.
    of_class = [each for each in served if classes in [[name] for name in each.class_names]]
    found = next((each for each in of_class if kind in (each.name, *each.also_named)), next(iter(of_class), None))
    if found is None:
        names = ", ".join([*(each.class_name for each in served), *(each.class_name for each in WRAPPERS)])
        raise config.error("architectures", f"{str(classes)[:200]} is not served; served are {names}")
    if kind not in (None, found.name, *found.also_named):
        raise config.error(
            "architectures", f"{found.class_name} and model_type {str(kind)[:60]!r} contradict each other"
        )
    return found


def read_config(config: Fields, architecture: Architecture, tied: bool) -> ModelConfig:
    """Reads the config; raises CheckpointError for impossible or contradicting values, by the field's name."""
    if architecture.prepared is not None:
        config = architecture.prepared(config)
    hidden_size, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    latents = read_latents(config, heads) if architecture.latents else None
    head_dim = config.integer("head_dim", architecture.head_dim) if latents is None else latents.size
    if head_dim is None:
        if hidden_size < 1 or heads < 1 or hidden_size % heads:
            raise config.error("hidden_size", f"{hidden_size} cannot be split over num_attention_heads {heads}")
        head_dim = hidden_size // heads
    layers = config.integer("num_hidden_layers")
    apart = architecture.hybrid or architecture.own_layer_kinds
    windows = () if apart else _windows(config, architecture, layers)
    rope = _rope_fields(config)
    if architecture.rope_stated and not rope.values:
        raise config.error("rope_parameters", f"are missing; {architecture.class_name} would have its own then")
    window_theta = None
    if architecture.window_rope is not None:
        rope, window_theta = _by_layer(config, rope, architecture.window_rope)
    scaling = _rope_scaling(config, rope, architecture)
    theta = _stated_once(rope, "rope_theta", config.number("rope_theta", None), rope.number("rope_theta", None))
    context_length = config.integer("max_position_embeddings")
    if scaling is not None and scaling.kind == "dynamic":
        context_length = int(context_length * scaling.factor)
    known = architecture.attention_bias
    bias = known is not None and config.boolean("attention_bias", known)
    qk_norm = architecture.qk_norm
    if architecture.qk_norm_field:
        qk_norm = "head" if config.boolean("use_qk_norm", qk_norm is not None) else None
    everywhere = architecture.use_bias is not None and config.boolean("use_bias", architecture.use_bias)
    output_bias = config.boolean("attention_out_bias", False) if architecture.output_bias_apart else bias
    keys = KEYS | LATENT_KEYS | COMPRESSION_KEYS | {"norm_eps": architecture.norm_eps}
    model = build(
        ModelConfig,
        config,
        keys,
        architecture=architecture.name,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size", _expert_size(config, architecture)),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads) if latents is None else 1,
        head_dim=head_dim,
        context_length=context_length,
        norm_eps=config.number(architecture.norm_eps),
        rope_theta=architecture.rope_theta if theta is None else theta,
        rope_scaling=scaling,
        rotary_dim=(
            rotary_dim(config, rope, head_dim)
            if architecture.hybrid
            else _rotary_dim(config, rope, architecture, head_dim)
            if latents is None
            else latents.rotated
        ),
        tie_embeddings=tied,
        qkv_bias=architecture.qkv_bias or bias or everywhere or _flag(config, "qkv_bias", architecture.qkv_bias_field),
        output_bias=output_bias or everywhere,
        mlp_bias=everywhere or (architecture.mlp_bias and config.boolean("mlp_bias", architecture.mlp_bias_usual)),
        qk_norm=qk_norm,
        qkv_limit=_qkv_limit(config) if architecture.qkv_limit else 0.0,
        logit_bias=architecture.logit_bias is not None and config.boolean("lm_head_bias", architecture.logit_bias),
        windows=windows,
        window_rope_theta=window_theta,
        embedding_multiplier=(
            max(hidden_size, 1) ** 0.5
            if architecture.multiplied_by_width
            else config.number("embedding_multiplier", 1.0)
        ),
        residual_multiplier=config.number("residual_multiplier", 1.0),
        attention_multiplier=(
            _attention_multiplier(config, architecture, head_dim)
            if latents is None
            else score_multiplier(latents, rope)
        ),
        attention_soft_cap=_soft_cap(config, "attn_logit_softcapping", architecture.attention_soft_cap),
        logit_multiplier=_logit_multiplier(config, architecture),
        logit_soft_cap=_soft_cap(config, "final_logit_softcapping", architecture.logit_soft_cap),
        unrotated_layers=_unrotated(config, architecture, layers, windows),
        query_growth=_query_growth(config, rope) if architecture.query_growth else None,
        latents=latents,
        recurrence=delta_net(config, layers) if architecture.hybrid else None,
        experts=_experts(config, architecture, layers),
        **{**architecture.always, "activation": _activation(config, architecture)},
    )
    if architecture.further is None:
        return model
    return build(partial(replace, model), config, keys, **architecture.further(config, rope, windows))


def _expert_size(config: Fields, architecture: Architecture) -> Any:
    """What stands for `intermediate_size`, without default where a layer needs it."""
    if architecture.name == "qwen3_5_moe_text":
        return config.integer("moe_intermediate_size", 512)
    return REQUIRED if architecture.intermediate_size is None else architecture.intermediate_size


def _activation(config: Fields, architecture: Architecture) -> Activation:
    """Returns that of feed-forward parts: the class's own, or what `hidden_act` says where that is looked at."""
    usual: Activation = architecture.always.get("activation", "silu")
    key = architecture.activation_field
    said = config.text(key) if CONFIG[architecture.name].get(key) is USED else None
    if said is None:
        return usual
    if said not in ACTIVATIONS:
        raise config.error(key, f"{said!r} is not served; served are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[said]


def _attention_multiplier(config: Fields, architecture: Architecture, head_dim: int) -> float | None:
    if not architecture.multiplied_by_width:
        return config.number("attention_multiplier", architecture.attention_multiplier)
    scalar = config.number("query_pre_attn_scalar", 256.0) if architecture.query_scalar else max(head_dim, 1)
    if scalar <= 0:
        raise config.error("query_pre_attn_scalar", f"must be more than 0, but is {scalar:g}")
    return float(scalar**-0.5)


def _qkv_limit(config: Fields) -> float:
    limit = config.number("clip_qkv", None)
    if limit is not None and limit <= 0:
        raise config.error("clip_qkv", f"must be more than 0, but is {limit:g}")
    return limit or 0.0


def _soft_cap(config: Fields, key: str, default: float | None) -> float:
    if default is None or (key in config.values and not config.has(key)):
        return 0.0  # null says that there is none, unlike a field that is absent
    if not default and not config.has(key):
        return 0.0
    cap = config.number(key, default)
    if cap <= 0:
        raise config.error(key, f"must be more than 0, but is {cap:g}")
    return cap


def _logit_multiplier(config: Fields, architecture: Architecture) -> float:
    divisor = config.number("logits_scaling", 1.0)
    if divisor <= 0:
        raise config.error("logits_scaling", f"must be more than 0, but is {divisor:g}")
    return config.number("logit_scale", architecture.logit_scale) / divisor


def _by_layer(config: Fields, rope: Fields, theta: float) -> tuple[Fields, float]:
    """The RoPE parameters of layers without a window, and theta of those with one, which have no scaling. Older files
    say the first alone; theta is then the same."""
    kinds = {"full_attention", "sliding_attention"}
    if not kinds & rope.values.keys():
        if config.has("rope_parameters"):
            raise config.error("rope_parameters", f"must say {' and '.join(sorted(kinds))} apart")
        return rope, config.number("rope_local_base_freq", theta)
    for key in rope.values.keys() - kinds:
        raise rope.error(key, "is beside parameters that differ by layer, which is not served")
    window = rope.object("sliding_attention")
    check_fields(window, ROPE["default"])
    for key in ("rope_type", "type"):
        if window.text(key, "default") != "default":
            raise window.error(key, f"{window.text(key)!r} is not served; served is default")
    beside, among = config.number("rope_local_base_freq", None), window.number("rope_theta", None)
    if beside is not None and among is not None and beside != among:
        raise config.error("rope_local_base_freq", f"is {beside:g}, but that of sliding_attention is {among:g}")
    full = rope.object("full_attention")
    # transformers looks for it beside the kinds, where it may not be, and so finds none.
    full = full.with_values({key: value for key, value in full.values.items() if key != "truncate"})
    return full, next(one for one in (among, beside, theta) if one is not None)


def _unrotated(config: Fields, architecture: Architecture, layers: int, windows: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the layers whose queries and keys are not rotated."""
    if architecture.unrotated:
        return tuple(range(min(layers, LIMITS["num_layers"])))
    if architecture.rotated_without and not windows:
        return ()
    if architecture.rotated_windows:
        return tuple(layer for layer in range(min(layers, LIMITS["num_layers"])) if not windows or not windows[layer])
    if not architecture.no_rope_layers:
        return ()
    listed = config.values.get("no_rope_layers")
    if listed is None:
        every = config.integer("no_rope_layer_interval", 4)
        if every < 1:
            raise config.error("no_rope_layer_interval", f"must be at least 1, but is {every}")
        return tuple(range(every - 1, min(layers, LIMITS["num_layers"]), every))
    if not isinstance(listed, list) or len(listed) < layers or any(type(one) is not int for one in listed):
        raise config.error("no_rope_layers", f"must be a list of 1 (rotated) or 0 for each of the {layers} layers")
    return tuple(layer for layer in range(layers) if not listed[layer])


def _query_growth(config: Fields, rope: Fields) -> QueryGrowth:
    trained = rope.integer("original_max_position_embeddings", None)
    if trained is None:
        raise config.error("rope_parameters", "do not say original_max_position_embeddings, which queries grow by")
    keys = {"query_growth.beta": "llama_4_scaling_beta", "query_growth.every": "original_max_position_embeddings"}
    return build(QueryGrowth, rope, keys, beta=rope.number("llama_4_scaling_beta"), every=trained)


def _rope_fields(config: Fields) -> Fields:
    """Returns the RoPE parameters, in whichever of the two spellings."""
    new, old = config.object("rope_parameters"), config.object("rope_scaling")
    if new.values and old.values and new.values != old.values:
        raise config.error("rope_parameters", "and rope_scaling contradict each other; one of them is expected")
    return new if new.values else old


def _stated_once(rope: Fields, key: str, beside: _Number | None, among: _Number | None) -> _Number | None:
    """Reads a RoPE parameter that older files have beside the others, not among them; refuses two that differ."""
    if beside is not None and among is not None and beside != among:
        raise rope.error(key, f"is {among:g}, but {key} beside it is {beside:g}")
    return beside if among is None else among


def _rope_scaling(config: Fields, rope: Fields, architecture: Architecture) -> RopeScaling | None:
    for key, value in rope.values.items():
        if isinstance(value, dict):
            raise rope.error(key, "is an object; rope parameters that differ by layer are not served")
    old = rope.text("type")
    kind = rope.text("rope_type", old) or "default"
    if old not in (None, kind):
        raise rope.error("rope_type", f"{kind!r} and type {old!r} contradict each other")
    if architecture.longrope and kind in ("su", "yarn"):
        kind = "longrope"  # what it was called once
    alone = {"longrope": architecture.longrope, "proportional": architecture.proportional}
    served = ["default", *(one for one in alone if alone[one])]
    if len(served) == 1:
        served = [one for one in ROPE if one != "proportional"]
    if kind not in served:
        raise rope.error("rope_type", f"{kind!r} is not served; served are {', '.join(served)}")
    check_fields(rope, ROPE[kind] | ROPE_OF.get(architecture.name, {}))
    trained = config.integer("max_position_embeddings")
    key = "original_max_position_embeddings"
    usual = architecture.original_context if kind == "longrope" else None
    if kind == "longrope" and not architecture.longrope:
        usual = rope.integer(key, trained)
    original = _stated_once(rope, key, config.integer(key, usual), rope.integer(key, None))
    if kind == "default":
        return None
    if kind not in ("llama3", "yarn", "longrope") and original not in (None, trained):
        raise config.error(key, f"is {original}, which {kind} scaling does not know")
    values: dict[str, Any] = {"kind": kind}
    match kind:
        case "linear":
            values["factor"] = rope.number("factor")
        case "proportional":
            values["factor"] = rope.number("factor", 1.0)
        case "dynamic":
            values |= {"factor": rope.number("factor"), "original_context_length": trained}
        case "llama3":
            values |= {
                "factor": rope.number("factor"),
                "low_freq_factor": rope.number("low_freq_factor"),
                "high_freq_factor": rope.number("high_freq_factor"),
                "original_context_length": trained if original is None else original,
            }
        case "yarn":
            original = trained if original is None else original
            factor = rope.number("factor", trained / max(original, 1))
            values |= {
                "factor": factor,
                "original_context_length": original,
                "beta_fast": rope.number("beta_fast", 32.0),
                "beta_slow": rope.number("beta_slow", 1.0),
                "attention_factor": rope.number("attention_factor", _attention_factor(rope, factor)),
                "truncate": rope.boolean("truncate", "truncate" not in rope.values),  # null: transformers does not
            }
        case "longrope":
            values |= _longrope(config, rope, trained, original)
    return build(RopeScaling, rope, ROPE_KEYS, **values)


def _longrope(config: Fields, rope: Fields, trained: int, original: int | None) -> dict[str, Any]:
    if original is None:
        raise config.error("original_max_position_embeddings", "is missing, which longrope needs")
    if original < 2:
        raise config.error("original_max_position_embeddings", f"must be at least 2, but is {original}")
    factor = rope.number("factor", trained / original)
    grown = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    size = rope.number("attention_factor", grown)
    values: dict[str, Any] = {"original_context_length": original}
    for ours, key in (("attention_factor", "short_mscale"), ("long_attention_factor", "long_mscale")):
        values[ours] = rope.number(key, size)
    for ours, key in (("factors", "short_factor"), ("long_factors", "long_factor")):
        listed = rope.values.get(key)
        if not isinstance(listed, list) or not 0 < len(listed) <= 1 << 10:
            raise rope.error(key, "must be a list of as many numbers as pairs are rotated")
        numbers = Fields(rope.path, {f"{key}[{place}]": value for place, value in enumerate(listed)})
        values[ours] = tuple(numbers.number(place) for place in numbers.values)
    return values


def _rotary_dim(config: Fields, rope: Fields, architecture: Architecture, head_dim: int) -> int | None:
    """Returns how many of a head's numbers are rotated; None: all."""
    if architecture.partial_rotary is None:
        return None
    key = "partial_rotary_factor"
    share = _stated_once(rope, key, config.number(key, None), rope.number(key, None))
    stated = config.integer("rotary_dim", None)
    if stated is not None and share is not None and int(head_dim * share) != stated:
        raise config.error("rotary_dim", f"is {stated}, but {key} {share:g} of {head_dim} is another")
    if stated is None:
        stated = int(head_dim * (architecture.partial_rotary if share is None else share))
    return None if stated == head_dim else stated


def _flag(config: Fields, key: str, default: bool | None) -> bool:
    return default is not None and config.boolean(key, default)


def _attention_factor(rope: Fields, factor: float) -> float:
    """Returns YaRN's attention factor that a file leaves out: from the factor, or DeepSeek's two scales."""
    above, below = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    if not above or not below or factor <= 1:
        return yarn_attention_factor(factor)
    grown = yarn_attention_factor(factor) - 1
    return (above * grown + 1) / (below * grown + 1)


def _windows(config: Fields, architecture: Architecture, layers: int) -> tuple[int, ...]:
    """Returns each layer's sliding window; empty where there is none."""
    window = _window(config, architecture)
    if not 0 < layers <= LIMITS["num_layers"]:  # the number of layers is checked later
        return ()
    everywhere = ["full_attention" if window is None else "sliding_attention"] * layers
    full = 0
    if architecture.use_sliding_window and window is not None and not architecture.no_rope_layers:
        full = config.integer("max_window_layers", 28 if architecture.window_by_layer else 0)
        if full > 0 and not architecture.window_by_layer:
            raise config.error("max_window_layers", f"is {full}, but {architecture.class_name} has one in every layer")
    if architecture.max_window_layers is not None and window is not None:
        full = config.integer("max_window_layers", architecture.max_window_layers)
    usual = [*["full_attention"] * min(max(full, 0), layers), *everywhere][:layers]
    if architecture.windows_in_turns and window is not None:
        usual = ["full_attention" if layer % 2 or layer >= full else "sliding_attention" for layer in range(layers)]
    if architecture.no_rope_layers and window is not None:
        unrotated = _unrotated(config, architecture, layers, ())
        usual = ["sliding_attention" if layer in unrotated else "full_attention" for layer in range(layers)]
    every = config.integer("sliding_window_pattern", architecture.full_every)
    if every < 0:
        raise config.error("sliding_window_pattern", f"must be at least 1, but is {every}")
    if every:
        full_layers = range(0 if architecture.full_first else every - 1, layers, every)
        usual = ["full_attention" if layer in full_layers else kind for layer, kind in enumerate(usual)]
    kinds = config.kinds("layer_types", ("sliding_attention", "full_attention"), layers, usual)
    if kinds != usual and not architecture.window_by_layer:
        which = "no layer" if window is None else "every layer"
        raise config.error("layer_types", f"are mixed, but {architecture.class_name} has a window in {which} here")
    if window is None:
        if "sliding_attention" in kinds:
            raise config.error("layer_types", "name sliding_attention, but no window is set")
        return ()
    if "sliding_attention" not in kinds and not architecture.rotated_windows:
        return ()
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _window(config: Fields, architecture: Architecture) -> int | None:
    """Returns the window of those layers that have one."""
    if architecture.use_sliding_window and not config.boolean("use_sliding_window", False):
        return None
    # null says that there is none, unlike a field that is absent
    default = None if "sliding_window" in config.values else architecture.sliding_window
    window = config.integer("sliding_window", default)
    if window is not None and window < 1:
        raise config.error("sliding_window", f"must be at least 1, but is {window}")
    return window


def _experts(config: Fields, architecture: Architecture, layers: int) -> Experts | None:
    if architecture.hybrid:
        return hybrid_experts(config, architecture.name, layers)
    known = architecture.experts
    if known is None:
        return None
    size = config.integer(known.size)
    values: dict[str, Any] = {**known.always}
    if known.shared == "size":
        values["shared_size"] = config.integer(*known.shared_size)
        if values["shared_size"] < 0:
            raise config.error(known.shared_size[0], f"must be at least 0, but is {values['shared_size']}")
    elif known.shared == "count":
        values["shared_size"] = size * config.integer(known.shared_counted, known.shared_count)
    if known.grouped:
        groups, per_token = (config.integer(key, usual) for key, usual in known.groups.items())
        if not known.greedy or _in_groups(config):
            values |= {"groups": groups, "groups_per_token": per_token}
        values["scale"] = config.number("routed_scaling_factor", known.scale)
    elif known.scaled is not None:
        values["scale"] = config.number(known.scaled, known.scale)
    if (gate := known.clamped) is not None:
        said = {"alpha": config.number("swiglu_alpha", gate.alpha), "limit": config.number("swiglu_limit", gate.limit)}
        keys = {"experts.clamped.alpha": "swiglu_alpha", "experts.clamped.limit": "swiglu_limit"}
        values["clamped"] = build(ClampedSwiGLU, config, keys, **said, offset=gate.offset)
        if known.shared is not None:
            values["shared_clamped"] = values["clamped"]
    if known.listed:
        values["listed_layers"] = listed_layers(config, layers)
    if known.jitter:
        values["jitter"] = config.number("router_jitter_noise", known.jitter)
    normalized = known.normalized
    if normalized is None:  # null is false to transformers
        usual = known.normalized_by_default and "norm_topk_prob" not in config.values
        normalized = config.boolean("norm_topk_prob", usual)
    return build(
        Experts,
        config,
        KEYS
        | {"experts.count": known.counts[0], "experts.intermediate_size": known.size}
        | {"experts.shared_size": known.shared_size[0], "experts.scale": known.scaled or KEYS["experts.scale"]},
        count=_one_of(config, known.counts, known.count),
        per_token=config.integer("num_experts_per_tok", known.per_token),
        intermediate_size=size,
        normalized=normalized,
        dense_layers=_dense_layers(config, known, layers),
        **values,
    )


def _in_groups(config: Fields) -> bool:
    """Tells by `topk_method` whether groups of experts are chosen first."""
    methods, method = ("greedy", "group_limited_greedy"), config.text("topk_method", "greedy")
    if method not in methods:
        raise config.error("topk_method", f"{method!r} is not served; served are {', '.join(methods)}")
    return method == methods[1]


def _one_of(config: Fields, keys: tuple[str, ...], default: int) -> int:
    """Reads one number that has several names; refuses two that differ."""
    given = {key: config.integer(key) for key in keys if config.has(key)}
    if len(set(given.values())) > 1:
        raise config.error(keys[0], "is " + ", but ".join(f"{key} is {value}" for key, value in given.items()))
    return next(iter(given.values()), default)


def _dense_layers(config: Fields, known: ExpertFields, layers: int) -> tuple[int, ...]:
    """Returns the layers that have one ordinary feed-forward layer."""
    numbers = range(min(layers, LIMITS["num_layers"]))
    match known.dense:
        case "none":
            return ()
        case "first" | "kinds":
            if known.dense == "first" or not config.has("mlp_layer_types"):
                first = config.integer("first_k_dense_replace", known.dense_first)
                if first < 0:
                    raise config.error("first_k_dense_replace", f"must be at least 0, but is {first}")
                return tuple(numbers[:first])
            kinds = config.kinds("mlp_layer_types", _KINDS, layers)
            return tuple(layer for layer, kind in enumerate(kinds) if kind == "dense")
    return dense_layers(config, layers)

"""The fields of `config.json` that make a given `ModelConfig`: what a reader makes of them is compared with it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from tandem.worker.checkpoints.checkpoint import CheckpointError
from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.hugging_face_architectures import ARCHITECTURES
from tandem.worker.checkpoints.hugging_face_architectures.architecture import Architecture
from tandem.worker.checkpoints.hugging_face_config import architecture_of, read_config
from tandem.worker.checkpoints.hugging_face_deepseek_v4 import CHOICES, LAYER_TYPES
from tandem.worker.checkpoints.hugging_face_fields import CONFIG
from tandem.worker.checkpoints.hugging_face_gemma3n import STREAM_KEYS
from tandem.worker.checkpoints.known_fields import USED, Only
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.mlp import ClampedSwiGLU
from tandem.worker.checkpoints.model_parts.rope import RopeScaling, yarn_attention_factor
from tandem.worker.convert.comparison import difference
from tandem.worker.convert.described_states import states
from tandem.worker.convert.pieces import ConvertError

_ACTIVATIONS = {"silu": "silu", "relu": "relu", "relu2": "relu2", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
_ACTIVATIONS |= {"xielu": "xielu"}
_PART, _PARTS_BY_KIND = "partial_rotary_factor", ("step3p5", "laguna")  # what rotates is said of each kind of layers


def describe(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields of `config.json`. Raises ConvertError for what this layout cannot say."""
    architecture = ARCHITECTURES[config.architecture]
    known = CONFIG[architecture.name]
    wanted = _sizes(config, architecture) | _numbers(config) | _layers(config, architecture)
    wanted |= _experts(config, architecture) | states(config) | _gemma3n(config) | _gemma4(config, architecture)
    wanted |= _latents(config, architecture) | _indexer(config) | _compression(config)
    # Whatever the class has; of Step 3.7's text model transformers wants a number.
    values: dict[str, Any] = {"pad_token_id": 0 if architecture.name == "step3p5" else None}
    for key, value in wanted.items():
        rule = known.get(key)
        if rule is USED or (isinstance(rule, Only) and value is not None and rule.allows(value)):
            values[key] = value
    values |= {key: value for key, value in _rope(config, architecture).items() if known.get(key) is USED}
    if architecture.name == "olmo_hybrid" and config.unrotated_layers:
        values["rope_parameters"] = {"rope_type": "default", "rope_theta": None}
    _compare(config, architecture, values)
    return values


def _sizes(config: ModelConfig, architecture: Architecture) -> dict[str, Any]:
    activation = _ACTIVATIONS[config.activation]
    return {
        "architectures": [architecture.class_name],
        "model_type": architecture.name,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": _heads_of_queries(config, windowed=False),
        "num_sliding_attention_heads": _heads_of_queries(config, windowed=True),
        "num_attention_heads_per_layer": list(config.query_heads) or None,
        "gating": "per-element" if config.attention_gate and not config.gate_by_head else True,
        "swiglu_limits": list(config.swiglu_limits) or None,
        "swiglu_limits_shared": list(config.shared_swiglu_limits) or None,
        "num_key_value_heads": _heads_of_keys(config),
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        architecture.norm_eps: config.norm_eps,
        **({"rms_norm_eps": config.norm_eps} if config.norm == "rms" else {}),
        "hidden_act": activation,
        "hidden_activation": activation,
        "activation": activation,
        "activation_function": activation,
        "rotary_dim": config.rotated,
        "num_kv_heads": config.num_kv_heads,
        "v_head_dim": config.value_dim,
        "attention_value_scale": config.mixing_multiplier,
        "ffn_hidden_size": config.intermediate_size,
        "n_inner": config.intermediate_size,
        "bias": config.mlp_bias,
        "ffn_dim": config.intermediate_size,
        "enable_bias": config.mlp_bias,
        "word_embed_proj_dim": config.hidden_size,
        "scale_attn_weights": config.attention_multiplier is None,
        "multi_query": config.num_kv_heads == 1,
        "new_decoder_architecture": config.parallel,
        "parallel_attn": config.parallel,
        "num_ln_in_parallel_attn": 2 if config.parallel_norms else 1,
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": config.qkv_bias,
        "attention_out_bias": config.output_bias,
        "qkv_bias": config.qkv_bias,
        "use_qkv_bias": config.qkv_bias,
        "use_parallel_residual": config.parallel,
        "use_bias": config.mlp_bias,
        "mlp_bias": config.mlp_bias,
        "lm_head_bias": config.logit_bias,
        "use_qk_norm": config.qk_norm is not None,
        "use_post_norm": config.norm_placement == "both",
    }


def _heads_of_keys(config: ModelConfig) -> int:
    """Returns what the one number is of: of MiMo, of layers without a window, the others having twice as many."""
    apart = config.full_heads if config.architecture == "mimo_v2_flash" else None
    return config.num_kv_heads if apart is None else apart.number


def _heads_of_queries(config: ModelConfig, *, windowed: bool) -> int:
    """Returns those of layers with a window, or of the others; where all are listed, the first layer's."""
    windows = config.windows or (0,) * config.num_layers
    if config.architecture != "step3p5":
        return config.num_heads
    of_kind = (config.queries(layer) for layer, window in enumerate(windows) if (window > 0) is windowed)
    return next(of_kind, config.num_heads)


def _numbers(config: ModelConfig) -> dict[str, Any]:
    multiplier = config.attention_multiplier
    return {
        "embedding_multiplier": config.embedding_multiplier,
        "residual_multiplier": config.residual_multiplier,
        "attention_multiplier": multiplier,
        "query_pre_attn_scalar": None if multiplier is None else _whole(round(multiplier**-2, 6)),
        "logits_scaling": (
            config.logit_multiplier if config.architecture == "hyperclovax" else 1 / config.logit_multiplier
        ),
        "logit_scale": config.logit_multiplier,
        "clip_qkv": config.qkv_limit or None,
        "attn_logit_softcapping": config.attention_soft_cap or None,
        "final_logit_softcapping": config.logit_soft_cap or None,
    }


def _whole(number: float) -> int | float:
    """Returns a whole number as one."""
    return int(number) if number.is_integer() else number


def _layers(config: ModelConfig, architecture: Architecture) -> dict[str, Any]:
    windows = {window for window in config.windows if window}
    if len(windows) > 1:
        raise ConvertError(f"config.json has one window, but this model's are {', '.join(map(str, sorted(windows)))}")
    window = next(iter(windows), None)
    turning = [int(layer not in config.unrotated_layers) for layer in range(config.num_layers)]
    growth = config.query_growth
    usual = architecture.full_every or architecture.window_rope is not None  # whether it has some unless said
    # Of a class that has windows in some layers, transformers wants one even where this model has none; of one whose
    # layers rotate without a window where none has one, it must be null.
    wanted = usual and (config.windows or not architecture.rotated_windows)
    values: dict[str, Any] = {
        "sliding_window": architecture.sliding_window if window is None and wanted else window,
        "use_sliding_window": window is not None,
        "no_rope_layers": turning,
        "window_size": window or 256,  # of none
        "attention_types": [[["local" if one else "global"], 1] for one in config.windows or (0,) * config.num_layers],
        "layer_rope_theta": [_theta(config, layer) for layer in range(config.num_layers)],
        "attention_chunk_size": window,
        "mup_enabled": config.embedding_multiplier != 1,
        "attn_temperature_tuning": growth is not None,
    }
    if growth is not None:
        values |= {"attn_scale": growth.beta, "floor_scale": growth.every}
    states = set() if config.recurrence is None else set(config.recurrence.layers)
    kind = "chunked_attention" if config.chunked else "sliding_attention"
    kinds = [
        "linear_attention" if layer in states else kind if one else "full_attention"
        for layer, one in enumerate(config.windows or (0,) * config.num_layers)
    ]
    listed = architecture.window_by_layer or architecture.hybrid or architecture.own_layer_kinds
    if listed and (set(kinds) != {"full_attention"} or usual or architecture.hybrid):
        values["layer_types"] = kinds
    return values


def _experts(config: ModelConfig, architecture: Architecture) -> dict[str, Any]:
    experts = config.experts
    if experts is None:
        return {"enable_moe_block": False}
    known = architecture.experts
    with_experts = [layer for layer in range(config.num_layers) if layer not in experts.dense_layers]
    every = with_experts[1] - with_experts[0] if len(with_experts) > 1 else 1
    values: dict[str, Any] = {
        (known.counts if known else ("num_local_experts" if config.chunked else "num_experts",))[0]: experts.count,
        "num_experts_per_tok": experts.per_token,
        "top_k_experts": experts.per_token,
        "moe_topk": experts.per_token,
        "enable_moe_block": True,
        (known.size if known else "moe_intermediate_size"): experts.intermediate_size,
        "norm_topk_prob": experts.normalized,
        "first_k_dense_replace": len(experts.dense_layers),
        "num_dense_layers": len(experts.dense_layers),
        "mlp_only_layers": list(experts.dense_layers),
        "decoder_sparse_step": 1,
        "moe_layers": with_experts,
        "moe_num_experts": experts.count,
        "moe_k": experts.per_token,
        "moe_num_shared_experts": experts.shared_size // experts.intermediate_size,
        "moe_layer_start_index": min(with_experts, default=config.num_layers),
        "moe_layer_end_index": max(with_experts, default=config.num_layers),
        "moe_layer_interval": every,
        "shared_expert_intermediate_size": experts.shared_size,
        "shared_intermediate_size": experts.shared_size,
        "share_expert_dim": experts.shared_size,
        "n_shared_experts": experts.shared_size // experts.intermediate_size,
        "num_shared_experts": experts.shared_size // experts.intermediate_size,
        "mlp_layer_types": [
            "dense" if layer in experts.dense_layers else "sparse" for layer in range(config.num_layers)
        ],
        "n_group": experts.groups,
        "topk_group": experts.groups_per_token,
        (known.scaled if known and known.scaled else "routed_scaling_factor"): experts.scale,
        "router_jitter_noise": experts.jitter,
    }
    if isinstance(experts.clamped, ClampedSwiGLU):
        values |= {"swiglu_alpha": experts.clamped.alpha, "swiglu_limit": experts.clamped.limit}
    if config.architecture == "cohere2_moe":
        rotated = any(layer not in config.unrotated_layers for layer in experts.dense_layers if _is_full(config, layer))
        values |= {
            "intermediate_size": experts.intermediate_size,
            "prefix_dense_intermediate_size": config.intermediate_size,
            "prefix_dense_sliding_window_pattern": 1 if rotated else 2,
            "expert_selection_fn": experts.score,
            "shared_expert_combination_strategy": "sum" if experts.shared_multiplier == 1 else "average",
        }
    if config.chunked:
        values |= {"intermediate_size": experts.intermediate_size, "intermediate_size_mlp": config.intermediate_size}
    return values


def _is_full(config: ModelConfig, layer: int) -> bool:
    return not config.windows or not config.windows[layer]


def _gemma3n(config: ModelConfig) -> dict[str, Any]:
    streams, inputs = config.streams, config.per_layer_inputs
    if streams is None or inputs is None:
        return {}
    return {
        **{key: getattr(streams, name.removeprefix("streams.")) for name, key in STREAM_KEYS.items()},
        "altup_correct_scale": streams.scaled,
        "activation_sparsity_pattern": list(config.sparsity or (0.0,) * config.num_layers),
        "num_kv_shared_layers": config.shared_layers,
        "hidden_size_per_layer_input": inputs.size,
        "vocab_size_per_layer_input": inputs.vocab_size,
        **({"intermediate_size": list(config.inner_sizes)} if config.inner_sizes else {}),
    }


def _gemma4(config: ModelConfig, architecture: Architecture) -> dict[str, Any]:
    if not config.layer_scale:
        return {}
    heads, inputs = config.layer_heads[config.num_layers - 1], config.per_layer_inputs
    return {
        "global_head_dim": heads.size,
        "num_global_key_value_heads": heads.number if config.values_are_keys else None,
        "attention_k_eq_v": config.values_are_keys,
        "num_kv_shared_layers": config.shared_layers,
        "use_double_wide_mlp": config.shared_widening == 2,
        "hidden_size_per_layer_input": 0 if inputs is None else inputs.size,
        "vocab_size_per_layer_input": config.vocab_size if inputs is None else inputs.vocab_size,
    }


def _latents(config: ModelConfig, architecture: Architecture) -> dict[str, Any]:
    sizes = config.latents
    if sizes is None:
        return {}
    values: dict[str, Any] = {
        "num_key_value_heads": config.num_heads,
        "head_dim": sizes.rotated + (sizes.unrotated if config.architecture == "mistral4" else 0),
        "kv_lora_rank": sizes.rank,
        "q_lora_rank": sizes.query_rank or None,
        "qk_rope_head_dim": sizes.rotated,
        "qk_nope_head_dim": sizes.unrotated,
        "v_head_dim": sizes.value,
        "scale_emb": _whole(config.embedding_multiplier),
        # null: none
        "scale_depth": (
            None
            if config.residual_multiplier == 1
            else round(config.residual_multiplier * math.sqrt(config.num_layers), 10)
        ),
        "dim_model_base": _whole(round(config.hidden_size * config.logit_multiplier, 6)),
    }
    if architecture.experts is not None and config.experts is not None:
        values["topk_method"] = "group_limited_greedy" if config.experts.groups > 1 else "greedy"
    return values


def _indexer(config: ModelConfig) -> dict[str, Any]:
    sizes = config.indexer
    if sizes is None:
        return {}
    return {
        "index_n_heads": sizes.heads,
        "index_head_dim": sizes.size,
        "index_topk": sizes.most,
        "indexer_types": ["full" if layer in sizes.layers else "shared" for layer in range(config.num_layers)],
    }


def _compression(config: ModelConfig) -> dict[str, Any]:
    sizes, streams, experts = config.compression, config.hyper, config.experts
    if sizes is None or streams is None:
        return {}
    listed = () if experts is None else experts.listed_layers
    return {
        "layer_types": [LAYER_TYPES[kind] for kind in sizes.kinds],
        "mlp_layer_types": [CHOICES[layer not in listed] for layer in range(config.num_layers)],
        "sliding_window": sizes.window,
        "compress_rates": {LAYER_TYPES["sparse"]: sizes.sparse_every, LAYER_TYPES["heavy"]: sizes.heavy_every},
        "partial_rotary_factor": _share(sizes.rotated, config.head_dim),
        "q_lora_rank": sizes.query_rank,
        "o_groups": sizes.groups,
        "o_lora_rank": sizes.group_rank,
        "index_n_heads": sizes.index_heads,
        "index_head_dim": sizes.index_size,
        "index_topk": sizes.most,
        "hc_mult": streams.count,
        "hc_sinkhorn_iters": streams.rounds,
        "hc_eps": streams.eps,
    }


def _rope(config: ModelConfig, architecture: Architecture) -> dict[str, Any]:
    scaling = config.rope_scaling
    values: dict[str, Any] = {}
    parameters: dict[str, Any] = {"rope_type": "default"}
    if scaling is not None:
        parameters, values = _scaling(config, scaling)
    parameters["rope_theta"] = config.rope_theta
    if config.compression is not None:
        share = {"partial_rotary_factor": _share(config.compression.rotated, config.head_dim)}
        window = {"rope_type": "default", "rope_theta": config.window_rope_theta}
        return values | {"rope_parameters": {"main": window | share, "compress": parameters | share}}
    if scaling is not None and scaling.kind == "yarn" and config.latents is not None:
        factor = math.sqrt(config.attention_scale * math.sqrt(config.latents.query))
        grown = yarn_attention_factor(scaling.factor) - 1
        parameters["mscale_all_dim"] = round((factor - 1) / grown, 10) if grown else 0.0
    usually_in_part = architecture.partial_rotary not in (None, 1)
    said = architecture.name == "minimax"  # by `rotary_dim`
    if config.latents is None and not said and (config.rotary_dim is not None or usually_in_part):
        parameters["partial_rotary_factor"] = _share(config.rotated, config.layer_heads[-1].size)
    if config.query_growth is not None and architecture.query_growth:
        parameters["llama_4_scaling_beta"] = config.query_growth.beta
    if architecture.name in _PARTS_BY_KIND:
        parameters[_PART] = _share(config.rotated, config.head_dim)
        kinds = {"full_attention": parameters}
        if config.window_rope_theta is not None:
            rotated = config.window_rotary_dim or config.rotated
            kinds["sliding_attention"] = {"rope_type": "default", "rope_theta": config.window_rope_theta}
            kinds["sliding_attention"] |= {_PART: _share(rotated, config.head_dim)}
        return values | {"rope_parameters": kinds}
    if config.window_rope_theta is not None and architecture.window_rope is not None:
        window = {"rope_type": "default", "rope_theta": config.window_rope_theta}
        if config.architecture == "mimo_v2_flash":
            window["partial_rotary_factor"] = parameters.setdefault("partial_rotary_factor", 1.0)
        return values | {"rope_parameters": {"full_attention": parameters, "sliding_attention": window}}
    return values | {"rope_parameters": parameters}


def _theta(config: ModelConfig, layer: int) -> float:
    """Returns by which theta a layer rotates; 0 if it does not."""
    rope = config.layer_ropes[layer]
    theta = config.rope_theta if config.window_rope_theta is None or rope == "model" else config.window_rope_theta
    return 0.0 if rope == "none" else theta


def _share(part: int, whole: int) -> float:
    """Returns what a reader multiplies the whole by, and rounds down, to get the part."""
    share = part / whole
    return share if int(whole * share) == part else math.nextafter(share, math.inf)


def _scaling(config: ModelConfig, scaling: RopeScaling) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the RoPE parameters, and fields beside them."""
    if scaling.factors and scaling.kind != "longrope":
        raise ConvertError(f"config.json cannot say {len(scaling.factors)} divisors of RoPE's frequencies")
    if scaling.kind not in ("yarn", "longrope") and scaling.attention_factor != 1:
        raise ConvertError(f"config.json cannot say {scaling.kind} RoPE scaling with an attention factor")
    values: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    original = {"original_max_position_embeddings": scaling.original_context_length}
    match scaling.kind:
        case "dynamic":
            return values, {"max_position_embeddings": scaling.original_context_length}
        case "llama3":
            values |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
            values |= original
        case "yarn":
            values |= {
                **original,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "attention_factor": scaling.attention_factor,
                "truncate": scaling.truncate,
            }
        case "longrope":
            values = {
                "rope_type": "longrope",
                **original,
                "short_factor": list(scaling.factors),
                "long_factor": list(scaling.long_factors),
            }
            if scaling.attention_factor != scaling.long_attention_factor:
                values |= {"short_mscale": scaling.attention_factor, "long_mscale": scaling.long_attention_factor}
            else:
                values["attention_factor"] = scaling.attention_factor
            return values, original
    return values, {}


def _compare(config: ModelConfig, architecture: Architecture, values: dict[str, Any]) -> None:
    """Raises ConvertError where a reader would make another model of the fields."""
    fields = Fields(Path("config.json"), values)
    try:
        again = read_config(fields, architecture_of(fields), config.tie_embeddings)
    except CheckpointError as error:
        raise ConvertError(f"{architecture.class_name} cannot be described: {error}") from error
    if found := difference(config, again):
        raise ConvertError(f"{architecture.class_name} cannot have {found}, as this model has")

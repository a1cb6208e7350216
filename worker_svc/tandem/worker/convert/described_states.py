"""The fields of `config.json` that make layers with states, by what these are of."""

from __future__ import annotations

import math
from typing import Any

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.recurrences import DeltaNet, KimiDelta, Lightning, Mamba, ShortConvolution

_INFINITE = {"__float__": "Infinity"}  # which JSON has not, as transformers writes it


def states(config: ModelConfig) -> dict[str, Any]:
    """Returns fields of whatever architecture; those that a class does not know are left out."""
    sizes = config.recurrence
    if isinstance(sizes, DeltaNet):
        return {
            "linear_num_key_heads": sizes.key_heads,
            "linear_num_value_heads": sizes.value_heads,
            "linear_key_head_dim": sizes.key_dim,
            "linear_value_head_dim": sizes.value_dim,
            "linear_conv_kernel_dim": sizes.kernel,
            "linear_allow_neg_eigval": sizes.beta_multiplier == 2,
        }
    if config.architecture in ("kimi_linear", "bailing_hybrid"):
        return _kimi(config)
    match config.architecture:
        case "lfm2" | "lfm2_moe" | "lfm3":
            return _lfm2(config)
        case "granitemoehybrid":
            return _granite(config)
        case "nemotron_h":
            return _nemotron(config)
        case "falcon_h1":
            return _falcon(config)
        case "minimax":
            return _minimax(config)
        case "bamba":
            return {"attn_layer_indices": list(config.attention_layers), **_mamba(config)}
    return {}


def _kimi(config: ModelConfig) -> dict[str, Any]:
    sizes = config.recurrence
    assert sizes is None or isinstance(sizes, KimiDelta)
    said = {"layer_types": _kinds(config, "linear_attention", "full_attention")}
    if sizes is None:
        return said
    heads = {"linear_num_heads": sizes.heads, "linear_head_dim": sizes.head_dim}
    limits = {"kda_safe_gate": sizes.least < 0, "kda_lower_bound": sizes.least or -5.0}
    return said | heads | {"linear_conv_kernel_dim": sizes.kernel} | limits


def _lfm2(config: ModelConfig) -> dict[str, Any]:
    sizes, experts = config.recurrence, config.experts
    assert sizes is None or isinstance(sizes, ShortConvolution)
    return {
        "layer_types": [
            "sliding_attention" if window else kind
            for window, kind in zip(
                config.windows or (0,) * config.num_layers, _kinds(config, "conv", "full_attention"), strict=True
            )
        ],
        "use_sandwich_norm": config.norm_placement == "both",
        "use_attention_gate": config.attention_gate,
        "block_auto_adjust_ff_dim": False,
        **({} if sizes is None else {"conv_L_cache": sizes.kernel, "conv_bias": sizes.biases}),
        **(
            {}
            if experts is None
            else {"num_dense_layers": len(experts.dense_layers), "use_expert_bias": experts.biased}
        ),
    }


def _granite(config: ModelConfig) -> dict[str, Any]:
    experts = config.experts
    shared = config.intermediate_size if experts is None else experts.shared_size
    return {
        "layer_types": _kinds(config, "mamba", "attention"),
        "position_embedding_type": None if config.unrotated_layers else "rope",
        "shared_intermediate_size": shared,
        "num_local_experts": 0 if experts is None else experts.count,
        "num_experts_per_tok": 0 if experts is None else experts.per_token,
        **_mamba(config),
    }


def _nemotron(config: ModelConfig) -> dict[str, Any]:
    sizes, alone = config.recurrence, config.feed_forward_alone or ()
    assert sizes is None or isinstance(sizes, Mamba)
    kinds, experts = _kinds(config, "mamba", "attention"), config.experts
    for layer in alone:
        kinds[layer] = "moe" if config.has_experts(layer) else "mlp"
    values: dict[str, Any] = {"layers_block_type": kinds}
    if experts is not None:
        values |= {
            "n_routed_experts": experts.count,
            "moe_shared_expert_intermediate_size": experts.shared_size,
            "moe_latent_size": experts.latent or None,
        }
    if sizes is not None:
        values |= {
            "mamba_num_heads": sizes.heads,
            "mamba_head_dim": sizes.head_dim,
            "n_groups": sizes.groups,
            "ssm_state_size": sizes.state_size,
            "conv_kernel": sizes.kernel,
            "use_conv_bias": sizes.filter_bias,
            "use_bias": sizes.input_bias,
            "time_step_min": sizes.least_dt,
        }
    return values


def _falcon(config: ModelConfig) -> dict[str, Any]:
    """Of multipliers that make one product, all but one are 1."""
    sizes = config.recurrence
    assert isinstance(sizes, Mamba)
    return {
        "attention_in_multiplier": 1.0,
        "attention_out_multiplier": config.mixing_multiplier,
        "key_multiplier": config.attention_scale * config.head_dim**0.5,
        "mlp_multipliers": [config.gate_multiplier, config.feed_forward_multiplier],
        "lm_head_multiplier": config.logit_multiplier,
        "ssm_in_multiplier": 1.0,
        "ssm_multipliers": list(sizes.multipliers),
        "ssm_out_multiplier": sizes.output_multiplier,
        "mamba_d_ssm": sizes.size,
        "mamba_rms_norm": sizes.norm != "none",
        "mamba_norm_before_gate": sizes.norm == "before",
        "projectors_bias": sizes.output_bias,
        **_mamba(config),
        "mamba_proj_bias": sizes.input_bias,
    }


def _minimax(config: ModelConfig) -> dict[str, Any]:
    sizes, kept = config.recurrence, config.kept_norms
    assert (sizes is None or isinstance(sizes, Lightning)) and kept is not None
    return {
        "layer_types": _kinds(config, "linear_attention", "full_attention"),
        "full_attn_alpha_factor": kept.attention,
        "full_attn_beta_factor": config.mixing_multiplier,
        "linear_attn_alpha_factor": kept.state,
        "linear_attn_beta_factor": 1.0 if sizes is None else sizes.output_multiplier,
        "mlp_alpha_factor": kept.feed_forward,
    }


def _mamba(config: ModelConfig) -> dict[str, Any]:
    sizes = config.recurrence
    if not isinstance(sizes, Mamba):
        return {"mamba_n_heads": 1}  # what transformers has otherwise need not divide the width
    return {
        "mamba_n_heads": sizes.heads,
        "mamba_d_head": sizes.head_dim,
        "mamba_n_groups": sizes.groups,
        "mamba_d_state": sizes.state_size,
        "mamba_d_conv": sizes.kernel,
        "mamba_expand": sizes.size // config.hidden_size,
        "mamba_conv_bias": sizes.filter_bias,
        "mamba_proj_bias": sizes.input_bias,
        "time_step_limit": [sizes.least_dt, sizes.most_dt if math.isfinite(sizes.most_dt) else _INFINITE],
    }


def _kinds(config: ModelConfig, state: str, attention: str) -> list[str]:
    layers = () if config.recurrence is None else config.recurrence.layers
    return [state if layer in layers else attention for layer in range(config.num_layers)]

"""The keys that are known of a GGUF file's metadata; the rules are those of `known_fields`.

Keys of the vocabulary are the tokenizer's, but for those that end an answer; `general.*` says where a file comes from.
"""

from __future__ import annotations

from collections.abc import Mapping

from tandem.worker.checkpoints.known_fields import NEUTRAL, USED, Only, Table, rules
from tandem.worker.checkpoints.model_parts.mlp import XIELU_CONSTANTS

# `quantize.` and `mradermacher.`: how the file was made, and by whom.
NEUTRAL_FAMILIES = ("general.", "tokenizer.", "split.", "quantize.", "mradermacher.")

# What llama.cpp samples with by default. `sequence`, `mirostat` and the others have no place among our defaults.
SAMPLING = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
# Constants of xIELU, one for each layer or one for all, which other files have as tensors.
XIELU_KEYS = {name: f"xielu.{name}" for name in XIELU_CONSTANTS}
_GENERAL: Table = (
    rules(USED, "general.architecture general.alignment", *SAMPLING.values())
    | rules(NEUTRAL, "general.sampling.xtc_threshold general.sampling.mirostat_tau general.sampling.mirostat_eta")
    | rules(Only((0,)), "general.sampling.xtc_probability general.sampling.mirostat")
    | rules(Only(), "general.sampling.sequence general.sampling.penalty_last_n")
    | {"general.type": Only(("model",)), "general.quantization_version": Only((2,))}
)

# Of every architecture, without its prefix.
_MODEL: Table = (
    rules(
        USED,
        "vocab_size context_length embedding_length block_count feed_forward_length",
        "attention.head_count attention.head_count_kv attention.key_length attention.value_length",
        "attention.layer_norm_rms_epsilon attention.sliding_window",
        "rope.dimension_count rope.freq_base rope.scale_linear rope.scaling.type rope.scaling.factor",
        "rope.scaling.original_context_length rope.scaling.attn_factor",
        "rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow",
        "expert_count expert_used_count expert_feed_forward_length",
    )
    # the second one belongs to a norm that none of these architectures has
    | rules(NEUTRAL, "rope.scaling.finetuned attention.layer_norm_epsilon")
    | rules(Only((0,)), "expert_shared_count expert_shared_feed_forward_length leading_dense_block_count")
    | rules(
        Only((0,)), "nextn_predict_layers attention.max_alibi_bias attention.clamp_kqv attention.scale pooling_type"
    )
    | rules(Only((0,)), "rope.scaling.yarn_log_multiplier attn_logit_softcapping final_logit_softcapping")
    | rules(Only((0, 1)), "expert_group_count expert_group_used_count interleave_moe_layer_step moe_every_n_layers")
    | rules(Only((0, 1)), "expert_weights_scale")
    | rules(Only((1,)), "rope.scaling.yarn_ext_factor rope.scaling.yarn_attn_factor logit_scale embedding_scale")
    | rules(Only((1,)), "residual_scale expert_gating_func")
    | rules(Only((False,)), "use_parallel_residual")
    | rules(Only((True,)), "attention.causal expert_weights_norm")
    | {"tensor_data_layout": Only(("Meta AI original pth",))}  # what llama.cpp's converter writes, whatever it permutes
)


# Beside these, by `general.architecture`. Granite's layers rotate unless the scaling is not "finetuned".
# The second one is what llama.cpp's converter makes of a `norm_eps`, and of no norm there.
_LAYER_NORM: Table = {"attention.layer_norm_epsilon": USED, "attention.layer_norm_rms_epsilon": NEUTRAL}
_GRANITE: Table = rules(USED, "embedding_scale residual_scale attention.scale logit_scale") | {
    "rope.scaling.finetuned": Only((True,))
}
_WINDOWS: Table = rules(USED, "attention.sliding_window_pattern")
_CAPS: Table = rules(USED, "attn_logit_softcapping final_logit_softcapping")
_EXPERTS: Table = {"expert_gating_func": Only((2,))}  # a sigmoid
_STATES: Table = rules(USED, "ssm.conv_kernel ssm.state_size ssm.group_count ssm.time_step_rank ssm.inner_size")
_CONVOLUTIONS: Table = rules(USED, "shortconv.l_cache")
# Of text alone, all positions of a token are the same, and nothing is added to the first layers.
_SEEING: Table = rules(NEUTRAL, "rope.dimension_sections n_deepstack_layers")
_HYBRID: Table = (
    rules(USED, "full_attention_interval attention.recurrent_layers nextn_predict_layers")
    | _STATES
    | rules(USED, "expert_shared_feed_forward_length")
    | _SEEING
)
_LATENTS: Table = (
    rules(USED, "attention.kv_lora_rank attention.q_lora_rank")
    | rules(USED, "attention.key_length_mla attention.value_length_mla rope.scaling.yarn_log_multiplier")
    | rules(USED, "expert_shared_count leading_dense_block_count nextn_predict_layers")
    | rules(USED, "expert_weights_scale expert_weights_norm expert_group_count expert_group_used_count")
    | {"expert_gating_func": USED, "rope.scaling.attn_factor": Only((1,))}
)
# With another factor of all dimensions than 1, llama.cpp's logits of DeepSeek V3.2 and Mistral 4 are not a folder's.
_INDEXER: Table = rules(USED, *(f"attention.indexer.{name}" for name in ("head_count", "key_length", "top_k"))) | {
    "rope.scaling.yarn_log_multiplier": Only((0.1,))
}
_MORE: Mapping[str, Table] = {
    **dict.fromkeys(("qwen2vl", "qwen3vl", "qwen3vlmoe"), _SEEING),
    "gemma4": _WINDOWS
    | rules(USED, "attention.key_length_swa attention.value_length_swa attention.shared_kv_layers")
    | rules(USED, "rope.freq_base_swa rope.dimension_count_swa final_logit_softcapping")
    | rules(USED, "embedding_length_per_layer_input"),
    "gemma3n": _WINDOWS
    | rules(USED, "attention.shared_kv_layers rope.freq_base_swa final_logit_softcapping")
    | rules(USED, "embedding_length_per_layer_input altup.num_inputs altup.active_idx activation_sparsity_scale"),
    "llama4": _EXPERTS
    | _WINDOWS
    | rules(USED, "interleave_moe_layer_step")
    | {"attention.sliding_window": Only((8192,)), "attention.chunk_size": Only((8192,))},  # whatever they say
    "mistral3": rules(USED, "attention.temperature_scale rope.scaling.yarn_log_multiplier"),
    "qwen3next": _HYBRID,
    "qwen35": _HYBRID,
    "qwen35moe": _HYBRID,
    "lfm2": _CONVOLUTIONS,
    "lfm2moe": _CONVOLUTIONS | _EXPERTS | rules(USED, "leading_dense_block_count"),
    "granitehybrid": _GRANITE | _STATES | rules(USED, "expert_shared_feed_forward_length rope.scaling.finetuned"),
    "nemotron_h": _STATES | rules(USED, "attention.layer_norm_epsilon"),
    "nemotron_h_moe": _STATES
    | _EXPERTS
    | rules(USED, "attention.layer_norm_epsilon expert_shared_feed_forward_length expert_weights_scale")
    | rules(USED, "expert_weights_norm expert_group_count expert_group_used_count moe_latent_size")
    | rules(NEUTRAL, "expert_shared_count"),
    "falcon-h1": _STATES,
    "qwen2moe": {"expert_shared_feed_forward_length": USED, "expert_weights_norm": Only((False,))},
    "glm4": {"rope.dimension_sections": USED},
    "glm4moe": _EXPERTS
    | _SEEING
    | rules(USED, "expert_shared_count leading_dense_block_count nextn_predict_layers")
    | rules(USED, "expert_weights_scale expert_weights_norm"),
    "deepseek2": _LATENTS,
    "mistral4": _LATENTS
    | rules(USED, "attention.temperature_scale attention.temperature_length")
    | {"nextn_predict_layers": Only((0,)), "rope.scaling.yarn_log_multiplier": Only((0.1,))},
    "mimo2": _WINDOWS | _EXPERTS | rules(USED, "rope.freq_base_swa attention.value_scale"),
    "step35": _WINDOWS
    | _EXPERTS
    | rules(USED, "rope.freq_base_swa rope.dimension_count_swa swiglu_clamp_exp swiglu_clamp_shexp")
    | rules(USED, "expert_shared_feed_forward_length leading_dense_block_count nextn_predict_layers")
    | rules(USED, "expert_weights_scale expert_weights_norm"),
    "laguna": _WINDOWS
    | _EXPERTS
    | rules(USED, "rope.freq_base_swa rope.dimension_count_swa expert_shared_feed_forward_length")
    | rules(USED, "leading_dense_block_count expert_weights_scale expert_weights_norm")
    | rules(NEUTRAL, "expert_shared_count"),
    "kimi-linear": {key: rule for key, rule in _LATENTS.items() if key != "nextn_predict_layers"}
    | rules(USED, "ssm.conv_kernel kda.head_dim")
    | rules(Only(), "rope.scaling.yarn_log_multiplier attention.q_lora_rank")
    | {"expert_weights_norm": Only((True,))},  # llama.cpp divides by the sum whatever it says
    "deepseek32": _LATENTS | _INDEXER,
    "glm-dsa": _LATENTS | _INDEXER | rules(USED, "attention.indexer.types"),
    "minimax-m2": _EXPERTS,
    "minimax-01": rules(USED, "residual_scale full_attention_interval attention.recurrent_layers"),
    "olmo": _LAYER_NORM | rules(USED, "attention.clamp_kqv"),
    "hunyuan-moe": rules(USED, "expert_shared_feed_forward_length") | {"expert_shared_count": Only((1,))},
    "afmoe": _EXPERTS
    | rules(USED, "expert_shared_count leading_dense_block_count expert_weights_scale expert_weights_norm"),
    "olmo2": _WINDOWS | {"rope.freq_base_swa": USED},
    "phi3": rules(
        Only(), "rope.scaling.factor rope.scale_linear rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow"
    ),
    "gpt-oss": {"expert_gating_func": Only((3,))},  # softmax of the chosen ones
    "gemma2": _CAPS,
    "gemma3": {"rope.freq_base_swa": USED},
    "starcoder2": _LAYER_NORM,
    "phi2": _LAYER_NORM,
    "nemotron": _LAYER_NORM,
    "gptneox": _LAYER_NORM | rules(USED, "use_parallel_residual"),
    "falcon": _LAYER_NORM | {"tensor_data_layout": Only(("jploski",))},  # q, k and v below each other
    "jais2": _LAYER_NORM,
    "cohere2moe": _WINDOWS
    | rules(USED, "attention.layer_norm_epsilon logit_scale leading_dense_block_count expert_weights_norm")
    | rules(USED, "expert_shared_count expert_weights_scale expert_gating_func")
    | rules(NEUTRAL, "expert_shared_feed_forward_length"),
    "hy_v3": _EXPERTS
    | rules(USED, "expert_shared_feed_forward_length nextn_predict_layers")
    | rules(USED, "expert_weights_scale expert_weights_norm")
    | rules(NEUTRAL, "expert_shared_count leading_dense_block_count"),
    "granite_swa": _WINDOWS
    | rules(USED, "embedding_scale residual_scale attention.scale logit_scale attention.rope_pattern")
    | rules(USED, "expert_shared_feed_forward_length"),
    "gpt2": _LAYER_NORM,
    "starcoder": _LAYER_NORM,
    "cohere2": _LAYER_NORM | {"logit_scale": USED},
    "granite": _GRANITE,
    "granitemoe": _GRANITE | rules(USED, "expert_shared_feed_forward_length") | {"expert_shared_count": Only((0,))},
    "ernie4_5-moe": rules(USED, "expert_shared_feed_forward_length leading_dense_block_count")
    | rules(NEUTRAL, "expert_shared_count")
    | {"interleave_moe_layer_step": Only((1,))},
    "exaone4": _WINDOWS,
    "command-r": _LAYER_NORM | {"logit_scale": USED},
    # which llama.cpp does not look at: parts are side by side where there is no second norm
    "stablelm": _LAYER_NORM | rules(NEUTRAL, "use_parallel_residual"),
    "dots1": _EXPERTS
    | rules(USED, "expert_shared_count leading_dense_block_count expert_weights_scale expert_weights_norm"),
}


def known_keys(architecture: str) -> Table:
    """Returns the known keys of a file of this `general.architecture`."""
    own = {f"{architecture}.{key}": rule for key, rule in (_MODEL | _MORE.get(architecture, {})).items()}
    return _GENERAL | own | (dict.fromkeys(XIELU_KEYS.values(), USED) if architecture == "apertus" else {})


def is_said(architecture: str, key: str, value: object) -> bool:
    """Tells whether a file of this `general.architecture` says a value by a key, which is without the prefix: one that
    is read, or one that its own table has."""
    own = _MORE.get(architecture, {})
    rule = own.get(key) or _MODEL.get(key)
    if value is None or rule is None:
        return False
    return rule is USED or (key in own and (rule is NEUTRAL or (isinstance(rule, Only) and rule.allows(value))))

"""Models some of whose layers have states."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.worker.checkpoints.hugging_face_fields.shared import (
    EVERY,
    EXPERTS_PER_TOKEN,
    GRANITE,
    LATENT_SIZES,
    ROPE_BY_KIND,
)
from tandem.worker.checkpoints.known_fields import NEUTRAL, USED, Only, Table, rules

_HYBRID = (
    EVERY
    | rules(
        USED,
        "linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim linear_num_key_heads linear_num_value_heads",
        "full_attention_interval partial_rotary_factor",
    )
    # heads that predict several tokens are not loaded; the state is always float32
    | rules(NEUTRAL, "mtp_num_hidden_layers mtp_use_dedicated_embeddings num_nextn_predict_layers mamba_ssm_dtype")
    | {"attn_output_gate": Only((True,)), "output_gate_type": Only(("swish", "silu"))}
    | {"use_sliding_window": Only((False,)), "sliding_window": Only()}
)
_HYBRID_EXPERTS = rules(USED, "num_experts num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size")
_LFM2 = (
    EVERY
    | rules(USED, "norm_eps conv_L_cache conv_bias")
    | {"tie_embedding": Only((True,)), "rms_norm_eps": Only()}  # the older name of tie_word_embeddings
)
_MAMBA = rules(
    USED,
    "mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state mamba_d_conv mamba_expand mamba_conv_bias",
    "mamba_proj_bias time_step_limit",
) | rules(NEUTRAL, "mamba_chunk_size")
_ALPHA_BETA, _MINIMAX_PARTS = ("alpha", "beta"), ("full_attention", "linear_attention", "mlp")

HYBRIDS: Mapping[str, Table] = {
    "qwen3_next": _HYBRID | _HYBRID_EXPERTS | rules(USED, "decoder_sparse_step mlp_only_layers norm_topk_prob"),
    "qwen3_5_text": _HYBRID | {"mlp_only_layers": Only(([],))},
    "qwen3_5_moe_text": _HYBRID
    | _HYBRID_EXPERTS
    | {"mlp_only_layers": Only(([],)), "decoder_sparse_step": Only((1,)), "norm_topk_prob": Only((True,))},
    "lfm2": _LFM2
    | rules(USED, "block_multiple_of block_ffn_dim_multiplier block_auto_adjust_ff_dim block_ff_dim full_attn_idxs")
    | rules(NEUTRAL, "block_dim block_mlp_init_scale block_norm_eps block_out_init_scale block_use_xavier_init")
    | rules(NEUTRAL, "conv_dim conv_dim_out conv_use_xavier_init num_heads")
    | rules(Only((True,)), "block_use_swiglu use_pos_enc"),
    "lfm2_moe": _LFM2
    | rules(USED, "num_dense_layers num_experts num_experts_per_tok moe_intermediate_size norm_topk_prob")
    | rules(USED, "use_expert_bias routed_scaling_factor"),
    "lfm3": EVERY
    | rules(USED, "norm_eps conv_L_cache conv_bias sliding_window use_sandwich_norm use_attention_gate")
    | {"tie_embedding": Only((True,)), "rms_norm_eps": Only()}
    | ROPE_BY_KIND,
    "granitemoehybrid": EVERY
    | GRANITE
    | rules(USED, "shared_intermediate_size position_embedding_type")
    | rules(NEUTRAL, "normalization_function init_method")
    | _MAMBA
    | EXPERTS_PER_TOKEN,
    "nemotron_h": EVERY
    | rules(
        USED,
        "mlp_bias attention_bias layers_block_type hybrid_override_pattern layer_norm_epsilon use_bias use_conv_bias",
    )
    | rules(USED, "mamba_num_heads mamba_head_dim n_groups ssm_state_size conv_kernel time_step_min")
    # dt has no upper limit, and its lower one is time_step_min
    | rules(NEUTRAL, "time_step_limit time_step_max time_step_floor time_step_rank time_step_init_scheme expand")
    | rules(NEUTRAL, "chunk_size mamba_chunk_size rms_norm_eps norm_eps mamba_proj_bias mamba_ssm_cache_dtype")
    | rules(NEUTRAL, "use_mamba_kernels num_logits_to_keep residual_in_fp32 rescale_prenorm_residual rescale_layer")
    | rules(NEUTRAL, "mtp_layers_block_type mtp_hybrid_override_pattern num_nextn_predict_layers")
    | rules(USED, "n_routed_experts num_experts_per_tok moe_intermediate_size moe_shared_expert_intermediate_size")
    | rules(USED, "moe_latent_size n_group topk_group norm_topk_prob routed_scaling_factor")
    # the shared one is one, of the size that is said
    | rules(NEUTRAL, "n_shared_experts moe_shared_expert_overlap")
    | rules(Only(("silu",)), "mamba_hidden_act")
    | {
        "mlp_hidden_act": Only(("relu2",)),
        "sliding_window": Only(),
        "attention_head_dim": Only((128,)),
        "layer_types": Only(),
    },
    "olmo_hybrid": EVERY
    | rules(USED, "attention_bias linear_num_key_heads linear_num_value_heads linear_key_head_dim")
    | rules(USED, "linear_value_head_dim linear_conv_kernel_dim linear_allow_neg_eigval")
    | rules(NEUTRAL, "linear_a_log_min linear_a_log_max linear_dt_min linear_dt_max linear_dt_init_floor")
    | {"head_dim": Only()},
    "bamba": EVERY
    | rules(USED, "attention_bias mlp_bias attn_layer_indices")
    | rules(NEUTRAL, "num_logits_to_keep z_loss_coefficient use_mamba_kernels attn_rotary_emb")
    | _MAMBA
    # transformers has half of a head rotated, whatever this says
    | {"partial_rotary_factor": Only((0.5,)), "layer_types": Only(), "layers_block_type": Only()},
    "falcon_h1": EVERY
    | rules(USED, "mlp_bias mamba_d_ssm mamba_rms_norm mamba_norm_before_gate projectors_bias lm_head_multiplier")
    | rules(USED, "embedding_multiplier mlp_multipliers key_multiplier ssm_multipliers ssm_in_multiplier")
    | rules(USED, "ssm_out_multiplier attention_in_multiplier attention_out_multiplier")
    | rules(NEUTRAL, "num_logits_to_keep mamba_use_mlp mlp_expansion_factor")
    | rules(NEUTRAL, "time_step_min time_step_max time_step_floor time_step_rank")
    | _MAMBA
    | {"mamba_proj_bias": Only((False,)), "layer_types": Only(), "attn_layer_indices": Only()},
    "kimi_linear": LATENT_SIZES
    | rules(USED, "linear_attn_config linear_head_dim linear_num_heads linear_conv_kernel_dim mlp_layer_types")
    | rules(USED, "first_k_dense_replace model_max_length moe_renormalize norm_topk_prob num_expert_group n_group")
    | rules(USED, "num_experts_per_token num_experts_per_tok num_shared_experts n_shared_experts topk_group")
    | rules(USED, "num_experts num_local_experts moe_intermediate_size routed_scaling_factor")
    # no layer rotates, and groups are as many as is said
    | rules(NEUTRAL, "head_dim rope_theta rope_scaling rope_parameters original_max_position_embeddings")
    | rules(NEUTRAL, "use_grouped_topk ep_size aux_loss_alpha seq_aux")
    | {"num_nextn_predict_layers": Only((0,)), "moe_layer_freq": Only((1,)), "mla_use_nope": Only((True,))}
    | {"moe_router_activation_func": Only(("sigmoid",))},
    "bailing_hybrid": LATENT_SIZES
    | rules(USED, "linear_head_dim linear_num_heads linear_conv_kernel_dim short_conv_kernel_size layer_group_size")
    | rules(USED, "kda_safe_gate kda_lower_bound mlp_layer_types first_k_dense_replace num_mtp_layers")
    | rules(USED, "model_max_length moe_renormalize norm_topk_prob num_expert_group n_group num_nextn_predict_layers")
    | rules(USED, "num_experts_per_token num_experts_per_tok num_shared_experts n_shared_experts topk_group")
    | rules(USED, "num_experts num_local_experts moe_intermediate_size routed_scaling_factor")
    | rules(NEUTRAL, "mtp_loss_scaling_factor"),
    "minimax": EVERY
    | EXPERTS_PER_TOKEN
    | rules(USED, "num_experts attn_type_list rotary_dim sliding_window")
    | rules(USED, *(f"{part}_{which}_factor" for part in ("full_attn", "linear_attn", "mlp") for which in _ALPHA_BETA))
    | rules(USED, *(f"layernorm_{part}_{which}" for part in _MINIMAX_PARTS for which in _ALPHA_BETA))
    # how prompts are cut, which changes no more than roundings, and what is of a part that is not there
    | rules(NEUTRAL, "block_size shared_moe_mode")
    | {"postnorm": Only((True,)), "shared_intermediate_size": Only((0,))},
}

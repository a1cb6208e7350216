"""Models whose feed-forward parts are choices among experts."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.worker.checkpoints.hugging_face_fields.shared import (
    EVERY,
    EXPERTS_PER_TOKEN,
    GRANITE,
    HUNYUAN,
    PARTIAL,
    QWEN_WINDOWS,
    ROPE_BY_KIND,
)
from tandem.worker.checkpoints.known_fields import NEUTRAL, USED, Only, Table, rules

_LISTED_EXPERTS = rules(
    USED,
    "decoder_sparse_step mlp_only_layers moe_intermediate_size norm_topk_prob num_experts num_local_experts",
    "num_experts_per_tok",
)

EXPERTS: Mapping[str, Table] = {
    "mixtral": EVERY | rules(USED, "sliding_window") | EXPERTS_PER_TOKEN,
    "qwen3_moe": EVERY
    | rules(USED, "attention_bias")
    | QWEN_WINDOWS
    | _LISTED_EXPERTS
    # what Qwen3-Coder says of what all are
    | {"qkv_bias": Only((False,)), "use_qk_norm": Only((True,))},
    "qwen2_moe": EVERY | rules(USED, "qkv_bias shared_expert_intermediate_size") | QWEN_WINDOWS | _LISTED_EXPERTS,
    "olmoe": EVERY
    | rules(USED, "clip_qkv attention_bias num_experts num_local_experts num_experts_per_tok norm_topk_prob"),
    "flex_olmo": EVERY | rules(USED, "attention_bias num_experts num_experts_per_tok norm_topk_prob"),
    "granitemoe": EVERY | GRANITE | EXPERTS_PER_TOKEN,
    "granitemoeshared": EVERY | GRANITE | rules(USED, "shared_intermediate_size") | EXPERTS_PER_TOKEN,
    "granitemoe_swa": EVERY
    | GRANITE
    | rules(USED, "sliding_window layer_rope_theta shared_intermediate_size")
    | EXPERTS_PER_TOKEN,
    "phimoe": EVERY
    | rules(USED, "attention_bias sliding_window lm_head_bias router_jitter_noise")
    | rules(NEUTRAL, "input_jitter_noise")
    | EXPERTS_PER_TOKEN,
    "gpt_oss": EVERY
    | rules(USED, "attention_bias sliding_window swiglu_alpha swiglu_limit num_experts")
    | EXPERTS_PER_TOKEN
    | rules(NEUTRAL, "experts_per_token initial_context_length"),
    "glm4_moe": EVERY
    | rules(USED, "attention_bias use_qk_norm first_k_dense_replace n_group topk_group norm_topk_prob n_routed_experts")
    | rules(USED, "n_shared_experts routed_scaling_factor moe_intermediate_size num_experts_per_tok")
    | rules(USED, "num_nextn_predict_layers")
    | PARTIAL,
    "sarvam_moe": EVERY
    | rules(USED, "attention_bias use_qkv_bias use_qk_norm first_k_dense_replace n_group topk_group norm_topk_prob")
    | rules(USED, "n_routed_experts num_experts num_local_experts n_shared_experts num_shared_experts")
    | rules(USED, "routed_scaling_factor moe_intermediate_size num_experts_per_tok")
    | rules(NEUTRAL, "moe_shared_expert_intermediate_size embedding_dropout output_dropout router_dtype")
    | rules(Only((0,)), "num_mtp_layers num_nextn_predict_layers")
    | rules(Only((True,)), "use_rmsnorm moe_router_enable_expert_bias")
    | {"score_function": Only(("sigmoid",))}
    | PARTIAL,
    "hy_v3": EVERY
    | rules(USED, "attention_bias mlp_bias mlp_layer_types num_experts num_local_experts num_shared_experts")
    | rules(USED, "router_scaling_factor moe_intermediate_size num_experts_per_tok num_nextn_predict_layers")
    # how a sum of two numbers is rounded, and what transformers does not look at
    | rules(NEUTRAL, "enable_moe_fp32_combine enable_attention_fp32_softmax enable_lm_head_fp32 expert_hidden_dim")
    | rules(NEUTRAL, "use_grouped_mm")
    | rules(Only((True,)), "qk_norm route_norm moe_router_use_sigmoid moe_router_enable_expert_bias")
    | {"first_k_dense_replace": Only((1,))},
    "afmoe": EVERY
    | rules(USED, "sliding_window global_attn_every_n_layers num_dense_layers mup_enabled route_scale")
    | rules(USED, "num_experts num_shared_experts moe_intermediate_size num_experts_per_tok")
    | rules(NEUTRAL, "load_balance_coeff use_grouped_mm")
    | rules(Only((1,)), "n_group topk_group num_expert_groups num_limited_groups")
    | {"route_norm": Only((True,)), "score_func": Only(("sigmoid",))},
    "cohere2_moe": EVERY
    | rules(USED, "attention_bias layer_norm_eps logit_scale sliding_window sliding_window_pattern mlp_layer_types")
    | rules(USED, "first_k_dense_replace prefix_dense_sliding_window_pattern prefix_dense_intermediate_size")
    | rules(USED, "num_experts num_experts_per_tok norm_topk_prob expert_selection_fn num_shared_experts")
    | rules(USED, "shared_expert_combination_strategy")
    # transformers looks at rope_parameters alone
    | {"rope_scaling": Only()},
    "minimax_m2": EVERY
    | rules(USED, "num_experts rotary_dim")
    | rules(NEUTRAL, "use_mtp num_mtp_modules mtp_transformer_layers qk_norm_type use_routing_bias")
    | rules(Only((1,)), "layernorm_full_attention_alpha layernorm_full_attention_beta")
    | rules(Only((1,)), "layernorm_linear_attention_alpha layernorm_linear_attention_beta")
    | rules(Only((1,)), "layernorm_mlp_alpha layernorm_mlp_beta")
    | rules(NEUTRAL, "attn_type_list max_model_len")
    | {"scoring_func": Only(("sigmoid",)), "use_qk_norm": Only((True,)), "shared_intermediate_size": Only((0,))}
    | EXPERTS_PER_TOKEN
    | PARTIAL,
    "llama4_text": EVERY
    | rules(USED, "attention_bias attention_chunk_size no_rope_layers no_rope_layer_interval use_qk_norm")
    | rules(USED, "attn_temperature_tuning attn_scale floor_scale intermediate_size_mlp")
    | rules(USED, "interleave_moe_layer_step moe_layers num_local_experts num_experts_per_tok")
    | {"for_llm_compressor": Only((False,))},
    "ernie4_5_moe": EVERY
    | rules(USED, "moe_num_experts moe_k moe_intermediate_size moe_num_shared_experts")
    | rules(USED, "moe_layer_start_index moe_layer_end_index moe_layer_interval")
    | rules(NEUTRAL, "moe_capacity num_nextn_predict_layers")
    # what the chosen experts' probabilities add up to at least, before they are divided by it
    | {"moe_norm_min": Only((1e-12,)), "moe_use_aux_free": Only((True,))}
    | {"moe_gate": Only(("topk",)), "moe_gate_act": Only(("softmax",))},
    "hunyuan_v1_moe": EVERY
    | HUNYUAN
    | rules(USED, "num_experts num_local_experts moe_topk num_shared_expert moe_intermediate_size")
    | rules(NEUTRAL, "capacity_factor moe_drop_tokens moe_layer_num_skipped moe_random_routing_dropped_token")
    | {"group_limited_greedy": Only((False,)), "norm_topk_prob": Only((True,)), "use_mixed_mlp_moe": Only((True,))}
    | rules(Only((1,)), "num_experts_per_tok")  # which is moe_topk
    | {"use_mla": Only((False,))},
    "dots1": EVERY
    | rules(USED, "attention_bias sliding_window max_window_layers first_k_dense_replace n_group topk_group")
    | rules(USED, "n_routed_experts num_local_experts n_shared_experts moe_intermediate_size num_experts_per_tok")
    | rules(USED, "norm_topk_prob routed_scaling_factor")
    | {"scoring_func": Only(("noaux_tc", "sigmoid"))},
    "solar_open": EVERY
    | rules(USED, "attention_bias n_group topk_group norm_topk_prob n_routed_experts num_local_experts")
    | rules(USED, "n_shared_experts routed_scaling_factor moe_intermediate_size num_experts_per_tok")
    | {"first_k_dense_replace": Only((0,))},
    "exaone_moe": EVERY
    | rules(USED, "sliding_window sliding_window_pattern first_k_dense_replace mlp_layer_types n_group topk_group")
    | rules(USED, "num_experts num_experts_per_tok num_shared_experts moe_intermediate_size norm_topk_prob")
    | rules(USED, "routed_scaling_factor")
    | rules(NEUTRAL, "num_nextn_predict_layers")  # the layer that drafts is not read
    | {"scoring_func": Only(("sigmoid",)), "topk_method": Only(("noaux_tc",))},
    "mellum": EVERY
    | rules(USED, "attention_bias sliding_window mlp_layer_types num_experts num_local_experts num_experts_per_tok")
    | rules(USED, "moe_intermediate_size norm_topk_prob")
    # the layer that drafts is not read
    | rules(NEUTRAL, "num_mtp_layers mtp_layer_types mtp_mlp_layer_types num_nextn_predict_layers")
    | ROPE_BY_KIND,
    "mimo_v2_flash": EVERY
    | rules(USED, "attention_bias v_head_dim attention_value_scale sliding_window sliding_window_size mlp_layer_types")
    | rules(USED, "n_routed_experts num_local_experts num_experts_per_tok moe_intermediate_size norm_topk_prob")
    | rules(USED, "n_group topk_group routed_scaling_factor hybrid_layer_pattern moe_layer_freq")
    | rules(NEUTRAL, "attention_chunk_size hybrid_block_size")
    # what transformers has, whatever these say
    | {"rope_theta": Only((5000000,)), "swa_rope_theta": Only((10000,)), "partial_rotary_factor": Only((0.334,))}
    | {"rope_scaling": Only(), "original_max_position_embeddings": Only(), "layernorm_epsilon": Only((1e-5,))}
    | {"add_swa_attention_sink_bias": Only((True,)), "add_full_attention_sink_bias": Only((False,))}
    | {"n_shared_experts": Only((0,)), "topk_method": Only(("noaux_tc",)), "scoring_func": Only(("sigmoid",))}
    | {"swa_num_attention_heads": USED, "swa_num_key_value_heads": USED, "swa_head_dim": USED, "swa_v_head_dim": USED},
    "step3p5": EVERY
    | rules(USED, "attention_bias mlp_bias sliding_window query_pre_attn_scalar mlp_layer_types moe_layers_enum")
    | rules(USED, "num_attention_groups num_sliding_attention_heads attention_other_setting per_layer_config")
    | rules(USED, "partial_rotary_factors swiglu_limits swiglu_limits_shared num_nextn_predict_layers")
    | rules(USED, "n_routed_experts moe_num_experts num_local_experts num_experts_per_tok moe_top_k")
    | rules(USED, "moe_intermediate_size share_expert_dim share_expert_dims moe_router_scaling_factor")
    # of layers that draft, and what transformers does not look at
    | rules(NEUTRAL, "mtp_layer_types mtp_mlp_layer_types max_seq_len need_fp32_gate use_rope_layers")
    | rules(NEUTRAL, "moe_layer_offset moe_every_n_layer att_impl_type norm_type")
    | rules(Only((True,)), "use_head_wise_attn_gate use_moe use_moe_router_bias norm_expert_weight zero_centered")
    | {
        "gating": Only((True, "per-head")),
        "use_qk_norm": Only((True,)),
        "sink": Only((False,)),
        "use_mfa": Only((False,)),
    }
    | {"use_bidirectional_attention": Only((False,)), "moe_router_activation": Only(("sigmoid",))}
    | {"yarn_only_types": Only((["full_attention"],)), "moe_layer_freq": Only(), "sparse_attention_config": Only()},
    "laguna": EVERY
    | rules(USED, "attention_bias sliding_window mlp_layer_types num_attention_heads_per_layer gating")
    | rules(USED, "num_experts num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size")
    | rules(USED, "moe_routed_scaling_factor")
    | rules(NEUTRAL, "partial_rotary_factor")
    | rules(Only((False,)), "moe_apply_router_weight_on_input swa_attention_sink_enabled")
    | {"moe_router_logit_softcapping": Only((0,))}
    | ROPE_BY_KIND,
}

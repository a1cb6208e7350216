"""The fields that are known of `config.json`, its RoPE parameters and `quantization_config`, and of
`generation_config.json`; the rules are those of `known_fields`.

What is neutral is what transformers 5 computes nothing with: a test changes every field and compares both.
"""

from __future__ import annotations

from collections.abc import Mapping

from tandem.worker.checkpoints.known_fields import NEUTRAL, USED, Only, Table, rules
from tandem.worker.checkpoints.model_parts.mlp import Activation

# What generation starts from. Of these, a server's requests state the lengths; beams and assistants are other ways of
# decoding, which a request does not have.
GENERATION: Table = (
    rules(USED, "bos_token_id eos_token_id do_sample temperature top_p min_p top_k repetition_penalty")
    | rules(
        NEUTRAL,
        "_from_model_config transformers_version _commit_hash trust_remote_code",
        "max_length max_new_tokens max_time pad_token_id decoder_start_token_id early_stopping length_penalty",
        "use_cache cache_implementation cache_config max_cache_len low_memory prefill_chunk_size",
        "return_dict_in_generate output_attentions output_hidden_states output_scores output_logits",
        "renormalize_logits remove_invalid_values",
        "is_assistant num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold",
        "assistant_early_exit assistant_lookbehind assistant_ensemble_weight target_lookbehind",
        "prompt_lookup_num_tokens max_matching_ngram_size speculation_type use_mtp",
        "compile_config disable_compile continuous_batching_config",
    )
    | rules(Only((1,)), "num_beams num_beam_groups num_return_sequences")
    | rules(Only((0,)), "min_length min_new_tokens no_repeat_ngram_size encoder_no_repeat_ngram_size")
    | rules(Only((0,)), "epsilon_cutoff eta_cutoff penalty_alpha diversity_penalty")
    | rules(Only((1,)), "typical_p encoder_repetition_penalty guidance_scale")
    | rules(Only(([],)), "suppress_tokens begin_suppress_tokens bad_words_ids stop_strings")
    | rules(Only((False,)), "token_healing")
    | rules(
        Only(),
        "top_h forced_bos_token_id forced_eos_token_id exponential_decay_length_penalty sequence_bias",
        "watermarking_config dola_layers constraints force_words_ids",
    )
)

_CONFIG: Table = (
    # transformers 5 takes none of them from here
    dict.fromkeys(GENERATION, NEUTRAL)
    | rules(
        USED,
        "architectures model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads",
        "num_key_value_heads head_dim max_position_embeddings rms_norm_eps tie_word_embeddings layer_types",
        "rope_theta rope_scaling rope_parameters original_max_position_embeddings",
        "bos_token_id eos_token_id quantization_config",
    )
    | rules(
        NEUTRAL,
        "_name_or_path name_or_path auto_map tokenizer_class task_specific_params finetuning_task prefix",
        "unsloth_version unsloth_fixed is_llama_config transformers.js_config _pre_quantization_dtype",
        "initializer_range attention_dropout hidden_dropout classifier_dropout gradient_checkpointing loss_type",
        "attn_pdrop embd_pdrop resid_pdrop hidden_dropout_prob attention_probs_dropout_prob",
        "output_router_logits router_aux_loss_coef router_jitter_noise problem_type id2label label2id num_labels",
        "torch_dtype dtype use_bfloat16 torchscript tf_legacy_loss chunk_size_feed_forward pretraining_tp",
        "attn_implementation _attn_implementation _attn_implementation_internal _attn_implementation_autoset",
        "experts_implementation _experts_implementation_internal _flash_attn_2_enabled use_flash_attn",
        "return_dict use_return_dict tie_last_hidden_states is_decoder max_sequence_length",
        "unk_token_id sep_token_id cls_token_id mask_token_id",
    )
    | rules(Only(("silu", "swish")), "hidden_act")
    | rules(
        Only((False,)),
        "mlp_bias use_bias attention_bias rope_interleaved use_mrope is_encoder_decoder add_cross_attention",
        "tie_encoder_decoder qk_layernorm use_qk_norm qk_norm",
    )
    | rules(Only((1,)), "partial_rotary_factor embedding_multiplier residual_multiplier logits_scaling")
    | rules(Only((1,)), "logit_scale scale_emb routed_scaling_factor")
    | rules(Only((0,)), "shared_expert_intermediate_size n_shared_experts")
    | rules(Only(([],)), "no_rope_layers")
    | rules(Only(({},)), "pruned_heads")
    | rules(Only(("softmax",)), "scoring_func")
    | rules(
        Only(),
        "dual_chunk_attention_config attention_chunk_size clip_qkv query_pre_attn_scalar attn_logit_softcapping",
        "final_logit_softcapping attention_multiplier per_layer_config cross_attention_hidden_size",
    )
)

# What `hidden_act` may say of architectures that look at it, as we call it.
ACTIVATIONS: Mapping[str, Activation] = {
    **dict.fromkeys(("silu", "swish"), "silu"),
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast"), "gelu_tanh"),
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
}
_DENSE = _CONFIG | rules(USED, "hidden_act")
_QWEN_WINDOWS = rules(USED, "use_sliding_window sliding_window max_window_layers")
_EXPERTS = rules(USED, "num_local_experts num_experts_per_tok")
_LISTED_EXPERTS = rules(
    USED,
    "decoder_sparse_step mlp_only_layers moe_intermediate_size norm_topk_prob num_experts num_local_experts",
    "num_experts_per_tok",
)
_PARTIAL = rules(USED, "partial_rotary_factor")

_LATENTS = _CONFIG | rules(
    USED, "attention_bias q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim qk_head_dim v_head_dim"
)
_LATENT_EXPERTS = (
    rules(USED, "n_routed_experts n_shared_experts n_group topk_group routed_scaling_factor")
    | rules(USED, "moe_intermediate_size num_experts_per_tok")
    | rules(NEUTRAL, "ep_size aux_loss_alpha seq_aux")
    | {"moe_layer_freq": Only((1,))}
)

_INDEXED = (
    _LATENTS
    | _LATENT_EXPERTS
    | rules(USED, "index_topk index_head_dim index_n_heads first_k_dense_replace mlp_layer_types num_local_experts")
    | rules(USED, "norm_topk_prob num_nextn_predict_layers")
    | {"topk_method": Only(("noaux_tc",)), "scoring_func": Only(("sigmoid",)), "rope_interleave": Only((True,))}
)

_HYBRID = (
    _CONFIG
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
    _CONFIG
    | rules(USED, "norm_eps conv_L_cache conv_bias")
    | {"tie_embedding": Only((True,)), "rms_norm_eps": Only()}  # the older name of tie_word_embeddings
)

_MAMBA = rules(
    USED,
    "mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state mamba_d_conv mamba_expand mamba_conv_bias",
    "mamba_proj_bias time_step_limit",
) | rules(NEUTRAL, "mamba_chunk_size")

_HUNYUAN = (
    rules(USED, "attention_bias")
    | rules(NEUTRAL, "add_classification_head attention_head_dim class_num dense_list eod_token_id norm_type pool_type")
    | rules(
        NEUTRAL, "org_vocab_size pad_id text_start_id text_end_id im_start_id im_end_id im_newline_id image_token_id"
    )
    | rules(NEUTRAL, "mask_init_id num_media_embeds skip_cls_token cla_share_factor eod_token_id xdrope_section")
    | rules(Only((False,)), "use_cla position_embedding_xdrope")
    | rules(Only((True,)), "use_qk_norm use_rotary_pos_emb")
)

_NO_ROPE = rules(Only(), "rope_theta rope_scaling rope_parameters original_max_position_embeddings")
_SUMMARY = rules(
    NEUTRAL, "summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj"
)
_OF_OTHERS = rules(NEUTRAL, "type_vocab_size embed_dim")  # what models that are made for tests say
_GPT_2 = (
    rules(USED, "n_embd n_head n_layer n_positions n_inner activation_function layer_norm_epsilon scale_attn_weights")
    # the size of feed-forward parts is n_inner, the activation activation_function, whatever these say
    | rules(NEUTRAL, "n_ctx n_special predict_special_tokens output_past _num_labels hidden_act intermediate_size")
    | _SUMMARY
    | _OF_OTHERS
    | _NO_ROPE
    | rules(Only(), "rms_norm_eps head_dim num_key_value_heads layer_types")
)

_ALPHA_BETA, _MINIMAX_PARTS = ("alpha", "beta"), ("full_attention", "linear_attention", "mlp")

# By our name of the architecture.
CONFIG: Mapping[str, Table] = {
    "llama": _DENSE
    | rules(USED, "attention_bias mlp_bias")
    | {"sliding_window": Only(), "use_sliding_window": Only((False,))},
    "mistral": _DENSE | rules(USED, "sliding_window"),
    "ministral": _DENSE | rules(USED, "sliding_window"),
    "mixtral": _CONFIG | rules(USED, "sliding_window") | _EXPERTS,
    "qwen2": _DENSE | _QWEN_WINDOWS,
    "qwen3": _DENSE | rules(USED, "attention_bias") | _QWEN_WINDOWS,
    "qwen3_moe": _CONFIG | rules(USED, "attention_bias") | _QWEN_WINDOWS | _LISTED_EXPERTS,
    "qwen2_moe": _CONFIG | rules(USED, "qkv_bias shared_expert_intermediate_size") | _QWEN_WINDOWS | _LISTED_EXPERTS,
    "olmoe": _CONFIG
    | rules(USED, "clip_qkv attention_bias num_experts num_local_experts num_experts_per_tok norm_topk_prob"),
    "flex_olmo": _CONFIG | rules(USED, "attention_bias num_experts num_experts_per_tok norm_topk_prob"),
    "granitemoe": _CONFIG
    | rules(USED, "attention_bias embedding_multiplier residual_multiplier attention_multiplier logits_scaling")
    | _EXPERTS,
    "phi3": _DENSE
    | rules(USED, "sliding_window")
    | rules(NEUTRAL, "full_attn_mod interpolate_factor")
    | {"lm_head_bias": Only((False,))}
    | _PARTIAL,
    "phimoe": _CONFIG
    | rules(USED, "attention_bias sliding_window lm_head_bias router_jitter_noise")
    | rules(NEUTRAL, "input_jitter_noise")
    | _EXPERTS,
    "glm4": _DENSE | rules(USED, "attention_bias") | _PARTIAL,
    "glm4_moe": _CONFIG
    | rules(USED, "attention_bias use_qk_norm first_k_dense_replace n_group topk_group norm_topk_prob n_routed_experts")
    | rules(USED, "n_shared_experts routed_scaling_factor moe_intermediate_size num_experts_per_tok")
    | rules(USED, "num_nextn_predict_layers")
    | _PARTIAL,
    "afmoe": _CONFIG
    | rules(USED, "sliding_window global_attn_every_n_layers num_dense_layers mup_enabled route_scale")
    | rules(USED, "num_experts num_shared_experts moe_intermediate_size num_experts_per_tok")
    | rules(NEUTRAL, "load_balance_coeff use_grouped_mm")
    | rules(Only((1,)), "n_group topk_group num_expert_groups num_limited_groups")
    | {"route_norm": Only((True,)), "score_func": Only(("sigmoid",))},
    "cohere2_moe": _CONFIG
    | rules(USED, "attention_bias layer_norm_eps logit_scale sliding_window sliding_window_pattern mlp_layer_types")
    | rules(USED, "first_k_dense_replace prefix_dense_sliding_window_pattern prefix_dense_intermediate_size")
    | rules(USED, "num_experts num_experts_per_tok norm_topk_prob expert_selection_fn num_shared_experts")
    | rules(USED, "shared_expert_combination_strategy")
    # transformers looks at rope_parameters alone
    | {"rope_scaling": Only()},
    "hy_v3": _CONFIG
    | rules(USED, "attention_bias mlp_bias mlp_layer_types num_experts num_local_experts num_shared_experts")
    | rules(USED, "router_scaling_factor moe_intermediate_size num_experts_per_tok num_nextn_predict_layers")
    # how a sum of two numbers is rounded, and what transformers does not look at
    | rules(NEUTRAL, "enable_moe_fp32_combine enable_attention_fp32_softmax enable_lm_head_fp32 expert_hidden_dim")
    | rules(NEUTRAL, "use_grouped_mm")
    | rules(Only((True,)), "qk_norm route_norm moe_router_use_sigmoid moe_router_enable_expert_bias")
    | {"first_k_dense_replace": Only((1,))},
    "sarvam_moe": _CONFIG
    | rules(USED, "attention_bias use_qkv_bias use_qk_norm first_k_dense_replace n_group topk_group norm_topk_prob")
    | rules(USED, "n_routed_experts num_experts num_local_experts n_shared_experts num_shared_experts")
    | rules(USED, "routed_scaling_factor moe_intermediate_size num_experts_per_tok")
    | rules(NEUTRAL, "moe_shared_expert_intermediate_size embedding_dropout output_dropout router_dtype")
    | rules(Only((0,)), "num_mtp_layers num_nextn_predict_layers")
    | rules(Only((True,)), "use_rmsnorm moe_router_enable_expert_bias")
    | {"score_function": Only(("sigmoid",))}
    | _PARTIAL,
    "sarvam_mla": _LATENTS
    | _LATENT_EXPERTS
    | rules(USED, "first_k_dense_replace num_experts num_local_experts num_shared_experts norm_topk_prob")
    | rules(USED, "rope_interleave q_head_dim")
    | rules(NEUTRAL, "embedding_dropout output_dropout router_dtype")
    | rules(Only((0,)), "num_mtp_layers num_nextn_predict_layers")
    | rules(Only((True,)), "moe_router_enable_expert_bias")
    | {"topk_method": Only(("noaux_tc",))}
    | dict.fromkeys(("scoring_func", "score_function"), Only(("sigmoid",))),
    "deepseek_v2": _LATENTS
    | _LATENT_EXPERTS
    | rules(USED, "first_k_dense_replace num_experts mlp_bias")
    | {"topk_method": USED, "norm_topk_prob": Only((False,)), "rope_interleave": Only((True,))},
    "deepseek_v3": _LATENTS
    | _LATENT_EXPERTS
    | rules(USED, "first_k_dense_replace num_local_experts norm_topk_prob num_nextn_predict_layers rope_interleave")
    | {"topk_method": Only(("noaux_tc",)), "scoring_func": Only(("sigmoid",))},
    "glm4_moe_lite": _LATENTS
    | _LATENT_EXPERTS
    | rules(USED, "mlp_layer_types num_local_experts norm_topk_prob num_nextn_predict_layers rope_interleave")
    # transformers has one dense layer first whatever this says; others are listed by mlp_layer_types
    | {"first_k_dense_replace": Only((1,))}
    | {"topk_method": Only(("noaux_tc",)), "scoring_func": Only(("sigmoid",))},
    "deepseek_v4": _CONFIG
    | rules(USED, "q_lora_rank o_lora_rank o_groups qk_rope_head_dim partial_rotary_factor sliding_window swiglu_limit")
    | rules(USED, "compress_rates compress_rate_csa compress_rate_hca compress_ratios compress_rope_theta")
    | rules(USED, "hc_mult hc_sinkhorn_iters hc_eps index_n_heads index_head_dim index_topk")
    | rules(USED, "n_routed_experts num_local_experts num_experts_per_tok moe_intermediate_size routed_scaling_factor")
    | rules(USED, "mlp_layer_types num_hash_layers")
    | rules(NEUTRAL, "num_nextn_predict_layers")  # which are not read
    | {"n_shared_experts": Only((1,)), "norm_topk_prob": Only((True,)), "topk_method": Only(("noaux_tc",))}
    | {"scoring_func": Only(("sqrtsoftplus",)), "intermediate_size": Only(), "expert_dtype": Only(("fp4", "fp8"))},
    "deepseek_v32": _INDEXED | {"indexer_rope_interleave": Only((False,))},
    "glm_moe_dsa": _INDEXED
    | rules(USED, "indexer_types index_topk_pattern index_topk_freq index_skip_topk_offset")
    | rules(NEUTRAL, "index_share_for_mtp_iteration")  # of layers that draft
    | {"indexer_rope_interleave": Only((True,))},
    "mistral4": _LATENTS
    | _LATENT_EXPERTS
    | rules(USED, "first_k_dense_replace num_local_experts norm_topk_prob rope_interleave")
    | _PARTIAL,
    "mimo_v2_flash": _CONFIG
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
    "step3p5": _CONFIG
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
    "laguna": _CONFIG
    | rules(USED, "attention_bias sliding_window mlp_layer_types num_attention_heads_per_layer gating")
    | rules(USED, "num_experts num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size")
    | rules(USED, "moe_routed_scaling_factor")
    | rules(NEUTRAL, "partial_rotary_factor")
    | rules(Only((False,)), "moe_apply_router_weight_on_input swa_attention_sink_enabled")
    | {"moe_router_logit_softcapping": Only((0,))}
    # only among the RoPE parameters of each kind of layers
    | rules(Only(), "rope_theta rope_scaling original_max_position_embeddings"),
    "youtu": _LATENTS | rules(USED, "hidden_act rope_interleave") | rules(NEUTRAL, "embedding_initializer_range"),
    "minicpm3": _LATENTS
    | rules(USED, "hidden_act mlp_bias scale_emb scale_depth dim_model_base")
    | rules(Only(), "logits_scaling logit_scale embedding_multiplier residual_multiplier"),  # what these are read as
    "minimax_m2": _CONFIG
    | rules(USED, "num_experts rotary_dim")
    | rules(NEUTRAL, "use_mtp num_mtp_modules mtp_transformer_layers qk_norm_type use_routing_bias")
    | rules(Only((1,)), "layernorm_full_attention_alpha layernorm_full_attention_beta")
    | rules(Only((1,)), "layernorm_linear_attention_alpha layernorm_linear_attention_beta")
    | rules(Only((1,)), "layernorm_mlp_alpha layernorm_mlp_beta")
    | rules(NEUTRAL, "attn_type_list max_model_len")
    | {"scoring_func": Only(("sigmoid",)), "use_qk_norm": Only((True,)), "shared_intermediate_size": Only((0,))}
    | _EXPERTS
    | _PARTIAL,
    "smollm3": _DENSE
    | rules(USED, "attention_bias mlp_bias no_rope_layers no_rope_layer_interval use_sliding_window sliding_window")
    | rules(NEUTRAL, "max_window_layers"),
    "ministral3": _DENSE | rules(USED, "sliding_window"),
    "seed_oss": _DENSE | rules(USED, "attention_bias attention_out_bias mlp_bias") | rules(NEUTRAL, "residual_dropout"),
    "helium": _DENSE | rules(USED, "attention_bias mlp_bias"),
    "internlm3": _DENSE | rules(USED, "qkv_bias bias attention_bias mlp_bias"),
    "arcee": _DENSE | rules(USED, "attention_bias mlp_bias"),
    "ernie4_5": _DENSE | rules(USED, "use_bias"),
    "granite": _DENSE
    | rules(
        USED, "attention_bias mlp_bias embedding_multiplier residual_multiplier attention_multiplier logits_scaling"
    ),
    "starcoder2": _DENSE
    | rules(USED, "norm_epsilon use_bias sliding_window")
    | rules(
        NEUTRAL,
        "residual_dropout embedding_dropout activation_function attention_softmax_in_fp32 layer_norm_epsilon",
        "scale_attention_softmax_in_fp32",
    )
    | {"rms_norm_eps": Only(), "scale_attn_weights": Only((True,))}
    | {"mlp_type": Only(("default",)), "norm_type": Only(("layer_norm",))},
    "cohere2": _DENSE
    | rules(USED, "attention_bias layer_norm_eps logit_scale sliding_window sliding_window_pattern")
    | rules(Only((True,)), "use_embedding_sharing use_gated_activation use_parallel_block")
    | {"rms_norm_eps": Only(), "rotary_pct": Only((1,)), "use_parallel_embedding": NEUTRAL, "layer_switch": Only((4,))}
    | {"position_embedding_type": Only(("rope_gptj",)), "order_of_interleaved_layers": Only(("local_attn_first",))},
    "gemma2": _CONFIG
    | rules(USED, "attention_bias sliding_window query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping")
    | rules(Only(("gelu_pytorch_tanh",)), "hidden_act hidden_activation")
    | {"use_bidirectional_attention": Only((False,)), "sliding_window_size": NEUTRAL},
    "gemma3_text": _CONFIG
    | rules(USED, "attention_bias sliding_window sliding_window_pattern query_pre_attn_scalar rope_local_base_freq")
    | rules(USED, "final_logit_softcapping")
    | rules(Only(("gelu_pytorch_tanh",)), "hidden_act hidden_activation")
    # transformers looks at the name without the first letter
    | {"use_bidirectional_attention": Only((False,)), "_sliding_window_pattern": NEUTRAL},
    "gemma3n_text": _CONFIG
    | rules(USED, "attention_bias sliding_window final_logit_softcapping num_kv_shared_layers rope_local_base_freq")
    | rules(USED, "hidden_size_per_layer_input vocab_size_per_layer_input activation_sparsity_pattern laurel_rank")
    | rules(USED, "altup_num_inputs altup_active_idx altup_correct_scale")
    | rules(NEUTRAL, "altup_coef_clip altup_lr_multiplier query_pre_attn_scalar")  # of training; scores stay
    | rules(Only(("gelu_pytorch_tanh",)), "hidden_act hidden_activation"),
    "gemma4_text": _CONFIG
    | rules(USED, "attention_bias sliding_window final_logit_softcapping attention_k_eq_v num_kv_shared_layers")
    | rules(USED, "global_head_dim num_global_key_value_heads per_layer_config use_double_wide_mlp")
    | rules(USED, "hidden_size_per_layer_input vocab_size_per_layer_input")
    | rules(USED, "enable_moe_block num_experts top_k_experts moe_intermediate_size")
    | rules(Only(("gelu_pytorch_tanh",)), "hidden_act hidden_activation")
    | {"use_bidirectional_attention": Only(("vision",))},  # of what is seen, not of text
    "llama4_text": _CONFIG
    | rules(USED, "attention_bias attention_chunk_size no_rope_layers no_rope_layer_interval use_qk_norm")
    | rules(USED, "attn_temperature_tuning attn_scale floor_scale intermediate_size_mlp")
    | rules(USED, "interleave_moe_layer_step moe_layers num_local_experts num_experts_per_tok")
    | {"for_llm_compressor": Only((False,))},
    "gpt_oss": _CONFIG
    | rules(USED, "attention_bias sliding_window swiglu_alpha swiglu_limit num_experts")
    | _EXPERTS
    | rules(NEUTRAL, "experts_per_token initial_context_length"),
    "qwen3_next": _HYBRID | _HYBRID_EXPERTS | rules(USED, "decoder_sparse_step mlp_only_layers norm_topk_prob"),
    "qwen3_5_text": _HYBRID,
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
    "lfm3": _CONFIG
    | rules(USED, "norm_eps conv_L_cache conv_bias sliding_window use_sandwich_norm use_attention_gate")
    | {"tie_embedding": Only((True,)), "rms_norm_eps": Only()}
    # only among the RoPE parameters of each kind of layers
    | rules(Only(), "rope_theta rope_scaling original_max_position_embeddings"),
    "granitemoehybrid": _CONFIG
    | rules(USED, "attention_bias embedding_multiplier residual_multiplier attention_multiplier logits_scaling")
    | rules(USED, "shared_intermediate_size position_embedding_type")
    | rules(NEUTRAL, "normalization_function init_method")
    | _MAMBA
    | _EXPERTS,
    "nemotron_h": _CONFIG
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
    "kimi_linear": _LATENTS
    | rules(USED, "linear_attn_config linear_head_dim linear_num_heads linear_conv_kernel_dim mlp_layer_types")
    | rules(USED, "first_k_dense_replace model_max_length moe_renormalize norm_topk_prob num_expert_group n_group")
    | rules(USED, "num_experts_per_token num_experts_per_tok num_shared_experts n_shared_experts topk_group")
    | rules(USED, "num_experts num_local_experts moe_intermediate_size routed_scaling_factor")
    # no layer rotates, and groups are as many as is said
    | rules(NEUTRAL, "head_dim rope_theta rope_scaling rope_parameters original_max_position_embeddings")
    | rules(NEUTRAL, "use_grouped_topk ep_size aux_loss_alpha seq_aux")
    | {"num_nextn_predict_layers": Only((0,)), "moe_layer_freq": Only((1,)), "mla_use_nope": Only((True,))}
    | {"moe_router_activation_func": Only(("sigmoid",))},
    "bailing_hybrid": _LATENTS
    | rules(USED, "linear_head_dim linear_num_heads linear_conv_kernel_dim short_conv_kernel_size layer_group_size")
    | rules(USED, "kda_safe_gate kda_lower_bound mlp_layer_types first_k_dense_replace num_mtp_layers")
    | rules(USED, "model_max_length moe_renormalize norm_topk_prob num_expert_group n_group num_nextn_predict_layers")
    | rules(USED, "num_experts_per_token num_experts_per_tok num_shared_experts n_shared_experts topk_group")
    | rules(USED, "num_experts num_local_experts moe_intermediate_size routed_scaling_factor")
    | rules(NEUTRAL, "mtp_loss_scaling_factor"),
    "bamba": _CONFIG
    | rules(USED, "attention_bias mlp_bias attn_layer_indices")
    | rules(NEUTRAL, "num_logits_to_keep z_loss_coefficient use_mamba_kernels attn_rotary_emb")
    | _MAMBA
    # transformers has half of a head rotated, whatever this says
    | {"partial_rotary_factor": Only((0.5,)), "layer_types": Only(), "layers_block_type": Only()},
    "falcon_h1": _CONFIG
    | rules(USED, "mlp_bias mamba_d_ssm mamba_rms_norm mamba_norm_before_gate projectors_bias lm_head_multiplier")
    | rules(USED, "embedding_multiplier mlp_multipliers key_multiplier ssm_multipliers ssm_in_multiplier")
    | rules(USED, "ssm_out_multiplier attention_in_multiplier attention_out_multiplier")
    | rules(NEUTRAL, "num_logits_to_keep mamba_use_mlp mlp_expansion_factor")
    | rules(NEUTRAL, "time_step_min time_step_max time_step_floor time_step_rank")
    | _MAMBA
    | {"mamba_proj_bias": Only((False,)), "layer_types": Only(), "attn_layer_indices": Only()},
    "olmo_hybrid": _CONFIG
    | rules(USED, "attention_bias linear_num_key_heads linear_num_value_heads linear_key_head_dim")
    | rules(USED, "linear_value_head_dim linear_conv_kernel_dim linear_allow_neg_eigval")
    | rules(NEUTRAL, "linear_a_log_min linear_a_log_max linear_dt_min linear_dt_max linear_dt_init_floor")
    | {"head_dim": Only()},
    "minimax": _CONFIG
    | _EXPERTS
    | rules(USED, "num_experts attn_type_list rotary_dim sliding_window")
    | rules(USED, *(f"{part}_{which}_factor" for part in ("full_attn", "linear_attn", "mlp") for which in _ALPHA_BETA))
    | rules(USED, *(f"layernorm_{part}_{which}" for part in _MINIMAX_PARTS for which in _ALPHA_BETA))
    # how prompts are cut, which changes no more than roundings, and what is of a part that is not there
    | rules(NEUTRAL, "block_size shared_moe_mode")
    | {"postnorm": Only((True,)), "shared_intermediate_size": Only((0,))},
    "olmo2": _DENSE | rules(USED, "attention_bias"),
    # transformers has this theta in layers with a window, whatever rope_theta says
    "olmo3": _DENSE | rules(USED, "attention_bias sliding_window") | {"rope_theta": Only((500000,))},
    "glm": _CONFIG | rules(USED, "attention_bias") | _PARTIAL,
    "ernie4_5_moe": _CONFIG
    | rules(USED, "moe_num_experts moe_k moe_intermediate_size moe_num_shared_experts")
    | rules(USED, "moe_layer_start_index moe_layer_end_index moe_layer_interval")
    | rules(NEUTRAL, "moe_capacity num_nextn_predict_layers")
    # what the chosen experts' probabilities add up to at least, before they are divided by it
    | {"moe_norm_min": Only((1e-12,)), "moe_use_aux_free": Only((True,))}
    | {"moe_gate": Only(("topk",)), "moe_gate_act": Only(("softmax",))},
    "exaone4": _CONFIG | rules(USED, "sliding_window sliding_window_pattern"),
    "dots1": _CONFIG
    | rules(USED, "attention_bias sliding_window max_window_layers first_k_dense_replace n_group topk_group")
    | rules(USED, "n_routed_experts num_local_experts n_shared_experts moe_intermediate_size num_experts_per_tok")
    | rules(USED, "norm_topk_prob routed_scaling_factor")
    | {"scoring_func": Only(("noaux_tc", "sigmoid"))},
    "gemma": _CONFIG
    | rules(USED, "attention_bias")
    | {"hidden_act": Only(("gelu_pytorch_tanh", "gelu")), "hidden_activation": Only(("gelu_pytorch_tanh",))}
    | {"use_bidirectional_attention": Only((False,))},
    "cohere": _CONFIG
    | rules(USED, "attention_bias layer_norm_eps logit_scale")
    | rules(NEUTRAL, "model_max_length")
    | {"rms_norm_eps": Only()},
    "cwm": _CONFIG | rules(USED, "mlp_bias sliding_window"),
    "granite_swa": _DENSE
    | rules(
        USED, "attention_bias mlp_bias embedding_multiplier residual_multiplier attention_multiplier logits_scaling"
    )
    | rules(USED, "sliding_window layer_rope_theta"),
    "granitemoe_swa": _CONFIG
    | rules(USED, "attention_bias embedding_multiplier residual_multiplier attention_multiplier logits_scaling")
    | rules(USED, "sliding_window layer_rope_theta shared_intermediate_size")
    | _EXPERTS,
    "vaultgemma": _CONFIG
    | rules(USED, "attention_bias sliding_window query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping")
    | rules(Only(("gelu_pytorch_tanh",)), "hidden_act hidden_activation")
    | {"sliding_window_size": NEUTRAL},
    "phi": _DENSE
    | rules(USED, "layer_norm_eps")
    | {"rms_norm_eps": Only(), "head_dim": Only(), "use_bias": Only()}
    | _PARTIAL,
    "nemotron": _DENSE | rules(USED, "norm_eps attention_bias mlp_bias") | {"rms_norm_eps": Only()} | _PARTIAL,
    "jais2": _DENSE | rules(USED, "layer_norm_eps attention_bias mlp_bias") | {"rms_norm_eps": Only()},
    "hyperclovax": _DENSE
    | rules(USED, "attention_bias mlp_bias embedding_multiplier residual_multiplier attention_multiplier")
    | rules(USED, "logits_scaling use_post_norm"),
    "exaone": _DENSE
    | rules(USED, "num_layers layer_norm_epsilon activation_function")
    | rules(NEUTRAL, "embed_dropout"),
    "exaone_moe": _CONFIG
    | rules(USED, "sliding_window sliding_window_pattern first_k_dense_replace mlp_layer_types n_group topk_group")
    | rules(USED, "num_experts num_experts_per_tok num_shared_experts moe_intermediate_size norm_topk_prob")
    | rules(USED, "routed_scaling_factor")
    | rules(NEUTRAL, "num_nextn_predict_layers")  # the layer that drafts is not read
    | {"scoring_func": Only(("sigmoid",)), "topk_method": Only(("noaux_tc",))},
    "mellum": _CONFIG
    | rules(USED, "attention_bias sliding_window mlp_layer_types num_experts num_local_experts num_experts_per_tok")
    | rules(USED, "moe_intermediate_size norm_topk_prob")
    # the layer that drafts is not read
    | rules(NEUTRAL, "num_mtp_layers mtp_layer_types mtp_mlp_layer_types num_nextn_predict_layers")
    # only among the RoPE parameters of each kind of layers
    | rules(Only(), "rope_theta rope_scaling original_max_position_embeddings"),
    "iquestcoder": _CONFIG
    | rules(USED, "attention_bias mlp_bias")
    | {"sliding_window": Only(), "use_sliding_window": Only((False,))},
    "solar_open": _CONFIG
    | rules(USED, "attention_bias n_group topk_group norm_topk_prob n_routed_experts num_local_experts")
    | rules(USED, "n_shared_experts routed_scaling_factor moe_intermediate_size num_experts_per_tok")
    | {"first_k_dense_replace": Only((0,))},
    "olmo": _DENSE | rules(USED, "attention_bias clip_qkv") | {"rms_norm_eps": Only()},
    "gpt_neox": _DENSE
    | rules(USED, "attention_bias layer_norm_eps rotary_emb_base rotary_pct use_parallel_residual")
    | rules(Only(), "rms_norm_eps head_dim num_key_value_heads rope_theta"),
    "gptj": _CONFIG
    | rules(USED, "n_embd n_head n_layer n_positions n_inner activation_function layer_norm_epsilon rotary_dim")
    | rules(NEUTRAL, "n_ctx summary_activation summary_first_dropout summary_proj_to_labels summary_type")
    | rules(NEUTRAL, "summary_use_proj")
    | rules(Only(), "hidden_act rms_norm_eps head_dim num_key_value_heads intermediate_size mlp_bias layer_types")
    | rules(Only(), "rope_theta rope_scaling rope_parameters original_max_position_embeddings")
    | rules(Only((True,)), "rotary scale_attn_weights"),
    "gpt2": _CONFIG | _GPT_2 | {"reorder_and_upcast_attn": NEUTRAL, "scale_attn_by_inverse_layer_idx": Only((False,))},
    "gpt_bigcode": _CONFIG
    | _GPT_2
    | {"multi_query": USED, "num_key_value_heads": NEUTRAL}  # which the former says
    | rules(NEUTRAL, "attention_softmax_in_fp32 scale_attention_softmax_in_fp32 inference_runner")
    | rules(NEUTRAL, "max_batch_size max_sequence_length pad_key_length pre_allocate_kv_cache validate_runner_input"),
    "gpt_neo": _CONFIG
    | rules(USED, "num_heads num_layers attention_types attention_layers window_size activation_function")
    | rules(USED, "layer_norm_epsilon")
    | rules(NEUTRAL, "embed_dropout resid_dropout hidden_act")
    | _SUMMARY
    | _OF_OTHERS
    | _NO_ROPE
    | rules(Only(), "rms_norm_eps head_dim num_key_value_heads layer_types"),
    "opt": _CONFIG
    | rules(USED, "ffn_dim activation_function enable_bias do_layer_norm_before word_embed_proj_dim")
    | rules(NEUTRAL, "dropout activation_dropout layerdrop init_std output_projection hidden_act intermediate_size")
    | _OF_OTHERS
    | _NO_ROPE
    | {"learned_embeddings": Only((True,)), "scale_embeddings": Only((False,))}  # which Galactica's files say
    | {"_remove_final_layer_norm": Only((False,)), "layer_norm_elementwise_affine": Only((True,))}
    | rules(Only(), "rms_norm_eps head_dim num_key_value_heads layer_types"),
    "falcon": _CONFIG
    | rules(
        USED, "num_kv_heads ffn_hidden_size activation bias layer_norm_epsilon new_decoder_architecture multi_query"
    )
    | rules(USED, "parallel_attn num_ln_in_parallel_attn")
    | rules(Only(), "hidden_act rms_norm_eps head_dim num_key_value_heads intermediate_size use_bias")
    | rules(Only((False,)), "alibi apply_residual_connection_post_layernorm"),
    "apertus": _CONFIG
    | rules(USED, "attention_bias")
    | {"hidden_act": Only(("xielu",)), "qk_norm": Only((True,)), "post_norm": Only((False,))},
    "hunyuan_v1_dense": _DENSE | _HUNYUAN,
    "hunyuan_v1_moe": _CONFIG
    | _HUNYUAN
    | rules(USED, "num_experts num_local_experts moe_topk num_shared_expert moe_intermediate_size")
    | rules(NEUTRAL, "capacity_factor moe_drop_tokens moe_layer_num_skipped moe_random_routing_dropped_token")
    | {"group_limited_greedy": Only((False,)), "norm_topk_prob": Only((True,)), "use_mixed_mlp_moe": Only((True,))}
    | rules(Only((1,)), "num_experts_per_tok")  # which is moe_topk
    | {"use_mla": Only((False,))},
    "stablelm": _CONFIG
    | rules(USED, "layer_norm_eps use_qkv_bias use_parallel_residual")
    | {"rms_norm_eps": Only(), "head_dim": Only()}
    | _PARTIAL,
    "granitemoeshared": _CONFIG
    | rules(USED, "attention_bias embedding_multiplier residual_multiplier attention_multiplier logits_scaling")
    | rules(USED, "shared_intermediate_size")
    | _EXPERTS,
}

# Of HunYuan, whose theta is raised by `alpha`; transformers looks at nothing else then.
RAISED_ROPE: Table = rules(USED, "rope_type type rope_theta alpha") | rules(
    NEUTRAL, "factor beta_fast beta_slow mscale mscale_all_dim original_max_position_embeddings"
)

_PLAIN_ROPE: Table = rules(USED, "rope_type type rope_theta") | {"partial_rotary_factor": Only((1,))}
_LLAMA3 = "factor low_freq_factor high_freq_factor original_max_position_embeddings"
_LONGROPE = "factor original_max_position_embeddings attention_factor short_factor long_factor"
_YARN = "factor original_max_position_embeddings beta_fast beta_slow attention_factor mscale mscale_all_dim truncate"

# By `rope_type`: a parameter of another one is refused.
ROPE: Mapping[str, Table] = {
    "default": _PLAIN_ROPE,
    "linear": _PLAIN_ROPE | rules(USED, "factor"),
    "dynamic": _PLAIN_ROPE | rules(USED, "factor"),
    "llama3": _PLAIN_ROPE | rules(USED, _LLAMA3),
    "yarn": _PLAIN_ROPE | rules(USED, _YARN),
    "longrope": _PLAIN_ROPE | rules(USED, _LONGROPE),
    "proportional": _PLAIN_ROPE | rules(USED, "factor partial_rotary_factor"),
}

# Beside these, by our name of the architecture. Neutral is what the field of the same name beside the others says too.
_HYBRID_ROPE = rules(USED, "partial_rotary_factor") | rules(NEUTRAL, "mrope_section mrope_interleaved")
ROPE_OF: Mapping[str, Table] = {
    "phi3": _PARTIAL,
    "glm4": _PARTIAL,
    "glm4_moe": _PARTIAL,
    "sarvam_moe": _PARTIAL,
    "minimax_m2": _PARTIAL,
    "phimoe": rules(USED, "short_mscale long_mscale"),
    "qwen3_next": rules(USED, "partial_rotary_factor"),
    "qwen3_5_text": _HYBRID_ROPE,  # of text alone, all three positions are the same
    "qwen3_5_moe_text": _HYBRID_ROPE,
    "ministral3": {"llama_4_scaling_beta": USED, "max_position_embeddings": NEUTRAL},
    "mistral4": _PARTIAL | {"llama_4_scaling_beta": USED, "max_position_embeddings": NEUTRAL},
    "glm": _PARTIAL,
    "stablelm": _PARTIAL,
    "phi": _PARTIAL,
    "gpt_neox": _PARTIAL,
    "bamba": _PARTIAL,
    "nemotron": _PARTIAL,
    "step3p5": _PARTIAL,
    "laguna": _PARTIAL,
}

# Of ModelOpt: `quantization_config`, or `quantization` of a file of its own. How a cache is rounded is not looked at.
_SMOOTHED: Table = {"has_zero_point": Only((False,)), "pre_quant_scale": Only((False,)), "lora_rank": Only()}
MODEL_OPTIMIZER: Table = (
    rules(USED, "quant_method quant_algo quantized_layers config_groups")
    | rules(NEUTRAL, "group_size exclude_modules ignore kv_cache_quant_algo kv_cache_scheme producer")
    | _SMOOTHED
)
MODEL_OPTIMIZER_FILE: Table = rules(USED, "quant_method quantization") | rules(NEUTRAL, "producer")
MODEL_OPTIMIZER_LAYER: Table = rules(USED, "quant_algo") | rules(NEUTRAL, "group_size") | _SMOOTHED
MODEL_OPTIMIZER_GROUP: Table = rules(USED, "weights input_activations") | rules(NEUTRAL, "targets") | _SMOOTHED

# By `quant_method`. Neutral is how the numbers were found and which kernel another program multiplies them with; which
# matrices are packed is seen from the tensors.
QUANTIZATION: Mapping[str, Table] = {
    "gptq": rules(USED, "quant_method bits group_size checkpoint_format desc_act")
    | rules(
        NEUTRAL,
        "sym damp_percent damp_auto_increment true_sequential static_groups mse dataset tokenizer batch_size",
        "model_seqlen block_name_to_quantize module_name_preceding_first_block modules_in_block_to_quantize",
        "pad_token_id cache_block_outputs use_cuda_fp16 use_exllama disable_exllama exllama_config max_input_length",
        "backend model_name_or_path model_file_base_name quantizer meta lm_head",
    )
    | {"is_marlin_format": Only((False,)), "pack_dtype": Only(("int32",)), "dynamic": Only(({},))}
    | rules(Only(("gptq",)), "format method"),
    "fp8": rules(USED, "quant_method weight_block_size")
    | rules(NEUTRAL, "activation_scheme modules_to_not_convert scale_fmt dequantize ignored_layers")
    | {"fmt": Only(("e4m3",)), "is_checkpoint_fp8_serialized": Only((True,)), "expert_dtype": Only(("fp4", "fp8"))},
    "fbgemm_fp8": rules(USED, "quant_method") | rules(NEUTRAL, "activation_scale_ub modules_to_not_convert"),
    "mxfp4": rules(USED, "quant_method") | rules(NEUTRAL, "modules_to_not_convert") | {"dequantize": Only((False,))},
    "compressed-tensors": rules(USED, "quant_method config_groups sparsity_config")
    | rules(NEUTRAL, "ignore global_compression_ratio version run_compressed")
    | {
        "format": Only(
            (
                *("int-quantized", "float-quantized", "naive-quantized", "pack-quantized", "mixed-precision", "dense"),
                *("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized"),
            )
        ),
        "quantization_status": Only(("compressed", "frozen")),
        "kv_cache_scheme": Only(),
        "transform_config": Only(({},)),
    },
    "modelopt": MODEL_OPTIMIZER | MODEL_OPTIMIZER_FILE,
    "bitsandbytes": rules(USED, "quant_method")
    | rules(
        NEUTRAL,
        "load_in_4bit load_in_8bit _load_in_4bit _load_in_8bit bnb_4bit_quant_type bnb_4bit_use_double_quant",
        "bnb_4bit_compute_dtype llm_int8_skip_modules llm_int8_threshold llm_int8_has_fp16_weight",
        "llm_int8_enable_fp32_cpu_offload",
    )
    | {"bnb_4bit_quant_storage": Only(("uint8",))},
    "awq": rules(USED, "quant_method bits group_size version zero_point")
    | rules(
        NEUTRAL,
        "backend do_fuse fuse_max_seq_len modules_to_fuse modules_to_not_convert exllama_config",
    ),
}

# Of compressed-tensors' groups of layers. How activations are rounded is not looked at; in which order groups were made
# changes what is stored, not what it means, but for "group", whose index is refused.
QUANTIZED_GROUP: Table = rules(USED, "weights input_activations") | {
    "targets": NEUTRAL,
    "output_activations": Only(),
    "format": QUANTIZATION["compressed-tensors"]["format"],
}
_OBSERVED = rules(NEUTRAL, "observer observer_kwargs scale_dtype zp_dtype")
QUANTIZED_WEIGHTS: Table = (
    rules(USED, "num_bits type block_structure")
    | rules(NEUTRAL, "symmetric strategy group_size actorder")
    | _OBSERVED
    | {"dynamic": Only((False,))}
)
QUANTIZED_ACTIVATIONS: Table = (
    rules(NEUTRAL, "num_bits type symmetric strategy group_size dynamic actorder block_structure") | _OBSERVED
)

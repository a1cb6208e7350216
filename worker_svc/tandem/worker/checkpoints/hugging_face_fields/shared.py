"""Fields that all architectures know, and those that several kinds of them do."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.worker.checkpoints.hugging_face_fields.generation import GENERATION
from tandem.worker.checkpoints.known_fields import NEUTRAL, USED, Only, Table, rules
from tandem.worker.checkpoints.model_parts.mlp import Activation

EVERY: Table = (
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

DENSE = EVERY | rules(USED, "hidden_act")
PARTIAL = rules(USED, "partial_rotary_factor")
NO_ROPE = rules(Only(), "rope_theta rope_scaling rope_parameters original_max_position_embeddings")
# of models that have them only among the RoPE parameters of each kind of layers
ROPE_BY_KIND = rules(Only(), "rope_theta rope_scaling original_max_position_embeddings")
SUMMARY = rules(
    NEUTRAL, "summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj"
)
EXPERTS_PER_TOKEN = rules(USED, "num_local_experts num_experts_per_tok")
QWEN_WINDOWS = rules(USED, "use_sliding_window sliding_window max_window_layers")
GRANITE = rules(USED, "attention_bias embedding_multiplier residual_multiplier attention_multiplier logits_scaling")
LATENT_SIZES = EVERY | rules(
    USED, "attention_bias q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim qk_head_dim v_head_dim"
)
HUNYUAN = (
    rules(USED, "attention_bias")
    | rules(NEUTRAL, "add_classification_head attention_head_dim class_num dense_list eod_token_id norm_type pool_type")
    | rules(
        NEUTRAL, "org_vocab_size pad_id text_start_id text_end_id im_start_id im_end_id im_newline_id image_token_id"
    )
    | rules(NEUTRAL, "mask_init_id num_media_embeds skip_cls_token cla_share_factor eod_token_id xdrope_section")
    | rules(Only((False,)), "use_cla position_embedding_xdrope")
    | rules(Only((True,)), "use_qk_norm use_rotary_pos_emb")
)

"""What `config.json` of several published models have in common."""

from __future__ import annotations

from typing import Any

COMMON: dict[str, Any] = {
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.55.0",
    "use_cache": True,
}


def described(kind: str, model_type: str, **more: Any) -> dict[str, Any]:
    common = {key: value for key, value in COMMON.items() if key != "hidden_act" or "hidden_activation" not in more}
    return common | {"architectures": [f"{kind}ForCausalLM"], "model_type": model_type} | more


def sizes(vocab: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, context: int) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": context,
    }


def without(keys: tuple[str, ...], values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


HUNYUAN: dict[str, Any] = {
    "add_classification_head": False,
    "attention_bias": False,
    "attention_head_dim": 128,
    "cla_share_factor": 2,
    "class_num": 0,
    "dense_list": [4096, 0],
    "eod_token_id": 127967,
    "head_dim": 128,
    "mask_init_id": 12,
    "mlp_bias": False,
    "norm_type": "rms",
    "org_vocab_size": 128167,
    "pad_id": 127961,
    "pad_token_id": 127961,
    "pool_type": "last",
    "position_embedding_xdrope": False,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        **{"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
        "type": "dynamic",
    },
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "use_cla": False,
    "use_qk_norm": True,
    "use_rotary_pos_emb": True,
}
FALCON: dict[str, Any] = {
    "alibi": False,
    "apply_residual_connection_post_layernorm": False,
    "auto_map": {},
    "bias": False,
    "hidden_dropout": 0.0,
    "layer_norm_epsilon": 1e-5,
    "parallel_attn": True,
}


GPT_2: dict[str, Any] = {
    **{"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "initializer_range": 0.02, "vocab_size": 50257},
    **{"bos_token_id": 50256, "eos_token_id": 50256, "layer_norm_epsilon": 1e-5, "summary_activation": None},
    **{"summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index"},
    **{"summary_use_proj": True},
}


def latents(query_rank: int | None, unrotated: int = 128, value: int = 128) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "kv_lora_rank": 512,
        "q_lora_rank": query_rank,
        "qk_nope_head_dim": unrotated,
        "qk_rope_head_dim": 64,
        "v_head_dim": value,
        "tie_word_embeddings": False,
    }


def deepseek(
    kind: str, model_type: str, shape: dict[str, Any], experts: tuple[int, int, int, int], **more: Any
) -> dict[str, Any]:
    count, per_token, size, shared = experts
    return described(
        kind,
        model_type,
        **shape,
        auto_map={"AutoConfig": "configuration_deepseek.DeepseekConfig"},
        moe_intermediate_size=size,
        moe_layer_freq=1,
        n_routed_experts=count,
        n_shared_experts=shared,
        num_experts_per_tok=per_token,
        pretraining_tp=1,
        rms_norm_eps=1e-6,
        aux_loss_alpha=0.001,
        seq_aux=True,
        **more,
    )


def yarn(factor: float, scale: float, beta_fast: float = 32) -> dict[str, Any]:
    return {
        "beta_fast": beta_fast,
        "beta_slow": 1,
        "factor": factor,
        "mscale": scale,
        "mscale_all_dim": scale,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    }


FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}


def indexer(heads: int) -> dict[str, Any]:
    return {"index_head_dim": 128, "index_n_heads": heads, "index_topk": 2048}


def deepseek_v3(name: str, model_type: str, quantization: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return deepseek(
        name,
        model_type,
        sizes(129280, 7168, 18432, 61, 128, 128, 163840) | {"bos_token_id": 0, "eos_token_id": 1},
        (256, 8, 2048, 1),
        **latents(1536),
        ep_size=1,
        first_k_dense_replace=3,
        n_group=8,
        norm_topk_prob=True,
        num_nextn_predict_layers=1,
        quantization_config=quantization,
        rope_scaling=yarn(40, 1.0),
        rope_theta=10000,
        routed_scaling_factor=2.5,
        scoring_func="sigmoid",
        topk_group=4,
        topk_method="noaux_tc",
        **fields,
    )


def deepseek_v4(
    first: int, layers: int, hidden: int, heads: int, experts: tuple[int, int], **fields: Any
) -> dict[str, Any]:
    """`first`: what the first two layers compress."""
    ratios = [first, first, *(4 if layer % 2 == 0 else 128 for layer in range(layers - 2)), 0]
    shape = without(("intermediate_size",), sizes(129280, hidden, 0, layers, heads, 1, 1048576))
    return described(
        "DeepseekV4",
        "deepseek_v4",
        **shape | {"bos_token_id": 0, "eos_token_id": 1},
        attention_bias=False,
        compress_ratios=ratios,
        compress_rope_theta=160000,
        expert_dtype="fp4",
        hc_eps=1e-6,
        hc_mult=4,
        hc_sinkhorn_iters=20,
        head_dim=512,
        index_head_dim=128,
        index_n_heads=64,
        moe_intermediate_size=experts[1],
        n_routed_experts=experts[0],
        n_shared_experts=1,
        norm_topk_prob=True,
        num_experts_per_tok=6,
        num_hash_layers=3,
        num_nextn_predict_layers=1,
        o_lora_rank=1024,
        qk_rope_head_dim=64,
        quantization_config=FP8 | {"scale_fmt": "ue8m0"},
        rms_norm_eps=1e-6,
        rope_scaling={
            **{"beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 65536},
            "type": "yarn",
        },
        rope_theta=10000,
        scoring_func="sqrtsoftplus",
        sliding_window=128,
        swiglu_limit=10.0,
        tie_word_embeddings=False,
        topk_method="noaux_tc",
        **fields,
    )


def glm5(theta: int, context: int, **more: Any) -> dict[str, Any]:
    return described(
        "GlmMoeDsa",
        "glm_moe_dsa",
        **sizes(154880, 6144, 12288, 78, 64, 64, context)
        | {"bos_token_id": 0, "eos_token_id": [154820, 154827, 154829]},
        **latents(2048, 192, 256),
        **indexer(32),
        ep_size=1,
        first_k_dense_replace=3,
        indexer_rope_interleave=True,
        moe_intermediate_size=2048,
        moe_layer_freq=1,
        n_group=1,
        n_routed_experts=256,
        n_shared_experts=1,
        norm_topk_prob=True,
        num_experts_per_tok=8,
        num_nextn_predict_layers=1,
        pad_token_id=154820,
        pretraining_tp=1,
        qk_head_dim=256,
        rms_norm_eps=1e-5,
        rope_interleave=True,
        rope_parameters={"rope_theta": theta, "rope_type": "default"},
        routed_scaling_factor=2.5,
        scoring_func="sigmoid",
        topk_group=1,
        topk_method="noaux_tc",
        **more,
    )


def gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    return described(
        "GptOss",
        "gpt_oss",
        **sizes(201088, 2880, 2880, layers, 64, 8, 131072) | {"bos_token_id": None, "eos_token_id": 200002},
        attention_bias=True,
        experts_per_token=4,
        head_dim=64,
        initial_context_length=4096,
        layer_types=["sliding_attention", "full_attention"] * (layers // 2),
        num_experts_per_tok=4,
        num_local_experts=experts,
        output_router_logits=False,
        pad_token_id=199999,
        quantization_config={"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
        rms_norm_eps=1e-5,
        rope_scaling={
            **{"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "truncate": False},
            **{"original_max_position_embeddings": 4096, "rope_type": "yarn"},
        },
        rope_theta=150000,
        router_aux_loss_coef=0.9,
        sliding_window=128,
        swiglu_limit=7.0,
        tie_word_embeddings=False,
    )


def phi3(vocab: int, hidden: int, inner: int, layers: int, heads: int, kv: int, context: int, **more: Any) -> Any:
    fields: dict[str, Any] = {
        **{"attention_bias": False, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "rms_norm_eps": 1e-5},
        **{"original_max_position_embeddings": 4096, "rope_theta": 10000.0, "sliding_window": 262144},
        **{"rope_scaling": LONGROPE, "tie_word_embeddings": False, "mlp_bias": False},
    }
    return described("Phi3", "phi3", **sizes(vocab, hidden, inner, layers, heads, kv, context) | fields | more)


def olmo(version: int, vocab: int, context: int, **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        **{"attention_bias": False, "pad_token_id": 100277, "rms_norm_eps": 1e-6, "rope_scaling": None},
        **{"rope_theta": 500000, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": 100257},
    }
    all_sizes = sizes(vocab, 4096, 11008, 32, 32, 32, context)
    return described(f"Olmo{version}", f"olmo{version}", **all_sizes | fields | more)


def gemma3n(inner: int, layers: int, shared: int) -> dict[str, Any]:
    """The text model is part of one that sees and hears."""
    kinds = ["full_attention" if layer % 5 == 0 else "sliding_attention" for layer in range(1, layers + 1)]
    text: dict[str, Any] = {
        **sizes(262400, 2048, inner, layers, 8, 2, 32768),
        **{"activation_sparsity_pattern": [0.95] * 10 + [0.0] * (layers - 10), "intermediate_size": [inner] * layers},
        **{"altup_active_idx": 0, "altup_coef_clip": 120.0, "altup_correct_scale": True, "altup_lr_multiplier": 1.0},
        **{"altup_num_inputs": 4, "attention_bias": False, "attention_dropout": 0.0, "final_logit_softcapping": 30.0},
        **{"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 256},
        **{"initializer_range": 0.02, "laurel_rank": 64, "layer_types": kinds, "model_type": "gemma3n_text"},
        **{"num_kv_shared_layers": shared, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6, "use_cache": True},
        **{"rope_local_base_freq": 10000.0, "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 512},
        **{"torch_dtype": "bfloat16", "vocab_size_per_layer_input": 262144},
    }
    return {
        "architectures": ["Gemma3nForConditionalGeneration"],
        **{"audio_config": {"model_type": "gemma3n_audio"}, "audio_soft_tokens_per_image": 188},
        **{"audio_token_id": 262273, "boa_token_id": 256000, "boi_token_id": 255999, "eoa_token_id": 262272},
        **{"eoi_token_id": 262144, "eos_token_id": [1, 106], "image_token_id": 262145, "initializer_range": 0.02},
        **{"model_type": "gemma3n", "text_config": text, "torch_dtype": "bfloat16", "transformers_version": "4.53.0"},
        **{"vision_config": {"model_type": "gemma3n_vision"}, "vision_soft_tokens_per_image": 256},
    }


def gemma4(hidden: int, inner: int, layers: int, heads: int, kv: int, full_every: int, **more: Any) -> dict[str, Any]:
    """The text model is part of one that sees and hears."""
    kinds = ["full_attention" if layer % full_every == 0 else "sliding_attention" for layer in range(1, layers + 1)]
    text: dict[str, Any] = {
        **sizes(262144, hidden, inner, layers, heads, kv, 262144),
        **{"attention_bias": False, "attention_dropout": 0.0, "attention_k_eq_v": False, "dtype": "bfloat16"},
        **{"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "initializer_range": 0.02, "use_cache": True},
        **{"enable_moe_block": False, "moe_intermediate_size": None, "num_experts": None, "top_k_experts": None},
        **{"final_logit_softcapping": 30.0, "head_dim": 256, "global_head_dim": 512, "layer_types": kinds},
        **{"hidden_activation": "gelu_pytorch_tanh", "model_type": "gemma4_text", "num_kv_shared_layers": 0},
        **{"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 262144, "rms_norm_eps": 1e-6},
        **{"num_global_key_value_heads": None, "sliding_window": 512, "use_double_wide_mlp": False},
        **{"tie_word_embeddings": True, "use_bidirectional_attention": None},
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
    }
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        **{"audio_config": None, "audio_token_id": 258881, "boa_token_id": 256000, "boi_token_id": 255999},
        **{"dtype": "bfloat16", "eoa_token_id": 258883, "eoi_token_id": 258882, "eos_token_id": [1, 106]},
        **{"image_token_id": 258880, "initializer_range": 0.02, "model_type": "gemma4", "tie_word_embeddings": True},
        **{"transformers_version": "5.5.0", "video_token_id": 258884, "vision_config": {"model_type": "gemma4_vision"}},
        **{"vision_soft_tokens_per_image": 280, "text_config": text | more},
    }


def llama4(experts: int, every: int, context: int, **more: Any) -> dict[str, Any]:
    text: dict[str, Any] = {
        **sizes(202048, 5120, 8192, 48, 40, 8, context),
        **{"attention_bias": False, "attention_chunk_size": 8192, "attention_dropout": 0.0, "attn_scale": 0.1},
        **{"attn_temperature_tuning": True, "bos_token_id": 200000, "eos_token_id": [200001, 200007, 200008]},
        **{"floor_scale": 8192, "for_llm_compressor": False, "head_dim": 128, "hidden_act": "silu"},
        **{"initializer_range": 0.02, "interleave_moe_layer_step": every, "intermediate_size_mlp": 16384},
        **{"model_type": "llama4_text", "moe_layers": list(range(every - 1, 48, every)), "num_experts_per_tok": 1},
        **{"no_rope_layers": [1, 1, 1, 0] * 12, "num_local_experts": experts, "output_router_logits": False},
        **{"pad_token_id": 200018, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "router_aux_loss_coef": 0.001},
        **{"router_jitter_noise": 0.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True},
    }
    return {
        **{"architectures": ["Llama4ForConditionalGeneration"], "boi_token_index": 200080, "eoi_token_index": 200081},
        **{"image_token_index": 200092, "model_type": "llama4", "text_config": text | more, "torch_dtype": "bfloat16"},
        **{"tie_word_embeddings": False, "transformers_version": "4.51.0", "vision_config": {"hidden_size": 1408}},
    }


ONE_STEP = {"low_freq_factor": 1.0, "high_freq_factor": 1.0, "original_max_position_embeddings": 8192}
LARGE_GEMMA4 = {"attention_k_eq_v": True, "sliding_window": 1024, "use_bidirectional_attention": "vision"}
LONGROPE = {"long_factor": [1.5] * 48, "short_factor": [1.0] * 48, "type": "longrope"}

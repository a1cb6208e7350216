"""`config.json` of published models, sizes and all, becomes a model of as many parameters as its name says."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tandem.worker.checkpoints import CheckpointError
from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.hugging_face_architectures import ARCHITECTURES
from tandem.worker.checkpoints.hugging_face_config import architecture_of, read_config
from tandem.worker.checkpoints.hugging_face_wrapped import text_fields
from tandem.worker.checkpoints.places import places_with_latents

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

# Its config, and how many thousand million parameters it is said to have.
PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {
    "Llama-3.1-8B": (
        described(
            "Llama",
            "llama",
            **sizes(128256, 4096, 14336, 32, 32, 8, 131072) | {"bos_token_id": 128000, "eos_token_id": 128001},
            attention_bias=False,
            mlp_bias=False,
            pretraining_tp=1,
            rms_norm_eps=1e-5,
            rope_scaling={
                **{"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"},
                **{"original_max_position_embeddings": 8192},
            },
            rope_theta=500000.0,
            tie_word_embeddings=False,
        ),
        8.03,
    ),
    "Qwen2.5-7B": (
        described(
            "Qwen2",
            "qwen2",
            **sizes(152064, 3584, 18944, 28, 28, 4, 131072) | {"bos_token_id": 151643, "eos_token_id": 151643},
            max_window_layers=28,
            rms_norm_eps=1e-6,
            rope_theta=1000000.0,
            sliding_window=131072,
            tie_word_embeddings=False,
            use_mrope=False,
            use_sliding_window=False,
        ),
        7.62,
    ),
    "Qwen3-8B": (
        described(
            "Qwen3",
            "qwen3",
            **sizes(151936, 4096, 12288, 36, 32, 8, 40960) | {"bos_token_id": 151643, "eos_token_id": 151645},
            attention_bias=False,
            head_dim=128,
            max_window_layers=36,
            rms_norm_eps=1e-6,
            rope_scaling=None,
            rope_theta=1000000,
            sliding_window=None,
            tie_word_embeddings=False,
            use_sliding_window=False,
        ),
        8.19,
    ),
    "Mixtral-8x7B-v0.1": (
        described(
            "Mixtral",
            "mixtral",
            **sizes(32000, 4096, 14336, 32, 32, 8, 32768),
            num_experts_per_tok=2,
            num_local_experts=8,
            output_router_logits=False,
            rms_norm_eps=1e-5,
            rope_theta=1000000.0,
            router_aux_loss_coef=0.02,
            sliding_window=None,
            tie_word_embeddings=False,
        ),
        46.7,
    ),
    "Qwen3-30B-A3B": (
        described(
            "Qwen3Moe",
            "qwen3_moe",
            **sizes(151936, 2048, 6144, 48, 32, 4, 40960) | {"bos_token_id": 151643, "eos_token_id": 151645},
            attention_bias=False,
            decoder_sparse_step=1,
            head_dim=128,
            max_window_layers=48,
            mlp_only_layers=[],
            moe_intermediate_size=768,
            norm_topk_prob=True,
            num_experts=128,
            num_experts_per_tok=8,
            output_router_logits=False,
            rms_norm_eps=1e-6,
            rope_scaling=None,
            rope_theta=1000000.0,
            router_aux_loss_coef=0.001,
            sliding_window=None,
            tie_word_embeddings=False,
            use_sliding_window=False,
        ),
        30.5,
    ),
    "SmolLM3-3B": (
        described(
            "SmolLM3",
            "smollm3",
            **sizes(128256, 2048, 11008, 36, 16, 4, 65536),
            attention_bias=False,
            layer_types=["full_attention"] * 36,
            max_window_layers=28,
            mlp_bias=False,
            no_rope_layer_interval=4,
            no_rope_layers=[1, 1, 1, 0] * 9,
            pad_token_id=128004,
            pretraining_tp=2,
            rms_norm_eps=1e-6,
            rope_scaling=None,
            rope_theta=5000000.0,
            sliding_window=None,
            use_sliding_window=False,
        ),
        3.08,
    ),
    "Mistral-Small-24B-2501": (
        described(
            "Mistral",
            "mistral",
            **sizes(131072, 5120, 32768, 40, 32, 8, 32768),
            head_dim=128,
            rms_norm_eps=1e-5,
            rope_theta=100000000.0,
            sliding_window=None,
            tie_word_embeddings=False,
        ),
        23.6,
    ),
    "the text model of Ministral-3-8B": (
        described(
            "Ministral3",
            "ministral3",
            **sizes(131072, 4096, 14336, 34, 32, 8, 262144),
            head_dim=128,
            rms_norm_eps=1e-5,
            rope_parameters={
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 16.0,
                "llama_4_scaling_beta": 0.1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 16384,
                "rope_theta": 1000000.0,
                "rope_type": "yarn",
                "type": "yarn",
            },
            sliding_window=None,
            tie_word_embeddings=False,
        ),
        8.5,
    ),
    "Seed-OSS-36B": (
        described(
            "SeedOss",
            "seed_oss",
            **sizes(155136, 5120, 27648, 64, 80, 8, 524288),
            attention_bias=True,
            attention_out_bias=False,
            head_dim=128,
            mlp_bias=False,
            pad_token_id=1,
            pretraining_tp=1,
            residual_dropout=0.1,
            rms_norm_eps=1e-6,
            rope_scaling={"rope_type": "default"},
            rope_theta=10000000.0,
            tie_word_embeddings=False,
        ),
        36.2,
    ),
    "internlm3-8b": (
        described(
            "InternLM3",
            "internlm3",
            **sizes(128512, 4096, 10240, 48, 32, 2, 32768),
            auto_map={"AutoModelForCausalLM": "modeling_internlm3.InternLM3ForCausalLM"},
            bias=False,
            head_dim=128,
            pad_token_id=2,
            qkv_bias=False,
            rms_norm_eps=1e-5,
            rope_scaling={"factor": 6.0, "rope_type": "dynamic"},
            rope_theta=50000000,
            tie_word_embeddings=False,
        ),
        8.8,
    ),
    "AFM-4.5B": (
        described(
            "Arcee",
            "arcee",
            **sizes(128005, 2560, 18432, 36, 20, 4, 65536) | {"hidden_act": "relu2"},
            attention_bias=False,
            head_dim=128,
            mlp_bias=False,
            rms_norm_eps=1e-5,
            rope_scaling={
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 20.0,
                "mscale": 1.0,
                "original_max_position_embeddings": 4096,
                "rope_type": "yarn",
                "type": "yarn",
            },
            rope_theta=10000.0,
            tie_word_embeddings=False,
        ),
        4.6,
    ),
    "granite-3.3-8b": (
        described(
            "Granite",
            "granite",
            **sizes(49159, 4096, 12800, 40, 32, 8, 131072),
            attention_bias=False,
            attention_multiplier=0.0078125,
            embedding_multiplier=12.0,
            logits_scaling=16.0,
            mlp_bias=False,
            pad_token_id=0,
            residual_multiplier=0.22,
            rms_norm_eps=1e-5,
            rope_scaling=None,
            rope_theta=10000000.0,
            tie_word_embeddings=True,
        ),
        8.17,
    ),
    "starcoder2-3b": (
        described(
            "Starcoder2",
            "starcoder2",
            **sizes(49152, 3072, 12288, 30, 24, 2, 16384)
            | {"hidden_act": "gelu_pytorch_tanh", "attention_dropout": 0.1},
            activation_function="gelu",
            attention_softmax_in_fp32=True,
            embedding_dropout=0.1,
            layer_norm_epsilon=1e-5,
            mlp_type="default",
            norm_epsilon=1e-5,
            norm_type="layer_norm",
            residual_dropout=0.1,
            rope_theta=999999.4420358813,
            scale_attention_softmax_in_fp32=True,
            scale_attn_weights=True,
            sliding_window=4096,
            use_bias=True,
        ),
        3.03,
    ),
    "c4ai-command-r7b-12-2024": (
        described(
            "Cohere2",
            "cohere2",
            **sizes(256000, 4096, 14336, 32, 32, 8, 132096) | {"bos_token_id": 5, "eos_token_id": 255001},
            attention_bias=False,
            cache_implementation="hybrid",
            head_dim=128,
            layer_norm_eps=1e-5,
            layer_switch=4,
            logit_scale=0.25,
            order_of_interleaved_layers="local_attn_first",
            pad_token_id=0,
            position_embedding_type="rope_gptj",
            rope_scaling=None,
            rope_theta=50000,
            rotary_pct=1.0,
            sliding_window=4096,
            sliding_window_pattern=4,
            use_embedding_sharing=True,
            use_gated_activation=True,
            use_parallel_block=True,
            use_parallel_embedding=True,
        ),
        8.03,
    ),
    "Phi-3.5-mini": (
        phi3(32064, 3072, 8192, 32, 32, 32, 131072, eos_token_id=32000, pad_token_id=32000),
        3.82,
    ),
    "gpt-oss-20b": (gpt_oss(24, 32), 20.91),
    "gpt-oss-120b": (gpt_oss(36, 128), 116.83),
    "Phi-4-mini": (
        phi3(
            *(200064, 3072, 8192, 32, 24, 8, 131072),
            **{"bos_token_id": 199999, "eos_token_id": 199999, "pad_token_id": 199999, "full_attn_mod": 1},
            **{"interpolate_factor": 1, "lm_head_bias": False, "partial_rotary_factor": 0.75},
            tie_word_embeddings=True,
        ),
        3.84,
    ),
    "phi-4": (
        phi3(
            *(100352, 5120, 17920, 40, 40, 10, 16384),
            **{"bos_token_id": 100257, "eos_token_id": 100265, "pad_token_id": 100349, "rope_theta": 250000},
            **{"original_max_position_embeddings": 16384, "rope_scaling": None, "sliding_window": None},
        ),
        14.66,
    ),
    "Phi-3.5-MoE": (
        described(
            "Phimoe",
            "phimoe",
            **sizes(32064, 4096, 6400, 32, 32, 8, 131072) | {"eos_token_id": 32000},
            attention_bias=True,
            hidden_dropout=0.0,
            input_jitter_noise=0.01,
            lm_head_bias=True,
            num_experts_per_tok=2,
            num_local_experts=16,
            original_max_position_embeddings=4096,
            output_router_logits=False,
            rms_norm_eps=1e-5,
            rope_scaling={
                "long_factor": [1.5] * 64,
                "long_mscale": 1.243163121016122,
                "original_max_position_embeddings": 4096,
                "short_factor": [1.0] * 64,
                "short_mscale": 1.243163121016122,
                "type": "longrope",
            },
            rope_theta=10000.0,
            router_aux_loss_coef=0.0,
            router_jitter_noise=0.01,
            sliding_window=131072,
            tie_word_embeddings=False,
        ),
        41.9,
    ),
    "Qwen1.5-MoE-A2.7B": (
        described(
            "Qwen2Moe",
            "qwen2_moe",
            **sizes(151936, 2048, 5632, 24, 16, 16, 8192) | {"bos_token_id": 151643, "eos_token_id": 151643},
            decoder_sparse_step=1,
            max_window_layers=21,
            moe_intermediate_size=1408,
            norm_topk_prob=False,
            num_experts=60,
            num_experts_per_tok=4,
            output_router_logits=False,
            rms_norm_eps=1e-6,
            rope_theta=1000000.0,
            router_aux_loss_coef=0.001,
            shared_expert_intermediate_size=5632,
            sliding_window=32768,
            tie_word_embeddings=False,
            use_sliding_window=False,
        ),
        14.3,
    ),
    "OLMoE-1B-7B-0924": (
        described(
            "Olmoe",
            "olmoe",
            **sizes(50304, 2048, 1024, 16, 16, 16, 4096) | {"bos_token_id": None, "eos_token_id": 50279},
            attention_bias=False,
            clip_qkv=None,
            norm_topk_prob=False,
            num_experts=64,
            num_experts_per_tok=8,
            output_router_logits=False,
            pad_token_id=1,
            rms_norm_eps=1e-5,
            rope_scaling=None,
            rope_theta=10000.0,
            router_aux_loss_coef=0.01,
            tie_word_embeddings=False,
        ),
        6.92,
    ),
    "FlexOlmo-7x7B-1T": (
        described(
            "FlexOlmo",
            "flex_olmo",
            **sizes(100352, 4096, 11008, 32, 32, 32, 4096) | {"bos_token_id": None, "eos_token_id": 100257},
            attention_bias=False,
            norm_topk_prob=False,
            num_experts=7,
            num_experts_per_tok=7,
            output_router_logits=False,
            pad_token_id=100277,
            rms_norm_eps=1e-6,
            rope_scaling=None,
            rope_theta=500000,
            router_aux_loss_coef=0.01,
            tie_word_embeddings=False,
        ),
        33.3,
    ),
    "granite-3.1-3b-a800m": (
        described(
            "GraniteMoe",
            "granitemoe",
            **sizes(49155, 1536, 512, 32, 24, 8, 131072) | {"bos_token_id": 0, "eos_token_id": 0},
            attention_bias=False,
            attention_multiplier=0.015625,
            embedding_multiplier=12.0,
            logits_scaling=6.0,
            num_experts_per_tok=8,
            num_local_experts=40,
            output_router_logits=False,
            pad_token_id=0,
            residual_multiplier=0.22,
            rms_norm_eps=1e-6,
            rope_scaling=None,
            rope_theta=10000000.0,
            router_aux_loss_coef=0.0,
            tie_word_embeddings=True,
        ),
        3.3,
    ),
    "GLM-4-9B-0414": (
        described(
            "Glm4",
            "glm4",
            **sizes(151552, 4096, 13696, 40, 32, 2, 32768) | {"bos_token_id": None, "eos_token_id": [151329, 151336]},
            attention_bias=True,
            head_dim=128,
            pad_token_id=151329,
            partial_rotary_factor=0.5,
            rms_norm_eps=1e-5,
            rope_theta=10000.0,
            tie_word_embeddings=False,
        ),
        9.4,
    ),
    "glm-4-9b-chat-hf": (
        described(
            "Glm",
            "glm",
            **sizes(151552, 4096, 13696, 40, 32, 2, 131072)
            | {"bos_token_id": None, "eos_token_id": [151329, 151336, 151338]},
            attention_bias=True,
            head_dim=128,
            pad_token_id=151329,
            rms_norm_eps=1.5625e-07,
            rope_theta=10000.0,
            tie_word_embeddings=False,
        ),
        9.4,
    ),
    "GLM-4.5-Air": (
        described(
            "Glm4Moe",
            "glm4_moe",
            **sizes(151552, 4096, 10944, 46, 96, 8, 131072)
            | {"bos_token_id": None, "eos_token_id": [151329, 151336, 151338]},
            attention_bias=True,
            first_k_dense_replace=1,
            head_dim=128,
            moe_intermediate_size=1408,
            n_group=1,
            n_routed_experts=128,
            n_shared_experts=1,
            norm_topk_prob=True,
            num_experts_per_tok=8,
            num_nextn_predict_layers=1,
            pad_token_id=151329,
            partial_rotary_factor=0.5,
            rms_norm_eps=1e-5,
            rope_scaling=None,
            rope_theta=1000000,
            routed_scaling_factor=1.0,
            tie_word_embeddings=False,
            topk_group=1,
            use_qk_norm=False,
        ),
        106.85,
    ),
    "DeepSeek-V2-Lite": (
        deepseek(
            "DeepseekV2",
            "deepseek_v2",
            sizes(102400, 2048, 10944, 27, 16, 16, 163840) | {"bos_token_id": 100000, "eos_token_id": 100001},
            (64, 6, 1408, 2),
            **latents(None),
            first_k_dense_replace=1,
            n_group=1,
            norm_topk_prob=False,
            rope_scaling=yarn(40, 0.707),
            rope_theta=10000,
            routed_scaling_factor=1.0,
            scoring_func="softmax",
            topk_group=1,
            topk_method="greedy",
        ),
        15.7,
    ),
    "DeepSeek-V2": (
        deepseek(
            "DeepseekV2",
            "deepseek_v2",
            sizes(102400, 5120, 12288, 60, 128, 128, 163840) | {"bos_token_id": 100000, "eos_token_id": 100001},
            (160, 6, 1536, 2),
            **latents(1536),
            ep_size=1,
            first_k_dense_replace=1,
            n_group=8,
            norm_topk_prob=False,
            rope_scaling=yarn(40, 0.707),
            rope_theta=10000,
            routed_scaling_factor=16.0,
            scoring_func="softmax",
            topk_group=3,
            topk_method="group_limited_greedy",
        ),
        235.7,
    ),
    "DeepSeek-V3": (deepseek_v3("DeepseekV3", "deepseek_v3", FP8), 671.0),
    "DeepSeek-V3.2": (
        deepseek_v3("DeepseekV32", "deepseek_v32", FP8 | {"scale_fmt": "ue8m0"}, **indexer(64)),
        671.9,
    ),
    "GLM-5": (glm5(1000000, 202752), 743.9),
    "GLM-5.2": (
        glm5(
            *(8000000, 1048576),
            index_skip_topk_offset=3,
            index_topk_freq=4,
            index_topk_pattern=None,
            index_share_for_mtp_iteration=True,
        ),
        743.4,
    ),
    "Kimi-K2-Instruct": (
        deepseek(
            "DeepseekV3",
            "kimi_k2",
            sizes(163840, 7168, 18432, 61, 64, 64, 131072) | {"bos_token_id": 163584, "eos_token_id": 163586},
            (384, 8, 2048, 1),
            **latents(1536),
            ep_size=1,
            first_k_dense_replace=1,
            n_group=1,
            norm_topk_prob=True,
            num_nextn_predict_layers=0,
            quantization_config=FP8,
            rope_scaling=yarn(32.0, 1.0, 1.0),
            rope_theta=50000.0,
            routed_scaling_factor=2.827,
            scoring_func="sigmoid",
            topk_group=1,
            topk_method="noaux_tc",
        ),
        1026.0,
    ),
    "MiMo-V2-Flash": (
        without(
            ("hidden_act",),
            described(
                "MiMoV2Flash",
                "mimo_v2_flash",
                **sizes(152576, 4096, 16384, 48, 64, 4, 262144),
                add_full_attention_sink_bias=False,
                add_swa_attention_sink_bias=True,
                attention_bias=False,
                attention_chunk_size=128,
                attention_value_scale=0.707,
                head_dim=192,
                hybrid_block_size=None,
                hybrid_layer_pattern=[int(layer > 0 and (layer + 1) % 6 != 0) for layer in range(48)],
                layernorm_epsilon=1e-5,
                moe_intermediate_size=2048,
                moe_layer_freq=[0] + [1] * 47,
                n_group=1,
                n_routed_experts=256,
                n_shared_experts=None,
                norm_topk_prob=True,
                num_experts_per_tok=8,
                partial_rotary_factor=0.334,
                quantization_config=FP8,
                rope_theta=5000000,
                routed_scaling_factor=None,
                scoring_func="sigmoid",
                sliding_window=128,
                sliding_window_size=128,
                swa_head_dim=192,
                swa_num_attention_heads=64,
                swa_num_key_value_heads=8,
                swa_rope_theta=10000,
                swa_v_head_dim=128,
                tie_word_embeddings=False,
                topk_group=1,
                topk_method="noaux_tc",
                v_head_dim=128,
            ),
        ),
        309.0,
    ),
    "Mistral-Small-4-119B-2603": (  # its text model
        deepseek(
            "Mistral4",
            "mistral4",
            sizes(131072, 4096, 12288, 36, 32, 32, 1048576),
            (128, 4, 2048, 1),
            attention_bias=False,
            first_k_dense_replace=0,
            head_dim=128,
            kv_lora_rank=256,
            n_group=1,
            norm_topk_prob=True,
            pad_token_id=11,
            q_lora_rank=1024,
            qk_head_dim=128,
            qk_nope_head_dim=64,
            qk_rope_head_dim=64,
            rope_interleave=True,
            rope_parameters={
                **{"beta_fast": 32.0, "beta_slow": 1.0, "factor": 128.0, "llama_4_scaling_beta": 0.1},
                **{"max_position_embeddings": 1048576, "mscale": 1.0, "mscale_all_dim": 1.0},
                **{"original_max_position_embeddings": 8192, "partial_rotary_factor": 0.5},
                **{"rope_theta": 10000.0, "rope_type": "yarn", "type": "yarn"},
            },
            routed_scaling_factor=1.0,
            tie_word_embeddings=False,
            topk_group=1,
            v_head_dim=128,
        ),
        119.0,
    ),
    "GLM-4.7-Flash": (
        described(
            "Glm4MoeLite",
            "glm4_moe_lite",
            **sizes(154880, 2048, 10240, 47, 20, 20, 202752)
            | {"bos_token_id": None, "eos_token_id": [154820, 154827, 154829]},
            **latents(768, 192, 256),
            first_k_dense_replace=1,
            moe_intermediate_size=1536,
            n_group=1,
            n_routed_experts=64,
            n_shared_experts=1,
            norm_topk_prob=True,
            num_experts_per_tok=4,
            num_nextn_predict_layers=1,
            pad_token_id=154820,
            partial_rotary_factor=1.0,
            rms_norm_eps=1e-5,
            rope_scaling=None,
            rope_theta=1000000,
            routed_scaling_factor=1.8,
            topk_group=1,
            topk_method="noaux_tc",
        ),
        29.9,
    ),
    "Youtu-LLM-2B": (
        described(
            "Youtu",
            "youtu",
            **sizes(128256, 2048, 6144, 32, 16, 16, 131072) | {"bos_token_id": 128000, "eos_token_id": 128001},
            **latents(1536) | {"tie_word_embeddings": True},
            rms_norm_eps=1e-6,
            rope_interleave=True,
            rope_scaling=None,
            rope_theta=1600000,
        ),
        1.96,
    ),
    "MiniCPM3-4B": (
        described(
            "MiniCPM3",
            "minicpm3",
            **sizes(73448, 2560, 6400, 62, 40, 40, 32768),
            attention_bias=False,
            dim_model_base=256,
            kv_lora_rank=256,
            q_lora_rank=768,
            qk_nope_head_dim=64,
            qk_rope_head_dim=32,
            rms_norm_eps=1e-5,
            rope_scaling={
                "type": "longrope",
                "long_factor": [1.0 + pair / 8 for pair in range(16)],
                "short_factor": [1.0 + pair / 8 for pair in range(16)],
                "original_max_position_embeddings": 32768,
            },
            scale_depth=1.4,
            scale_emb=12,
            tie_word_embeddings=True,
        ),
        4.07,
    ),
    "MiniMax-M2": (
        described(
            "MiniMaxM2",
            "minimax_m2",
            **sizes(200064, 3072, 1536, 62, 48, 8, 196608) | {"bos_token_id": None, "eos_token_id": None},
            attn_type_list=[1] * 62,
            head_dim=128,
            layernorm_full_attention_beta=1.0,
            mtp_transformer_layers=1,
            num_experts_per_tok=8,
            num_local_experts=256,
            num_mtp_modules=3,
            output_router_logits=False,
            qk_norm_type="per_layer",
            rms_norm_eps=1e-6,
            rope_theta=5000000,
            rotary_dim=64,
            router_aux_loss_coef=0.001,
            router_jitter_noise=0.0,
            scoring_func="sigmoid",
            shared_intermediate_size=0,
            sliding_window=None,
            tie_word_embeddings=False,
            use_mtp=True,
            use_qk_norm=True,
            use_routing_bias=True,
        ),
        228.7,
    ),
    "helium-1-2b": (
        described(
            "Helium",
            "helium",
            **sizes(64000, 2048, 8192, 28, 16, 8, 4096),
            attention_bias=False,
            head_dim=128,
            mlp_bias=False,
            pad_token_id=3,
            rms_norm_eps=1e-8,
            rope_theta=20000.0,
            tie_word_embeddings=True,
        ),
        1.9,
    ),
    "gemma-2-9b": (
        described(
            "Gemma2",
            "gemma2",
            **sizes(256000, 3584, 14336, 42, 16, 8, 8192) | {"bos_token_id": 2, "eos_token_id": 1},
            attention_bias=False,
            attn_logit_softcapping=50.0,
            cache_implementation="hybrid",
            final_logit_softcapping=30.0,
            head_dim=256,
            hidden_act="gelu_pytorch_tanh",
            hidden_activation="gelu_pytorch_tanh",
            pad_token_id=0,
            query_pre_attn_scalar=256,
            rms_norm_eps=1e-6,
            rope_theta=10000.0,
            sliding_window=4096,
            sliding_window_size=4096,
        ),
        9.24,
    ),
    "gemma-3-1b": (
        described(
            "Gemma3",
            "gemma3_text",
            **sizes(262144, 1152, 6912, 26, 4, 1, 32768) | {"bos_token_id": 2, "eos_token_id": [1, 106]},
            attention_bias=False,
            attn_logit_softcapping=None,
            cache_implementation="hybrid",
            final_logit_softcapping=None,
            head_dim=256,
            hidden_activation="gelu_pytorch_tanh",
            pad_token_id=0,
            query_pre_attn_scalar=256,
            rms_norm_eps=1e-6,
            rope_local_base_freq=10000,
            rope_scaling=None,
            rope_theta=1000000,
            sliding_window=512,
            sliding_window_pattern=6,
        ),
        1.0,
    ),
    "OLMo-2-1124-7B": (olmo(2, 100352, 4096), 7.3),
    "Olmo-3-7B": (
        olmo(
            *(3, 100278, 65536),
            layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 8,
            rope_scaling={
                **{"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0},
                **{"original_max_position_embeddings": 8192, "rope_type": "yarn"},
            },
            sliding_window=4096,
        ),
        7.3,
    ),
    # Without what sees and hears, which the numbers of their names count.
    "the text model of gemma-4-E2B": (
        gemma4(
            *(1536, 6144, 35, 8, 1, 5),
            **{"hidden_size_per_layer_input": 256, "num_kv_shared_layers": 20, "use_double_wide_mlp": True},
            max_position_embeddings=131072,
        ),
        4.63,
    ),
    "the text model of gemma-4-E4B": (
        gemma4(
            *(2560, 10240, 42, 8, 2, 6),
            **{"hidden_size_per_layer_input": 256, "num_kv_shared_layers": 18, "max_position_embeddings": 131072},
        ),
        7.46,
    ),
    "the text model of gemma-4-26B-A4B": (
        gemma4(
            *(2816, 2112, 30, 16, 8, 6),
            **LARGE_GEMMA4,
            **{"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
            num_global_key_value_heads=2,
        ),
        25.2,
    ),
    "the text model of gemma-4-31B": (
        gemma4(*(5376, 21504, 60, 32, 16, 6), **LARGE_GEMMA4, num_global_key_value_heads=4),
        30.7,
    ),
    "the text model of Llama-4-Scout-17B-16E": (
        llama4(16, 1, 10485760, rope_scaling={"factor": 16.0, "rope_type": "llama3", **ONE_STEP}, use_qk_norm=True),
        107.8,
    ),
    "the text model of Llama-4-Maverick-17B-128E": (
        llama4(128, 2, 1048576, rope_scaling=None, use_qk_norm=False),
        400.7,
    ),
    "EXAONE-4.0-32B": (
        described(
            "Exaone4",
            "exaone4",
            **sizes(102400, 5120, 27392, 64, 40, 8, 131072) | {"eos_token_id": 361},
            head_dim=128,
            layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 16,
            pad_token_id=0,
            rms_norm_eps=1e-5,
            rope_scaling={
                **{"factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"},
                **{"original_max_position_embeddings": 8192},
            },
            rope_theta=1000000,
            sliding_window=4096,
            sliding_window_pattern="LLLG",
            tie_word_embeddings=False,
        ),
        32.0,
    ),
    "dots.llm1": (
        described(
            "Dots1",
            "dots1",
            **sizes(152064, 4096, 10944, 62, 32, 32, 32768) | {"bos_token_id": None, "eos_token_id": 151645},
            attention_bias=False,
            first_k_dense_replace=1,
            moe_intermediate_size=1408,
            n_group=1,
            n_routed_experts=128,
            n_shared_experts=2,
            norm_topk_prob=True,
            num_experts_per_tok=6,
            rms_norm_eps=1e-5,
            rope_theta=10000000,
            routed_scaling_factor=2.5,
            scoring_func="noaux_tc",
            sliding_window=None,
            tie_word_embeddings=False,
            topk_group=1,
        ),
        142.0,
    ),
    "gemma-7b": (
        described(
            "Gemma",
            "gemma",
            **sizes(256000, 3072, 24576, 28, 16, 16, 8192)
            | {"bos_token_id": 2, "eos_token_id": 1, "hidden_act": "gelu"},
            attention_bias=False,
            head_dim=256,
            hidden_activation=None,
            pad_token_id=0,
            rms_norm_eps=1e-6,
            rope_scaling=None,
            rope_theta=10000.0,
        ),
        8.54,
    ),
    "c4ai-command-r-v01": (
        described(
            "Cohere",
            "cohere",
            **sizes(256000, 8192, 22528, 40, 64, 64, 8192) | {"bos_token_id": 5, "eos_token_id": 255001},
            layer_norm_eps=1e-5,
            logit_scale=0.0625,
            model_max_length=131072,
            pad_token_id=0,
            rope_theta=8000000.0,
        ),
        35.0,
    ),
    "cwm": (
        described(
            "Cwm",
            "cwm",
            **sizes(128256, 6144, 21504, 64, 48, 8, 131072)
            | {"bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009]},
            head_dim=128,
            layer_types=(["full_attention"] + ["sliding_attention"] * 3) * 16,
            mlp_bias=False,
            pretraining_tp=1,
            rms_norm_eps=1e-5,
            rope_scaling={
                **{"factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"},
                **{"original_max_position_embeddings": 8192},
            },
            rope_theta=1000000.0,
            sliding_window=8192,
            tie_word_embeddings=False,
        ),
        32.6,
    ),
    "stablelm-2-1_6b": (
        described(
            "StableLm",
            "stablelm",
            **sizes(100352, 2048, 5632, 24, 32, 32, 4096) | {"bos_token_id": 100257, "eos_token_id": 100257},
            hidden_dropout=0.0,
            layer_norm_eps=1e-5,
            partial_rotary_factor=0.25,
            qk_layernorm=False,
            rope_theta=10000,
            tie_word_embeddings=False,
            use_parallel_residual=False,
            use_qkv_bias=True,
        ),
        1.64,
    ),
    # The defaults of transformers, which are of this size.
    "granite_swa, 2B": (
        described(
            "GraniteSWA",
            "granite_swa",
            **sizes(100352, 2560, 8192, 24, 20, 4, 8192) | {"bos_token_id": 100257, "eos_token_id": 100257},
            attention_bias=False,
            attention_multiplier=0.0078125,
            embedding_multiplier=12.0,
            layer_rope_theta=[0.0, 10000.0, 10000.0, 10000.0] * 6,
            layer_types=["full_attention", *["sliding_attention"] * 3] * 6,
            logits_scaling=10.0,
            mlp_bias=False,
            residual_multiplier=0.22,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
            sliding_window=128,
            tie_word_embeddings=True,
        ),
        2.14,
    ),
    "vaultgemma-1b": (
        described(
            "VaultGemma",
            "vaultgemma",
            **sizes(256000, 1152, 6912, 26, 4, 4, 1024) | {"bos_token_id": 2, "eos_token_id": 1},
            attention_bias=False,
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
            head_dim=256,
            hidden_activation="gelu_pytorch_tanh",
            layer_types=["full_attention"] * 26,
            query_pre_attn_scalar=256,
            rms_norm_eps=1e-6,
            rope_theta=10000.0,
            sliding_window=512,
        ),
        1.04,
    ),
    "Olmo-Hybrid-7B": (  # as it is remembered
        described(
            "OlmoHybrid",
            "olmo_hybrid",
            **sizes(100352, 3840, 11008, 32, 30, 30, 65536) | {"bos_token_id": None, "eos_token_id": 100257},
            attention_bias=False,
            layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 8,
            linear_a_log_max=16.0,
            linear_a_log_min=0.0,
            linear_allow_neg_eigval=True,
            linear_conv_kernel_dim=4,
            linear_dt_init_floor=1e-4,
            linear_dt_max=0.1,
            linear_dt_min=0.001,
            linear_key_head_dim=96,
            linear_num_key_heads=30,
            linear_num_value_heads=30,
            linear_value_head_dim=192,
            pad_token_id=100277,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_theta": None, "rope_type": "default"},
            tie_word_embeddings=False,
        ),
        7.43,
    ),
    # Those of GPT-2, StarCoder, GPT-Neo and OPT as they are remembered.
    "gpt2": (
        GPT_2
        | {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
        | {"activation_function": "gelu_new", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12}
        | {"n_positions": 1024, "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}},
        0.1244,
    ),
    "gpt2-medium": (
        GPT_2
        | {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_special": 0, "predict_special_tokens": True}
        | {"activation_function": "gelu_new", "n_ctx": 1024, "n_embd": 1024, "n_head": 16, "n_layer": 24}
        | {"n_positions": 1024, "_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}},
        0.3548,
    ),
    "tiny-random-gpt2": (
        GPT_2
        | {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu", "n_embd": 32}
        | {"hidden_act": "gelu", "intermediate_size": 37, "n_head": 4, "n_inner": None, "n_layer": 5, "n_ctx": 512}
        | {"n_positions": 512, "vocab_size": 1000, "type_vocab_size": 16, "bos_token_id": 98, "eos_token_id": 98}
        | {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "pad_token_id": 98}
        | {"reorder_and_upcast_attn": False, "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True},
        0.0001119,
    ),
    "starcoder": (
        GPT_2
        | {"architectures": ["GPTBigCodeForCausalLM"], "model_type": "gpt_bigcode", "vocab_size": 49152}
        | {"bos_token_id": 0, "eos_token_id": 0, "activation_function": "gelu", "n_embd": 6144, "n_head": 48}
        | {"n_inner": 24576, "n_layer": 40, "n_positions": 8192, "multi_query": True, "scale_attn_weights": True}
        | {"attention_softmax_in_fp32": True, "scale_attention_softmax_in_fp32": True, "inference_runner": 0}
        | {"max_batch_size": None, "max_sequence_length": None, "pad_key_length": True, "pre_allocate_kv_cache": False}
        | {"validate_runner_input": True, "torch_dtype": "float32", "use_cache": True},
        15.5,
    ),
    "gpt-neo-1.3B": (
        without(
            ("attn_pdrop", "embd_pdrop", "resid_pdrop"),
            GPT_2
            | {"architectures": ["GPTNeoForCausalLM"], "model_type": "gpt_neo", "activation_function": "gelu_new"}
            | {"attention_dropout": 0, "attention_layers": ["global", "local"] * 12, "embed_dropout": 0}
            | {"attention_types": [[["global", "local"], 12]], "gradient_checkpointing": False, "hidden_size": 2048}
            | {"intermediate_size": None, "max_position_embeddings": 2048, "num_heads": 16, "num_layers": 24}
            | {"resid_dropout": 0, "tokenizer_class": "GPT2Tokenizer", "use_cache": True, "window_size": 256},
        ),
        1.316,
    ),
    "opt-1.3b": (
        {
            **{"architectures": ["OPTForCausalLM"], "model_type": "opt", "_remove_final_layer_norm": False},
            **{"activation_dropout": 0.0, "activation_function": "relu", "attention_dropout": 0.0, "dropout": 0.1},
            **{"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1, "prefix": "</s>", "do_layer_norm_before": True},
            **{"ffn_dim": 8192, "hidden_size": 2048, "word_embed_proj_dim": 2048, "num_attention_heads": 32},
            **{"num_hidden_layers": 24, "max_position_embeddings": 2048, "vocab_size": 50272, "init_std": 0.02},
            **{"layerdrop": 0.0, "torch_dtype": "float16", "use_cache": True, "transformers_version": "4.21.0.dev0"},
        },
        1.316,
    ),
    # Those of OLMo 1, HunYuan, Pythia, GPT-J, Falcon and Bamba as they are remembered.
    "Apertus-8B-Instruct-2509": (
        described(
            "Apertus",
            "apertus",
            **sizes(131072, 4096, 21504, 32, 32, 8, 65536) | {"eos_token_id": 68},
            attention_bias=False,
            mlp_bias=False,
            pad_token_id=3,
            qk_norm=True,
            rms_norm_eps=1e-5,
            rope_scaling={
                **{"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"},
                "original_max_position_embeddings": 8192,
            },
            rope_theta=12000000,
            tie_word_embeddings=False,
        )
        | {"hidden_act": "xielu", "post_norm": False},
        8.05,
    ),
    "OLMo-7B-hf": (
        described(
            "Olmo",
            "olmo",
            **sizes(50304, 4096, 11008, 32, 32, 32, 2048) | {"bos_token_id": None, "eos_token_id": 50279},
            attention_bias=False,
            clip_qkv=None,
            pad_token_id=1,
            rope_scaling=None,
            rope_theta=10000.0,
            tie_word_embeddings=False,
        ),
        6.89,
    ),
    "Hunyuan-7B-Instruct": (
        described(
            "HunYuanDenseV1",
            "hunyuan_v1_dense",
            **sizes(128167, 4096, 14336, 32, 32, 8, 32768) | {"eos_token_id": 127960},
            **HUNYUAN,
        ),
        7.5,
    ),
    "Hunyuan-A13B-Instruct": (
        described(
            "HunYuanMoEV1",
            "hunyuan_v1_moe",
            **sizes(128167, 4096, 3072, 32, 32, 8, 32768) | {"eos_token_id": 127960},
            **HUNYUAN,
            group_limited_greedy=False,
            moe_drop_tokens=False,
            moe_intermediate_size=[3072] * 32,
            moe_layer_num_skipped=0,
            moe_random_routing_dropped_token=False,
            moe_topk=[8] * 32,
            norm_topk_prob=True,
            num_experts=64,
            num_shared_expert=[1] * 32,
            use_mixed_mlp_moe=True,
            use_mla=False,
        ),
        80.4,
    ),
    "pythia-6.9b": (
        without(
            ("num_key_value_heads",),
            described(
                "GPTNeoX",
                "gpt_neox",
                **sizes(50432, 4096, 16384, 32, 32, 32, 2048) | {"bos_token_id": 0, "eos_token_id": 0},
                classifier_dropout=0.1,
                hidden_dropout=0.0,
                layer_norm_eps=1e-5,
                rotary_emb_base=10000,
                rotary_pct=0.25,
                tie_word_embeddings=False,
                use_parallel_residual=True,
            )
            | {"hidden_act": "gelu"},
        ),
        6.86,
    ),
    "gpt-j-6b": (
        without(
            ("hidden_act", "attention_dropout"),
            described(
                "GPTJ",
                "gptj",
                **{"bos_token_id": 50256, "eos_token_id": 50256},
                activation_function="gelu_new",
                attn_pdrop=0.0,
                embd_pdrop=0.0,
                gradient_checkpointing=False,
                layer_norm_epsilon=1e-5,
                n_embd=4096,
                n_head=16,
                n_inner=None,
                n_layer=28,
                n_positions=2048,
                resid_pdrop=0.0,
                rotary=True,
                rotary_dim=64,
                scale_attn_weights=True,
                summary_activation=None,
                summary_first_dropout=0.1,
                summary_proj_to_labels=True,
                summary_type="cls_index",
                summary_use_proj=True,
                tie_word_embeddings=False,
                vocab_size=50400,
            ),
        ),
        6.05,
    ),
    "falcon-7b": (
        without(
            ("hidden_act", "num_key_value_heads", "intermediate_size", "max_position_embeddings"),
            described(
                "Falcon",
                "falcon",
                **sizes(65024, 4544, 0, 32, 71, 0, 0) | {"bos_token_id": 11, "eos_token_id": 11},
                **FALCON,
                multi_query=True,
                new_decoder_architecture=False,
            ),
        ),
        6.92,
    ),
    "falcon-40b": (
        without(
            ("hidden_act", "num_key_value_heads", "intermediate_size", "max_position_embeddings"),
            described(
                "Falcon",
                "falcon",
                **sizes(65024, 8192, 0, 60, 128, 0, 0) | {"bos_token_id": 11, "eos_token_id": 11},
                **FALCON,
                new_decoder_architecture=True,
                num_kv_heads=8,
            ),
        ),
        41.3,
    ),
    "Bamba-9B": (
        described(
            "Bamba",
            "bamba",
            **sizes(128256, 4096, 14336, 32, 32, 8, 262144) | {"bos_token_id": 128000, "eos_token_id": 128001},
            attention_bias=False,
            attn_layer_indices=[9, 18, 27],
            attn_rotary_emb=64,
            mamba_chunk_size=256,
            mamba_conv_bias=True,
            mamba_d_conv=4,
            mamba_d_head=64,
            mamba_d_state=128,
            mamba_expand=2,
            mamba_n_groups=1,
            mamba_n_heads=128,
            mamba_proj_bias=False,
            mlp_bias=False,
            num_logits_to_keep=1,
            pad_token_id=0,
            rms_norm_eps=1e-5,
            rope_theta=10000.0,
            tie_word_embeddings=False,
            use_mamba_kernels=True,
        ),
        9.78,
    ),
    # Those of VaultGemma, Phi, Nemotron-Mini, HyperCLOVA X and EXAONE 3.5 as they are remembered.
    "phi-2": (
        described(
            "Phi",
            "phi",
            **sizes(51200, 2560, 10240, 32, 32, 32, 2048) | {"bos_token_id": 50256, "eos_token_id": 50256},
            embd_pdrop=0.0,
            resid_pdrop=0.1,
            layer_norm_eps=1e-5,
            partial_rotary_factor=0.4,
            qk_layernorm=False,
            rope_scaling=None,
            rope_theta=10000.0,
            tie_word_embeddings=False,
        )
        | {"hidden_act": "gelu_new"},
        2.78,
    ),
    "Nemotron-Mini-4B-Instruct": (
        described(
            "Nemotron",
            "nemotron",
            **sizes(256000, 3072, 9216, 32, 24, 8, 4096) | {"bos_token_id": 2, "eos_token_id": 3},
            attention_bias=False,
            head_dim=128,
            mlp_bias=False,
            norm_eps=1e-5,
            partial_rotary_factor=0.5,
            rope_theta=10000,
            tie_word_embeddings=False,
        )
        | {"hidden_act": "relu2"},
        4.19,
    ),
    "Jais-2-8B": (
        described(
            "Jais2",
            "jais2",
            **sizes(150272, 3328, 26624, 32, 26, 26, 8192) | {"bos_token_id": 0, "eos_token_id": 150024},
            attention_bias=True,
            head_dim=128,
            layer_norm_eps=1e-5,
            mlp_bias=True,
            rope_scaling=None,
            rope_theta=500000,
            tie_word_embeddings=False,
        )
        | {"hidden_act": "relu2"},
        8.09,
    ),
    "LFM3-1.7B": (
        described(
            "Lfm3",
            "lfm3",
            **sizes(128000, 2048, 7680, 24, 16, 4, 128000) | {"bos_token_id": 124894, "eos_token_id": 124900},
            conv_L_cache=7,
            conv_bias=False,
            head_dim=128,
            layer_types=["conv", "conv", "full_attention", "conv"]
            + ["sliding_attention", "conv", "full_attention", "conv"] * 5,
            norm_eps=1e-5,
            pad_token_id=124893,
            rope_parameters={
                "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
            sliding_window=256,
            tie_word_embeddings=True,
            use_attention_gate=True,
            use_sandwich_norm=True,
        ),
        1.73,
    ),
    # Of Cohere 2 with experts what transformers has where a file says nothing.
    "Cohere 2 with experts": (
        described(
            "Cohere2Moe",
            "cohere2_moe",
            **sizes(256000, 8192, 22528, 40, 64, 64, 8192) | {"bos_token_id": 5, "eos_token_id": 255001},
            attention_bias=False,
            expert_selection_fn="softmax",
            head_dim=128,
            layer_norm_eps=1e-5,
            logit_scale=0.0625,
            norm_topk_prob=True,
            num_experts=8,
            num_experts_per_tok=2,
            num_shared_experts=0,
            pad_token_id=0,
            prefix_dense_sliding_window_pattern=1,
            rms_norm_eps=None,
            rope_scaling=None,
            rope_theta=10000.0,
            shared_expert_combination_strategy="average",
            sliding_window=4096,
            tie_word_embeddings=True,
        ),
        190.0,
    ),
    "Trinity-Mini": (
        described(
            "Afmoe",
            "afmoe",
            **sizes(200192, 2048, 6144, 32, 32, 4, 131072),
            global_attn_every_n_layers=4,
            head_dim=128,
            layer_types=[*["sliding_attention"] * 3, "full_attention"] * 8,
            load_balance_coeff=0.001,
            moe_intermediate_size=1024,
            mup_enabled=True,
            n_group=1,
            num_dense_layers=2,
            num_expert_groups=1,
            num_experts=128,
            num_experts_per_tok=8,
            num_limited_groups=1,
            num_shared_experts=1,
            rms_norm_eps=1e-5,
            rope_scaling=None,
            rope_theta=10000,
            route_norm=True,
            route_scale=2.826,
            score_func="sigmoid",
            sliding_window=2048,
            tie_word_embeddings=False,
            topk_group=1,
            use_grouped_mm=True,
        ),
        26.1,
    ),
    "Hy3-preview": (
        described(
            "HYV3",
            "hy_v3",
            **sizes(120832, 4096, 13312, 80, 64, 8, 262144) | {"bos_token_id": 120000, "eos_token_id": 120025},
            enable_attention_fp32_softmax=False,
            enable_lm_head_fp32=True,
            enable_moe_fp32_combine=False,
            expert_hidden_dim=1536,
            first_k_dense_replace=1,
            head_dim=128,
            moe_intermediate_size=1536,
            moe_router_enable_expert_bias=True,
            moe_router_use_sigmoid=True,
            num_experts=192,
            num_experts_per_tok=8,
            num_nextn_predict_layers=1,
            num_shared_experts=1,
            output_router_logits=True,
            pad_token_id=120002,
            qk_norm=True,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_theta": 11158840.0, "rope_type": "default"},
            route_norm=True,
            router_scaling_factor=2.826,
            tie_word_embeddings=False,
            use_grouped_mm=False,
        ),
        295.0,
    ),
    "sarvam-30b": (
        described(
            "SarvamMoE",
            "sarvam_moe",
            **sizes(262144, 4096, 8192, 19, 64, 4, 131072),
            embedding_dropout=0.0,
            first_k_dense_replace=1,
            head_dim=64,
            moe_intermediate_size=1024,
            moe_router_enable_expert_bias=True,
            moe_shared_expert_intermediate_size=1024,
            n_group=1,
            norm_topk_prob=True,
            num_experts=128,
            num_experts_per_tok=6,
            num_shared_experts=1,
            output_router_logits=False,
            rms_norm_eps=1e-6,
            rope_scaling=None,
            rope_theta=8000000,
            routed_scaling_factor=2.5,
            score_function="sigmoid",
            tie_word_embeddings=False,
            topk_group=1,
            use_bias=False,
            use_qk_norm=True,
            use_qkv_bias=False,
            use_rmsnorm=True,
        ),
        32.2,
    ),
    "sarvam-105b": (
        described(
            "SarvamMLA",
            "sarvam_mla",
            **sizes(262144, 4096, 16384, 32, 64, 64, 131072) | latents(None),
            first_k_dense_replace=1,
            head_dim=576,
            moe_intermediate_size=2048,
            n_group=1,
            norm_topk_prob=True,
            num_experts=128,
            num_experts_per_tok=8,
            num_shared_experts=1,
            q_head_dim=192,
            rms_norm_eps=1e-6,
            rope_scaling={
                **{"type": "deepseek_yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0},
                **{"mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
            },
            rope_theta=10000.0,
            routed_scaling_factor=2.5,
            topk_group=1,
        ),
        106.0,
    ),
    "HyperCLOVAX-SEED-Think-14B": (
        described(
            "HyperCLOVAX",
            "hyperclovax",
            **sizes(110592, 6144, 14336, 38, 48, 8, 131072) | {"bos_token_id": 100257, "eos_token_id": 100257},
            attention_bias=False,
            attention_multiplier=0.0078125,
            embedding_multiplier=10.0,
            head_dim=128,
            logits_scaling=0.125,
            mlp_bias=False,
            residual_multiplier=1.0,
            rms_norm_eps=1e-5,
            rope_scaling=None,
            rope_theta=100000000,
            tie_word_embeddings=False,
            use_post_norm=True,
        ),
        14.7,
    ),
    "EXAONE-3.5-7.8B-Instruct": (
        {
            key: value
            for key, value in described(
                "Exaone",
                "exaone",
                **sizes(102400, 4096, 14336, 32, 32, 8, 32768) | {"eos_token_id": 361, "pad_token_id": 0},
                activation_function="silu",
                embed_dropout=0.0,
                head_dim=128,
                layer_norm_epsilon=1e-5,
                num_layers=32,
                rope_scaling={
                    **{"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"},
                    "original_max_position_embeddings": 8192,
                },
                rope_theta=1000000.0,
                tie_word_embeddings=False,
            ).items()
            if key not in ("num_hidden_layers", "hidden_act")
        },
        7.82,
    ),
    "Solar-Open-100B": (
        described(
            "SolarOpen",
            "solar_open",
            **{key: value for key, value in sizes(196608, 4096, 0, 48, 64, 8, 131072).items() if value},
            attention_bias=False,
            head_dim=128,
            moe_intermediate_size=1280,
            n_group=1,
            n_routed_experts=128,
            n_shared_experts=1,
            norm_topk_prob=True,
            num_experts_per_tok=8,
            rms_norm_eps=1e-5,
            rope_theta=1000000,
            routed_scaling_factor=1.0,
            tie_word_embeddings=False,
            topk_group=1,
        ),
        102.6,
    ),
    "K-EXAONE-236B-A23B": (
        described(
            "ExaoneMoE",
            "exaone_moe",
            **sizes(153600, 6144, 18432, 48, 64, 8, 262144) | {"eos_token_id": 53},
            first_k_dense_replace=1,
            head_dim=128,
            layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 12,
            moe_intermediate_size=2048,
            n_group=1,
            norm_topk_prob=True,
            num_experts=128,
            num_experts_per_tok=8,
            num_shared_experts=1,
            pad_token_id=0,
            rms_norm_eps=1e-5,
            rope_theta=1000000,
            routed_scaling_factor=2.5,
            sliding_window=128,
            sliding_window_pattern="LLLG",
            tie_word_embeddings=False,
            topk_group=1,
        ),
        236.0,
    ),
    "Mellum2-12B-A2.5B": (
        described(
            "Mellum",
            "mellum",
            **sizes(98304, 2304, 7168, 28, 32, 4, 131072),
            attention_bias=False,
            head_dim=128,
            moe_intermediate_size=896,
            norm_topk_prob=True,
            num_experts=64,
            num_experts_per_tok=8,
            rms_norm_eps=1e-6,
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 500000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
            sliding_window=1024,
            tie_word_embeddings=False,
        ),
        12.1,
    ),
    "IQuest-Coder-V1-40B": (
        described(
            "IQuestCoder",
            "iquestcoder",
            **sizes(76800, 5120, 27648, 80, 40, 8, 131072),
            attention_bias=False,
            head_dim=128,
            mlp_bias=False,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
        ),
        39.8,
    ),
    "ERNIE-4.5-21B-A3B": (
        described(
            "Ernie4_5_Moe",
            "ernie4_5_moe",
            **sizes(103424, 2560, 12288, 28, 20, 4, 131072),
            moe_capacity=[64, 64, 64],
            moe_gate="topk",
            moe_intermediate_size=1536,
            moe_k=6,
            moe_layer_interval=1,
            moe_layer_start_index=1,
            moe_num_experts=64,
            moe_num_shared_experts=2,
            moe_use_aux_free=True,
            num_nextn_predict_layers=1,
            pad_token_id=0,
            rms_norm_eps=1e-5,
            rope_theta=500000.0,
            tie_word_embeddings=True,
            use_bias=False,
        ),
        21.8,
    ),
    "ERNIE-4.5-0.3B": (
        described(
            "Ernie4_5",
            "ernie4_5",
            **sizes(103424, 1024, 3072, 18, 16, 2, 131072),
            head_dim=128,
            pad_token_id=0,
            rms_norm_eps=1e-5,
            rope_theta=500000.0,
            tie_word_embeddings=True,
            use_bias=False,
        ),
        0.36,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_has_the_parameters_that_its_model_is_said_to_have(name: str) -> None:
    values, billions = PUBLISHED[name]
    fields = text_fields(Fields(Path("config.json"), values))
    architecture = architecture_of(fields)
    config = read_config(fields, architecture, fields.boolean("tie_word_embeddings", architecture.tied))
    parameters = sum(math.prod(shape) for shape in config.tensor_shapes().values())
    assert parameters / 1e9 == pytest.approx(billions, rel=0.02)
    _, stored = places_with_latents(config, config.tensor_shapes(), architecture.stored_name)
    assert sum(math.prod(shape) for shape in stored.values()) == parameters


def test_layers_that_share_what_is_chosen_are_those_that_are_listed_drawn_or_come_again() -> None:
    published = PUBLISHED["GLM-5.2"][0]
    listed = {0, 1, 2, *range(6, 78, 4)}  # as its file says beside the numbers that they come from
    kinds = ["full" if layer in listed else "shared" for layer in range(78)]
    ways = {"indexer_types": kinds}, {"index_topk_pattern": "".join(kind[0].upper() for kind in kinds)}, {}
    for way in ways:
        fields = Fields(Path("config.json"), published | way)
        indexer_of = read_config(fields, architecture_of(fields), tied=False).indexer
        assert indexer_of is not None
        assert set(indexer_of.layers) == listed
    for field, value in (
        ("indexer_types", kinds[1:]),
        ("indexer_types", ["shared", *kinds[1:]]),
        ("index_topk_pattern", "X" * 78),
        ("layer_types", ["full_attention"] * 78),
        ("indexer_rope_interleave", False),
        ("q_lora_rank", None),
        ("index_head_dim", 32),
    ):
        fields = Fields(Path("config.json"), published | {field: value})
        with pytest.raises(CheckpointError, match=field):
            read_config(fields, architecture_of(fields), tied=False)


def test_layers_of_exaone4_with_windows_are_those_that_are_listed_counted_or_spelled() -> None:
    published = PUBLISHED["EXAONE-4.0-32B"][0]
    ways: tuple[dict[str, Any], ...] = ({}, {"sliding_window_pattern": 4}, {"sliding_window_pattern": None})
    for way in ways:
        fields = Fields(Path("config.json"), published | {"layer_types": None} | way)
        config = read_config(fields, architecture_of(fields), tied=False)
        assert config.windows == (4096, 4096, 4096, 0) * 16
        assert config.unrotated_layers == tuple(range(3, 64, 4))
    for pattern in ("GLLL", "LLL", "LXLG", "", 0.5, [4]):
        fields = Fields(Path("config.json"), published | {"layer_types": None, "sliding_window_pattern": pattern})
        with pytest.raises(CheckpointError, match="sliding_window_pattern"):
            read_config(fields, architecture_of(fields), tied=False)


def test_the_page_has_the_table_that_the_code_gives(repository: Path) -> None:
    made = subprocess.run(
        [sys.executable, repository / "docs/architectures.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (made.returncode, made.stdout) == (0, "")


def test_the_page_names_the_architectures_that_are_served(repository: Path) -> None:
    page = (repository / "docs/models.md").read_text()
    assert [each.class_name for each in ARCHITECTURES.values() if f"| `{each.class_name}`" not in page] == []


def test_an_internlm3_has_biases_everywhere_or_nowhere() -> None:
    published, _ = PUBLISHED["internlm3-8b"]
    for said in ({"qkv_bias": True, "bias": True}, {"qkv_bias": True, "mlp_bias": True, "bias": None}):
        fields = Fields(Path("config.json"), published | said)
        config = read_config(fields, architecture_of(fields), tied=False)
        assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (True, True, True)
    for key, said in (
        ("qkv_bias", {"qkv_bias": True}),
        ("mlp_bias", {"mlp_bias": True, "bias": None}),
        ("attention_bias", {"attention_bias": True, "mlp_bias": True}),
    ):
        fields = Fields(Path("config.json"), published | said)
        with pytest.raises(CheckpointError, match=f"{key} is true"):
            read_config(fields, architecture_of(fields), tied=False)

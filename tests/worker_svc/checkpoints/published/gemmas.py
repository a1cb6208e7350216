"""Gemma, and what was made of it."""

from __future__ import annotations

from typing import Any

from tests.worker_svc.checkpoints.published.parts import LARGE_GEMMA4, described, gemma3n, gemma4, sizes

GEMMAS: dict[str, tuple[dict[str, Any], float]] = {
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
    "the text model of gemma-3n-E2B": (gemma3n(8192, 30, 10), 4.46),
    "the text model of gemma-3n-E4B": (gemma3n(16384, 35, 15), 6.87),
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
}

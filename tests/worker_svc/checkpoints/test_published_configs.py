"""`config.json` of published models, sizes and all, becomes a model of as many parameters as its name says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.hugging_face_config import architecture_of, read_config

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


# Its config, and how many thousand million parameters it is said to have.
PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {
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
    "OLMo-2-1124-7B": (
        described(
            "Olmo2",
            "olmo2",
            **sizes(100352, 4096, 11008, 32, 32, 32, 4096) | {"bos_token_id": None, "eos_token_id": 100257},
            attention_bias=False,
            pad_token_id=100277,
            rms_norm_eps=1e-6,
            rope_scaling=None,
            rope_theta=500000,
            tie_word_embeddings=False,
        ),
        7.3,
    ),
    "Olmo-3-7B": (
        described(
            "Olmo3",
            "olmo3",
            **sizes(100278, 4096, 11008, 32, 32, 32, 65536) | {"bos_token_id": None, "eos_token_id": 100257},
            attention_bias=False,
            layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 8,
            pad_token_id=100277,
            rms_norm_eps=1e-6,
            rope_scaling={
                "attention_factor": 1.2079441541679836,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 8.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "yarn",
            },
            rope_theta=500000,
            sliding_window=4096,
            tie_word_embeddings=False,
        ),
        7.3,
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
    fields = Fields(Path("config.json"), values)
    architecture = architecture_of(fields)
    config = read_config(fields, architecture, fields.boolean("tie_word_embeddings", architecture.tied))
    parameters = sum(math.prod(shape) for shape in config.tensor_shapes().values())
    assert parameters / 1e9 == pytest.approx(billions, rel=0.02)

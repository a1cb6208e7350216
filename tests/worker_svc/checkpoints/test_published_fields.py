"""Fields that configs of published models have are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.hugging_face_config import architecture_of, read_config
from tandem.worker.checkpoints.schemes import scheme_of


def published(kind: str, **more: Any) -> dict[str, Any]:
    """Fields that configs of published models have, with their sizes left small."""
    common = {"architectures": [f"{kind}ForCausalLM"], "bos_token_id": 1, "eos_token_id": [2, 3], "hidden_act": "silu"}
    common |= {"attention_dropout": 0.0, "initializer_range": 0.02, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
    common |= {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
    common |= {"num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 4096, "use_cache": True}
    return common | {"torch_dtype": "bfloat16", "transformers_version": "4.51.0"} | more


QWEN = {"max_window_layers": 28, "sliding_window": 4096, "use_sliding_window": False, "rope_theta": 1e6}
EXLLAMA = {"use_exllama": True, "exllama_config": {"version": 1}, "max_input_length": None, "use_cuda_fp16": False}
PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama 2": published("Llama", model_type="llama", _name_or_path="x", pretraining_tp=1, rope_scaling=None),
    "Vicuna": published("Llama", model_type="llama", max_sequence_length=2048, pad_token_id=0),
    "Llama 3.2": published(
        "Llama",
        model_type="llama",
        attention_bias=False,
        mlp_bias=False,
        head_dim=16,
        pretraining_tp=1,
        rope_theta=500000.0,
        rope_scaling={
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    ),
    "SmolLM2": published(
        "Llama",
        model_type="llama",
        attention_bias=False,
        is_llama_config=True,
        rope_interleaved=False,
        rope_scaling=None,
        rope_theta=100000,
        **{"transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}},
    ),
    "Mistral": published("Mistral", model_type="mistral", sliding_window=4096, rope_theta=10000.0),
    "Mixtral": published(
        "Mixtral",
        model_type="mixtral",
        num_experts_per_tok=2,
        num_local_experts=8,
        output_router_logits=False,
        router_aux_loss_coef=0.02,
        router_jitter_noise=0.0,
        sliding_window=None,
    ),
    "Qwen2.5": published("Qwen2", model_type="qwen2", **QWEN, use_mrope=False),
    "Qwen3": published("Qwen3", model_type="qwen3", **QWEN, attention_bias=False, head_dim=16, rope_scaling=None),
    "Qwen3-MoE": published(
        "Qwen3Moe",
        model_type="qwen3_moe",
        **QWEN,
        attention_bias=False,
        head_dim=16,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        moe_intermediate_size=32,
        norm_topk_prob=True,
        num_experts=8,
        num_experts_per_tok=2,
        output_router_logits=False,
        router_aux_loss_coef=0.001,
    ),
    "GPTQ": published(
        "Llama",
        quantization_config={
            **{"bits": 4, "group_size": 128, "damp_percent": 0.1, "desc_act": False, "sym": True, "dataset": None},
            **{"quant_method": "gptq", "true_sequential": True, "model_seqlen": 4096, "batch_size": 1},
            **{"block_name_to_quantize": "model.layers", "cache_block_outputs": True, "tokenizer": None},
            **{"module_name_preceding_first_block": ["model.embed_tokens"], "pad_token_id": None},
            **{"modules_in_block_to_quantize": None, **EXLLAMA},
        },
    ),
    "GPTQModel": published(
        "Qwen2",
        **QWEN,
        quantization_config={
            **{"bits": 4, "group_size": 128, "checkpoint_format": "gptq", "desc_act": False, "dynamic": None},
            **{"lm_head": False, "meta": {"quantizer": ["gptqmodel:1.0"]}, "pack_dtype": "int32", "sym": True},
            **{"quant_method": "gptq"},
        },
    ),
    "AWQ": published(
        "Qwen2",
        **QWEN,
        quantization_config={
            **{"bits": 4, "group_size": 128, "modules_to_not_convert": None, "quant_method": "awq"},
            **{"version": "gemm", "zero_point": True},
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_configs_as_they_are_published_are_known(name: str, tmp_path: Path) -> None:
    config = Fields(tmp_path / "config.json", PUBLISHED[name])
    assert read_config(config, architecture_of(config), tied=False).hidden_size == 64
    scheme_of(config)

"""The models of `test_histories.py`: small ones of each kind of layer, of random numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BailingHybridConfig,
    BambaConfig,
    DeepseekV3Config,
    FalconH1Config,
    Gemma3nTextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GlmMoeDsaConfig,
    GPT2Config,
    GraniteMoeHybridConfig,
    KimiLinearConfig,
    LagunaConfig,
    Lfm2MoeConfig,
    Lfm3Config,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MiMoV2FlashConfig,
    MiniMaxConfig,
    Mistral4Config,
    NemotronHConfig,
    OlmoHybridConfig,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Step3p7TextConfig,
)

from tests.worker_svc.model.heads import add_head
from tests.worker_svc.model.step_model import register

register()
VOCABULARY, CONTEXT = 64, 96
TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
}


def saved_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Returns their folders."""
    folders = {"llama": tmp_path_factory.mktemp("tiny-llama")}
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(**TINY, num_hidden_layers=2)).save_pretrained(folders["llama"])
    for name, value_dim in (("hybrid", 16), ("hybrid in torch", 12)):
        torch.manual_seed(1)
        config = Qwen3_5TextConfig(
            **TINY,
            num_hidden_layers=3,
            head_dim=8,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=value_dim,
            bos_token_id=1,
        )
        folders[name] = tmp_path_factory.mktemp("hybrid")
        Qwen3_5ForCausalLM(config).save_pretrained(folders[name])
    folders["head"] = tmp_path_factory.mktemp("head")
    model = Qwen3_5ForCausalLM(config)
    model.save_pretrained(folders["head"])
    add_head("Qwen3_5Text", folders["head"], model)
    torch.manual_seed(1)
    experts = Qwen3MoeConfig(
        **TINY, num_hidden_layers=2, head_dim=8, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24
    )
    folders["experts"] = tmp_path_factory.mktemp("experts")
    Qwen3MoeForCausalLM(experts).save_pretrained(folders["experts"])
    torch.manual_seed(1)
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    gemma4 = Gemma4TextConfig(
        **TINY,
        num_hidden_layers=4,
        layer_types=kinds,
        sliding_window=20,
        head_dim=8,
        global_head_dim=16,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCABULARY,
        bos_token_id=1,
    )
    folders["gemma4"] = tmp_path_factory.mktemp("gemma4")
    Gemma4ForCausalLM(gemma4).save_pretrained(folders["gemma4"])
    torch.manual_seed(1)
    llama4 = Llama4TextConfig(
        **TINY,
        num_hidden_layers=3,
        head_dim=8,
        no_rope_layers=[1, 0, 1],
        attention_chunk_size=20,
        moe_layers=[1],
        intermediate_size_mlp=48,
        num_local_experts=3,
        floor_scale=8,
        bos_token_id=1,
        eos_token_id=2,
    )
    folders["llama4"] = tmp_path_factory.mktemp("llama4")
    Llama4ForCausalLM(llama4).save_pretrained(folders["llama4"])
    for name, config in others().items():
        torch.manual_seed(1)
        folders[name] = tmp_path_factory.mktemp(name)
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folders[name])
    return folders


_NOT_KIMIS = ("q_lora_rank", "n_routed_experts", "first_k_dense_replace", "n_group", "topk_group")


def others() -> dict[str, Any]:
    """Configs of models with latents, and with other states than a gated delta rule's."""
    mamba = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 2, "num_hidden_layers": 3}
    nemotron = {"mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2, "head_dim": 8}
    nemotron |= {"n_routed_experts": 4, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 16}
    experts = {"num_experts_per_tok": 2}
    latents = {"kv_lora_rank": 24, "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
    latents |= TINY | {"num_key_value_heads": 4, "first_k_dense_replace": 1}
    latents |= {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
    latents |= {"n_group": 4, "topk_group": 2}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    by_kind: dict[str, Any] = {"num_hidden_layers": 3, "head_dim": 8, "sliding_window": 20, "moe_intermediate_size": 24}
    by_kind |= {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}
    by_kind |= {"mlp_layer_types": ["dense", "sparse", "sparse"]}
    rope = {"rope_type": "default", "rope_theta": 100.0}
    parts = {"full_attention": rope | {"partial_rotary_factor": 0.5}, "sliding_attention": rope}
    by_kind["rope_parameters"] = parts
    deltas: dict[str, Any] = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8}
    deltas |= {"linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
    return {
        "gemma3n": Gemma3nTextConfig(
            **TINY | ids,
            num_hidden_layers=5,
            layer_types=[*["sliding_attention", "full_attention"] * 2, "sliding_attention"],
            sliding_window=20,
            head_dim=8,
            num_kv_shared_layers=2,
            activation_sparsity_pattern=[0.8, 0.0, 0.5, 0.0, 0.6],
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=VOCABULARY - 10,
            laurel_rank=8,
        ),
        "olmo hybrid": OlmoHybridConfig(**TINY, **deltas, **ids, num_hidden_layers=3),
        "qwen3 next": Qwen3NextConfig(
            **TINY,
            **experts,
            **deltas,
            num_hidden_layers=3,
            head_dim=8,
            num_experts=4,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=16,
        ),
        "lfm3": Lfm3Config(
            **TINY,
            num_hidden_layers=4,
            head_dim=8,
            sliding_window=20,
            **ids,
            layer_types=["conv", "full_attention", "conv", "sliding_attention"],
        ),
        "bamba": BambaConfig(**TINY, **mamba, attn_layer_indices=[1], num_logits_to_keep=None),
        "gpt2": GPT2Config(
            **ids, n_embd=32, n_head=4, n_layer=2, n_positions=CONTEXT, vocab_size=VOCABULARY, initializer_range=0.3
        ),
        "kimi": KimiLinearConfig(
            **{key: value for key, value in latents.items() if key not in _NOT_KIMIS},
            **ids,
            num_hidden_layers=3,
            num_experts=4,
            linear_head_dim=8,
            linear_num_heads=4,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
        ),
        "mimo": MiMoV2FlashConfig(
            **TINY,
            **ids,
            num_hidden_layers=3,
            head_dim=8,
            v_head_dim=4,
            sliding_window=20,
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=24,
            layer_types=["full_attention", "sliding_attention", "full_attention"],
        ),
        "ling": BailingHybridConfig(
            **{key: value for key, value in latents.items() if key not in _NOT_KIMIS},
            **ids,
            num_hidden_layers=3,
            num_local_experts=4,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            head_dim=8,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
        ),
        "minimax": MiniMaxConfig(
            **TINY,
            **experts,
            num_hidden_layers=3,
            head_dim=8,
            num_local_experts=4,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            **dict.fromkeys(("full_attn_alpha_factor", "linear_attn_alpha_factor", "mlp_alpha_factor"), 1.5),
        ),
        "step": Step3p7TextConfig(
            **TINY,
            **ids,
            **by_kind,
            n_routed_experts=4,
            num_experts_per_tok=2,
            share_expert_dim=24,
            num_sliding_attention_heads=6,
            swiglu_limits=[0.0, 0.5, 0.5],
            swiglu_limits_shared=[0.5, 0.0, 0.5],
        ),
        "laguna": LagunaConfig(
            **TINY,
            **ids,
            **by_kind,
            num_experts=4,
            num_experts_per_tok=2,
            shared_expert_intermediate_size=24,
            num_attention_heads_per_layer=[4, 6, 2],
        ),
        "mistral4": Mistral4Config(
            **latents,
            **ids,
            num_hidden_layers=2,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 100.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "llama_4_scaling_beta": 0.1,
            },
        ),
        "latents": DeepseekV3Config(**latents, num_hidden_layers=2),
        "indexed": GlmMoeDsaConfig(
            **latents | {"first_k_dense_replace": 2},
            num_hidden_layers=2,
            indexer_types=["full", "shared"],
            index_topk=12,
            index_head_dim=16,
            index_n_heads=4,
        ),
        "lfm2": Lfm2MoeConfig(
            **TINY,
            **experts,
            num_hidden_layers=3,
            layer_types=["conv", "full_attention", "conv"],
            num_experts=4,
            num_dense_layers=1,
            moe_intermediate_size=24,
        ),
        "falcon": FalconH1Config(**TINY, **mamba | {"num_hidden_layers": 2}, mamba_d_ssm=64, mamba_rms_norm=True),
        "nemotron": NemotronHConfig(**TINY, **nemotron, **experts, hybrid_override_pattern="M-*EM"),
        "granite": GraniteMoeHybridConfig(
            **TINY,
            **mamba,
            **experts,
            layer_types=["mamba", "attention", "mamba"],
            num_local_experts=4,
            shared_intermediate_size=24,
        ),
    }

"""What `general.architecture` of a GGUF file says of transformers' models, and what those of a kind have in common."""

from __future__ import annotations

from typing import Any

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "internlm3": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "smollm3": "smollm3",
    "seed_oss": "seed_oss",
    "arcee": "arcee",
    "ernie4_5": "ernie4_5",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "olmoe": "olmoe",
    "olmo": "olmo",
    "gpt_neox": "gptneox",
    "falcon": "falcon",
    "apertus": "apertus",
    "hy_v3": "hy_v3",
    "cohere2_moe": "cohere2moe",
    "granite_swa": "granite_swa",
    "granitemoe_swa": "granite_swa",
    "gpt2": "gpt2",
    "gpt_bigcode": "starcoder",
    "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe",
    "olmo2": "olmo2",
    "starcoder2": "starcoder2",
    "cohere2": "cohere2",
    "qwen2_moe": "qwen2moe",
    "phi3": "phi3",
    "phimoe": "phimoe",
    "glm4": "glm4",
    "glm4_moe": "glm4moe",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "youtu": "deepseek2",
    "mistral4": "mistral4",
    "kimi_linear": "kimi-linear",
    "mimo_v2_flash": "mimo2",
    "step3p5": "step35",
    "laguna": "laguna",
    "minimax": "minimax-01",
    "deepseek_v32": "deepseek32",
    "glm_moe_dsa": "glm-dsa",
    "minimax_m2": "minimax-m2",
    "afmoe": "afmoe",
    "gpt_oss": "gpt-oss",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "olmo3": "olmo2",
    "gemma3n_text": "gemma3n",
    "gemma4_text": "gemma4",
    "llama4_text": "llama4",
    "ministral3": "mistral3",
    "qwen3_next": "qwen3next",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "granitemoehybrid": "granitehybrid",
    "nemotron_h": "nemotron_h",
    "falcon_h1": "falcon-h1",
    "glm": "chatglm",
    "ernie4_5_moe": "ernie4_5-moe",
    "exaone4": "exaone4",
    "dots1": "dots1",
    "gemma": "gemma",
    "stablelm": "stablelm",
    "phi": "phi2",
    "nemotron": "nemotron",
    "jais2": "jais2",
    "exaone": "exaone",
    "solar_open": "glm4moe",
    "granitemoeshared": "granitemoe",
    "cohere": "command-r",
}


def architecture_of(config: Any) -> str:
    """What `general.architecture` says of a model."""
    with_experts = config.model_type == "nemotron_h" and "moe" in config.layers_block_type
    return "nemotron_h_moe" if with_experts else ARCHITECTURES[config.model_type]


HYBRIDS = ("qwen3next", "qwen35", "qwen35moe")
INDEXED = ("deepseek32", "glm-dsa")
STATES = ("lfm2", "lfm2moe", "granitehybrid", "nemotron_h", "nemotron_h_moe", "falcon-h1")
# By llama.cpp's converter, whatever turns.
PERMUTED = ("llama", "smollm3", "arcee", "granite", "granitemoe", "mistral3", "granitehybrid", "nemotron_h")
PERMUTED += ("nemotron_h_moe", "olmo", "granite_swa")
# Those that the package may not know, and one whose tensors are named as theirs are.
LATER = {"hy_v3": "dots1", "cohere2_moe": "dots1", "granite_swa": "granite", "granitemoe_swa": "granitemoe"}
LATER |= {"laguna": "step35", "minimax": "minimax-m2"}


def falcon_size(config: Any) -> int:
    size: int = config.mamba_d_ssm or config.mamba_expand * config.hidden_size
    return size


def kv_heads(config: Any) -> int:
    if config.model_type == "falcon":
        many = config.num_kv_heads if config.new_decoder_architecture else config.num_attention_heads
        return many if config.new_decoder_architecture or not config.multi_query else 1  # type: ignore[no-any-return]
    return getattr(config, "num_key_value_heads", config.num_attention_heads)

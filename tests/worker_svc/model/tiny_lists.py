"""Which of the small models, or of their classes, something holds for."""

from __future__ import annotations

from typing import Any

from tests.worker_svc.model.tiny_models.latents import MISTRAL4
from tests.worker_svc.model.tiny_models.shared import ORIGINAL, YARN_OF_LATENTS

# Those that llama.cpp knows, beside those whose files `test_gguf.py` looks at.
GGUF = [
    "llama, biases everywhere",
    "smollm3",
    "seed oss",
    "arcee",
    "ernie4_5",
    "granite",
    "olmo2",
    "starcoder2 without a window",
    "cohere2",
]
GGUF += [
    "granite with biases",
    "granite moe",
    "olmoe",
    "qwen2 moe",
    "phi3",
    "phi3 with a window",
    "phi3, rotated in part, longrope",
    "phi moe, the jitter of files",
    "glm4",
]
GGUF += ["glm4 moe", "glm4 moe, groups, norms, scaled", "minimax m2, rotated in part", "gpt oss", "gemma2", "gemma3"]
GGUF += ["gemma3, scaled where there is no window", "olmo3, scaled where there is no window"]
GGUF += ["gemma3n", "gemma4", "gemma4 with experts", "llama4", "ministral3", "qwen3 next", "qwen3.5", "qwen3.5 moe"]
GGUF += ["lfm2", "lfm2 moe", "granite hybrid", "granite hybrid, dense", "nemotron h", "falcon h1"]
GGUF += ["internlm3", "internlm3 with biases", "falcon h1, tied"]
GGUF += ["falcon h1, norm after the gate", "nemotron 3", "nemotron 3, latents, groups"]
GGUF += [
    "kimi linear",
    "kimi linear, groups, two shared",
    "mistral4",
    "mistral4, groups, a latent of queries, two shared",
]
GGUF += ["mimo v2 flash", "mimo v2 flash, output and embedding one, layers of another order"]
GGUF += [
    "minimax 01",
    "minimax 01 without states",
    "step 3.5",
    "laguna",
    "laguna without windows, gates of each number",
]
GGUF += ["deepseek v2, groups, no latent of queries", "deepseek v3", "youtu"]
GGUF += ["deepseek v3.2", "glm moe dsa", "glm moe dsa, what is chosen is shared"]
GGUF += ["glm", "ernie4_5 moe", "ernie4_5 moe, nothing shared, two layers dense, output apart"]
GGUF += ["exaone4", "exaone4 without windows", "dots1", "gemma", "cohere"]
GGUF += ["solar open", "granite moe shared", "stablelm", "stablelm with biases, side by side"]
GGUF += ["olmo", "hunyuan", "hunyuan, theta that is raised, a table for both", "hunyuan moe"]
GGUF += ["gpt neox", "falcon", "falcon, newer, a norm each", "falcon, newer, one norm, a size of its own"]
GGUF += ["jais 2", "trinity"]
GGUF += ["gpt2", "gpt bigcode", "apertus", "hunyuan 3", "cohere2 moe", "granite swa", "granite moe swa"]
GGUF += ["cohere2 moe, sigmoids, RMS norms, two shared that are averaged, dense layers of another size"]
GGUF += ["phi 2", "nemotron", "nemotron with biases, a table for both", "exaone, a table for both"]
# What a file cannot say, and llama.cpp takes for granted.
GRANTED: dict[str, dict[str, Any]] = {
    "Qwen3Moe": {"norm_topk_prob": True},
    "Gemma2": {"query_pre_attn_scalar": 12},
    "Gemma3Text": {"query_pre_attn_scalar": 12, "num_hidden_layers": 7, "layer_types": None},
    "GptOss": {"swiglu_limit": 7.0},
    "Glm4Moe": {"n_group": 1, "topk_group": 1},
    "Cohere2Moe": {"attention_bias": False},
    "Apertus": {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    "DeepseekV2": {"attention_bias": False},
    "DeepseekV3": {
        "attention_bias": False,
        "rope_parameters": YARN_OF_LATENTS | {"mscale": 0.7, "original_max_position_embeddings": 24},
    },
    "KimiLinear": {"linear_num_heads": 6},
    "Mistral4": {"rope_parameters": MISTRAL4["rope_parameters"] | {"mscale_all_dim": 1.0}},
    "DeepseekV32": {
        "attention_bias": False,
        "rope_parameters": YARN_OF_LATENTS | {"mscale_all_dim": 1.0, "original_max_position_embeddings": 24},
    },
    "Llama4Text": {
        "no_rope_layer_interval": 4,
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "layer_types": None,
    },
    "GraniteMoeHybrid": {"intermediate_size": 40},
    "NemotronH": {"time_step_min": 1e-30},
    "Olmo3": {
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, **ORIGINAL},
        }
    },
}
NEW = [
    "GptOss",
    "SmolLM3",
    "Ministral3",
    "SeedOss",
    "Helium",
    "InternLM3",
    "Arcee",
    "Ernie4_5",
    "Granite",
    "Olmo",
    "Apertus",
    "GPTNeoX",
    "GPTJ",
    "GPT2",
    "GPTBigCode",
    "GPTNeo",
    "OPT",
    "Falcon",
    "HunYuanDenseV1",
    "HunYuanMoEV1",
    "Olmo2",
    "Olmo3",
    "Starcoder2",
    "Cohere2",
    "Gemma2",
    "Gemma3Text",
    "Gemma3nText",
    "Gemma4Text",
    "Llama4Text",
    "Qwen2Moe",
    "Olmoe",
    "FlexOlmo",
    "GraniteMoe",
    "Phi3",
    "Phimoe",
    "Glm4",
    "Glm4Moe",
    "DeepseekV2",
    "DeepseekV3",
    "DeepseekV32",
    "DeepseekV4",
    "GlmMoeDsa",
    "Glm4MoeLite",
    "Youtu",
    "MiniCPM3",
    "MiniMaxM2",
    "Qwen3Next",
    "Qwen3_5Text",
    "Qwen3_5MoeText",
    "Lfm2",
    "Lfm2Moe",
    "GraniteMoeHybrid",
    "NemotronH",
    "FalconH1",
    "Bamba",
    "OlmoHybrid",
    "Glm",
    "Ernie4_5_Moe",
    "Exaone4",
    "Dots1",
    "Gemma",
    "Cohere",
    "Cwm",
    "GraniteMoeShared",
    "StableLm",
    "SolarOpen",
    "ExaoneMoe",
    "Mellum",
    "IQuestCoder",
    "GraniteSWA",
    "GraniteMoeSWA",
    "VaultGemma",
    "Phi",
    "Nemotron",
    "HyperCLOVAX",
    "Exaone",
    "Jais2",
    "SarvamMoE",
    "SarvamMLA",
    "HYV3",
    "Afmoe",
    "Lfm3",
    "Cohere2Moe",
    "Mistral4",
    "KimiLinear",
    "BailingHybrid",
    "MiMoV2Flash",
    "MiniMax",
    "Step3p7Text",
    "Laguna",
]
# Those that are of another name in GGUF files, which llama.cpp has them as.
RENAMED = {"InternLM3": ("llama", "internlm3"), "SolarOpen": ("glm4_moe", "solar_open")}

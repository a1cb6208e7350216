"""Folders of every architecture whose fields are tried, and what is tried of them."""

from __future__ import annotations

from typing import Any

from tests.worker_svc.checkpoints.every_field import ABSENT
from tests.worker_svc.model.tiny_models import MODELS

WINDOW = {"sliding_window": 7}
FOLDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", WINDOW),
    "ministral": (
        "Ministral",
        WINDOW | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    ),
    "mixtral": ("Mixtral", MODELS["mixtral"][1] | WINDOW),
    "qwen2": ("Qwen2", WINDOW | {"head_dim": None, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": ("Qwen3", WINDOW | {"use_sliding_window": True, "max_window_layers": 1}),
    "qwen3_moe": ("Qwen3Moe", MODELS["qwen3 moe"][1] | WINDOW | {"use_sliding_window": True}),
    **{name: MODELS[name] for name in ["arcee", "ernie4_5", "granite", "olmo2", "olmo3", "starcoder2", "cohere2"]},
    "gpt_neox": MODELS["gpt neox"],
    "gptj": MODELS["gptj"],
    "gpt2": MODELS["gpt2, a size of its own, scores as they are, another activation, an output of its own"],
    "gpt_bigcode": MODELS["gpt bigcode"],
    "gpt_neo": MODELS["gpt neo"],
    "opt": MODELS["opt"],
    "apertus": MODELS["apertus"],
    "bamba": MODELS["bamba"],
    "olmo_hybrid": MODELS["olmo hybrid, rotated, biases, betas as they are, fewer keys"],
    "falcon": MODELS["falcon, newer, a norm each, biases"],
    "olmo": MODELS["olmo, queries, keys and values that are limited, biases"],
    "hunyuan_v1_dense": MODELS["hunyuan"],
    "hunyuan_v1_moe": MODELS["hunyuan moe"],
    "smollm3": MODELS["smollm3, windows where nothing is rotated"],
    "helium": MODELS["helium"],
    "gemma2": MODELS["gemma2"],
    "gpt_oss": MODELS["gpt oss"],
    "qwen2_moe": (
        "Qwen2Moe",
        MODELS["qwen2 moe"][1] | WINDOW | {"use_sliding_window": True, "max_window_layers": 2},
    ),
    "olmoe": MODELS["olmoe, queries, keys and values that are limited"],
    "flex_olmo": MODELS["flex olmo"],
    "granitemoe": MODELS["granite moe"],
    "phi3": MODELS["phi3, rotated in part, longrope"],
    "phimoe": MODELS["phi moe"],
    "glm4": MODELS["glm4"],
    "glm4_moe": MODELS["glm4 moe, groups, norms, scaled"],
    "deepseek_v2": MODELS["deepseek v2, groups, no latent of queries"],
    "deepseek_v3": MODELS["deepseek v3"],
    "deepseek_v32": MODELS["deepseek v3.2"],
    "deepseek_v4": MODELS["deepseek v4"],
    "glm_moe_dsa": (
        "GlmMoeDsa",
        MODELS["glm moe dsa"][1] | {"num_hidden_layers": 4, "index_topk_freq": 2, "index_skip_topk_offset": 1},
    ),
    "glm4_moe_lite": MODELS["glm4 moe lite, kinds that are listed"],
    "youtu": MODELS["youtu"],
    "mistral4": MODELS["mistral4"],
    "mimo_v2_flash": MODELS["mimo v2 flash"],
    "step3p5": MODELS["step 3.5"],
    "laguna": MODELS["laguna"],
    "minimax": MODELS["minimax 01, factors of its own, windows, a table for both, sizes that are not compiled"],
    "kimi_linear": MODELS["kimi linear"],
    "bailing_hybrid": MODELS["ling 3"],
    "minicpm3": MODELS["minicpm3"],
    "minimax_m2": MODELS["minimax m2"],
    "gemma3_text": MODELS["gemma3"],
    "gemma3n_text": MODELS["gemma3n"],
    "gemma4_text": MODELS["gemma4 with experts"],
    "llama4_text": MODELS["llama4"],
    "seed_oss": MODELS["seed oss"],
    "lfm2": MODELS["lfm2"],
    "lfm2_moe": MODELS["lfm2 moe"],
    "granitemoehybrid": MODELS["granite hybrid"],
    "nemotron_h": MODELS["nemotron 3, latents, biases, dense layers too, sizes that are not compiled"],
    "falcon_h1": MODELS["falcon h1, norm before the gate"],
    "ministral3": MODELS["ministral3 with a window"],
    "glm": MODELS["glm"],
    "ernie4_5_moe": MODELS["ernie4_5 moe"],
    "exaone4": MODELS["exaone4"],
    "gemma": MODELS["gemma"],
    "cohere": MODELS["cohere"],
    "exaone_moe": MODELS["exaone moe"],
    "mellum": MODELS["mellum"],
    "iquestcoder": MODELS["iquestcoder with biases"],
    "solar_open": MODELS["solar open, biases, groups, scaled"],
    "stablelm": MODELS["stablelm with biases, side by side"],
    "granite_swa": MODELS["granite swa, another theta in windows, layers that are listed, biases"],
    "granitemoe_swa": MODELS["granite moe swa"],
    "vaultgemma": MODELS["vaultgemma"],
    "phi": MODELS["phi 2"],
    "nemotron": MODELS["nemotron with biases, a table for both"],
    "jais2": MODELS["jais 2"],
    "cohere2_moe": MODELS[
        "cohere2 moe, sigmoids, RMS norms, two shared that are averaged, dense layers of another size"
    ],
    "lfm3": MODELS["lfm3"],
    "afmoe": MODELS["trinity"],
    "hy_v3": MODELS["hunyuan 3, biases, layers that are listed, two shared"],
    "sarvam_moe": MODELS["sarvam moe, biases, no norms, groups, a part rotated"],
    "sarvam_mla": MODELS["sarvam mla, a latent of queries, groups, yarn"],
    "hyperclovax": MODELS["hyperclovax"],
    "exaone": MODELS["exaone"],
    "granitemoeshared": MODELS["granite moe shared"],
    "cwm": MODELS["cwm with biases, layers that are listed"],
    "dots1": MODELS["dots1, biases, groups, windows in upper layers"],
}
CHOICES: dict[str, list[Any]] = {
    "architectures": [["Gemma3nForCausalLM"], ["LlamaForCausalLM"], ["MistralForCausalLM"]],
    "model_type": ["gemma", "llama", "mistral"],
    "layer_types": [["full_attention"] * 3, ["sliding_attention", "full_attention", "sliding_attention"], ["chunked"]],
    "rope_theta": [500.0],
    "rope_scaling": [{"type": "linear", "factor": 2.0}],
    "rope_parameters": [{"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}, {"rope_theta": 500.0}],
    "original_max_position_embeddings": [24],
    "num_local_experts": [3],
    "mlp_only_layers": [[1], 1],
    "time_step_min": [0.3],
    "mlp_layer_types": [["sparse"] * 3, ["dense", "sparse", "sparse"], ["sparse", "other", "sparse"], 7],
    "moe_layer_end_index": [0, 1],
    "sliding_window_pattern": [1, 2, 3, 6, "LG", "LLG", "GL", "G" * 5],
}
# Fields without effect in these folders, where another one decides.
IDLE = {
    "": {
        "tie_word_embeddings",  # the output is stored, and differs: both are used, as transformers does
        "rope_parameters",  # a value that says what is the default
        "original_max_position_embeddings",  # of a scaling
        "quantization_config",  # no tensor is packed; see below
        "model_type",
        "architectures",
    },
    "solar_open": {"intermediate_size", "layer_types"},
    "iquestcoder": {"layer_types"},
    "mellum": {"intermediate_size"},
    "mistral": {"layer_types"},  # those that it has anyway
    "qwen2": {"head_dim"},
    "qwen3_moe": {"intermediate_size", "layer_types", "num_local_experts", "max_window_layers"},
    "mixtral": {"layer_types"},
    "llama": {"layer_types"},
    "qwen2_moe": {"intermediate_size", "layer_types", "num_local_experts"},
    "glm4_moe": {"num_nextn_predict_layers"},  # of layers that are not there
    "hy_v3": {"num_nextn_predict_layers", "num_local_experts"},
    "step3p5": {"num_nextn_predict_layers", "moe_layers_enum"},  # layers are listed
    # Layers are listed, norms are RMS norms, and theta is among the RoPE parameters.
    "cohere2_moe": {"first_k_dense_replace", "sliding_window_pattern", "layer_norm_eps", "rope_theta"},
    **{key: {"num_nextn_predict_layers"} for key in ("deepseek_v3", "deepseek_v32", "glm_moe_dsa")},
    # The model has no inputs of layers and shares no keys; its layers' RoPE is listed.
    "gemma4_text": {"use_double_wide_mlp", "vocab_size_per_layer_input", "rope_theta"},
    "llama4_text": {"interleave_moe_layer_step", "no_rope_layer_interval"},  # the layers are listed
    "kimi_linear": {"first_k_dense_replace"},  # layers are listed
    # Layers are listed, states have sizes by other names too, theta is among the RoPE parameters, and none drafts.
    "bailing_hybrid": {"first_k_dense_replace", "layer_group_size", "head_dim", "short_conv_kernel_size"}
    | {"num_nextn_predict_layers", "rope_theta"},
    "lfm2": {"full_attn_idxs"},  # they are listed here too
    "nemotron_h": {"rope_theta", "rope_scaling"},  # no layer is rotated
    "falcon_h1": {"mamba_expand"},  # the size is said
    "falcon": {"multi_query"},  # newer ones say how many heads of keys there are
}


# Fields by which published files say what their weights were trained with, and transformers does something else.
UNLIKE = {"minimax": ("rotary_dim",)}


# Values that transformers takes of fields that compute nothing; without any where it wants an object of its own.
PLAUSIBLE: dict[str, Any] = {
    "assistant_ensemble_weight": 0.5,
    "cache_implementation": "dynamic",
    "compile_config": ABSENT,
    "watermarking_config": ABSENT,
    "use_return_dict": ABSENT,
    "block_size": 8,  # by which tables of the weights are made
    "initializer_range": 0.5,
    "altup_coef_clip": 50.0,
    "embedding_initializer_range": 0.5,
    "input_jitter_noise": 0.5,
    "residual_dropout": 0.5,
    "hidden_dropout": 0.5,
    "resid_pdrop": 0.5,
    "embd_pdrop": 0.5,
    "attn_pdrop": 0.5,
    "embedding_dropout": 0.5,
    "attention_dropout": 0.5,
    "dropout": 0.5,
    "activation_dropout": 0.5,
    "layerdrop": 0.0,
    "init_std": 0.5,
    "resid_dropout": 0.5,
    "embed_dropout": 0.5,
    **{f"linear_{name}": 0.5 for name in ("a_log_min", "dt_min", "dt_init_floor")},
    **dict.fromkeys(("linear_a_log_max", "linear_dt_max"), 0.75),
    "summary_activation": "tanh",
    "summary_type": "last",
    "summary_use_proj": False,
    "summary_proj_to_labels": False,
    "summary_first_dropout": 0.5,
    "reorder_and_upcast_attn": False,
    "attention_softmax_in_fp32": False,
    "scale_attention_softmax_in_fp32": False,
    "is_llama_config": True,
    "is_decoder": True,
    "z_loss_coefficient": 0.5,
    "transformers.js_config": {"dtype": "q4"},
    "output_router_logits": True,
    "router_aux_loss_coef": 0.5,
    "router_jitter_noise": 0.5,
    "enable_moe_fp32_combine": False,
    "dtype": "float16",
    "torch_dtype": "float16",
    "auto_map": {},
    "id2label": {"0": "a"},
    "label2id": {"a": 0},
    "num_labels": 1,
    "problem_type": "regression",
    "return_dict": True,
    "output_attentions": False,
    "output_hidden_states": True,
    "use_cache": False,
    "transformers_version": "4.0.0",
    "attn_implementation": "eager",
    "_attn_implementation": "eager",
    "experts_implementation": "eager",
    "time_step_limit": [0.5, 0.6],
    "time_step_max": 0.5,
    "time_step_floor": 0.5,
    "mamba_proj_bias": True,
    "mamba_ssm_cache_dtype": "bfloat16",
    "use_mamba_kernels": False,
    "residual_in_fp32": True,
    "rescale_prenorm_residual": False,
    "mtp_layers_block_type": ["moe"],
    "num_mtp_layers": 1,
    "num_nextn_predict_layers": 1,
    "mtp_layer_types": ["full_attention"],
    "mtp_mlp_layer_types": ["sparse"],
    "mtp_hybrid_override_pattern": "*E",
    "moe_shared_expert_overlap": False,
    "norm_topk_prob": False,
    **dict.fromkeys(("rope_scaling", "rope_parameters"), ABSENT),
}

"""How the fields of each of transformers' classes are drawn."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz.draws import (
    EPSILON,
    FLAG,
    MULTIPLIER,
    NONE_OR_WINDOW,
    WINDOW,
    WINDOWS,
    Draw,
    both,
    gemma4_layers,
    groups_of_a_token,
    groups_of_experts,
    indexer_types,
    layers_of_a_window,
    layers_that_share,
    listed,
    nemotron_pattern,
    one_of,
    qwen_layers,
    shared_layers,
    shuffled,
    some_layers,
    thetas,
    up_to_layers,
)
from tests.worker_svc.model.tiny_models.shared import ABSENT, SIZES

ACTIVATED = (
    *("Llama", "Mistral", "Ministral", "Ministral3", "Qwen2", "Qwen3", "SmolLM3", "SeedOss", "Helium", "InternLM3"),
    *("Arcee", "Ernie4_5", "Granite", "Starcoder2", "Cohere2", "Olmo2", "Olmo3", "Glm4", "Phi3", "Youtu", "MiniCPM3"),
    *("Phi", "GraniteSWA", "Nemotron", "HyperCLOVAX", "Exaone", "Jais2"),
    *("Olmo", "HunYuanDenseV1", "GPTNeoX"),
)
ACTIVATION = one_of("silu", "silu", "relu", "relu2", "gelu", "gelu_pytorch_tanh", "gelu_new")
# What is drawn where transformers' class has such a field, unless `OF_KIND` says otherwise.
COMMON: Mapping[str, Draw] = {
    "tie_word_embeddings": FLAG,
    **dict.fromkeys(("rms_norm_eps", "norm_eps", "layer_norm_eps", "norm_epsilon", "layer_norm_epsilon"), EPSILON),
    **dict.fromkeys(("attention_bias", "attention_out_bias", "mlp_bias", "use_bias", "qkv_bias"), FLAG),
    **dict.fromkeys(("lm_head_bias", "conv_bias", "mamba_conv_bias", "use_conv_bias", "projectors_bias"), FLAG),
    "mamba_proj_bias": FLAG,
    **dict.fromkeys(("norm_topk_prob", "use_expert_bias", "use_qk_norm", "rope_interleave"), FLAG),
    "routed_scaling_factor": one_of(0.5, 1.0, 1.7, 2.5, 16.0),
    "n_shared_experts": one_of(1, 2, 3),
    "first_k_dense_replace": up_to_layers,
    "num_dense_layers": up_to_layers,
    "mlp_layer_types": listed("dense", "sparse"),
    "mlp_only_layers": some_layers,
    "decoder_sparse_step": one_of(1, 1, 2, 3),
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "logits_scaling"), MULTIPLIER),
    "attention_multiplier": one_of(0.0625, 0.25, 1.0),
    "query_pre_attn_scalar": one_of(8, 20, 256),
    "attn_logit_softcapping": one_of(ABSENT, 0.7, 5.0, 50.0),
    "final_logit_softcapping": one_of(ABSENT, 0.9, 5.0, 30.0),
    "logit_scale": one_of(0.0625, 0.25, 1.0, 2.0),
    "clip_qkv": one_of(ABSENT, 0.3, 2.0, 8.0),
    "use_sliding_window": FLAG,
    "sliding_window": WINDOW,
    "max_window_layers": up_to_layers,
    "router_jitter_noise": one_of(0.0, 0.01, 0.2),
}
_LISTED_WINDOWS = {"layer_types": listed(*WINDOWS)}
_MAMBA: Mapping[str, Draw] = {
    "mamba_d_conv": one_of(2, 3, 4),
    "mamba_chunk_size": one_of(1, 8, 16, 256),
    "time_step_limit": one_of((0.0, float("inf")), (0.0, 0.7), (0.4, 0.9), (0.1, float("inf"))),
}
_HYBRID: Mapping[str, Draw] = {
    "attention_bias": one_of(False),
    "layer_types": lambda random, drawn: shuffled(random, drawn, "full_attention", "linear_attention"),
}
OF_KIND: Mapping[str, Mapping[str, Draw]] = {
    "Mistral": {"sliding_window": NONE_OR_WINDOW},
    "Ministral": _LISTED_WINDOWS,
    "Ministral3": {"sliding_window": NONE_OR_WINDOW},
    "Mixtral": {"sliding_window": NONE_OR_WINDOW},
    "Starcoder2": {"sliding_window": NONE_OR_WINDOW},
    "Phi3": {"sliding_window": NONE_OR_WINDOW},
    "Phimoe": {"sliding_window": NONE_OR_WINDOW},
    **{kind: {"layer_types": qwen_layers} for kind in ("Qwen2", "Qwen3", "Qwen2Moe")},
    "Dots1": {"max_window_layers": up_to_layers, "sliding_window": NONE_OR_WINDOW},
    "Cohere2": {**_LISTED_WINDOWS, "sliding_window_pattern": one_of(1, 2, 3, 4)},
    "Olmo3": _LISTED_WINDOWS,
    "GptOss": _LISTED_WINDOWS | {"swiglu_alpha": one_of(0.9, 1.702), "swiglu_limit": one_of(0.5, 1.5, 7.0)},
    "Gemma2": _LISTED_WINDOWS,
    "Gemma3Text": {
        **_LISTED_WINDOWS,
        "attn_logit_softcapping": one_of(ABSENT),  # which transformers does not look at
        "sliding_window_pattern": one_of(1, 2, 3, 6),
    },
    "Gemma3nText": {
        "layer_types": layers_that_share,
        "num_kv_shared_layers": shared_layers,
        "activation_sparsity_pattern": listed(0.0, 0.3, 0.6, 0.95),
        "intermediate_size": lambda random, drawn: random.choice(
            (drawn["intermediate_size"], listed(24, 40, 72)(random, drawn))
        ),
        "altup_num_inputs": one_of(1, 2, 3, 4, 5),
        "altup_active_idx": lambda random, drawn: random.randrange(drawn.get("altup_num_inputs", 4)),
        "altup_correct_scale": FLAG,
        "hidden_size_per_layer_input": one_of(6, 10, 16),
        "vocab_size_per_layer_input": lambda random, drawn: max(1, drawn["vocab_size"] - random.choice((0, 0, 20))),
        "laurel_rank": one_of(1, 6, 16, 64),
        "final_logit_softcapping": one_of(0.9, 5.0, 30.0),  # which this class wants
    },
    "Gemma4Text": {
        "layer_types": gemma4_layers,
        "num_kv_shared_layers": shared_layers,
        "use_double_wide_mlp": FLAG,
        "attention_k_eq_v": FLAG,
        "hidden_size_per_layer_input": one_of(0, 6, 10),
        "global_head_dim": one_of(8, 16, 20, 32),
        "num_global_key_value_heads": lambda random, drawn: random.choice(
            [n for n in (1, 2, 3, 4, 6, 8) if drawn["num_attention_heads"] % n == 0]
        ),
    },
    "SmolLM3": {
        "no_rope_layers": listed(0, 1),
        "no_rope_layer_interval": one_of(1, 2, 3, 4),
        "sliding_window": NONE_OR_WINDOW,
        "layer_types": lambda random, drawn: (
            listed(*WINDOWS)(random, drawn)
            if drawn.get("use_sliding_window") and drawn.get("sliding_window", ABSENT) is not ABSENT
            else None
        ),
    },
    "Llama4Text": {
        "no_rope_layers": listed(0, 1),
        "no_rope_layer_interval": one_of(1, 2, 3, 4),
        "layer_types": listed("chunked_attention", "full_attention"),
        "moe_layers": some_layers,
        "interleave_moe_layer_step": one_of(1, 2),
        "attn_temperature_tuning": FLAG,
        "floor_scale": one_of(1, 8, 50, 8192),
        "attn_scale": one_of(0.1, 0.5),
    },
    **dict.fromkeys(("Qwen3Next", "Qwen3_5Text", "Qwen3_5MoeText"), _HYBRID),
    **dict.fromkeys(("Cwm", "VaultGemma", "Mellum"), _LISTED_WINDOWS),
    "Exaone4": {
        "layer_types": layers_of_a_window,
        "sliding_window": NONE_OR_WINDOW,
        "sliding_window_pattern": one_of(1, 2, 3, 4),
    },
    "ExaoneMoe": {
        **_LISTED_WINDOWS,
        "sliding_window_pattern": one_of(1, 2, 3, 4),
        "num_shared_experts": one_of(1, 2),
        "n_group": groups_of_experts,
        "topk_group": groups_of_a_token,
    },
    "GraniteSWA": _LISTED_WINDOWS | {"layer_rope_theta": thetas},
    "GraniteMoeSWA": _LISTED_WINDOWS | {"layer_rope_theta": thetas, "shared_intermediate_size": one_of(0, 17, 40)},
    "Exaone": dict.fromkeys(("attention_bias", "mlp_bias"), one_of(False)),
    "GraniteMoeShared": {"shared_intermediate_size": one_of(0, 17, 40)},
    "HyperCLOVAX": {
        "use_post_norm": lambda random, drawn: drawn.get("residual_multiplier", 1.0) == 1.0 and FLAG(random, drawn),
    },
    "StableLm": {"use_qkv_bias": FLAG, "use_parallel_residual": FLAG},
    "Ernie4_5_Moe": {
        "use_bias": one_of(False),
        "moe_num_shared_experts": one_of(0, 1, 2),
        "moe_layer_start_index": lambda random, drawn: random.randrange(drawn["num_hidden_layers"]),
        "moe_layer_end_index": lambda random, drawn: random.choice((-1, drawn["num_hidden_layers"] - 1)),
        "moe_layer_interval": one_of(1, 1, 2, 3),
    },
    "Lfm2": {
        "full_attn_idxs": lambda random, drawn: [*some_layers(random, drawn), drawn["num_hidden_layers"] - 1],
        "layer_types": lambda random, drawn: shuffled(random, drawn, "full_attention", "conv"),
        "block_multiple_of": one_of(1, 16, 24, 256),
        "block_ffn_dim_multiplier": one_of(0.7, 1.0, 1.5),
        "block_auto_adjust_ff_dim": FLAG,
    },
    "Lfm2Moe": {"layer_types": lambda random, drawn: shuffled(random, drawn, "full_attention", "conv")},
    "Lfm3": {
        "layer_types": lambda random, drawn: shuffled(random, drawn, "full_attention", "conv", "sliding_attention"),
        "use_attention_gate": FLAG,
        "use_sandwich_norm": FLAG,
        "attention_bias": one_of(False),
    },
    "Afmoe": {"attention_bias": one_of(False)},
    "GraniteMoeHybrid": _MAMBA
    | {
        "layer_types": lambda random, drawn: shuffled(random, drawn, "attention", "mamba"),
        "position_embedding_type": one_of(ABSENT, "rope", "nope"),
        "shared_intermediate_size": one_of(1, 17, 40),
        "num_local_experts": one_of(0, 1, 4),
        "num_experts_per_tok": lambda random, drawn: random.randint(1, max(1, drawn["num_local_experts"])),
    },
    "FalconH1": _MAMBA
    | {
        **dict.fromkeys(("attention_bias", "mamba_proj_bias"), one_of(False)),
        "mamba_rms_norm": FLAG,
        "mamba_norm_before_gate": FLAG,
        "mamba_d_ssm": one_of(ABSENT, 24, 48, 96),
        **dict.fromkeys(("lm_head_multiplier", "key_multiplier", "attention_in_multiplier"), MULTIPLIER),
        **dict.fromkeys(("attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier"), MULTIPLIER),
        "mlp_multipliers": lambda random, _: [random.choice((0.5, 1.0, 1.3)) for _ in range(2)],
        "ssm_multipliers": lambda random, _: [random.choice((0.5, 1.0, 1.3)) for _ in range(5)],
    },
    "NemotronH": {
        "attention_bias": one_of(False),  # transformers gives it none
        "sliding_window": one_of(ABSENT),
        "hybrid_override_pattern": nemotron_pattern,
        "mamba_head_dim": one_of(6, 8, 16),
        "n_groups": one_of(1, 2, 3),
        "conv_kernel": one_of(2, 3, 4),
        "chunk_size": one_of(1, 8, 16, 256),
        "time_step_min": one_of(0.001, 0.3),
        "moe_latent_size": one_of(ABSENT, 20),
        "moe_shared_expert_intermediate_size": one_of(18, 40),
        "n_routed_experts": one_of(6),
        "num_experts_per_tok": one_of(1, 2, 3),
        "moe_intermediate_size": one_of(1, 16, 28),
        "n_group": one_of(1),
        "topk_group": one_of(1),
    },
    "MiniCPM3": {
        "scale_emb": one_of(1, 3, 12),
        "scale_depth": one_of(ABSENT, 0.5, 1.4),
        "dim_model_base": one_of(ABSENT, 16, 256),
        "q_lora_rank": one_of(ABSENT, 16, 32),
    },
    "DeepseekV2": {"q_lora_rank": one_of(ABSENT, 16, 32), "norm_topk_prob": one_of(False)},
    "DeepseekV3": {"q_lora_rank": one_of(ABSENT, 16, 32)},
    "MiMoV2Flash": {
        **_LISTED_WINDOWS,
        "v_head_dim": lambda random, drawn: random.randint(1, drawn.get("head_dim") or SIZES["head_dim"]),
        "attention_value_scale": one_of(ABSENT, 0.5, 0.707, 1.0),
    },
    "MiniMax": {
        "layer_types": lambda random, drawn: shuffled(random, drawn, "full_attention", "linear_attention"),
        "sliding_window": NONE_OR_WINDOW,
        "block_size": one_of(1, 8, 16, 256),
        **{
            f"{part}_{which}_factor": one_of(0.7, 1, 1.5, 3.5)
            for part in ("full_attn", "linear_attn", "mlp")
            for which in ("alpha", "beta")
        },
    },
    "Step3p7Text": {
        **_LISTED_WINDOWS,
        "num_sliding_attention_heads": lambda random, drawn: drawn["num_key_value_heads"] * random.choice((1, 2, 3, 5)),
        "swiglu_limits": listed(0.0, None, 0.3, 1.0),
        "swiglu_limits_shared": listed(0.0, None, 0.3, 1.0),
        "moe_router_scaling_factor": one_of(0.5, 1.0, 1.7),
    },
    "Laguna": {
        **_LISTED_WINDOWS,
        "gating": one_of(True, "per-head", "per-element"),
        "num_attention_heads_per_layer": lambda random, drawn: [
            drawn["num_key_value_heads"] * random.choice((1, 2, 3, 5)) for _ in range(drawn["num_hidden_layers"])
        ],
        "moe_routed_scaling_factor": one_of(0.5, 1.0, 1.7),
    },
    "KimiLinear": {
        "q_lora_rank": one_of(ABSENT, 16, 32),
        "layer_types": lambda random, drawn: shuffled(random, drawn, "full_attention", "linear_attention"),
        "linear_head_dim": one_of(4, 6, 8, 16, 24),
        "linear_num_heads": one_of(1, 2, 3, 4),
        "linear_conv_kernel_dim": one_of(2, 3, 4),
        "n_group": groups_of_experts,
        "topk_group": groups_of_a_token,
    },
    "BailingHybrid": {
        "q_lora_rank": one_of(ABSENT, 16, 32),
        "layer_types": lambda random, drawn: random.choice(
            (ABSENT, shuffled(random, drawn, "full_attention", "linear_attention"))
        ),
        "layer_group_size": lambda random, drawn: random.randint(1, drawn["num_hidden_layers"]),
        "head_dim": one_of(4, 6, 8, 16, 24),
        "short_conv_kernel_size": one_of(2, 3, 4),
        "kda_safe_gate": FLAG,
        "kda_lower_bound": one_of(-0.7, -2.0, -5.0),
        "first_k_dense_replace": one_of(0, 1, 2),
        "n_group": groups_of_experts,
        "topk_group": groups_of_a_token,
    },
    "Mistral4": {"q_lora_rank": one_of(ABSENT, 16, 32)},
    "Glm4MoeLite": {"q_lora_rank": one_of(ABSENT, 16, 32)},
    "Youtu": {"q_lora_rank": one_of(ABSENT, 16, 32)},
    "DeepseekV32": {"mlp_bias": one_of(False)},  # which transformers does not look at
    "DeepseekV4": {
        **dict.fromkeys(("attention_bias", "mlp_bias"), one_of(False)),
        **{"norm_topk_prob": one_of(True), "n_shared_experts": one_of(1)},
        "layer_types": listed("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"),
        "mlp_layer_types": listed("hash_moe", "moe"),
        **{"hc_eps": EPSILON, "swiglu_limit": one_of(0.3, 1.0, 10.0)},
        **dict.fromkeys(("rope_theta", "compress_rope_theta"), one_of(50.0, 100.0, 10000.0)),
    },
    "GlmMoeDsa": {
        "mlp_bias": one_of(False),
        "indexer_types": indexer_types,
        "index_topk_freq": one_of(1, 2, 3),
        "index_skip_topk_offset": one_of(1, 2),
    },
    "GPTNeoX": {"use_parallel_residual": FLAG},
    "GPTJ": {"rotary_dim": lambda random, drawn: random.randrange(2, drawn["n_embd"] // drawn["n_head"] + 1, 2)},
    "OlmoHybrid": {
        "layer_types": lambda random, drawn: both(random, drawn, "full_attention", "linear_attention"),
        "linear_allow_neg_eigval": FLAG,
    },
    "GPT2": {"scale_attn_weights": FLAG, "activation_function": ACTIVATION},
    "GPTBigCode": {"scale_attn_weights": FLAG, "activation_function": ACTIVATION, "multi_query": FLAG},
    "GPTNeo": {
        "attention_types": lambda random, drawn: [
            [[random.choice(("global", "local"))], 1] for _ in range(drawn["num_hidden_layers"])
        ],
        "window_size": WINDOW,
        "activation_function": ACTIVATION,
    },
    "OPT": {"enable_bias": FLAG, "activation_function": ACTIVATION},
    "Falcon": {
        "new_decoder_architecture": FLAG,
        "multi_query": FLAG,
        "parallel_attn": lambda random, drawn: bool(drawn.get("new_decoder_architecture")) or random.random() < 0.5,
        "num_ln_in_parallel_attn": lambda random, drawn: (
            random.choice((1, 2, ABSENT)) if drawn.get("new_decoder_architecture") else ABSENT
        ),
        "num_kv_heads": lambda random, drawn: random.choice(
            [n for n in (1, 2, 3, 4) if drawn["num_attention_heads"] % n == 0]
        ),
        "bias": FLAG,
        "activation": ACTIVATION,
    },
    "Bamba": _MAMBA
    | {"attn_layer_indices": lambda random, drawn: [*some_layers(random, drawn), drawn["num_hidden_layers"] - 1]},
    "HunYuanMoEV1": {
        "num_experts": one_of(1, 3, 6),
        "moe_topk": lambda random, drawn: random.randint(1, drawn["num_experts"]),
    },
    "InternLM3": {"attention_bias": FLAG, "mlp_bias": lambda _, drawn: drawn["attention_bias"]},
}
ALWAYS: Mapping[str, tuple[str, ...]] = {
    "Gemma3nText": ("layer_types", "num_kv_shared_layers", "activation_sparsity_pattern", "vocab_size_per_layer_input"),
    "Gemma4Text": ("layer_types", "num_kv_shared_layers", "global_head_dim", "num_global_key_value_heads"),
    "GraniteMoeHybrid": ("layer_types", "num_experts_per_tok"),
    "Qwen3Next": ("layer_types",),
    "Qwen3_5Text": ("layer_types",),
    "Qwen3_5MoeText": ("layer_types",),
    "Lfm2Moe": ("layer_types",),
    "Lfm3": ("layer_types",),
    "InternLM3": ("attention_bias", "mlp_bias"),
    "Falcon": ("new_decoder_architecture", "parallel_attn", "num_ln_in_parallel_attn", "num_kv_heads"),
    "Bamba": ("attn_layer_indices",),
    "GPTNeo": ("attention_types",),
    "OlmoHybrid": ("layer_types",),
    "HunYuanMoEV1": ("num_experts", "moe_topk"),
    "NemotronH": ("hybrid_override_pattern",),
    "GraniteSWA": ("layer_types", "layer_rope_theta"),
    "GraniteMoeSWA": ("layer_types", "layer_rope_theta"),
    "HyperCLOVAX": ("use_post_norm",),
    "ExaoneMoe": ("n_group", "topk_group"),
    "KimiLinear": ("n_group", "topk_group", "layer_types"),
    "BailingHybrid": ("n_group", "topk_group", "layer_types", "layer_group_size"),
    "MiMoV2Flash": ("v_head_dim",),
    "MiniMax": ("layer_types", "block_size"),
}

"""Models of every architecture with settings drawn by chance: biases, RoPE and its scalings, windows, kinds of layers,
experts, multipliers, caps. Logits are those of transformers, whole, in chunks, while answering and by ranks, from the
folder as transformers writes it or as older or terser files are, and from what `tandem convert` makes of it."""

from __future__ import annotations

import json
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
import transformers

from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.limits import ConfigError
from tandem.worker.convert.pieces import ConvertError
from tandem.worker.convert.run import convert
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.parallel import ALONE, Ranks
from tandem.worker.model.transformer import Transformer
from tests.fuzz.shapes import NEAR, NEAR_WITH_STATES, far, in_context, logits_of, sized
from tests.worker_svc.model.llama_folders import logits_in_chunks, new_cache, new_states, some_ids, step
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.ranks_in_threads import in_threads
from tests.worker_svc.model.tiny_models import FIRST, MODELS
from tests.worker_svc.model.tiny_models.shared import ABSENT, SIZES

ANSWER = 64  # tokens
CONTEXT = 96  # of `SIZES`
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

Drawn = dict[str, Any]
Draw = Callable[[Random, Drawn], Any]  # of a field, by what is drawn already; the number of layers is


def one_of(*choices: Any) -> Draw:
    return lambda random, _: random.choice(choices)


def listed(*kinds: Any) -> Draw:
    """A kind for each layer."""
    return lambda random, drawn: [random.choice(kinds) for _ in range(drawn["num_hidden_layers"])]


def some_layers(random: Random, drawn: Drawn) -> list[int]:
    return [layer for layer in range(drawn["num_hidden_layers"]) if random.random() < 0.4]


def up_to_layers(random: Random, drawn: Drawn) -> int:
    return random.randint(0, drawn["num_hidden_layers"] + 1)


FLAG = one_of(False, True)
EPSILON = one_of(1e-8, 1e-6, 1e-5, 1e-3, 0.05)
MULTIPLIER = one_of(0.22, 0.5, 1.0, 1.7, 4.0)
WINDOWS = ("sliding_attention", "full_attention")
WINDOW = one_of(1, 3, 16, 21, 40, 95, 96, 4096)
NONE_OR_WINDOW = one_of(ABSENT, 1, 3, 16, 21, 40, 4096)
GROUPS = (1, 2, 3, 4)

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
    "layer_types": lambda random, drawn: _shuffled(random, drawn, "full_attention", "linear_attention"),
}


def _shuffled(random: Random, drawn: Drawn, needed: str, *others: str) -> list[str]:
    """A kind for each layer, one at least being the first one."""
    kinds = [needed, *(random.choice((needed, *others)) for _ in range(drawn["num_hidden_layers"] - 1))]
    random.shuffle(kinds)
    return kinds


def _both(random: Random, drawn: Drawn, *kinds: str) -> list[str]:
    """A kind for each layer, of two or more, each kind being there."""
    rest = (random.choice(kinds) for _ in range(drawn["num_hidden_layers"] - len(kinds)))
    every = [*kinds, *rest]
    random.shuffle(every)
    return every


def _nemotron_pattern(random: Random, drawn: Drawn) -> str:
    letters = "M-*E"
    pattern = ["*", *(random.choice(letters) for _ in range(random.randint(0, 5)))]
    random.shuffle(pattern)
    return "".join(pattern)


def _indexer_types(random: Random, drawn: Drawn) -> list[str]:
    return ["full", *(random.choice(("full", "shared")) for _ in range(drawn["num_hidden_layers"] - 1))]


def _gemma4_layers(random: Random, drawn: Drawn) -> list[str]:
    return [*(random.choice(WINDOWS) for _ in range(drawn["num_hidden_layers"] - 1)), "full_attention"]


def _layers_that_share(random: Random, drawn: Drawn) -> list[str]:
    """A kind for each layer, in an order of which the last ones can share."""
    return listed(*WINDOWS)(random, drawn)


def _shared_layers(random: Random, drawn: Drawn) -> int:
    """So many that a layer of each kind is left, as transformers wants it."""
    kinds, every = drawn["layer_types"], set(drawn["layer_types"])
    most = max((n for n in range(len(kinds)) if set(kinds[: len(kinds) - n]) == every), default=0)
    return random.randint(0, most)


def _thetas(random: Random, drawn: Drawn) -> list[float]:
    """One for all layers with windows, or 0: no rotation; any for the others."""
    window = random.choice((0.0, 100.0, 1000.0))
    kinds = drawn.get("layer_types") or []
    return [window if kind == WINDOWS[0] else random.choice((0.0, 50.0, 1000.0)) for kind in kinds]


def _groups_of_experts(random: Random, drawn: Drawn) -> int:
    return random.choice(
        [n for n in (1, 2, 3, 4) if drawn["num_experts"] % n == 0 and drawn["num_experts"] // n > 1] or [1]
    )


def _qwen_layers(random: Random, drawn: Drawn) -> list[str] | None:
    """None: as the other fields say; a window is that of `use_sliding_window` alone."""
    return random.choice((None, listed(*WINDOWS)(random, drawn))) if drawn.get("use_sliding_window") else None


def _layers_of_a_window(random: Random, drawn: Drawn) -> list[str] | None:
    """None: as the other fields say; without a window, no layer has one."""
    return None if drawn.get("sliding_window", ABSENT) is ABSENT else listed(*WINDOWS)(random, drawn)


OF_KIND: Mapping[str, Mapping[str, Draw]] = {
    "Mistral": {"sliding_window": NONE_OR_WINDOW},
    "Ministral": _LISTED_WINDOWS,
    "Ministral3": {"sliding_window": NONE_OR_WINDOW},
    "Mixtral": {"sliding_window": NONE_OR_WINDOW},
    "Starcoder2": {"sliding_window": NONE_OR_WINDOW},
    "Phi3": {"sliding_window": NONE_OR_WINDOW},
    "Phimoe": {"sliding_window": NONE_OR_WINDOW},
    **{kind: {"layer_types": _qwen_layers} for kind in ("Qwen2", "Qwen3", "Qwen2Moe")},
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
        "layer_types": _layers_that_share,
        "num_kv_shared_layers": _shared_layers,
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
        "layer_types": _gemma4_layers,
        "num_kv_shared_layers": _shared_layers,
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
        "layer_types": _layers_of_a_window,
        "sliding_window": NONE_OR_WINDOW,
        "sliding_window_pattern": one_of(1, 2, 3, 4),
    },
    "ExaoneMoe": {
        **_LISTED_WINDOWS,
        "sliding_window_pattern": one_of(1, 2, 3, 4),
        "num_shared_experts": one_of(1, 2),
        "n_group": _groups_of_experts,
        "topk_group": lambda random, drawn: random.randint(
            -(-drawn["num_experts_per_tok"] * drawn["n_group"] // drawn["num_experts"]), drawn["n_group"]
        ),
    },
    "GraniteSWA": _LISTED_WINDOWS | {"layer_rope_theta": _thetas},
    "GraniteMoeSWA": _LISTED_WINDOWS | {"layer_rope_theta": _thetas, "shared_intermediate_size": one_of(0, 17, 40)},
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
        "layer_types": lambda random, drawn: _shuffled(random, drawn, "full_attention", "conv"),
        "block_multiple_of": one_of(1, 16, 24, 256),
        "block_ffn_dim_multiplier": one_of(0.7, 1.0, 1.5),
        "block_auto_adjust_ff_dim": FLAG,
    },
    "Lfm2Moe": {"layer_types": lambda random, drawn: _shuffled(random, drawn, "full_attention", "conv")},
    "Lfm3": {
        "layer_types": lambda random, drawn: _shuffled(random, drawn, "full_attention", "conv", "sliding_attention"),
        "use_attention_gate": FLAG,
        "use_sandwich_norm": FLAG,
        "attention_bias": one_of(False),
    },
    "Afmoe": {"attention_bias": one_of(False)},
    "GraniteMoeHybrid": _MAMBA
    | {
        "layer_types": lambda random, drawn: _shuffled(random, drawn, "attention", "mamba"),
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
        "hybrid_override_pattern": _nemotron_pattern,
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
        "layer_types": lambda random, drawn: _shuffled(random, drawn, "full_attention", "linear_attention"),
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
        "layer_types": lambda random, drawn: _shuffled(random, drawn, "full_attention", "linear_attention"),
        "linear_head_dim": one_of(4, 6, 8, 16, 24),
        "linear_num_heads": one_of(1, 2, 3, 4),
        "linear_conv_kernel_dim": one_of(2, 3, 4),
        "n_group": _groups_of_experts,
        "topk_group": lambda random, drawn: random.randint(
            -(-drawn["num_experts_per_tok"] * drawn["n_group"] // drawn["num_experts"]), drawn["n_group"]
        ),
    },
    "BailingHybrid": {
        "q_lora_rank": one_of(ABSENT, 16, 32),
        "layer_types": lambda random, drawn: random.choice(
            (ABSENT, _shuffled(random, drawn, "full_attention", "linear_attention"))
        ),
        "layer_group_size": lambda random, drawn: random.randint(1, drawn["num_hidden_layers"]),
        "head_dim": one_of(4, 6, 8, 16, 24),
        "short_conv_kernel_size": one_of(2, 3, 4),
        "kda_safe_gate": FLAG,
        "kda_lower_bound": one_of(-0.7, -2.0, -5.0),
        "first_k_dense_replace": one_of(0, 1, 2),
        "n_group": _groups_of_experts,
        "topk_group": lambda random, drawn: random.randint(
            -(-drawn["num_experts_per_tok"] * drawn["n_group"] // drawn["num_experts"]), drawn["n_group"]
        ),
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
        "indexer_types": _indexer_types,
        "index_topk_freq": one_of(1, 2, 3),
        "index_skip_topk_offset": one_of(1, 2),
    },
    "GPTNeoX": {"use_parallel_residual": FLAG},
    "GPTJ": {"rotary_dim": lambda random, drawn: random.randrange(2, drawn["n_embd"] // drawn["n_head"] + 1, 2)},
    "OlmoHybrid": {
        "layer_types": lambda random, drawn: _both(random, drawn, "full_attention", "linear_attention"),
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
THETA = one_of(50.0, 100.0, 500.0, 10000.0, 5e5, 1e7)
# RoPE's parameters by type; those in `MAYBE` are there by chance.
SCALINGS: Mapping[str, Mapping[str, Draw]] = {
    "default": {},
    "linear": {"factor": one_of(1.0, 2.0, 4.5)},
    "dynamic": {"factor": one_of(1.0, 2.0, 4.0)},
    "llama3": {
        "factor": one_of(2.0, 8.0, 32.0),
        "low_freq_factor": one_of(0.5, 1.0, 2.0),
        "high_freq_factor": one_of(3.0, 4.0, 16.0),
        "original_max_position_embeddings": one_of(16, 24, 48, 96),
    },
    "yarn": {
        "factor": one_of(1.0, 2.0, 4.0, 40.0),
        "original_max_position_embeddings": one_of(16, 24, 32, 96),
        "attention_factor": one_of(0.8, 1.0, 1.3),
        "beta_fast": one_of(4.0, 8.0, 32),
        "beta_slow": one_of(0.5, 1, 2.0),
        "mscale": one_of(0.0, 0.707, 1.0),
        "mscale_all_dim": one_of(0.0, 0.5, 0.707, 1.0),
        "truncate": FLAG,
    },
}
MAYBE = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
PARTIAL = (
    "Phi",
    "StableLm",
    "Glm",
    "Nemotron",
    "Phi3",
    "Glm4",
    "Glm4Moe",
    "MiniMaxM2",
    "Qwen3Next",
    "Qwen3_5Text",
    "Qwen3_5MoeText",
)
LONGROPE = ("Phi3", "MiniCPM3", "Phimoe")
BY_LAYER = ("Gemma3Text", "Gemma3nText", "Olmo3", "Mellum")
# Of lightning attention, which transformers stores, too; a table of 16 bits is another one.
COMPUTED = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
PARTIAL_BY_LAYER = ("Step3p7Text", "Laguna")


@dataclass(frozen=True)
class Model:
    """What is compared: a class of transformers' with its settings, and how its folder is written."""

    kind: str
    changes: Drawn
    length: int  # of the ids whose logits are compared
    dtype: str
    spelling: str  # as transformers writes it; older: RoPE's parameters apart; terse: no field that has its default
    also: str  # what is looked at besides: answers, ranks, gguf, hugging_face


def drawn(random: Random) -> Model:
    kind = random.choice(sorted(FIRST))
    changes = dict(MODELS[FIRST[kind]][1])
    changes["num_hidden_layers"] = layers = random.randint(2 if kind == "OlmoHybrid" else 1, 5)
    for key, value in changes.items():
        if isinstance(value, list) and key != "num_hidden_layers":
            changes[key] = None  # of so many layers as there were
    if kind != "Step3p7Text":
        _groups(changes, random)
    changes = sized(kind, changes, random)
    if kind == "MiMoV2Flash":  # twice as many heads of keys in layers with a window
        changes["num_attention_heads"] *= 2
    if kind in (*PARTIAL, *PARTIAL_BY_LAYER) and changes.get("head_dim", SIZES["head_dim"]) is not None:
        changes["head_dim"] = random.choice((4, 6, 8, 12, 16, 32, 40, 64, 128))
    # which want it so, whatever a head's size is
    if kind in ("Llama", "Arcee", "InternLM3", "Gemma2", "Gemma3Text", "Gemma3nText", "Jais2"):
        heads = changes["num_attention_heads"]
        changes["hidden_size"] = -(-changes["hidden_size"] // heads) * heads
    fields = getattr(transformers, f"{kind}Config").__dataclass_fields__
    own = dict(OF_KIND.get(kind, {})) | ({"hidden_act": ACTIVATION} if kind in ACTIVATED else {})
    for key, draw in ({key: draw for key, draw in COMMON.items() if key in fields} | own).items():
        if key in ALWAYS.get(kind, ()) or random.random() < 0.6:
            changes[key] = draw(random, changes | {"num_hidden_layers": layers})
    if kind in ("GraniteMoeHybrid", "FalconH1", "Bamba"):
        _mamba_heads(kind, changes, random)
    length = random.choice((1, 2, 17, 33, 50, 73))
    also = random.choice(("", "answers", "ranks", "gguf", "hugging_face"))
    if kind == "NemotronH" and also == "gguf":  # which cannot say it, as a note does
        changes["time_step_min"] = 1e-30
    changes["rope_parameters"] = rope = _rope(kind, random, changes, length)
    if rope is None:
        del changes["rope_parameters"]
    if kind == "NemotronH":
        changes["num_hidden_layers"] = None
    if kind in ("GPTJ", "GPT2", "GPTBigCode"):
        changes |= {"n_layer": layers, "num_hidden_layers": None}
    if kind == "GPTNeo":
        changes |= {"num_layers": layers, "num_hidden_layers": None}
    return Model(
        kind,
        changes,
        length,
        random.choice(("float32", "float32", "float16", "bfloat16")),
        random.choice(("", "", "older", "terse")),
        also,
    )


# What a terse file says even so, and lists that it leaves out where they were not drawn, and shorter ways to say them.
REQUIRED = ("size", "heads", "layers", "eps", "epsilon", "dim")
LISTS = ("layer_types", "no_rope_layers", "moe_layers", "mlp_layer_types", "indexer_types")
PATTERNS = ("sliding_window_pattern", "full_attn_idxs", "index_topk_freq", "index_skip_topk_offset")
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


def _groups(changes: Drawn, random: Random) -> None:
    """Experts in groups, where they are."""
    if "n_routed_experts" not in changes or "compress_rates" in changes:
        return
    groups, each = random.choice((1, 2, 3, 4)), random.choice((2, 3, 4))
    chosen = random.randint(1, groups)
    changes |= {"n_group": groups, "topk_group": chosen, "n_routed_experts": groups * each}
    changes["num_experts_per_tok"] = random.randint(1, chosen * each)


def _mamba_heads(kind: str, changes: Drawn, random: Random) -> None:
    """Heads that share the channels, and groups that share the heads."""
    expand, hidden = random.choice((1, 2, 3)), changes["hidden_size"]
    said = changes.get("mamba_d_ssm", ABSENT) if kind == "FalconH1" else ABSENT
    channels = expand * hidden if said is ABSENT else said
    shares = [n for n in (1, 2, 3, 4, 6, 8, 12, 20) if channels % n == 0]
    changes |= {"mamba_expand": expand, "mamba_n_heads": (heads := random.choice(shares))}
    changes["mamba_n_groups"] = random.choice([n for n in (1, 2, 3) if heads % n == 0])


def _scaling(random: Random, *kinds: str) -> Drawn:
    kind = random.choice(kinds)
    parameters = {key: draw(random, {}) for key, draw in SCALINGS[kind].items()}
    kept = {key: value for key, value in parameters.items() if key not in MAYBE or random.random() < 0.4}
    return {"rope_type": kind, "rope_theta": THETA(random, {})} | kept


def _rope(kind: str, random: Random, drawn: Drawn, length: int) -> Drawn | None:
    """RoPE's parameters; None: the class's own."""
    every = (*SCALINGS, "longrope")
    if kind in ("NemotronH", "Phimoe", "GPTJ", "GPT2", "GPTBigCode", "GPTNeo", "OPT", "KimiLinear"):
        return None
    head_dim = drawn.get("head_dim", SIZES["head_dim"]) or drawn["hidden_size"] // drawn["num_attention_heads"]
    if kind in ("Gemma4Text", "Lfm3"):
        full = {"rope_type": "proportional", "rope_theta": THETA(random, {})}
        full["partial_rotary_factor"] = random.choice((0.25, 0.5, 1.0))
        full |= random.choice(({}, {"factor": 4.0}))
        return {"sliding_attention": _scaling(random, "default"), "full_attention": full}
    if kind in BY_LAYER:
        full = _scaling(random, "default", "linear", "llama3", "yarn")
        return {"sliding_attention": _scaling(random, "default"), "full_attention": full}
    if kind == "DeepseekV4":
        parameters = _scaling(random, "default", "yarn")
        del parameters["rope_theta"]  # which is said beside them
        return parameters
    if kind in PARTIAL_BY_LAYER:
        parts = [n / head_dim for n in range(2, head_dim + 1, 2) if int(head_dim * (n / head_dim)) == n]
        full, window = ({"partial_rotary_factor": random.choice(parts)} for _ in range(2))
        scaled = _scaling(random, "default", "linear", "llama3", "yarn")
        return {"sliding_attention": _scaling(random, "default") | window, "full_attention": scaled | full}
    if kind == "MiMoV2Flash":
        shares = [n / head_dim for n in range(2, head_dim + 1, 2) if int(head_dim * (n / head_dim)) == n]
        share = {"partial_rotary_factor": random.choice(shares)}
        return {each: _scaling(random, "default") | share for each in WINDOWS}
    if kind in ("Ministral3", "Mistral4"):
        return _scaling(random, "yarn") | {"llama_4_scaling_beta": random.choice((0.1, 0.5))}
    rotated = head_dim
    if "kv_lora_rank" in drawn:
        rotated = drawn["qk_rope_head_dim"]
    share: Drawn = {}
    if kind in PARTIAL:
        rotated = random.choice([n for n in range(2, head_dim + 1, 2) if int(head_dim * (n / head_dim)) == n])
        share = {"partial_rotary_factor": rotated / head_dim}
    if kind in ("GPTNeoX", "Bamba"):
        rotated, share = head_dim // 2, {"partial_rotary_factor": 0.5}
    if kind in LONGROPE:
        every = ("default", "longrope")
    if kind == "Llama4Text":
        every = ("default", "llama3", "linear")
    chosen = random.choice(every)
    if chosen == "longrope":
        scaling = _scaling(random, "default") | {"rope_type": "longrope"} | share
        scaling["original_max_position_embeddings"] = original = random.choice((8, 24, 48))
        for key in ("short_factor", "long_factor"):
            scaling[key] = [random.choice((1.0, 1.3, 2.5, 8.0)) for _ in range(rotated // 2)]
        if kind == "Phi3":
            drawn["original_max_position_embeddings"] = original
        return scaling | random.choice(({}, {"factor": 4.0}, {"attention_factor": 1.2}))
    scaling = _scaling(random, chosen) | share
    if chosen == "dynamic":
        if rotated <= 2:  # whose frequency is 1 whatever theta is
            return _scaling(random, "default") | share
        drawn["max_position_embeddings"] = random.choice((2, 16, 24, 32))
    return scaling


def _respelled(model: Model, folder: Path) -> None:
    """Writes the config in another way."""
    file = folder / "config.json"
    config: Drawn = json.loads(file.read_text())
    rope = config.get("rope_parameters")
    # In Cohere 2 with experts, scaling is said in the newer way alone.
    newer_alone = rope is None or "full_attention" in rope or "main" in rope
    newer_alone |= model.kind in ("Cohere2Moe", *PARTIAL_BY_LAYER)
    if model.spelling == "older" and not newer_alone:
        del config["rope_parameters"]
        config["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        kind = rope.pop("rope_type")
        config["rope_scaling"] = {"type": kind, "rope_type": kind} | rope if kind != "default" else None
        config["torch_dtype"] = config.pop("dtype")
    if model.spelling == "terse":
        fields = getattr(transformers, f"{model.kind}Config").__dataclass_fields__
        config = {
            key: value
            for key, value in config.items()
            if (key not in fields or value != fields[key].default or key.endswith(REQUIRED))
            and (key not in LISTS or model.changes.get(key) is not None)
        }
        config |= {key: model.changes[key] for key in PATTERNS if model.changes.get(key) is not None}
    file.write_text(json.dumps(config))


def _made(model: Model, folder: Path) -> Any:
    """transformers' model, in float32, and its folder."""
    theirs = saved(model.kind, folder, **model.changes)
    named = json.loads((folder / "config.json").read_text())["architectures"]
    if model.dtype != "float32":
        dtype = DTYPES[model.dtype]
        whole = theirs.state_dict()
        stored = {name: tensor.to(dtype) for name, tensor in whole.items()}
        rounded = {name: tensor.float() for name, tensor in stored.items() if not name.endswith(COMPUTED)}
        theirs.load_state_dict(whole | rounded)
        theirs.config.dtype = dtype
        theirs.save_pretrained(folder, state_dict=stored)
        theirs.config.dtype = torch.float32
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"architectures": named}))
    if model.spelling:
        _respelled(model, folder)
        theirs = _read_again(folder, theirs)
    return theirs


def _read_again(folder: Path, theirs: Any) -> Any:
    """What transformers makes of the config in the folder, with the same numbers."""
    config = transformers.AutoConfig.from_pretrained(folder)
    ways = {"attn_implementation": "eager", "experts_implementation": "eager"}
    again = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, **ways)
    again.load_state_dict(theirs.state_dict())
    again.train(False)
    return again


def loaded(path: Path, length: int, ranks: Ranks = ALONE) -> Transformer:
    checkpoint = open_checkpoint(path)
    config = in_context(checkpoint.config, length)
    return load_transformer(checkpoint, "cpu", torch.float32, config=config, ranks=ranks)


def compared(model: Model, folder: Path, ends: Counter[str]) -> str:
    """Says what is wrong with such a model; "" if nothing is."""
    theirs = _made(model, folder)
    ours = loaded(folder, model.length)
    near = NEAR if ours.config.recurrence is None else NEAR_WITH_STATES
    ids = some_ids(model.changes["vocab_size"], model.length)
    whole = logits_in_chunks(ours, ids, [len(ids)])
    problems = [far(whole, theirs, ids, near)]
    problems += [
        f"other bits in chunks {chunks}"
        for chunks in ([17, 1], [16, 5])
        if not torch.equal(logits_in_chunks(ours, ids, chunks), whole)
    ]
    if model.also == "answers" and ours.config.context_length >= CONTEXT:
        problems.append(_answers(ours, theirs, ids[:9], near))
    elif model.also == "ranks":
        problems.append(_ranks(folder, theirs, ids, near, ends))
    elif model.also in ("gguf", "hugging_face"):
        problems.append(_converted(model, folder, theirs, ids, near, ends))
    return "; ".join(filter(None, problems))


def _ranks(folder: Path, theirs: Any, ids: list[int], near: float, ends: Counter[str]) -> str:
    """Compares what ranks compute together, as many as can share the model: on each the same bits, in chunks too."""
    config = open_checkpoint(folder).config
    size = next((size for size in (4, 3, 2) if _shared_by(size, config)), 1)
    ends[f"by {size} ranks"] += 1
    if size == 1:
        return ""

    def computed(ranks: Ranks) -> torch.Tensor:
        part = loaded(folder, len(ids), ranks)
        whole = logits_in_chunks(part, ids, [len(ids)])
        return torch.stack((whole, logits_in_chunks(part, ids, [17, 1])))

    (whole, chunks), *others = in_threads(size, computed)
    if not torch.equal(whole, chunks):
        return f"{size} ranks: other bits in chunks"
    if any(not torch.equal(other[0], whole) for other in others):
        return f"{size} ranks: other bits on another"
    problem = far(whole, theirs, ids, near)
    return problem and f"{size} ranks: {problem}"


def _shared_by(size: int, config: ModelConfig) -> bool:
    try:
        Ranks(0, size).share(config)
    except ConfigError:
        return False
    return True


def _answers(ours: Transformer, theirs: Any, prompt: list[int], near: float) -> str:
    """Compares a greedy answer, token by token, with what transformers has behind each of its tokens."""
    answer, pages = list(prompt), list(range(CONTEXT // 16))
    cache = new_cache(ours, CONTEXT)
    states = new_states(ours, cache)
    rows = [step(ours, cache, [(answer, 0, pages)], states=states)]
    for _ in range(ANSWER - 1):
        answer.append(int(rows[-1][-1].argmax()))
        rows.append(step(ours, cache, [(answer[-1:], len(answer) - 1, pages)], states=states))
    problem = far(torch.cat(rows), theirs, answer, near)
    return problem and f"answer: {problem}"


def _converted(model: Model, folder: Path, theirs: Any, ids: list[int], near: float, ends: Counter[str]) -> str:
    """Compares what `tandem convert` makes of the folder, and in transformers, where that is a folder too."""
    target = folder / ("made.gguf" if model.also == "gguf" else "made")
    try:
        convert(folder, target, model.also, "float32", lambda done, total: None)
    except (ConvertError, CheckpointError) as error:
        ends[f"{model.kind} as {model.also}: {str(error).partition(': ')[2] or error}"] += 1
        return ""
    ours = loaded(target, model.length)
    problem = far(logits_in_chunks(ours, ids, [len(ids)]), theirs, ids, near)
    if not problem and model.also == "hugging_face":
        again = transformers.AutoModelForCausalLM.from_pretrained(
            target, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32
        )
        problem = far(logits_of(again, ids), theirs, ids, near)
    return problem and f"converted to {model.also}: {problem}"


def fuzz(minutes: float, seed: int, first: int = 1, most: int | None = None) -> Counter[str]:
    """Compares models, from number `first` on; what was found, each with how often."""
    found: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    until, number = time.monotonic() + minutes * 60, first
    while time.monotonic() < until and (most is None or number < first + most):
        model = drawn(Random(f"{seed} settings {number}"))
        with tempfile.TemporaryDirectory() as folder:
            try:
                problem = compared(model, Path(folder), ends)
                end = "differs" if problem else "equal"
            except CheckpointError as error:
                problem, end = "", f"refused: {model.kind}: {str(error).partition(': ')[2]}"
            except Exception:
                problem = traceback.format_exc()
                # Settings that transformers itself has no model of.
                if "/transformers/" in problem.rpartition('File "')[2] or "in saved\n" in problem:
                    problem, end = "", f"not made: {model.kind}: {problem.splitlines()[-1][:160]}"
                else:
                    end = "broken"
        ends[end] += 1
        if problem:
            found[model.kind] += 1
            print(f"FOUND {model.kind}, number {number}: {problem}\n  {model}", flush=True)
        number += 1
    print(f"{number - first} models")
    for end, count in sorted(ends.items()):
        print(f"  {count} {end}")
    return found

"""`config.json` of published models that see or hear, too: those around any text model, and `published_families.py`."""

from __future__ import annotations

from typing import Any

from tests.worker_svc.checkpoints.published.parts import sizes, yarn
from tests.worker_svc.checkpoints.published_families import FAMILIES, USUAL, whole
from tests.worker_svc.checkpoints.published_states import PUBLISHED as STATES


def mistral3(text: dict[str, Any], **more: Any) -> dict[str, Any]:
    return whole(
        *("Mistral3ForConditionalGeneration", "mistral3", USUAL | {"rms_norm_eps": 1e-5, "head_dim": 128} | text),
        **{"image_token_index": 10, "multimodal_projector_bias": False, "projector_hidden_act": "gelu"},
        **{"spatial_merge_size": 2, "vision_feature_layer": -1},
        **more,
    )


MINISTRAL_ROPE = {
    **{"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0},
    **{"mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": 1000000.0},
    **{"rope_type": "yarn", "type": "yarn"},
}
STATIC_FP8 = {
    **{"activation_scheme": "static", "dequantize": False, "quant_method": "fp8", "weight_block_size": None},
    "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"],
}


def ministral3(*shape: int, **more: Any) -> dict[str, Any]:
    text = sizes(*shape) | {"model_type": "ministral3", "rope_parameters": MINISTRAL_ROPE, "sliding_window": None}
    return mistral3(text, dtype="bfloat16", quantization_config=STATIC_FP8, **more)


LFM2_1_2B: dict[str, Any] = {
    **{"architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": True, "block_dim": 2048},
    **{"block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0, "block_multiple_of": 256},
    **{"block_norm_eps": 1e-5, "block_out_init_scale": 1.0, "block_use_swiglu": True, "block_use_xavier_init": True},
    **{"bos_token_id": 1, "conv_L_cache": 3, "conv_bias": False, "conv_dim": 2048, "conv_dim_out": 2048},
    **{"conv_use_xavier_init": True, "eos_token_id": 7, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048},
    **{"initializer_range": 0.02, "max_position_embeddings": 128000, "model_type": "lfm2", "norm_eps": 1e-5},
    **{"num_attention_heads": 32, "num_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8},
    **{"pad_token_id": 0, "rope_theta": 1000000.0, "use_cache": True, "use_pos_enc": True, "vocab_size": 65536},
}
LFM2_VL = {
    **{"do_image_splitting": True, "downsample_factor": 2, "encoder_patch_size": 16, "image_token_id": 396},
    **{"max_image_tokens": 256, "max_num_patches": 1024, "max_pixels_tolerance": 2.0, "max_tiles": 10},
    **{"min_image_tokens": 64, "min_tiles": 2, "projector_bias": True, "projector_hidden_act": "gelu"},
    **{"projector_hidden_size": 2560, "tile_size": 512, "use_image_special_tokens": True, "use_thumbnail": True},
    "vision_feature_layer": -1,
}
LLAVA = {
    **{"ignore_index": -100, "image_token_index": 32000, "pad_token_id": 32001, "projector_hidden_act": "gelu"},
    **{"vision_feature_layer": -2, "vision_feature_select_strategy": "default"},
}
VICUNA = {
    **{"_name_or_path": "lmsys/vicuna-7b-v1.5", "architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    **{"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "torch_dtype": "float16", "vocab_size": 32064},
}
GRID = {"image_grid_pinpoints": [[336, 672], [672, 336]], "use_image_newline_parameter": True}
INTERNVL = {
    **{"downsample_ratio": 0.5, "image_seq_length": 256, "image_token_id": 151667, "projector_hidden_act": "gelu"},
    **{"vision_feature_layer": -1, "vision_feature_select_strategy": "default"},
}
CHAT = {
    **{"auto_map": {}, "downsample_ratio": 0.5, "dynamic_image_size": True, "force_image_size": 448},
    **{"max_dynamic_patch": 12, "min_dynamic_patch": 1, "pad2square": False, "ps_version": "v2", "select_layer": -1},
    **{
        "template": "internvl2_5",
        "image_fold": None,
        "use_llm_lora": 0,
        "use_backbone_lora": 0,
        "use_thumbnail": True,
        "output_attentions": False,
    },
}
SMOL_TEXT: dict[str, Any] = {
    **{"_flash_attn_2_enabled": True, "architectures": ["VLlama3ForCausalLM"], "is_llama_config": True},
    **{"head_dim": 64, "hidden_size": 576, "intermediate_size": 1536, "max_position_embeddings": 8192},
    **{"model_type": "llama", "neftune_noise_alpha": 0.0, "num_attention_heads": 9, "num_hidden_layers": 30},
    **{"num_key_value_heads": 3, "pad_token_id": 2, "perceiver_config": {"resampler_depth": 6}},
    **{"pixel_shuffle_factor": 4, "qk_layer_norms": False, "rms_norm_eps": 1e-5, "rope_interleaved": False},
    **{"rope_theta": 100000, "transformers.js_config": {}, "use_resampler": False, "vocab_size": 49280},
}
COHERE2: dict[str, Any] = {
    **{"attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 5, "eos_token_id": 255001},
    **{"head_dim": 128, "hidden_act": "silu", "initializer_range": 0.02, "layer_norm_eps": 1e-5, "logit_scale": 0.25},
    **{"model_type": "cohere2", "order_of_interleaved_layers": "local_attn_first", "pad_token_id": 0},
    **{"position_embedding_type": "rope_gptj", "rope_scaling": None, "rope_theta": 50000, "rotary_pct": 1.0},
    **{"sliding_window": 4096, "sliding_window_pattern": 4, "use_cache": True, "use_embedding_sharing": True},
    **{"use_gated_activation": True, "use_parallel_block": True, "use_parallel_embedding": True, "layer_switch": 4},
}
NEMOTRON = {
    **{
        "downsample_ratio": 0.5,
        "force_image_size": 512,
        "img_context_token": "<image>",
        "img_context_token_id": 131072,
    },
    **{"max_sequence_length": 131072, "projector_hidden_size": 20480, "ps_version": "v2", "use_thumbnail": True},
    **{"sound_config": {"hidden_size": 1024}, "sound_context_token_id": 27, "video_context_token_id": 131081},
    **{"video_pruning_rate": 0.0, "vit_hidden_size": 1280, "auto_map": {}, "image_tag_type": "internvl"},
}


GROUPED_INT4 = {
    "actorder": None,
    "group_size": 32,
    "num_bits": 4,
    "strategy": "group",
    "symmetric": True,
    "type": "int",
}
KIMI_K2: dict[str, Any] = {
    **USUAL,
    **sizes(163840, 7168, 18432, 61, 64, 64, 262144),
    **{"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "aux_loss_alpha": 0.001, "ep_size": 1},
    **{"bos_token_id": 163584, "eos_token_id": 163585, "first_k_dense_replace": 1, "kv_lora_rank": 512},
    **{"model_type": "kimi_k2", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 1},
    **{"n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": True, "num_experts_per_tok": 8},
    **{"num_nextn_predict_layers": 0, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
    **{"rms_norm_eps": 1e-5, "rope_scaling": yarn(64.0, 1.0), "rope_theta": 50000.0, "routed_scaling_factor": 2.827},
    **{"scoring_func": "sigmoid", "seq_aux": True, "tie_word_embeddings": False, "topk_group": 1},
    **{"topk_method": "noaux_tc", "v_head_dim": 128},
    "quantization_config": {
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": GROUPED_INT4 | {"dynamic": False}}},
        **{"format": "pack-quantized", "ignore": ["lm_head", "re:.*self_attn.*"], "kv_cache_scheme": None},
        **{"quant_method": "compressed-tensors", "quantization_status": "compressed"},
    },
}


PUBLISHED_WRAPPERS: dict[str, tuple[dict[str, Any], float]] = FAMILIES | {
    "Mistral-Small-3.1-24B-Instruct-2503": (
        mistral3(
            sizes(131072, 5120, 32768, 40, 32, 8, 131072)
            | {"model_type": "mistral", "rope_theta": 1000000000.0, "sliding_window": None}
        ),
        23.57,
    ),
    "pixtral-12b": (
        whole(
            *("LlavaForConditionalGeneration", "llava"),
            {
                **{"head_dim": 128, "hidden_size": 5120, "intermediate_size": 14336, "is_composition": True},
                **{"max_position_embeddings": 1024000, "model_type": "mistral", "num_hidden_layers": 40},
                **{"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1000000000.0, "vocab_size": 131072},
                "sliding_window": None,
            },
            **{"ignore_index": -100, "image_seq_length": 1, "image_token_index": 10, "projector_hidden_act": "gelu"},
            **{"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
        ),
        12.25,
    ),
    "Ministral-3-3B-Instruct-2512": (
        ministral3(131072, 3072, 9216, 26, 32, 8, 262144, tie_word_embeddings=True),
        3.43,
    ),
    "Ministral-3-8B-Instruct-2512": (
        ministral3(131072, 4096, 14336, 34, 32, 8, 262144, tie_word_embeddings=False),
        8.5,
    ),
    "LFM2-VL-1.6B": (whole("Lfm2VlForConditionalGeneration", "lfm2_vl", LFM2_1_2B, **LFM2_VL), 1.17),
    "llava-1.5-7b-hf": (whole("LlavaForConditionalGeneration", "llava", VICUNA, **LLAVA), 6.74),
    "llava-v1.6-mistral-7b-hf": (
        whole(
            *("LlavaNextForConditionalGeneration", "llava_next"),
            {
                **{"_name_or_path": "mistralai/Mistral-7B-Instruct-v0.2", "architectures": ["MistralForCausalLM"]},
                **{"intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral"},
                **{"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "sliding_window": None},
                "vocab_size": 32064,
            },
            **LLAVA,
            **GRID,
            tie_word_embeddings=False,
        ),
        7.24,
    ),
    "llava-onevision-qwen2-7b-ov-hf": (
        whole(
            *("LlavaOnevisionForConditionalGeneration", "llava_onevision"),
            {
                **{"_name_or_path": "Qwen/Qwen2-7B-Instruct", "architectures": ["Qwen2ForCausalLM"]},
                **{"bos_token_id": 151643, "eos_token_id": 151645, "hidden_size": 3584, "intermediate_size": 18944},
                **{"model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28},
                **{"num_key_value_heads": 4, "rope_theta": 1000000.0, "vocab_size": 152000},
            },
            **{"ignore_index": -100, "image_token_index": 151646, "projector_hidden_act": "gelu"},
            **{"vision_aspect_ratio": "anyres_max_9", "vision_feature_layer": -1, "tie_word_embeddings": False},
            **{"vision_feature_select_strategy": "full", "video_token_index": 151647, **GRID},
        ),
        7.62,
    ),
    "granite-vision-3.2-2b": (
        whole(
            *("LlavaNextForConditionalGeneration", "llava_next"),
            {
                **{"architectures": ["GraniteForCausalLM"], "attention_multiplier": 0.015625, "bos_token_id": 0},
                **{"attention_dropout": 0.1, "embedding_multiplier": 12.0, "eos_token_id": 0, "hidden_size": 2048},
                **{"intermediate_size": 8192, "logits_scaling": 8.0, "max_position_embeddings": 131072},
                **{"model_type": "granite", "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0},
                **{"residual_multiplier": 0.22, "rms_norm_eps": 1e-5, "rope_theta": 300000, "vocab_size": 49156},
                "tie_word_embeddings": True,
            },
            **{"image_seq_length": 576, "image_token_index": 49155, "multimodal_projector_bias": True},
            **{"projector_hidden_act": "gelu", "tie_word_embeddings": True, "use_image_newline_parameter": True},
            **{"vision_feature_layer": [-24, -20, -12, -1], "vision_feature_select_strategy": "full"},
            image_grid_pinpoints=[[384, 768]],
        ),
        2.53,
    ),
    "InternVL3-8B-hf": (
        whole(
            *("InternVLForConditionalGeneration", "internvl"),
            {
                **USUAL,
                **sizes(151674, 3584, 18944, 28, 28, 4, 32768),
                **{"bos_token_id": 151643, "eos_token_id": 151643, "max_window_layers": 70, "model_type": "qwen2"},
                **{"rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"}, "sliding_window": None},
                **{"rope_theta": 1000000.0, "use_sliding_window": False},
            },
            **INTERNVL,
        ),
        7.61,
    ),
    "InternVL3_5-8B": (
        {
            **whole("InternVLChatModel", "internvl_chat", None, **CHAT),
            "llm_config": {
                **USUAL,
                **sizes(151936, 4096, 12288, 36, 32, 8, 40960),
                **{"architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "bos_token_id": 151643},
                **{"eos_token_id": 151645, "head_dim": 128, "max_window_layers": 36, "model_type": "qwen3"},
                **{"rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "use_bfloat16": True},
                **{"tie_word_embeddings": False, "use_sliding_window": False},
            },
        },
        8.19,
    ),
    "Idefics3-8B-Llama3": (
        whole(
            *("Idefics3ForConditionalGeneration", "idefics3"),
            {
                **{"architectures": ["VLlama3ForCausalLM"], "bos_token_id": 128000, "eos_token_id": 128009},
                **{"intermediate_size": 14336, "max_position_embeddings": 131072, "model_type": "llama"},
                **{"neftune_noise_alpha": 0.0, "num_key_value_heads": 8, "pad_token_id": 128002},
                **{"perceiver_config": {"hidden_act": "silu"}, "qk_layer_norms": False, "rope_theta": 500000.0},
                **{"use_resampler": False, "vocab_size": 128259, "rms_norm_eps": 1e-5, "pixel_shuffle_factor": 2},
            },
            **{"image_token_id": 128257, "scale_factor": 2, "tie_word_embeddings": False, "use_cache": True},
        ),
        8.03,
    ),
    "SmolVLM-256M-Instruct": (
        whole(
            *("Idefics3ForConditionalGeneration", "idefics3", SMOL_TEXT),
            **{"image_token_id": 49190, "scale_factor": 4, "tie_word_embeddings": False, "use_cache": True},
            **{"vocab_size": 49280, "transformers.js_config": {}},
        ),
        0.163,
    ),
    "SmolVLM2-256M-Video-Instruct": (
        whole(
            *("SmolVLMForConditionalGeneration", "smolvlm", SMOL_TEXT),
            **{"image_token_id": 49190, "scale_factor": 4, "tie_word_embeddings": False, "use_cache": True},
        ),
        0.163,
    ),
    "command-a-vision-07-2025": (
        whole(
            *("Cohere2VisionForConditionalGeneration", "cohere2_vision"),
            COHERE2 | sizes(256000, 12288, 36864, 64, 96, 8, 131072),
            **{"alignment_intermediate_size": 36864, "downsample_factor": 2, "image_token_id": 255036},
        ),
        111.1,
    ),
    "aya-vision-8b": (
        whole(
            *("AyaVisionForConditionalGeneration", "aya_vision"),
            COHERE2 | sizes(256000, 4096, 14336, 32, 32, 8, 8192) | {"layer_switch": None},
            **{"adapter_layer_norm_eps": 1e-6, "alignment_intermediate_size": 28672, "downsample_factor": 2},
            **{"image_token_index": 255036, "vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
            max_splits_per_img=12,
        ),
        8.03,
    ),
    "EXAONE-4.5-33B": (
        whole(
            *("Exaone4_5_ForConditionalGeneration", "exaone4_5"),
            {
                **USUAL,
                **sizes(153600, 5120, 27392, 64, 40, 8, 262144),
                **{"bos_token_id": 1, "eos_token_id": 53, "head_dim": 128, "model_type": "exaone4_5_text"},
                **{"layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 16, "rms_norm_eps": 1e-5},
                **{"rope_theta": 1000000, "sliding_window": 4096, "sliding_window_pattern": "LLLG"},
                **{"_num_mtp_layers": 1, "mtp_loss_scaling_factor": 0.05, "mtp_share_layers": True},
                "num_nextn_predict_layers": 1,
                "rope_scaling": {
                    **{"factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"},
                    "original_max_position_embeddings": 8192,
                },
            },
            **{"image_token_id": 67, "video_token_id": 68, "tie_word_embeddings": False},
        ),
        32.5,
    ),
    "Kimi-K2.5": (
        whole(
            *("KimiK25ForConditionalGeneration", "kimi_k25", KIMI_K2),
            **{"auto_map": {}, "bos_token_id": 163584, "eos_token_id": 163585, "ignore_index": -100},
            **{"media_placeholder_token_id": 163605, "pad_token_id": 163839, "tie_word_embeddings": False},
            **{"use_unified_vision_chunk": True, "video_placeholder": "<|kimi_k25_video_placeholder|>"},
        ),
        1026.4,
    ),
    "Nemotron-3-Nano-Omni-30B-A3B-Reasoning": (
        whole("NemotronH_Omni_Reasoning_V3", "NemotronH_Omni_Reasoning_V3", None, **NEMOTRON)
        | {"llm_config": STATES["Nemotron-3-Nano-30B-A3B"][0]},
        31.58,
    ),
}

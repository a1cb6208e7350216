"""`config.json` of published models that see or hear, too, typed in with the fields that their files have; of towers
little. Each with how many thousand million parameters its text model has."""

from __future__ import annotations

from typing import Any

from tests.worker_svc.checkpoints.published_states import PUBLISHED as STATES
from tests.worker_svc.checkpoints.test_published_configs import HUNYUAN, LONGROPE, PUBLISHED, gemma4, sizes, yarn

USUAL: dict[str, Any] = {
    **{"attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02, "rms_norm_eps": 1e-6},
    "use_cache": True,
}
SAVED = {"torch_dtype": "bfloat16", "transformers_version": "4.57.0"}


def whole(class_name: str, model_type: str, text: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    config = {"architectures": [class_name], "model_type": model_type, "vision_config": {"hidden_size": 1152}}
    return config | SAVED | ({} if text is None else {"text_config": text}) | more


def gemma3(hidden: int, inner: int, layers: int, **text: Any) -> dict[str, Any]:
    said = {"hidden_size": hidden, "intermediate_size": inner, "model_type": "gemma3_text", "num_hidden_layers": layers}
    said |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    return whole(
        *("Gemma3ForConditionalGeneration", "gemma3", said | text),
        **{"boi_token_index": 255999, "eoi_token_index": 256000, "eos_token_id": [1, 106], "image_token_index": 262144},
        **{"initializer_range": 0.02, "mm_tokens_per_image": 256},
    )


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


QWEN_TOKENS = {
    **{"image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652},
    "vision_end_token_id": 151653,
}
QWEN_IDS = {"bos_token_id": 151643, "eos_token_id": 151645}
MROPE = {"mrope_section": [16, 24, 24], "type": "mrope"}


def qwen2_vl(class_name: str, model_type: str, shape: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The text model's fields are beside the wrapper's."""
    text = USUAL | shape | QWEN_IDS | {"rope_scaling": MROPE, "rope_theta": 1000000.0, "use_sliding_window": False}
    config = whole(class_name, model_type, None, **text, **QWEN_TOKENS, vision_token_id=151654, sliding_window=32768)
    return config | {"tie_word_embeddings": False} | more


def saved_again(config: dict[str, Any]) -> dict[str, Any]:
    """The same as later versions of transformers have written it: with a text_config, and with copies of it."""
    text = {key: value for key, value in config.items() if key != "vision_config"}
    rope = {"mrope_section": [16, 24, 24], "rope_type": "default", "type": "default"}
    text |= {"rope_scaling": rope, "layer_types": ["full_attention"] * config["num_hidden_layers"]}
    return config | {"rope_scaling": rope, "text_config": text | {"model_type": f"{config['model_type']}_text"}}


INTERLEAVED = {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"}


def qwen3_vl(class_name: str, model_type: str, shape: dict[str, Any], tied: bool, **text: Any) -> dict[str, Any]:
    said = USUAL | shape | QWEN_IDS | {"attention_bias": False, "dtype": "bfloat16", "head_dim": 128}
    said |= {"model_type": f"{model_type}_text", "rope_scaling": INTERLEAVED, "rope_theta": 5000000}
    return whole(class_name, model_type, said | text, **QWEN_TOKENS, tie_word_embeddings=tied)


QWEN3_VL_EXPERTS = {
    **{"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True, "num_experts": 128},
    **{"num_experts_per_tok": 8, "output_router_logits": False, "router_aux_loss_coef": 0.001},
}
QWEN2_OMNI = {
    **(USUAL | sizes(152064, 3584, 18944, 28, 28, 4, 32768)),
    **{"init_std": 0.02, "max_window_layers": 28, "model_type": "qwen2_5_omni_text", "rope_theta": 1000000.0},
    **{"rope_scaling": MROPE | {"rope_type": "default", "type": "default"}, "sliding_window": 32768},
    "use_sliding_window": False,
}
QWEN3_OMNI = {
    **(USUAL | sizes(152064, 2048, 768, 48, 32, 4, 65536) | QWEN3_VL_EXPERTS),
    **{"attention_bias": False, "head_dim": 128, "model_type": "qwen3_omni_moe_text", "moe_intermediate_size": 768},
    **{"rope_scaling": INTERLEAVED | {"interleaved": True, "type": "default"}, "rope_theta": 1000000},
    **{"shared_expert_intermediate_size": 0, "sliding_window": None, "use_qk_norm": True, "use_sliding_window": False},
}


def omni(class_name: str, model_type: str, text: dict[str, Any], **more: Any) -> dict[str, Any]:
    thinker = {
        **{"audio_config": {"d_model": 1280}, "audio_end_token_id": 151648, "audio_start_token_id": 151647},
        **{"audio_token_index": 151646, "image_token_index": 151655, "video_token_index": 151656, **QWEN_IDS},
        **{"initializer_range": 0.02, "model_type": f"{model_type}_thinker", "pad_token_id": 151643},
        **{"position_id_per_seconds": 25, "seconds_per_chunk": 2, "text_config": text, "user_token_id": 872},
        **{"vision_config": {"depth": 32}, "vision_end_token_id": 151653, "vision_start_token_id": 151652},
    }
    config = {"architectures": [class_name], "model_type": model_type, "thinker_config": thinker}
    return config | SAVED | {"talker_config": {}, "token2wav_config": {}, "tts_bos_token_id": 151672} | more


GLM_TOKENS = {
    **{"image_end_token_id": 151340, "image_start_token_id": 151339, "image_token_id": 151363},
    **{"video_end_token_id": 151342, "video_start_token_id": 151341, "video_token_id": 151364},
}
GLM_ROPE = {
    "partial_rotary_factor": 0.5,
    "rope_scaling": {"mrope_section": [8, 12, 12], "rope_type": "default"},
    "rope_theta": 10000.0,
}
GLM_IDS = {"eos_token_id": [151329, 151336, 151338, 151348], "pad_token_id": 151329}
GLM_9B = USUAL | sizes(151552, 4096, 13696, 40, 32, 2, 65536) | GLM_ROPE | GLM_IDS | {"rms_norm_eps": 1e-5}
GLM_106B: dict[str, Any] = {
    **(USUAL | sizes(151552, 4096, 10944, 46, 96, 8, 65536) | GLM_ROPE | GLM_IDS),
    **{"attention_bias": True, "dtype": "bfloat16", "first_k_dense_replace": 1, "head_dim": 128},
    **{"model_type": "glm4v_moe_text", "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128},
    **{"n_shared_experts": 1, "norm_topk_prob": True, "num_experts_per_tok": 8, "rms_norm_eps": 1e-5},
    **{"routed_scaling_factor": 1.0, "topk_group": 1, "use_qk_norm": False},
}
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
    **{"template": "internvl2_5", "use_thumbnail": True, "output_attentions": False},
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
HUNYUAN_OCR = HUNYUAN | {
    **{"attention_dropout": 0.0, "bos_token_id": 120000, "dtype": "bfloat16", "eod_token_id": 120020},
    **{"eos_token_id": 120020, "hidden_act": "silu", "im_end_id": 120119, "im_newline_id": 120121},
    **{"im_start_id": 120118, "image_token_id": 120120, "initializer_range": 0.02, "org_vocab_size": 120818},
    **{"pad_id": 120002, "rope_scaling": HUNYUAN["rope_scaling"] | {"type": "xdrope", "xdrope_section": [16] * 4}},
    **{"sep_token_id": 0, "text_end_id": 8, "text_start_id": 7, "use_cache": True, "routed_scaling_factor": 1.0},
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


def gemma4_unified(*shape: int, **text: Any) -> dict[str, Any]:
    config = gemma4(*shape, 6, **text)
    unknown = ("enable_moe_block", "moe_intermediate_size", "num_experts", "top_k_experts")
    unknown += ("hidden_size_per_layer_input", "vocab_size_per_layer_input")
    own = {key: value for key, value in config["text_config"].items() if key not in unknown}
    own |= {"model_type": "gemma4_unified_text", "use_bidirectional_attention": "vision"}
    named = {"architectures": ["Gemma4UnifiedForConditionalGeneration"], "model_type": "gemma4_unified"}
    return config | named | {"text_config": own}


PHI_4 = PUBLISHED["Phi-4-mini"][0]
LORA = {"dp": 0.01, "layer": "((layers.*self_attn\\.(qkv|o)_proj)|(layers.*mlp\\.(gate_up|down)_proj))", "r": 320}

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

PUBLISHED_WRAPPERS: dict[str, tuple[dict[str, Any], float]] = {
    "gemma-3-4b-it": (gemma3(2560, 10240, 34), 3.88),
    "gemma-3-12b-it": (gemma3(3840, 15360, 48, num_attention_heads=16, num_key_value_heads=8), 11.77),
    "gemma-3-27b-it": (
        gemma3(
            *(5376, 21504, 62),
            **{"head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 16, "query_pre_attn_scalar": 168},
        ),
        27.01,
    ),
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
    "Qwen2-VL-7B-Instruct": (
        qwen2_vl(
            *("Qwen2VLForConditionalGeneration", "qwen2_vl", sizes(152064, 3584, 18944, 28, 28, 4, 32768)),
            max_window_layers=28,
        ),
        7.62,
    ),
    "Qwen2.5-VL-3B-Instruct": (
        qwen2_vl(
            *("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", sizes(151936, 2048, 11008, 36, 16, 2, 128000)),
            max_window_layers=70,
            tie_word_embeddings=True,
        ),
        3.09,
    ),
    "Qwen2.5-VL-7B-Instruct, saved again": (
        saved_again(
            qwen2_vl(
                *("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", sizes(152064, 3584, 18944, 28, 28, 4, 128000)),
                max_window_layers=28,
            )
        ),
        7.62,
    ),
    "Qwen3-VL-4B-Instruct": (
        qwen3_vl(
            *("Qwen3VLForConditionalGeneration", "qwen3_vl", sizes(151936, 2560, 9728, 36, 32, 8, 262144), True),
            tie_word_embeddings=True,
        ),
        4.02,
    ),
    "Qwen3-VL-8B-Instruct": (
        qwen3_vl(
            *("Qwen3VLForConditionalGeneration", "qwen3_vl", sizes(151936, 4096, 12288, 36, 32, 8, 262144), False)
        ),
        8.19,
    ),
    "Qwen3-VL-30B-A3B-Instruct": (
        qwen3_vl(
            *("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", sizes(151936, 2048, 6144, 48, 32, 4, 262144)),
            *(False,),
            **QWEN3_VL_EXPERTS,
            moe_intermediate_size=768,
        ),
        30.5,
    ),
    "Qwen3-VL-235B-A22B-Instruct": (
        qwen3_vl(
            *("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", sizes(151936, 4096, 12288, 94, 64, 4, 262144)),
            *(False,),
            **QWEN3_VL_EXPERTS,
            moe_intermediate_size=1536,
        ),
        235.1,
    ),
    "Qwen2.5-Omni-7B": (omni("Qwen2_5OmniModel", "qwen2_5_omni", QWEN2_OMNI), 7.62),
    "Qwen3-Omni-30B-A3B-Instruct": (
        omni("Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe", QWEN3_OMNI, enable_audio_output=True),
        30.5,
    ),
    "GLM-4.1V-9B-Thinking": (
        whole(
            *("Glm4vForConditionalGeneration", "glm4v", GLM_9B | {"model_type": "glm4v_text"}),
            **GLM_TOKENS,
            tie_word_embeddings=False,
        ),
        9.4,
    ),
    "GLM-4.1V-9B-Thinking, as first published": (
        whole("Glm4vForConditionalGeneration", "glm4v", None, **GLM_9B, **GLM_TOKENS, attention_bias=True),
        9.4,
    ),
    "GLM-4.5V": (
        whole("Glm4vMoeForConditionalGeneration", "glm4v_moe", GLM_106B, **GLM_TOKENS, tie_word_embeddings=False),
        106.9,
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
    "a Gemma 4 of 12B, sizes guessed": (
        gemma4_unified(3840, 15360, 48, 16, 8, sliding_window=1024, max_position_embeddings=262144),
        12.14,
    ),
    "HunyuanOCR": (
        whole(
            *("HunYuanVLForConditionalGeneration", "hunyuan_vl", None),
            **HUNYUAN_OCR | sizes(120818, 1024, 3584, 24, 16, 8, 32768),
        ),
        0.54,
    ),
    "Phi-4-multimodal-instruct": (
        PHI_4
        | {"architectures": ["Phi4MMForCausalLM"], "model_type": "phi4mm", "rope_scaling": LONGROPE}
        | {"audio_processor": {"name": "cascades"}, "embd_layer": {"embedding_cls": "image_audio"}}
        | {"img_processor": None, "speech_lora": LORA, "vision_lora": LORA},
        3.84,
    ),
}

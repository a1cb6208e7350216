"""`config.json` of published models that see or hear, too, and are each around a text model of its own kind; typed in
with the fields that their files have, of towers little. Each with how many thousand million parameters its text model
has."""

from __future__ import annotations

from typing import Any

from tests.worker_svc.checkpoints.published import PUBLISHED
from tests.worker_svc.checkpoints.published.parts import HUNYUAN, LONGROPE, gemma4, sizes

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
HUNYUAN_OCR = HUNYUAN | {
    **{"attention_dropout": 0.0, "bos_token_id": 120000, "dtype": "bfloat16", "eod_token_id": 120020},
    **{"eos_token_id": 120020, "hidden_act": "silu", "im_end_id": 120119, "im_newline_id": 120121},
    **{"im_start_id": 120118, "image_token_id": 120120, "initializer_range": 0.02, "org_vocab_size": 120818},
    **{"pad_id": 120002, "rope_scaling": HUNYUAN["rope_scaling"] | {"type": "xdrope", "xdrope_section": [16] * 4}},
    **{"sep_token_id": 0, "text_end_id": 8, "text_start_id": 7, "use_cache": True, "routed_scaling_factor": 1.0},
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


FAMILIES: dict[str, tuple[dict[str, Any], float]] = {
    "gemma-3-4b-it": (gemma3(2560, 10240, 34), 3.88),
    "gemma-3-12b-it": (gemma3(3840, 15360, 48, num_attention_heads=16, num_key_value_heads=8), 11.77),
    "gemma-3-27b-it": (
        gemma3(
            *(5376, 21504, 62),
            **{"head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 16, "query_pre_attn_scalar": 168},
        ),
        27.01,
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

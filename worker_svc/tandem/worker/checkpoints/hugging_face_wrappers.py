"""Models that see or hear, too, whose text models are served: a row each.

Only text is served: what is given of pictures and sounds is not loaded, and the words that stand for them in a prompt
are tokens as others are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tandem.worker.checkpoints.known_fields import NEUTRAL, Only, Table, rules


@dataclass(frozen=True, slots=True)
class Wrapper:
    """One of transformers' model classes around a text model."""

    model_type: str
    class_name: str
    text: str  # the model_type of the text model where the file does not say it
    alone: bool = False  # no other one may stand there; else any that is served may
    tied: bool = False  # without a word on it, the embedding is the output where that is not stored
    where: tuple[str, ...] = ("text_config",)  # one of which has the text model's fields; `a.b`: an object in another
    flat: bool = False  # without that, they are beside the wrapper's own
    also_named: tuple[str, ...] = ()  # other model_types of the same
    also_spelled: tuple[str, ...] = ()  # other classes of the same
    text_fields: Table = field(default_factory=dict)  # among the text model's, those that no text model knows


# Modules that see, hear or speak, or lead from there to the text model: at the top, or in `model`.
LEFT_OUT = (
    *("visual", "vit", "vision_tower", "vision_model", "vision_encoder", "vision_embedder", "vision_final_layernorm"),
    *("visual_embeddings_table", "embed_vision", "embed_tokens_extend", "image_newline"),
    *("audio_tower", "embed_audio", "sound_encoder", "talker", "token2wav", "code2wav"),
    *("multi_modal_projector", "mm_projector", "vision_projector", "vision_projection", "sound_projection"),
    *("projector", "layerwise_projectors", "spatial_projectors", "patch_merger", "merger", "connector", "aligner"),
    "mlp1",
    "vit_large_projector",
)

# What is said of pictures and sounds, beside the text model's fields or, in some files, among them.
SEEN_AND_HEARD: Table = rules(
    NEUTRAL,
    "vision_config audio_config sound_config qformer_config audio_processor img_processor embd_layer",
    "language_model_only is_composition ignore_index",
    # tokens
    "image_token_id image_token_index video_token_id video_token_index audio_token_id audio_token_index",
    "vision_token_id vision_start_token_id vision_end_token_id image_start_token_id image_end_token_id",
    "video_start_token_id video_end_token_id boi_token_id eoi_token_id boa_token_id eoa_token_id boi_token_index",
    "eoi_token_index boa_token_index eoa_token_index _pad_token_id media_placeholder_token_id img_start_id",
    "img_context_token_id video_context_token_id sound_context_token_id img_context_token",
    "video_context_token sound_context_token img_start_token img_end_token im_start_id im_end_id",
    "im_newline_id image_tag_type video_placeholder visual_indicator_token_ids",
    # how pictures are cut, and how many tokens they are
    "image_seq_length image_grid_pinpoints use_image_newline_parameter vision_aspect_ratio image_aspect_ratio",
    "audio_soft_tokens_per_image",
    "mm_tokens_per_image vision_soft_tokens_per_image num_image_tokens spatial_merge_size scale_factor",
    "downsample_factor downsample_ratio downsample_rate force_image_size dynamic_image_size max_dynamic_patch",
    "min_dynamic_patch use_thumbnail ps_version pad2square patch_size do_image_splitting encoder_patch_size",
    "max_image_tokens min_image_tokens max_num_patches max_pixels_tolerance max_tiles min_tiles tile_size",
    "image_size merge_kernel_size merger_times insert_layer_id drop_vision_last_layer downsample_mode",
    "spatial_pool_mode spatial_pool_stride video_seq_length",
    "max_splits_per_img use_image_special_tokens video_pruning_rate video_temporal_patch_size use_unified_vision_chunk",
    # what leads from there to the text model
    "projector_hidden_act projector_hidden_size projector_bias projector_use_layernorm projector_dropout",
    "multimodal_projector_bias vision_feature_layer vision_feature_select_strategy vision_hidden_size vit_hidden_size",
    "select_layer alignment_intermediate_size adapter_layer_norm_eps projection_dim projection_hidden_size",
    "projection_layer_norm_eps mm_projector_type deepstack_layer_map spatial_vision_layer spatial_target_layers",
    "projector_layernorm_eps perceiver_config speech_lora vision_lora",
    # what speaks
    "talker_config token2wav_config code2wav_config enable_audio_output enable_talker tts_pad_token_id",
    "tts_bos_token_id tts_eos_token_id im_start_token_id im_end_token_id system_token_id user_token_id",
    "assistant_token_id audio_start_token_id audio_end_token_id position_id_per_seconds seconds_per_chunk init_std",
    # how InternVL names the template of its chat
    "template system_message image_fold",
    # of Step 3.7
    "understand_projector_stride image_token_len patch_token_len im_start_token im_end_token",
) | rules(Only((0,)), "use_backbone_lora use_llm_lora")

# What Idefics 3 and SmolVLM have written beside the fields of a Llama.
_IDEFICS_TEXT = rules(NEUTRAL, "neftune_noise_alpha pixel_shuffle_factor use_resampler") | {
    "qk_layer_norms": Only((False,))
}
_QWEN2_OMNI: Mapping[str, Any] = {"text": "qwen2_5_omni_text", "alone": True}
_QWEN3_OMNI: Mapping[str, Any] = {
    "text": "qwen3_omni_moe_text",
    "alone": True,
    "text_fields": {"use_qk_norm": Only((True,))},
}
_THINKER = ("thinker_config.text_config",)  # beside what speaks
_LLM = ("text_config", "llm_config")

WRAPPERS = (
    Wrapper("gemma3", "Gemma3ForConditionalGeneration", "gemma3_text", alone=True),
    Wrapper("gemma3n", "Gemma3nForConditionalGeneration", "gemma3n_text", alone=True),
    Wrapper("gemma4", "Gemma4ForConditionalGeneration", "gemma4_text", alone=True),
    Wrapper("gemma4_unified", "Gemma4UnifiedForConditionalGeneration", "gemma4_unified_text", alone=True),
    Wrapper("mistral3", "Mistral3ForConditionalGeneration", "mistral", tied=True),
    Wrapper("qwen2_vl", "Qwen2VLForConditionalGeneration", "qwen2_vl_text", alone=True, flat=True),
    Wrapper("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text", alone=True, flat=True),
    Wrapper("qwen3_vl", "Qwen3VLForConditionalGeneration", "qwen3_vl_text", alone=True),
    Wrapper("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text", alone=True),
    Wrapper("qwen2_5_omni_thinker", "Qwen2_5OmniThinkerForConditionalGeneration", **_QWEN2_OMNI),
    Wrapper(
        "qwen2_5_omni",
        "Qwen2_5OmniForConditionalGeneration",
        **_QWEN2_OMNI,
        where=_THINKER,
        also_spelled=("Qwen2_5OmniModel",),
    ),
    Wrapper("qwen3_omni_moe_thinker", "Qwen3OmniMoeThinkerForConditionalGeneration", **_QWEN3_OMNI),
    Wrapper("qwen3_omni_moe", "Qwen3OmniMoeForConditionalGeneration", **_QWEN3_OMNI, where=_THINKER),
    Wrapper("qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen3_5_text", alone=True),
    Wrapper("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text", alone=True),
    Wrapper("llama4", "Llama4ForConditionalGeneration", "llama4_text", alone=True),
    Wrapper("glm4v", "Glm4vForConditionalGeneration", "glm4v_text", alone=True, flat=True),
    Wrapper("glm4v_moe", "Glm4vMoeForConditionalGeneration", "glm4v_moe_text", alone=True),
    Wrapper("glm46v", "Glm46VForConditionalGeneration", "glm4v_text"),
    Wrapper("lfm2_vl", "Lfm2VlForConditionalGeneration", "lfm2"),
    Wrapper("lfm3_vl", "Lfm3VlForConditionalGeneration", "lfm3"),
    Wrapper("llava", "LlavaForConditionalGeneration", "llama"),
    Wrapper("llava_next", "LlavaNextForConditionalGeneration", "llama"),
    Wrapper("llava_next_video", "LlavaNextVideoForConditionalGeneration", "llama"),
    Wrapper("llava_onevision", "LlavaOnevisionForConditionalGeneration", "qwen2"),
    Wrapper("vipllava", "VipLlavaForConditionalGeneration", "llama"),
    Wrapper("video_llama_3", "VideoLlama3ForConditionalGeneration", "qwen2"),
    Wrapper("got_ocr2", "GotOcr2ForConditionalGeneration", "qwen2", tied=True),
    Wrapper("lighton_ocr", "LightOnOcrForConditionalGeneration", "qwen3", tied=True),
    Wrapper("minicpmv4_6", "MiniCPMV4_6ForConditionalGeneration", "qwen3_5_text"),
    Wrapper("ovis2", "Ovis2ForConditionalGeneration", "qwen2", tied=True),
    Wrapper("deepseek_vl", "DeepseekVLForConditionalGeneration", "llama", tied=True),
    Wrapper("internvl", "InternVLForConditionalGeneration", "qwen2", tied=True),
    Wrapper("internvl_chat", "InternVLChatModel", "qwen2", where=_LLM),
    Wrapper("idefics2", "Idefics2ForConditionalGeneration", "mistral"),
    Wrapper("idefics3", "Idefics3ForConditionalGeneration", "llama", text_fields=_IDEFICS_TEXT),
    Wrapper("smolvlm", "SmolVLMForConditionalGeneration", "llama", text_fields=_IDEFICS_TEXT),
    Wrapper("cohere2_vision", "Cohere2VisionForConditionalGeneration", "cohere2"),
    Wrapper("aya_vision", "AyaVisionForConditionalGeneration", "cohere2"),
    Wrapper("exaone4_5", "Exaone4_5_ForConditionalGeneration", "exaone4"),
    Wrapper(
        "kimi_k25",
        "Kimi_K25ForConditionalGeneration",
        "deepseek_v3",
        tied=True,
        also_spelled=("KimiK25ForConditionalGeneration",),
    ),
    Wrapper("granite4_vision", "Granite4VisionForConditionalGeneration", "granite4_vision_text", alone=True),
    Wrapper("hunyuan_vl", "HunYuanVLForConditionalGeneration", "hunyuan_vl_text", alone=True, flat=True, tied=True),
    Wrapper(
        "hyperclovax_vision_v2",
        "HyperCLOVAXVisionV2ForConditionalGeneration",
        "hyperclovax",
        tied=True,
        also_named=("vlm",),
        also_spelled=("HCXVisionV2ForCausalLM",),
    ),
    Wrapper(
        "nemotron_h_omni",
        "NemotronH_Omni_Reasoning_V3",
        "nemotron_h",
        where=_LLM,
        also_named=("NemotronH_Omni_Reasoning_V3", "NemotronH_Nano_VL_V2"),
        also_spelled=("NemotronH_Nano_VL_V2",),
    ),
    Wrapper("step3p7", "Step3p7ForConditionalGeneration", "step3p5", alone=True),
    Wrapper("phi4_multimodal", "Phi4MultimodalForCausalLM", "phi4_multimodal", alone=True, flat=True),
    Wrapper("phi4mm", "Phi4MMForCausalLM", "phi4_multimodal", alone=True, flat=True),
)

# Classes whose text model alone would answer otherwise, and why.
REFUSED: Mapping[str, str] = {
    "PaliGemmaForConditionalGeneration": "sees its prompt in both directions, which is not served",
}

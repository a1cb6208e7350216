"""Small random models that see or hear, too, made and saved by transformers' own classes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.worker_svc.model.llama_folders import randomized
from tests.worker_svc.model.tiny_models import MODELS
from tests.worker_svc.model.tiny_models.experts import GLM4_MOE
from tests.worker_svc.model.tiny_models.gemmas import GEMMA3
from tests.worker_svc.model.tiny_models.latents import DEEPSEEK_V3
from tests.worker_svc.model.tiny_models.shared import COHERE2, GRANITE, QWEN_EXPERTS, SIZES, WINDOW


def text(model_type: str, **changes: Any) -> dict[str, Any]:
    settings = {key: value for key, value in (SIZES | changes).items() if value is not None}
    return settings | {"model_type": model_type}


def seen(model_type: str | None = None, **changes: Any) -> dict[str, Any]:
    """What a small tower is made of."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"image_size": 14, "patch_size": 7}
    return sizes | changes | ({"model_type": model_type} if model_type else {})


def rope(**more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, **more}}


CLIP, SIGLIP = seen("clip_vision_model"), seen("siglip_vision_model")
QWEN_TOWER = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 48}
DEEP_TOWER = QWEN_TOWER | {"deepstack_visual_indexes": [0]}
THIRDS = rope(mrope_section=[2, 2, 2], mrope_interleaved=True)
GLM4V_MOE = text("glm4v_moe_text", **GLM4_MOE, **rope(mrope_section=[1, 1, 1], partial_rotary_factor=0.5))
UNIFIED = {key: value for key, value in MODELS["gemma4"][1].items() if "per_layer_input" not in key}
RAISED = {"rope_type": "xdrope", "alpha": 50.0, "rope_theta": 100.0, "factor": 1.0, "xdrope_section": [2, 1, 1, 2]}
PERCEIVER = {"resampler_n_latents": 2, "resampler_depth": 1, "resampler_n_heads": 2, "resampler_head_dim": 8}
PERCEIVER |= {"num_key_value_heads": 2, "hidden_size": 48}
SQUARE_TOWER = {"hidden_size": 16, "output_channels": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SQUARE_TOWER |= {"image_size": 64, "mlp_dim": 16}
EAR = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "output_dim": 48}
APART = {"tie_word_embeddings": False}

# The class, and what its configuration is made of.
WRAPPED: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": (
        "Gemma3ForConditionalGeneration",
        {"text_config": text("gemma3_text", **GEMMA3), "vision_config": SIGLIP},
    ),
    "gemma4": (
        "Gemma4ForConditionalGeneration",
        {"text_config": text("gemma4_text", **MODELS["gemma4"][1]), "vision_config": None, "audio_config": None},
    ),
    "qwen3.5": (
        "Qwen3_5ForConditionalGeneration",
        {"text_config": text("qwen3_5_text", **MODELS["qwen3.5"][1]), "vision_config": QWEN_TOWER},
    ),
    "qwen3.5 moe": (
        "Qwen3_5MoeForConditionalGeneration",
        {"text_config": text("qwen3_5_moe_text", **MODELS["qwen3.5 moe"][1]), "vision_config": QWEN_TOWER},
    ),
    "gemma4 unified": (
        "Gemma4UnifiedForConditionalGeneration",
        {
            "text_config": text("gemma4_unified_text", **UNIFIED),
            "vision_config": {"mm_embed_dim": 16, "output_proj_dims": 16, "mm_posemb_size": 8, "patch_size": 2},
            "audio_config": None,
        },
    ),
    "mistral3": (
        "Mistral3ForConditionalGeneration",
        {"text_config": text("mistral"), "vision_config": seen("pixtral")},
    ),
    "mistral3, mistral4": (
        "Mistral3ForConditionalGeneration",
        {"text_config": text("mistral4", **MODELS["mistral4"][1]), "vision_config": seen("pixtral"), **APART},
    ),
    "mistral3, ministral3": (
        "Mistral3ForConditionalGeneration",
        {"text_config": text("ministral3", **MODELS["ministral3"][1]), "vision_config": seen("pixtral"), **APART},
    ),
    "qwen2 vl": (
        "Qwen2VLForConditionalGeneration",
        {
            "text_config": text("qwen2_vl_text", head_dim=8, **rope(mrope_section=[1, 1, 2])),
            "vision_config": {"depth": 1, "embed_dim": 16, "num_heads": 2, "hidden_size": 48},
        },
    ),
    "qwen2.5 vl": (
        "Qwen2_5_VLForConditionalGeneration",
        {
            "text_config": text(
                "qwen2_5_vl_text",
                **{"head_dim": 8, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
                **rope(mrope_section=[1, 1, 2]),
            ),
            "vision_config": QWEN_TOWER,
        },
    ),
    "qwen3 vl": (
        "Qwen3VLForConditionalGeneration",
        {"text_config": text("qwen3_vl_text", **THIRDS), "vision_config": DEEP_TOWER},
    ),
    "qwen3 vl moe": (
        "Qwen3VLMoeForConditionalGeneration",
        {
            "text_config": text("qwen3_vl_moe_text", **THIRDS, **QWEN_EXPERTS),
            "vision_config": DEEP_TOWER,
            **APART,
        },
    ),
    "qwen2.5 omni": (
        "Qwen2_5OmniThinkerForConditionalGeneration",
        {
            "text_config": text("qwen2_5_omni_text", head_dim=8, **rope(mrope_section=[1, 1, 2]), **APART),
            **{"vision_config": QWEN_TOWER, "audio_config": EAR},
        },
    ),
    "qwen3 omni": (
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        {
            "text_config": text("qwen3_omni_moe_text", **THIRDS, **QWEN_EXPERTS),
            **{"vision_config": DEEP_TOWER, "audio_config": EAR},
        },
    ),
    "glm4v": (
        "Glm4vForConditionalGeneration",
        {
            "text_config": text("glm4v_text", head_dim=8, **rope(mrope_section=[1, 0, 1], partial_rotary_factor=0.5)),
            "vision_config": QWEN_TOWER,
        },
    ),
    "glm4v moe": ("Glm4vMoeForConditionalGeneration", {"text_config": GLM4V_MOE, "vision_config": QWEN_TOWER}),
    "glm46v, glm4v moe": (
        "Glm46VForConditionalGeneration",
        {"text_config": GLM4V_MOE, "vision_config": QWEN_TOWER | {"model_type": "glm4v_moe_vision"}},
    ),
    "lfm2 vl": (
        "Lfm2VlForConditionalGeneration",
        {
            "text_config": text("lfm2", **MODELS["lfm2"][1]),
            "vision_config": seen("siglip2_vision_model", num_patches=4),
        },
    ),
    "lfm3 vl": (
        "Lfm3VlForConditionalGeneration",
        {
            "text_config": text("lfm3", **MODELS["lfm3"][1]),
            "vision_config": seen(num_key_value_heads=1),
            "projector_hidden_size": 16,
        },
    ),
    "llava": ("LlavaForConditionalGeneration", {"text_config": text("llama"), "vision_config": CLIP}),
    "llava next, mistral": (
        "LlavaNextForConditionalGeneration",
        {"text_config": text("mistral", sliding_window=WINDOW), "vision_config": CLIP},
    ),
    "llava onevision": (
        "LlavaOnevisionForConditionalGeneration",
        {"text_config": text("qwen2", head_dim=8), "vision_config": SIGLIP},
    ),
    "internvl, qwen3": (
        "InternVLForConditionalGeneration",
        {
            "text_config": text("qwen3"),
            "vision_config": seen() | {"image_size": [14, 14], "patch_size": [7, 7]},
            **APART,
        },
    ),
    "idefics3": ("Idefics3ForConditionalGeneration", {"text_config": text("llama"), "vision_config": seen()}),
    "smolvlm": ("SmolVLMForConditionalGeneration", {"text_config": text("llama"), "vision_config": seen()}),
    "idefics2, mistral": (
        "Idefics2ForConditionalGeneration",
        {"text_config": text("mistral"), "vision_config": seen(), "perceiver_config": PERCEIVER},
    ),
    "vipllava": ("VipLlavaForConditionalGeneration", {"text_config": text("llama"), "vision_config": CLIP}),
    "llava next video": (
        "LlavaNextVideoForConditionalGeneration",
        {"text_config": text("llama"), "vision_config": CLIP},
    ),
    "video llama 3": (
        "VideoLlama3ForConditionalGeneration",
        {"text_config": text("qwen2", head_dim=8), "vision_config": seen()},
    ),
    "got ocr 2": (
        "GotOcr2ForConditionalGeneration",
        {"text_config": text("qwen2", head_dim=8), "vision_config": SQUARE_TOWER},
    ),
    "lighton ocr": (
        "LightOnOcrForConditionalGeneration",
        {"text_config": text("qwen3"), "vision_config": seen("pixtral")},
    ),
    "minicpm-v 4.6": (
        "MiniCPMV4_6ForConditionalGeneration",
        {"text_config": text("qwen3_5_text", **MODELS["qwen3.5"][1]), "vision_config": seen()},
    ),
    "ovis2": (
        "Ovis2ForConditionalGeneration",
        {
            "text_config": text("qwen2", head_dim=8),
            "vision_config": seen(vocab_size=64),
            **{"hidden_size": 48, "vocab_size": 97, **APART},
        },
    ),
    "deepseek vl": ("DeepseekVLForConditionalGeneration", {"text_config": text("llama"), "vision_config": SIGLIP}),
    "cohere2 vision": (
        "Cohere2VisionForConditionalGeneration",
        {"text_config": text("cohere2", **COHERE2 | {"head_dim": 8}), "vision_config": SIGLIP}
        | {"alignment_intermediate_size": 16},
    ),
    "aya vision": (
        "AyaVisionForConditionalGeneration",
        {"text_config": text("cohere2", **COHERE2 | {"head_dim": 8}), "vision_config": SIGLIP},
    ),
    "exaone 4.5": (
        "Exaone4_5_ForConditionalGeneration",
        {"text_config": text("exaone4", **MODELS["exaone4"][1] | {"head_dim": 8}), "vision_config": QWEN_TOWER},
    ),
    "kimi k2.5": (
        "Kimi_K25ForConditionalGeneration",
        {"text_config": text("deepseek_v3", **DEEPSEEK_V3), "vision_config": seen(), "projection_hidden_size": 16}
        | APART,
    ),
    "granite 4 vision": (
        "Granite4VisionForConditionalGeneration",
        {
            "text_config": text("granite4_vision_text", **GRANITE | {"head_dim": 8}),
            "vision_config": SIGLIP | {"hidden_size": 128},
            **{"deepstack_layer_map": [[0, 0]], "downsample_rate": "1/2", "spatial_target_layers": [0, 1, 2, 0]},
        },
    ),
    "hunyuan vl": (
        "HunYuanVLForConditionalGeneration",
        {
            "text_config": text("hunyuan_vl_text", rope_parameters=RAISED),
            "vision_config": seen(out_hidden_size=48, text_hidden_size=48),
        },
    ),
    "hyperclova x vision": (
        "HyperCLOVAXVisionV2ForConditionalGeneration",
        {"text_config": text("hyperclovax", **MODELS["hyperclovax"][1]), "vision_config": QWEN_TOWER, **APART},
    ),
    "nemotron 3 omni": (
        "NemotronH_Omni_Reasoning_V3",
        {
            "text_config": text("nemotron_h", **MODELS["nemotron 3"][1]),
            "vision_config": seen("radio", video_temporal_patch_size=2, max_img_size=14),
            **{"projector_hidden_size": 16, "vision_hidden_size": 16},
        },
    ),
    "step 3.7": (
        "Step3p7ForConditionalGeneration",
        {"text_config": text("step3p5", **MODELS["step 3.5"][1]), "vision_config": seen(), "image_token_id": 96},
    ),
    "phi-4 multimodal": (
        "Phi4MultimodalForCausalLM",
        {
            **{key: value for key, value in SIZES.items() if key not in ("head_dim", "attn_implementation")},
            **{"pad_token_id": 0, "vision_config": seen()},
            "audio_config": {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "num_blocks": 1},
        },
    ),
}
# By what these classes leave the logits alone that their text models multiply them by.
LOGITS_LEFT_ALONE = {"cohere2 vision": COHERE2["logit_scale"], "aya vision": COHERE2["logit_scale"]}


def saved(name: str, folder: Path) -> Any:
    """A random model, and its folder."""
    class_name, values = WRAPPED[name]
    kind = getattr(transformers, class_name)
    torch.manual_seed(0)
    config = kind.config_class(**copy.deepcopy(values))
    for part in (config, config.get_text_config()):
        part._attn_implementation = part._experts_implementation = "eager"
    model = randomized(kind._from_config(config, dtype=torch.float32, attn_implementation="eager"))
    for name_of, parameter in model.named_parameters():
        if parameter.dim() > 1 and ("language_model" in name_of or "text_model" in name_of or "lm_head" in name_of):
            torch.nn.init.normal_(parameter, 0, 0.15)  # classes without a range for the text model have 0.02
    model.tie_weights()
    model.save_pretrained(folder)
    if class_name.startswith("Kimi"):  # layers, too, are saved as the tower's blocks; published they are layers
        rename(folder, lambda stored: stored.replace(".blocks.", ".layers."))
    return model


def rename(folder: Path, renamed: Any, **further: torch.Tensor) -> None:
    """Gives the tensors of a folder other names."""
    tensors = load_file(folder / "model.safetensors")
    write(folder, {renamed(name): tensor for name, tensor in tensors.items()} | further)


def write(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Writes the tensors of a folder anew."""
    whole = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", {"format": "pt"})

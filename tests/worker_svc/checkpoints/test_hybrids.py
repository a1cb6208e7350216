"""Qwen3-Next and Qwen3.5 as they are published: configs, names and shapes of tensors, and what is left out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.hugging_face_config import architecture_of, read_config
from tandem.worker.checkpoints.hugging_face_hybrids import pieces
from tandem.worker.checkpoints.hugging_face_wrapped import text_fields
from tandem.worker.checkpoints.model_parts.recurrences import DeltaNet
from tests.worker_svc.model.llama_folders import logits_in_chunks, some_ids
from tests.worker_svc.model.random_models import loaded, saved
from tests.worker_svc.model.tiny_models import MODELS
from tests.worker_svc.model.tiny_models.hybrids import HYBRID, SHARED_EXPERT

LINEAR = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
}
QWEN3_NEXT: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 5120,
    **LINEAR,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.57.0.dev0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def wrapped(kind: str, model_type: str, layers: int, **text: Any) -> dict[str, Any]:
    common = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "dtype": "bfloat16",
        "eos_token_id": 248044,
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * (layers // 4),
        **LINEAR,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "model_type": f"{model_type}_text",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_hidden_layers": layers,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "use_cache": True,
        "vocab_size": 248320,
    }
    return {
        "architectures": [f"{kind}ForConditionalGeneration"],
        "image_token_id": 248056,
        "model_type": model_type,
        "text_config": common | text,
        "tie_word_embeddings": False,
        "transformers_version": "4.57.0.dev0",
        "video_token_id": 248057,
        "vision_config": {"depth": 27, "model_type": model_type},
        "vision_end_token_id": 248054,
        "vision_start_token_id": 248053,
    }


QWEN_27B = {
    **{"hidden_size": 5120, "intermediate_size": 17408, "linear_num_value_heads": 48, "num_attention_heads": 24},
    "num_key_value_heads": 4,
}
# Its config, the parameters of its text model in thousand millions, and its bytes of recurrent state.
PUBLISHED: dict[str, tuple[dict[str, Any], float, int]] = {
    "Qwen3-Next-80B-A3B": (QWEN3_NEXT, 79.7, 36 * 32 * 128 * 128 * 4),
    "Qwen3.6-35B-A3B": (
        wrapped(
            "Qwen3_5Moe",
            "qwen3_5_moe",
            40,
            hidden_size=2048,
            mlp_only_layers=[],
            moe_intermediate_size=512,
            num_attention_heads=16,
            num_experts=256,
            num_experts_per_tok=8,
            num_key_value_heads=2,
            router_aux_loss_coef=0.001,
            shared_expert_intermediate_size=512,
        ),
        34.7,
        30 * 32 * 128 * 128 * 4,
    ),
    "Qwen3.5-27B": (wrapped("Qwen3_5", "qwen3_5", 64, **QWEN_27B, mlp_only_layers=[]), 26.9, 48 * 48 * 128 * 128 * 4),
    "Qwen3.6-27B": (wrapped("Qwen3_5", "qwen3_5", 64, **QWEN_27B), 26.9, 48 * 48 * 128 * 128 * 4),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_has_the_parameters_and_names_that_its_model_has(name: str) -> None:
    values, billions, state = PUBLISHED[name]
    fields = text_fields(Fields(Path("config.json"), values))
    architecture = architecture_of(fields)
    config = read_config(fields, architecture, tied=False)
    shapes = config.tensor_shapes()
    assert sum(math.prod(shape) for shape in shapes.values()) / 1e9 == pytest.approx(billions, rel=0.01)
    sizes = config.recurrence
    assert isinstance(sizes, DeltaNet)
    assert 4 * len(sizes.layers) * sizes.value_heads * sizes.key_dim * sizes.value_dim == state
    assert config.rotary_dim == 64
    found = pieces(architecture, config, ())
    stored = {found[name].stored: found[name].shape for name in found}
    stored |= {architecture.stored_name(name)[0]: shape for name, shape in shapes.items() if name not in found}
    assert sum(math.prod(shape) for shape in stored.values()) == sum(math.prod(shape) for shape in shapes.values())
    assert stored["model.layers.3.self_attn.q_proj.weight"] == (2 * config.q_size, config.hidden_size)
    assert stored["model.layers.0.linear_attn.conv1d.weight"] == (sizes.channels, 1, 4)


@pytest.mark.parametrize(
    ("name", "model_type", "class_name", "beside"),
    [
        ("qwen3.5", "qwen3_5", "Qwen3_5ForConditionalGeneration", ["model.visual.patch_embed.weight", "mtp.fc.weight"]),
        ("llama4", "llama4", "Llama4ForConditionalGeneration", ["vision_model.x.weight", "multi_modal_projector.x"]),
        (
            "gemma4",
            "gemma4",
            "Gemma4ForConditionalGeneration",
            # The last layer looks at another one's keys and values, and has some that nobody looks at.
            [
                "model.vision_tower.x.weight",
                "model.embed_audio.x.weight",
                "model.language_model.layers.6.self_attn.k_norm.weight",
            ],
        ),
    ],
)
def test_the_text_model_of_one_that_sees_is_read_from_its_part_of_the_files(
    name: str, model_type: str, class_name: str, beside: list[str], tmp_path: Path
) -> None:
    kind, changes = MODELS[name]
    saved(kind, tmp_path, **changes)
    ids = some_ids(97, 30)
    expected = logits_in_chunks(loaded(tmp_path), ids, [30])
    tensors = load_file(tmp_path / "model.safetensors")
    prefix = ("model.", "model.language_model.") if model_type != "llama4" else ("", "language_model.")
    renamed = {stored.replace(*prefix, 1): tensor for stored, tensor in tensors.items()}
    save_file(renamed | {stored: torch.ones(3) for stored in beside}, tmp_path / "model.safetensors")
    file = tmp_path / "config.json"
    text = json.loads(file.read_text())
    text.pop("architectures")
    config = {"architectures": [class_name], "model_type": model_type, "text_config": text}
    file.write_text(json.dumps(config))
    assert torch.equal(logits_in_chunks(loaded(tmp_path), ids, [30]), expected)
    file.write_text(json.dumps(config | {"a_field_of_tomorrow": 1}))
    with pytest.raises(CheckpointError, match="a_field_of_tomorrow"):
        open_checkpoint(tmp_path)


def test_experts_that_are_stored_together_are_those_that_are_stored_apart(tmp_path: Path) -> None:
    saved("Qwen3_5MoeText", tmp_path, **HYBRID, **SHARED_EXPERT)
    ids = some_ids(97, 30)
    expected = logits_in_chunks(loaded(tmp_path), ids, [30])
    tensors = load_file(tmp_path / "model.safetensors")
    for layer in range(4):
        prefix = f"model.layers.{layer}.mlp.experts."
        matrices = {
            part: [tensors.pop(f"{prefix}{expert}.{part}_proj.weight") for expert in range(6)]
            for part in ("gate", "up", "down")
        }
        both = [torch.cat(pair) for pair in zip(matrices["gate"], matrices["up"], strict=True)]
        tensors |= {f"{prefix}gate_up_proj": torch.stack(both), f"{prefix}down_proj": torch.stack(matrices["down"])}
    save_file(tensors, tmp_path / "model.safetensors")
    assert torch.equal(logits_in_chunks(loaded(tmp_path), ids, [30]), expected)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layer_types", ["linear_attention"] * 4),
        ("layer_types", ["linear_attention", "mamba"] * 2),
        ("linear_num_value_heads", 0),
        ("linear_conv_kernel_dim", 0),
        ("linear_key_head_dim", -8),
        ("full_attention_interval", 0),
        ("attn_output_gate", False),
        ("a_field_of_tomorrow", 1),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(key: str, value: object, tmp_path: Path) -> None:
    saved("Qwen3_5Text", tmp_path, **HYBRID)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    if key == "full_attention_interval":
        del config["layer_types"]
    file.write_text(json.dumps(config | {key: value}))
    with pytest.raises(CheckpointError, match=key.replace("layer_types", "layer")):
        open_checkpoint(tmp_path)

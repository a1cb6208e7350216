"""Dense models that have layer norms."""

from __future__ import annotations

from tandem.worker.checkpoints.hugging_face_architectures.architecture import LAYER_NAMES, Architecture
from tandem.worker.checkpoints.hugging_face_architectures.names import NORM_BIASES
from tandem.worker.checkpoints.hugging_face_stablelm import stablelm

_STARCODER_NAMES = LAYER_NAMES | {
    **NORM_BIASES,
    "mlp.up": "mlp.c_fc.weight",
    "mlp.up_bias": "mlp.c_fc.bias",
    "mlp.down": "mlp.c_proj.weight",
    "mlp.down_bias": "mlp.c_proj.bias",
}
_PHI_NAMES = LAYER_NAMES | {
    **NORM_BIASES,
    "attention.output": "self_attn.dense.weight",
    "attention.output_bias": "self_attn.dense.bias",
    "mlp.up": "mlp.fc1.weight",
    "mlp.up_bias": "mlp.fc1.bias",
    "mlp.down": "mlp.fc2.weight",
    "mlp.down_bias": "mlp.fc2.bias",
}

LAYER_NORMS = (
    Architecture(
        "starcoder2",
        "Starcoder2ForCausalLM",
        _STARCODER_NAMES,
        special_ids={"bos_token_id": 50256, "eos_token_id": 50256},
        tied=True,
        use_bias=True,
        norm_eps="norm_epsilon",
        always={"activation": "gelu_tanh", "gated": False, "norm": "layer", "norm_bias": True},
    ),
    Architecture(
        "cohere",
        "CohereForCausalLM",
        special_ids={"bos_token_id": 5, "eos_token_id": 255001},
        rope_theta=500000.0,
        attention_bias=False,
        tied=True,
        interleaved=True,
        norm_eps="layer_norm_eps",
        logit_scale=0.0625,
        always={"norm": "layer", "parallel": True},
    ),
    Architecture(
        "cohere2",
        "Cohere2ForCausalLM",
        special_ids={"bos_token_id": 5, "eos_token_id": 255001},
        attention_bias=False,
        sliding_window=4096,
        window_by_layer=True,
        full_every=4,
        tied=True,
        interleaved=True,
        norm_eps="layer_norm_eps",
        logit_scale=0.0625,
        rotated_windows=True,
        always={"norm": "layer", "parallel": True},
    ),
    Architecture(
        "stablelm",
        "StableLmForCausalLM",
        LAYER_NAMES | NORM_BIASES,
        special_ids={"bos_token_id": 0, "eos_token_id": 0},
        norm_eps="layer_norm_eps",
        partial_rotary=0.25,
        further=stablelm,
        always={"norm": "layer", "norm_bias": True},
    ),
    Architecture(
        "phi",
        "PhiForCausalLM",
        _PHI_NAMES,
        norm_eps="layer_norm_eps",
        use_bias=True,
        logit_bias=True,
        partial_rotary=0.5,
        renamed={"model.final_layernorm.": "model.norm."},
        always={
            **{"activation": "gelu_tanh", "gated": False, "norm": "layer", "norm_bias": True},
            "parallel": True,
        },
    ),
    Architecture(
        "nemotron",
        "NemotronForCausalLM",
        LAYER_NAMES | NORM_BIASES,
        special_ids={"bos_token_id": 2, "eos_token_id": 3},
        norm_eps="norm_eps",
        attention_bias=False,
        mlp_bias=True,
        partial_rotary=0.5,
        norms_from_one=True,
        always={"activation": "relu2", "gated": False, "norm": "layer", "norm_bias": True},
    ),
    Architecture(
        "jais2",
        "Jais2ForCausalLM",
        LAYER_NAMES | NORM_BIASES,
        special_ids={"bos_token_id": 0, "eos_token_id": 150024},
        norm_eps="layer_norm_eps",
        attention_bias=True,
        mlp_bias=True,
        mlp_bias_usual=True,
        always={"activation": "relu2", "gated": False, "norm": "layer", "norm_bias": True},
    ),
)

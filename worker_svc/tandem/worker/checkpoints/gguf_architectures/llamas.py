"""Dense models whose norms are RMS norms."""

from __future__ import annotations

from tandem.worker.checkpoints import gguf_further as further
from tandem.worker.checkpoints.gguf_architectures.architecture import LAYER_NAMES, GgufArchitecture, GgufExperts
from tandem.worker.checkpoints.gguf_architectures.names import (
    FUSED,
    MLP_BIASES,
    NORMS_AROUND,
    POST_NORM,
    WITHOUT_OUTPUT_BIAS,
)

_FUSED_MLP = {"mlp.gate": "ffn_up.weight", "mlp.up": "ffn_up.weight"}
_NORMS_AFTER = {"attention.norm": "post_attention_norm.weight", "mlp.norm": "post_ffw_norm.weight"}

LLAMAS = {
    "llama": GgufArchitecture("llama", permuted=True, divisors=True, layer_names=LAYER_NAMES | MLP_BIASES),
    "qwen2": GgufArchitecture("qwen2", qkv_bias=True),
    "qwen3": GgufArchitecture("qwen3", qk_norm="head"),
    # Of models that see, whose files have the text model alone.
    "qwen2vl": GgufArchitecture("qwen2", qkv_bias=True),
    "qwen3vl": GgufArchitecture("qwen3", qk_norm="head"),
    "smollm3": GgufArchitecture("smollm3", permuted=True, unrotated_every=4),
    "seed_oss": GgufArchitecture("seed_oss", layer_names=LAYER_NAMES | POST_NORM),
    "arcee": GgufArchitecture("arcee", permuted=True, always={"activation": "relu2", "gated": False}),
    "ernie4_5": GgufArchitecture("ernie4_5", permuted=True),
    "granite": GgufArchitecture("granite", permuted=True, layer_names=LAYER_NAMES | MLP_BIASES),
    "phi3": GgufArchitecture(
        "phi3",
        layer_names=LAYER_NAMES | FUSED | _FUSED_MLP,
        partly_rotated=True,
        longrope=True,
        windowed="phi3",
    ),
    "glm4": GgufArchitecture(
        "glm4",
        permuted=True,
        halves_of_sections=True,
        partly_rotated=True,
        layer_names=LAYER_NAMES | NORMS_AROUND | _FUSED_MLP,
        always={"norm_placement": "both"},
    ),
    "mistral3": GgufArchitecture("ministral3", permuted=True, further=further.ministral3),
    "exaone": GgufArchitecture("exaone", divisors=True),
    "granite_swa": GgufArchitecture(
        "granite_swa",
        permuted=True,
        full_every=4,
        with_experts="granitemoe_swa",
        layer_names=LAYER_NAMES
        | MLP_BIASES
        | {"attention.sinks": "attn_sinks.weight", "shared.down": "ffn_down_shexp.weight"}
        | dict.fromkeys(("shared.gate", "shared.up"), "ffn_up_shexp.weight"),
        experts=GgufExperts(shared="size", may_share=True),
        further=further.granite_swa,
        always={"sinks": True},
    ),
    "apertus": GgufArchitecture(
        "apertus", qk_norm="head", divisors=True, always={"activation": "xielu", "gated": False}
    ),
    "hunyuan-dense": GgufArchitecture("hunyuan_v1_dense", qk_norm="behind", layer_names=WITHOUT_OUTPUT_BIAS),
    "olmo2": GgufArchitecture(
        "olmo2",
        qk_norm="whole",
        full_every=4,
        windowed="olmo3",
        window_rope=0.0,
        layer_names=LAYER_NAMES | _NORMS_AFTER,
        always={"norm_placement": "after"},
    ),
    "chatglm": GgufArchitecture("glm", permuted=True, partly_rotated=True, layer_names=LAYER_NAMES | _FUSED_MLP),
    "exaone4": GgufArchitecture(
        "exaone4",
        qk_norm="head",
        divisors=True,
        full_every=4,
        windowed="exaone4",
        layer_names=LAYER_NAMES | _NORMS_AFTER,
        further=further.exaone4,
        always={"norm_placement": "after"},
    ),
}

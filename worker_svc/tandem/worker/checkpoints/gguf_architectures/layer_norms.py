"""Dense models that have layer norms."""

from __future__ import annotations

from tandem.worker.checkpoints import gguf_further as further
from tandem.worker.checkpoints.gguf_architectures.architecture import LAYER_NAMES, GgufArchitecture
from tandem.worker.checkpoints.gguf_architectures.names import FUSED, FUSED_BIASES, MLP_BIASES, WITHOUT_OUTPUT_BIAS

LAYER_NORMS = {
    "starcoder2": GgufArchitecture(
        "starcoder2",
        norm_eps="attention.layer_norm_epsilon",
        layer_names=LAYER_NAMES | MLP_BIASES,
        always={"activation": "gelu_tanh", "gated": False, "norm": "layer", "norm_bias": True},
    ),
    "phi2": GgufArchitecture(
        "phi",
        norm_eps="attention.layer_norm_epsilon",
        partly_rotated=True,
        layer_names=LAYER_NAMES | MLP_BIASES,
        always={
            **{"activation": "gelu_tanh", "gated": False, "norm": "layer", "norm_bias": True},
            **{"parallel": True, "logit_bias": True},
        },
    ),
    "gptneox": GgufArchitecture(
        "gpt_neox",
        norm_eps="attention.layer_norm_epsilon",
        partly_rotated=True,
        layer_names=LAYER_NAMES | FUSED | FUSED_BIASES | MLP_BIASES,
        further=further.gpt_neox,
        always={"activation": "gelu", "gated": False, "norm": "layer", "norm_bias": True},
    ),
    "falcon": GgufArchitecture(
        "falcon",
        norm_eps="attention.layer_norm_epsilon",
        layer_names=LAYER_NAMES | FUSED,
        own_norm_names={
            **{"attention.norm": "attn_norm_2.weight", "attention.norm_bias": "attn_norm_2.bias"},
            **{"mlp.norm": "attn_norm.weight", "mlp.norm_bias": "attn_norm.bias"},
        },
        further=further.falcon,
        always={"activation": "gelu", "gated": False, "norm": "layer", "norm_bias": True, "parallel": True},
    ),
    "nemotron": GgufArchitecture(
        "nemotron",
        norm_eps="attention.layer_norm_epsilon",
        partly_rotated=True,
        layer_names=LAYER_NAMES | MLP_BIASES,
        always={"activation": "relu2", "gated": False, "norm": "layer", "norm_bias": True},
    ),
    "jais2": GgufArchitecture(
        "jais2",
        norm_eps="attention.layer_norm_epsilon",
        layer_names=LAYER_NAMES | MLP_BIASES,
        always={"activation": "relu2", "gated": False, "norm": "layer", "norm_bias": True},
    ),
    "cohere2": GgufArchitecture(
        "cohere2",
        permuted=True,
        norm_eps="attention.layer_norm_epsilon",
        full_every=4,
        logit_scale_divides=False,
        unrotated_every=4,
        always={"norm": "layer", "parallel": True},
    ),
    "olmo": GgufArchitecture(
        "olmo",
        permuted=True,
        norm_eps="attention.layer_norm_epsilon",
        layer_names=WITHOUT_OUTPUT_BIAS,
        always={"norm": "layer", "norm_weights": False},
    ),
    "stablelm": GgufArchitecture(
        "stablelm",
        norm_eps="attention.layer_norm_epsilon",
        partly_rotated=True,
        further=further.stablelm,
        always={"norm": "layer", "norm_bias": True},
    ),
    "command-r": GgufArchitecture(
        "cohere",
        permuted=True,
        norm_eps="attention.layer_norm_epsilon",
        logit_scale_divides=False,
        always={"norm": "layer", "parallel": True},
    ),
}

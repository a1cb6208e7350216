"""Dense models that add a vector of each position to the token's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.worker.checkpoints import gguf_further as further
from tandem.worker.checkpoints.gguf_architectures.architecture import LAYER_NAMES, GgufArchitecture
from tandem.worker.checkpoints.gguf_architectures.names import FUSED, FUSED_BIASES, MLP_BIASES

_GPT_2: Mapping[str, Any] = {
    "norm_eps": "attention.layer_norm_epsilon",
    "layer_names": LAYER_NAMES | FUSED | FUSED_BIASES | MLP_BIASES,
    "unrotated_every": 1,
    "further": further.learned_positions,
    "always": {"activation": "gelu_tanh", "gated": False, "norm": "layer", "norm_bias": True},
}

LEARNED_POSITIONS = {
    "gpt2": GgufArchitecture("gpt2", **_GPT_2),
    "starcoder": GgufArchitecture("gpt_bigcode", **_GPT_2),
}

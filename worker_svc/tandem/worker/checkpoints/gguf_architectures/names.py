"""Where tensors are that architectures of several kinds have, and other facts that they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.worker.checkpoints.gguf_architectures.architecture import LAYER_NAMES

NORMS_AROUND = {
    "attention.post_norm": "post_attention_norm.weight",
    "mlp.post_norm": "post_ffw_norm.weight",
}
FUSED = {f"attention.{part}": "attn_qkv.weight" for part in "qkv"}
FUSED_BIASES = {f"attention.{part}_bias": "attn_qkv.bias" for part in "qkv"}
SHARED = {f"shared.{part}": f"ffn_{part}_shexp.weight" for part in ("gate", "up", "down")}
ROUTER_BIAS = {"router_bias": "exp_probs_b.bias"}
SIGMOID: Mapping[str, Any] = {"score": "sigmoid", "biased": True}
POST_NORM = {"mlp.norm": "post_attention_norm.weight"}
MLP_BIASES = {f"mlp.{part}_bias": f"ffn_{part}.bias" for part in ("gate", "up", "down")}  # of those that may have them
FUSED_EXPERTS = dict.fromkeys(("experts.gate", "experts.up"), "ffn_gate_up_exps.weight")  # where files have them so
WITHOUT_OUTPUT_BIAS = {name: stored for name, stored in LAYER_NAMES.items() if name != "attention.output_bias"}
SHARED_ROUTER = {"shared_router": "ffn_gate_inp_shexp.weight"}

"""Shapes of published models, and GGUF files of random weights that look like them.

A row is the published `config.json`, which the tests have too, and how many of its layers are measured. transformers
makes the model on the meta device, without weights, so that names and shapes are those that llama.cpp's converter gives
it; what is written under them are random blocks. All vocabularies are cut to the same size.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.worker_svc.checkpoints.published import PUBLISHED
from tests.worker_svc.checkpoints.published_states import FALCON, GRANITE, LFM2, NEMOTRON
from tests.worker_svc.checkpoints.test_hybrids import PUBLISHED as DELTA_NETS

VOCABULARY = 32000
_COUNTS = ("num_hidden_layers", "num_layers", "n_layer")  # what files call the number of layers


@dataclass(frozen=True)
class Shape:
    """A published model, less most of its layers."""

    published: Mapping[str, Any]  # its config.json
    layers: int  # of them
    changes: Mapping[str, Any] = field(default_factory=dict)
    experts: str = ""  # the kind in which experts are stored whatever the others are

    def settings(self, layers: int) -> dict[str, Any]:
        """Returns what a configuration of transformers is made of, for the first `layers`."""
        own = dict(self.published.get("text_config", self.published))
        counted = next(name for name in _COUNTS if name in own)
        all_layers = own[counted]
        cut = {
            name: value[:layers]
            for name, value in own.items()
            if isinstance(value, (list, str)) and len(value) == all_layers
        }
        vocabulary = {name: VOCABULARY for name in ("vocab_size", "vocab_size_per_layer_input") if name in own}
        special = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
        for name in ("architectures", "quantization_config", "auto_map"):
            own.pop(name, None)
        return own | cut | {counted: layers} | vocabulary | special | dict(self.changes)


def _of(name: str, layers: int, *, experts: str = "", **changes: Any) -> Shape:
    return Shape(PUBLISHED[name][0], layers, changes, experts)


_LLAMA = {
    **{"model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 2048, "intermediate_size": 5632},
    **{"num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "rms_norm_eps": 1e-5},
    **{"max_position_embeddings": 8192, "tie_word_embeddings": False},
}
_QWEN3: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16}
_QWEN35 = {
    **{"hidden_size": 1024, "intermediate_size": 3584, "num_attention_heads": 8, "num_key_value_heads": 2},
    **{"linear_num_value_heads": 16, "tie_word_embeddings": True},
}
# As llama.cpp's converter takes it: a Llama, without the scaling of RoPE that its files cannot say.
_AS_LLAMA: dict[str, Any] = {"model_type": "llama", "rope_scaling": None}

# llama.cpp takes which layers are of which kind for granted, so that some need four of them, and fewer experts.
SHAPES = {
    "llama-1b": Shape(_LLAMA, 22),
    "qwen3-0.6b": _of("Qwen3-8B", 28, **_QWEN3),
    "smollm3-3b": _of("SmolLM3-3B", 4),
    "ministral3-8b": _of("the text model of Ministral-3-8B", 1),
    "mistral-small-24b": _of("Mistral-Small-24B-2501", 1),
    "granite3.3-8b": _of("granite-3.3-8b", 2),
    "olmo2-7b": _of("OLMo-2-1124-7B", 2),
    "ernie4.5-0.3b": _of("ERNIE-4.5-0.3B", 18),
    "glm4-9b": _of("GLM-4-9B-0414", 2),
    "phi4-mini": _of("Phi-4-mini", 3),
    "gemma2-9b": _of("gemma-2-9b", 2),
    "gemma3-1b": _of("gemma-3-1b", 12),
    "gemma4-e2b": _of("the text model of gemma-4-E2B", 10, num_kv_shared_layers=5),
    "arcee-4.5b": _of("AFM-4.5B", 3),
    "starcoder2-3b": _of("starcoder2-3b", 4),
    "cohere2-7b": _of("c4ai-command-r7b-12-2024", 2),
    "qwen3-moe": _of("Qwen3-30B-A3B", 2),
    "olmoe-7b": _of("OLMoE-1B-7B-0924", 2),
    "gpt-oss-20b": _of("gpt-oss-20b", 2, experts="MXFP4"),
    "llama4-scout-4e": _of("the text model of Llama-4-Scout-17B-16E", 4, num_local_experts=4),
    "youtu-2b": _of("Youtu-LLM-2B", 6),
    "qwen3.5-0.8b": Shape(DELTA_NETS["Qwen3.6-27B"][0], 12, _QWEN35),
    "qwen3.6-35b-a3b-128e": Shape(DELTA_NETS["Qwen3.6-35B-A3B"][0], 4, {"num_experts": 128}),
    "lfm2-1.2b": Shape(LFM2, 6, {"full_attn_idxs": [2, 5]}),
    "granite4-h-tiny": Shape(GRANITE, 6),
    "nemotron-h-9b": Shape(NEMOTRON, 4, {"hybrid_override_pattern": "M-*-"}),
    "falcon-h1-0.5b": Shape(FALCON, 18),
    "qwen2.5-7b": _of("Qwen2.5-7B", 2),
    "olmo3-7b": _of("Olmo-3-7B", 4),
    "seed-oss-36b": _of("Seed-OSS-36B", 1),
    "internlm3-8b": _of("internlm3-8b", 2, **_AS_LLAMA),
    "qwen2-moe-a2.7b": _of("Qwen1.5-MoE-A2.7B", 2),
    "granite3.1-3b-a800m": _of("granite-3.1-3b-a800m", 6),
    "glm4.5-air-64e": _of("GLM-4.5-Air", 2, n_routed_experts=64),
    "phi3.5-moe": _of("Phi-3.5-MoE", 1),
    "minimax-m2-64e": _of("MiniMax-M2", 2, num_local_experts=64),
    "deepseek-v3-32e": _of("DeepSeek-V3", 2, first_k_dense_replace=1, n_routed_experts=32),
    "qwen3-next-128e": Shape(DELTA_NETS["Qwen3-Next-80B-A3B"][0], 4, {"num_experts": 128}),
    "exaone4-32b": _of("EXAONE-4.0-32B", 4),
    "exaone3.5-7.8b": _of("EXAONE-3.5-7.8B-Instruct", 2),
    "gemma-7b": _of("gemma-7b", 1),
    "command-r": _of("c4ai-command-r-v01", 1),
    "stablelm2-1.6b": _of("stablelm-2-1_6b", 6),
    "olmo-7b": _of("OLMo-7B-hf", 2),
    "hunyuan-7b": _of("Hunyuan-7B-Instruct", 2),
    "pythia-6.9b": _of("pythia-6.9b", 2),
    "falcon-7b": _of("falcon-7b", 2),
    "gpt2": _of("gpt2", 12),
    "starcoder": _of("starcoder", 1),
    "phi2": _of("phi-2", 4),
    "nemotron-mini-4b": _of("Nemotron-Mini-4B-Instruct", 3),
    "jais2-8b": _of("Jais-2-8B", 2),
    "trinity-mini": _of("Trinity-Mini", 4),
    "ernie4.5-21b-a3b": _of("ERNIE-4.5-21B-A3B", 2),
    "dots1-32e": _of("dots.llm1", 2, n_routed_experts=32),
}

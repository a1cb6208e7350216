"""Models that store latents instead of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.worker.checkpoints.gguf_architectures.architecture import LAYER_NAMES, GgufArchitecture, GgufExperts
from tandem.worker.checkpoints.gguf_architectures.names import SHARED
from tandem.worker.checkpoints.gguf_latents import INDEX_NAMES, deepseek32, glm_dsa, latents, mistral4, with_one_head
from tandem.worker.checkpoints.gguf_latents import LAYER_NAMES as LATENT_NAMES

_LATENTS: Mapping[str, Any] = {
    "partly_rotated": True,
    "layer_names": LAYER_NAMES | SHARED | LATENT_NAMES,
    "experts": GgufExperts(normalized=None, shared="count", scaled=True, dense_first=True),
    "prepared": with_one_head,
}
_INDEXED: Mapping[str, Any] = {
    **_LATENTS,
    "layer_names": LAYER_NAMES | SHARED | LATENT_NAMES | INDEX_NAMES,
    "drafting_layers": True,
}

LATENTS = {
    "deepseek2": GgufArchitecture("deepseek_v3", **_LATENTS, drafting_layers=True, further=latents),
    "mistral4": GgufArchitecture("mistral4", **_LATENTS, further=mistral4),
    "deepseek32": GgufArchitecture("deepseek_v32", **_INDEXED, further=deepseek32),
    "glm-dsa": GgufArchitecture("glm_moe_dsa", **_INDEXED, index_permuted=True, further=glm_dsa),
}

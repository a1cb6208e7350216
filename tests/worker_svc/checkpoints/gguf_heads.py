"""GGUF files of models with a head that guesses the token after next, as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch

from tests.worker_svc.checkpoints.gguf_kinds import ARCHITECTURES
from tests.worker_svc.checkpoints.gguf_models import save_gguf
from tests.worker_svc.checkpoints.gguf_tensors import named_tensors
from tests.worker_svc.model.heads import ReferenceHead

_PARTS = {
    "join": gguf.MODEL_TENSOR.NEXTN_EH_PROJ,
    "embedding_norm": gguf.MODEL_TENSOR.NEXTN_ENORM,
    "hidden_norm": gguf.MODEL_TENSOR.NEXTN_HNORM,
    "norm": gguf.MODEL_TENSOR.NEXTN_SHARED_HEAD_NORM,
    "embedding": gguf.MODEL_TENSOR.NEXTN_EMBED_TOKENS,
    "output": gguf.MODEL_TENSOR.NEXTN_SHARED_HEAD_HEAD,
}


def save_gguf_with_head(head: ReferenceHead, path: Path, *left_out: str) -> Path:
    """Writes the model and its head, a block behind the others, without the named parts. Norms of Qwen's have their 1
    added; embedding and output are there where published folders have copies of them."""
    model: Any = head.beside
    layers, kind = len(model.model.layers), ARCHITECTURES[model.config.model_type]
    model.model.layers.append(head.layer)
    model.config.num_hidden_layers = layers + 1
    with_block = [(name, tensor) for name, tensor in named_tensors(model) if name.startswith(f"blk.{layers}.")]
    model.config.num_hidden_layers = layers
    del model.model.layers[layers]
    qwen = "qwen" in kind
    parts = dict(head.named_parameters()) | ({} if qwen else head.tables)
    for part, number in _PARTS.items():
        tensor = parts.get(part, parts.get(f"{part}.weight"))
        if tensor is not None and part not in left_out:
            plus = 1.0 if qwen and "norm" in part else 0.0
            with_block.append((f"{gguf.TENSOR_NAMES[number].format(bid=layers)}.weight", tensor.detach() + plus))
    return save_gguf(
        model,
        path,
        metadata={f"{kind}.block_count": layers + 1, f"{kind}.nextn_predict_layers": 1},
        extra={name: torch.as_tensor(tensor).detach().contiguous().numpy() for name, tensor in with_block},
    )

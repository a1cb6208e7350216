"""Llama shapes with random weights that are made on the device: no file, nothing to download."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import torch

from tandem.worker.checkpoints.model_config import ModelConfig


def llama(
    size: Literal["tiny", "1b", "1.1b", "8b"], context_length: int = 8192, layers: int | None = None
) -> ModelConfig:
    """The shapes of Llama 3.2 1B, TinyLlama 1.1B and Llama 3.1 8B, and one that a CPU computes at once. `layers`: other
    than their own number."""
    own_layers, hidden, intermediate, heads, kv_heads, head_dim, vocabulary = {
        "tiny": (2, 64, 128, 4, 2, 16, 512),
        "1b": (16, 2048, 8192, 32, 8, 64, 128256),
        "1.1b": (22, 2048, 5632, 32, 4, 64, 32000),
        "8b": (32, 4096, 14336, 32, 8, 128, 128256),
    }[size]
    return ModelConfig(
        architecture="llama",
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers or own_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        context_length=context_length,
        norm_eps=1e-5,
        rope_theta=500000.0,
        tie_embeddings=size == "1b",
    )


class RandomCheckpoint:
    """A checkpoint that makes its tensors up: normal numbers, norms of ones; the same for the same seed and device."""

    path = Path("random")
    format: Literal["hugging_face"] = "hugging_face"
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    sampling_defaults: Mapping[str, float | int] = {}

    def __init__(self, config: ModelConfig, device: torch.device | str, dtype: torch.dtype) -> None:
        self.config, self.dtype, self._device = config, dtype, torch.device(device)
        self.total_bytes = sum(torch.Size(shape).numel() for shape in config.tensor_shapes().values()) * dtype.itemsize
        self.stored_as = {str(dtype).removeprefix("torch."): self.total_bytes}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        generator = torch.Generator(self._device).manual_seed(0)
        for name, shape in self.config.tensor_shapes().items():
            tensor = torch.empty(shape, dtype=self.dtype, device=self._device)
            yield name, tensor.fill_(1) if len(shape) == 1 else tensor.normal_(std=0.02, generator=generator)

    def release(self, piece: object) -> None:
        """There is no file behind it."""

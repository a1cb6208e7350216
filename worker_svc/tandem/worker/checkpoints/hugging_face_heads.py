"""Finds the head with which a model guesses the token after next (`mtp.`): a layer with attention whose stream begins
with what the model's last norm has made of a token, joined with the embedding of the next one. Embedding and output are
the model's own.

    x = Wj [norm(embedding of token i + 1), norm(hidden state of token i)]        guesses token i + 2
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tandem.worker.checkpoints.checkpoint import CheckpointError
from tandem.worker.checkpoints.hugging_face_architectures import Architecture
from tandem.worker.checkpoints.model_config import ModelConfig

PREFIX = "mtp."
_LAYERS = PREFIX + "layers."

T = TypeVar("T")


def head_tensors(path: Path, architecture: Architecture, stored: Mapping[str, T]) -> dict[str, str]:
    """Returns the names in the files of the head's tensors, by what they would be called in a model of their own.

    Raises CheckpointError where there is none, or one that is not served.
    """
    names = [name for name in stored if name.startswith(PREFIX)]
    layers = {name.removeprefix(_LAYERS).partition(".")[0] for name in names if name.startswith(_LAYERS)}
    if not architecture.hybrid or not layers:
        raise CheckpointError(f"{path}: has no head that guesses the token after next ({_LAYERS}0)")
    if layers != {"0"}:
        raise CheckpointError(f"{path}: the head that guesses has {len(layers)} layers ({_LAYERS}); one is served")
    return {_own_name(name): name for name in names}


def head_config(model: ModelConfig) -> ModelConfig:
    """Returns the config of a model's head: one layer, which attends as the model's layers that do."""
    experts = None if model.experts is None else replace(model.experts, dense_layers=())
    return replace(model, num_layers=1, recurrence=None, experts=experts, tie_embeddings=False, joins=True)


def _own_name(stored: str) -> str:
    behind = stored.removeprefix(PREFIX)
    return f"model.{behind}" if behind.startswith(("layers.", "norm.")) else stored

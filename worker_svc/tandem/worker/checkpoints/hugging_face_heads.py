"""Finds the tensors of the head that guesses the token after next (`heads.py`) among those of a model's files.

Qwen3-Next, Qwen3.5                     `mtp.`, beside the model
GLM-4.5 to 4.7, DeepSeek V3, GLM-5      layer `num_hidden_layers`, behind the model's; often with copies of the
                                        model's embedding and output
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.heads import require_one
from tandem.worker.checkpoints.hugging_face_architectures.architecture import Architecture

_BESIDE = "mtp."
_OWN_NAMES = {
    "join.matrix": "eh_proj.weight",
    "join.embedding_norm": "enorm.weight",
    "join.hidden_norm": "hnorm.weight",
    "norm": "shared_head.norm.weight",
    "embedding": "embed_tokens.weight",
    "output": "shared_head.head.weight",
}


def layer_of_head(config: Fields, architecture: Architecture) -> int | None:
    """Returns the number by which the files know the head's layer; None where it has names of its own, if any."""
    read = architecture.drafting_layers and not architecture.drafting_unread
    return config.integer("num_hidden_layers") if read else None


def head_tensors(path: Path, layer: int | None, architecture: Architecture, stored: Iterable[str]) -> dict[str, str]:
    """Returns the names in the files of the head's tensors, by what they would be called in a model of their own; those
    of a layer behind the model's keep their names.

    Raises CheckpointError where there is none, or one that is not served.
    """
    if layer is not None:
        behind = {name: number for name in stored if (number := _layer(name)) >= layer}
        require_one(path, {str(number) for number in behind.values()}, f"model.layers.{layer}")
        return {name: name for name in behind}
    names = [name for name in stored if name.startswith(_BESIDE)] if architecture.hybrid else []
    layers = f"{_BESIDE}layers."
    require_one(path, {name.split(".")[2] for name in names if name.startswith(layers)}, f"{layers}0")
    return {_renamed(name): name for name in names}


def stored_name(architecture: Architecture, layer: int, name: str) -> tuple[str, int | None]:
    """Returns the name in the files of a canonical tensor of a head that is layer `layer`, and the expert if all of the
    layer's are in one tensor."""
    if not name.startswith("layers."):
        return f"model.layers.{layer}.{_OWN_NAMES[name]}", None
    return architecture.stored_name(name.replace("layers.0", f"layers.{layer}", 1))


def _layer(stored: str) -> int:
    number = stored.removeprefix("model.layers.").partition(".")[0]
    return int(number) if number.isdecimal() and len(number) < 10 and stored.startswith("model.layers.") else -1


def _renamed(stored: str) -> str:
    behind = stored.removeprefix(_BESIDE)
    return f"model.{behind}" if behind.startswith(("layers.", "norm.")) else stored

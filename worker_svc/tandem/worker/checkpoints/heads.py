"""The head with which a model guesses the token after next: a layer with attention whose stream begins with what the
model's last norm has made of a token, joined with the embedding of the next one. Embedding and output are the model's
own, but for those that the head has itself.

    x = Wj [norm(embedding of token i + 1), norm(hidden state of token i)]        guesses token i + 2

Where it is: `hugging_face_heads.py`, `gguf_file.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from tandem.worker.checkpoints.checkpoint import CheckpointError
from tandem.worker.checkpoints.model_config import ModelConfig, Table

TABLES: tuple[Table, ...] = ("embedding", "output")  # which a head may have of its own


def head_config(model: ModelConfig, own_tables: tuple[Table, ...] = ()) -> ModelConfig:
    """Returns the config of a model's head: one layer, which attends as the model's layers that do, with experts where
    some of those have them."""
    experts = None if model.experts is None else replace(model.experts, dense_layers=())
    indexer = None if model.indexer is None else replace(model.indexer, layers=(0,))
    return replace(
        model,
        num_layers=1,
        recurrence=None,
        experts=experts,
        indexer=indexer,
        tie_embeddings=False,
        joins=True,
        own_tables=own_tables,
    )


def require_one(path: Path, layers: Collection[str], first: str) -> None:
    """Raises CheckpointError unless the files have one layer that guesses; `first`: what its tensors are called."""
    if not layers:
        raise CheckpointError(f"{path}: has no head that guesses the token after next ({first})")
    if len(layers) > 1:
        raise CheckpointError(f"{path}: the head that guesses has {len(layers)} layers ({first}, ...); one is served")

"""Reads model folders: one file a format, all of them a `Checkpoint`."""

from __future__ import annotations

from pathlib import Path

from worker_svc.checkpoints.checkpoint import Checkpoint, CheckpointError
from worker_svc.checkpoints.hugging_face import HuggingFaceCheckpoint
from worker_svc.checkpoints.meta import MetaCheckpoint

__all__ = ["Checkpoint", "CheckpointError", "open_checkpoint"]


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens the folder at `path`, whose format is recognised by what is in it.

    Everything is checked but the weights' values: sizes, names, shapes, dtypes, files. Raises CheckpointError.
    """
    try:
        names = {file.name for file in path.iterdir()}
    except NotADirectoryError:
        kind = "GGUF files are not served yet" if path.suffix == ".gguf" else "a folder is expected"
        raise CheckpointError(f"{path}: is a file; {kind}") from None
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such folder") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    has_safetensors = any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names)
    if "config.json" in names and (has_safetensors or "params.json" not in names):
        return HuggingFaceCheckpoint(path)
    if "params.json" in names:
        return MetaCheckpoint(path)
    raise CheckpointError(f"{path}: neither config.json (Hugging Face layout) nor params.json (Meta layout) is there")

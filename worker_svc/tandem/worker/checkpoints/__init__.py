"""Reads model folders: one file a format, all of them a `Checkpoint`."""

from __future__ import annotations

from pathlib import Path

from tandem.common.gguf import MAGIC, are_parts
from tandem.worker.checkpoints.checkpoint import Checkpoint, CheckpointError
from tandem.worker.checkpoints.gguf_file import GgufCheckpoint
from tandem.worker.checkpoints.hugging_face import HuggingFaceCheckpoint
from tandem.worker.checkpoints.meta import MetaCheckpoint

__all__ = ["Checkpoint", "CheckpointError", "open_checkpoint", "open_head"]


def open_checkpoint(path: Path, adapter: Path | None = None) -> Checkpoint:
    """Opens the folder or GGUF file at `path`, whose format is recognised by what is in it; with an `adapter`, its
    changes are in the weights.

    Everything is checked but the weights' values: sizes, names, shapes, dtypes, files. Raises CheckpointError.
    """
    return _checked(path, head=False, adapter=adapter)


def open_head(path: Path) -> Checkpoint:
    """Opens the head that guesses the token after next, which some models have in their files; raises CheckpointError,
    where there is none, too."""
    return _checked(path, head=True)


def _checked(path: Path, *, head: bool, adapter: Path | None = None) -> Checkpoint:
    try:
        return _opened(path, head=head, adapter=adapter)
    except ArithmeticError as error:
        raise CheckpointError(f"{path}: has numbers too large or too small to compute with ({error})") from error


def _opened(path: Path, *, head: bool, adapter: Path | None) -> Checkpoint:
    try:
        if path.is_file():
            if adapter is not None:
                raise _not_adapted(path)
            return _open_file(path, head=head)
        names = {file.name for file in path.iterdir()}
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file or folder") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    has_safetensors = any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names)
    if "config.json" in names and (has_safetensors or "params.json" not in names):
        return HuggingFaceCheckpoint(path, head=head, adapter=adapter)
    if adapter is not None:
        raise _not_adapted(path)
    if "params.json" in names:
        if head:
            raise CheckpointError(f"{path}: Meta's layout has no head that guesses the token after next")
        return MetaCheckpoint(path)
    files = sorted(name for name in names if name.endswith(".gguf"))
    if len(files) == 1 or are_parts(files):
        return GgufCheckpoint(path / files[0], head=head)
    if files:
        raise CheckpointError(f"{path}: has {len(files)} GGUF files ({', '.join(files[:3])}); name one of them")
    raise CheckpointError(
        f"{path}: neither config.json (Hugging Face layout) nor params.json (Meta layout) nor a GGUF file is there"
    )


def _not_adapted(path: Path) -> CheckpointError:
    return CheckpointError(f"{path}: is not a folder in Hugging Face's layout; adapters are served with such alone")


def _open_file(path: Path, *, head: bool) -> Checkpoint:
    with path.open("rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            return GgufCheckpoint(path, head=head)
    if path.suffix in (".safetensors", ".pth", ".json"):
        raise CheckpointError(f"{path}: is a file; the folder that it lies in is expected")
    raise CheckpointError(f"{path}: is a file that does not begin with GGUF; a GGUF file or a folder is expected")

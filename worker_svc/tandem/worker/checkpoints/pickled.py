"""Files that `torch.save` wrote (`*.pth`, `pytorch_model.bin`): tensors, mapped, and nothing else."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from tandem.worker.checkpoints.checkpoint import CheckpointError

_ZIP_MAGIC = b"PK\x03\x04"


def load_tensors(file: Path) -> dict[str, torch.Tensor]:
    """Returns the tensors of a file. No code in it is run. Raises CheckpointError, which names what is not one."""
    try:
        with file.open("rb") as stream:
            if stream.read(len(_ZIP_MAGIC)) != _ZIP_MAGIC:
                raise CheckpointError(f"{file}: not an archive of torch.save, or damaged at its beginning")
        state = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except CheckpointError:
        raise
    except FileNotFoundError:
        raise CheckpointError(f"{file}: no such file") from None
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{file}: holds something other than weights, which is not loaded for safety") from error
    except Exception as error:  # a damaged archive makes torch raise nearly anything
        raise CheckpointError(f"{file}: damaged or truncated: {_first_sentence(error)}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{file}: holds a {type(state).__name__} where a dictionary of tensors is expected")
    for name, tensor in state.items():
        _check(file, name, tensor)
    return state


def _check(file: Path, name: Any, tensor: Any) -> None:
    if not isinstance(name, str):
        raise CheckpointError(f"{file}: has the key {name!r} where names of tensors are expected")
    if not isinstance(tensor, torch.Tensor):
        raise CheckpointError(f"{file}: {name} is a {type(tensor).__name__} where a tensor is expected")
    if tensor.layout != torch.strided or tensor.is_quantized or not tensor.is_contiguous():
        raise CheckpointError(f"{file}: tensor {name} is not dense and contiguous")


def _first_sentence(error: Exception) -> str:
    return str(error).strip().split("\n")[0].split(". ")[0] or type(error).__name__

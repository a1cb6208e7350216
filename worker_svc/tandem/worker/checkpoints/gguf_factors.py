"""What whole matrices of a GGUF file are multiplied by.

Of NVFP4 the blocks have the scales of 16 numbers. The one of the whole matrix, or one of each expert's, is a tensor of
its own beside `NAME.weight`: `NAME.scale`. `NAME.input_scale` is that of activations which are rounded to NVFP4 too, as
they are here not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from tandem.worker.checkpoints.checkpoint import CheckpointError, StoredTensor
from tandem.worker.checkpoints.ggml_blocks import BLOCK_KINDS


def take_factors(
    path: Path, stored: dict[str, StoredTensor], numbers_of: Callable[[str], tuple[float, ...]]
) -> Mapping[str, tuple[float, ...]]:
    """Takes such tensors out of `stored`; returns one number of each matrix, or one of each of its experts, by the
    matrix's name. `numbers_of` reads a row of float32. Raises CheckpointError."""
    factors: dict[str, tuple[float, ...]] = {}
    for name in [name for name, tensor in stored.items() if tensor.dtype is BLOCK_KINDS["NVFP4"]]:
        base = name.removesuffix("weight")
        stored.pop(base + "input_scale", None)
        factor = base + "scale"
        if factor not in stored:
            continue
        wanted = stored[name].shape[0] if name.endswith("_exps.weight") else 1
        numbers = numbers_of(factor)
        if stored.pop(factor).shape != (wanted,) or not all(map(math.isfinite, numbers)):
            raise CheckpointError(
                f"{path}: tensor {factor} must be one finite number of each matrix of {name}: {wanted}"
            )
        factors[name] = numbers
    return factors

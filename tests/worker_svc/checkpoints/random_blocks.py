"""Blocks of every kind with random bits and scales of a sensible size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tandem.worker.checkpoints.ggml_blocks import BLOCK_KINDS

# Where a block's float16 numbers stand.
_HALVES = {
    **dict.fromkeys(("Q8_0", "Q4_0", "Q5_0"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}


def random_blocks(kind: str, count: int, seed: int = 0, scale: float = 1e-2) -> npt.NDArray[np.uint8]:
    """`[count, block_bytes]`: every bit is random but those of the float16 scales, which lie around `scale`."""
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (count, BLOCK_KINDS[kind].block_bytes), dtype=np.uint8)
    for at in _HALVES[kind]:
        halves = generator.normal(0, scale, (count, 1)).astype(np.float16)
        blocks[:, at : at + 2] = halves.view(np.uint8)
    return blocks

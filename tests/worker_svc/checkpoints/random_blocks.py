"""Blocks of every kind with random bits and scales of a sensible size."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt

from tandem.worker.checkpoints.ggml_blocks import BLOCK_KINDS

# Where a block's float16 numbers stand.
_HALVES = {
    **dict.fromkeys(("Q8_0", "Q4_0", "Q5_0", "IQ4_NL", "IQ4_XS", "IQ2_XXS", "IQ2_XS", "IQ2_S"), (0,)),
    **dict.fromkeys(("IQ3_XXS", "IQ3_S", "IQ1_S"), (0,)),
    "Q1_0": (0,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}


def random_blocks(kind: str, count: int, seed: int = 0, scale: float = 1e-2) -> npt.NDArray[np.uint8]:
    """`[count, block_bytes]`: every bit is random but those of the float16 scales, which lie around `scale`."""
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (count, BLOCK_KINDS[kind].block_bytes), dtype=np.uint8)
    if kind == "MXFP4":
        blocks[:, 0] = generator.integers(118, 124, count)
    if kind == "NVFP4":
        blocks[:, :4] = generator.integers(4, 16, (count, 4))
    if kind == "IQ1_M":  # its float16 lies in the upper four bits of four words
        half = generator.normal(0, scale, count).astype(np.float16).view(np.uint16)
        for word in range(4):
            blocks[:, 49 + 2 * word] &= 15
            blocks[:, 49 + 2 * word] |= ((half >> 4 * word) << 4 & 0xF0).astype(np.uint8)
    for at in _HALVES.get(kind, ()):
        halves = generator.normal(0, scale, (count, 1)).astype(np.float16)
        blocks[:, at : at + 2] = halves.view(np.uint8)
    return blocks


def dequantized(blocks: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[np.float32]:
    """The numbers of rows of blocks, as the gguf package makes them; of Q1_0, which it does not know, as ggml's
    `dequantize_row_q1_0` does."""
    if kind != "Q1_0":
        return gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    each = blocks.reshape(-1, 18)
    signs = np.unpackbits(each[:, 2:], axis=1, bitorder="little").astype(np.float32) * 2 - 1
    numbers = signs * each[:, :2].copy().view(np.float16).astype(np.float32)
    return numbers.reshape(*blocks.shape[:-1], -1)

"""What the PTX for numbers of 4 bits computes, by an interpreter of the few instructions that it has: on a card it runs
where Triton's interpreter has another way."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("triton")

import triton.language as tl

from tandem.worker.checkpoints.grouped import CODES
from tandem.worker.model.cuda.kernels.words import _digits_in_pairs, _e2m1_in_pairs, _offset

Bits = npt.NDArray[np.uint32]


def floats(bits: Bits, dtype: tl.dtype) -> npt.NDArray[np.float64]:
    """Both halves of registers as numbers, `[2, N]`."""
    halves = np.stack([bits & 0xFFFF, bits >> 16]).astype(np.uint16)
    if dtype == tl.float16:
        return halves.view(np.float16).astype(np.float64)
    return (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def registers(numbers: npt.NDArray[np.float64], dtype: tl.dtype) -> Bits:
    """The other way round; of bf16 only what needs no rounding."""
    if dtype == tl.float16:
        halves: Bits = numbers.astype(np.float16).view(np.uint16).astype(np.uint32)
    else:
        wide = numbers.astype(np.float32).view(np.uint32)
        assert not (wide & 0xFFFF).any()
        halves = wide >> 16
    packed: Bits = halves[0] | halves[1] << 16
    return packed


def run(ptx: str, words: Bits, dtype: tl.dtype) -> Bits:
    known: dict[str, Bits] = {"$1": words}

    def value(name: str) -> Bits:
        return known[name] if name in known else np.full_like(words, int(name, 0))

    def logical(a: Bits, b: Bits, c: Bits, table: Bits) -> Bits:
        assert table[0] == 0xEA  # f(0xF0, 0xCC, 0xAA)
        return a & b | c

    def multiply_add(a: Bits, b: Bits, c: Bits) -> Bits:
        return registers(floats(a, dtype) * floats(b, dtype) + floats(c, dtype), dtype)

    instructions: Mapping[str, Callable[..., Bits]] = {
        "mov.b32": lambda a: a, "and.b32": np.bitwise_and, "shl.b32": np.left_shift, "shr.b32": np.right_shift,
        "lop3.b32": logical, f"fma.rn.{'bf16x2' if dtype == tl.bfloat16 else 'f16x2'}": multiply_add,
    }  # fmt: skip
    for line in ptx.strip("{} ").split(";")[:-1]:
        name, *operands = line.replace(",", " ").split()
        if name != ".reg":
            known[operands[0]] = instructions[name](*map(value, operands[1:]))
    return known["$0"]


@pytest.mark.parametrize("dtype", [tl.bfloat16, tl.float16], ids=str)
@pytest.mark.parametrize("quarter", range(4))
def test_two_words_give_the_numbers_of_both(quarter: int, dtype: tl.dtype) -> None:
    halves = np.random.default_rng(quarter).integers(0, 1 << 16, (2, 4096), dtype=np.uint32)
    digits, words = halves >> 4 * quarter & 15, halves[0] | halves[1] << 16
    assert (floats(run(_digits_in_pairs(quarter, dtype), words, dtype), dtype) - _offset(dtype) == digits).all()
    assert (floats(run(_e2m1_in_pairs(quarter, dtype), words, dtype), dtype) == np.array(CODES["e2m1"])[digits]).all()

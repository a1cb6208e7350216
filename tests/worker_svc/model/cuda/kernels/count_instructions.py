"""Counts what a warp issues for each KiB of a matrix, in the loop of each product as it is assembled.

Run as a program: `count_instructions.py [word ...]`, of all matrices or those whose names have a word in them. A line
each: instructions a warp and KiB with 1 row and with 64, of a program's four warps; and how many go to local memory,
where registers are too few. docs/gpu.md has the table.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from tandem.worker.checkpoints.grouped import FLOAT8, Quantization
from tandem.worker.model.cuda.kernels.quantized import quantized_product
from tandem.worker.model.cuda.kernels.words import words_product
from tandem.worker.model.cuda.products import few_rows, same_bits
from tandem.worker.model.cuda.quantized import FEW_ROWS, MORE_ROWS, KernelWeight
from tandem.worker.model.quantization import quantize
from tests.worker_svc.model.cuda.kernels import compile_for_hopper as compiling

BF16 = torch.bfloat16
OUTPUTS, COLUMNS = 4096, 8192


def loops(code: str) -> list[list[str]]:
    """The instructions of each loop of SASS that multiplies matrices and has none in it."""
    lines = re.findall(r"^\s*/\*([0-9a-f]{4,})\*/\s+([^;]*);", code, re.MULTILINE)
    places = {int(at, 16): number for number, (at, _) in enumerate(lines)}
    found = []
    for number, (_, text) in enumerate(lines):
        target = re.search(r"\bBRA(?:\.\S+)? (?:\S+, )*`?\(?(?:0x)?([0-9a-f]+)", text)
        if target and (start := places.get(int(target[1], 16), number + 1)) <= number:
            found.append((start, number))
    inner = [a for a in found if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in found)]
    bodies = [[text for _, text in lines[first : last + 1]] for first, last in inner]
    return [body for body in bodies if any("MMA" in text for text in body)]


def kib(kernel: JITFunction[Any], constants: dict[str, Any]) -> float:
    """KiB of the matrix that a program reads in one turn of the loop."""
    name, c = kernel.fn.__name__, constants
    of_turn = {
        "_product": lambda: c["N"] * c["K"] * (1 if c["SCALED"] else 2),
        "_quantized_product": lambda: c["N"] * c["G"],
        "_words_product": lambda: c["N"] * 64,
    }[name]()
    return float(of_turn) / 1024


def matrices() -> Iterator[tuple[str, Callable[[int], torch.Tensor]]]:
    """Every kind of matrix, multiplied with few rows or many."""

    def x(rows: int) -> torch.Tensor:
        return torch.zeros(rows, COLUMNS, dtype=BF16)

    plain = torch.zeros(OUTPUTS, COLUMNS, dtype=BF16)
    yield "bf16", lambda rows: (few_rows if rows == 1 else same_bits)(x(rows), plain)
    float8, scale = plain.to(FLOAT8), torch.zeros(OUTPUTS, 1)
    yield "fp8", lambda rows: (few_rows if rows == 1 else same_bits)(x(rows), float8, scale)
    kinds = [(f"int4, groups of {group}", Quantization(4, group)) for group in (128, 64, 32)]
    kinds += [("mxfp4", Quantization(4, 32, "e2m1")), ("int8", Quantization(8, 0)), ("iq4", Quantization(4, 32, "iq4"))]
    for name, kind in kinds:
        coded = compiling.zeros_of_code(kind, OUTPUTS, COLUMNS) if kind.code == "e2m1" else None
        if kind.code == "iq4":
            coded = compiling.zeros_of_code(kind, OUTPUTS, COLUMNS, torch.float16)
        like = coded or quantize(torch.zeros(OUTPUTS, COLUMNS), kind)
        weight = KernelWeight(kind, OUTPUTS, COLUMNS, like, torch.device("cpu"), reproducible=False)
        yield name, functools.partial(integers, weight, x)


def integers(weight: KernelWeight, x: Callable[[int], torch.Tensor], rows: int) -> torch.Tensor:
    together, zeros = FEW_ROWS if rows == 1 else MORE_ROWS, torch.zeros(300, dtype=torch.int32)
    if weight.kind.bits == 8:
        return quantized_product(x(rows), weight.q, weight.scale, zeros, group=weight.group, rows_together=together)
    return words_product(
        x(rows), weight.q, weight.scale, weight.least, weight.table, zeros, group=weight.group,
        code=weight.kind.code, rows_together=together,
    )  # fmt: skip


def count(multiply: Callable[[int], torch.Tensor], rows: int) -> str:
    made: list[tuple[JITFunction[Any], Any]] = []

    def launch(kernel: JITFunction[Any], grid: object) -> Any:
        return lambda *args, **options: made.append((kernel, kernel.warmup(*args, grid=grid, **options)))

    with patch.object(JITFunction, "__getitem__", launch):
        multiply(rows)
    kernel, compiled = made[0]
    signature = kernel.arg_names
    constants = {signature[place[0]]: value for place, value in compiled.src.constants.items()}
    code = compiling.disassembled(compiled)
    counts = []
    for loop in loops(code):
        local = sum(bool(re.search(r"\b(?:LDL|STL)\b", line)) for line in loop)
        counts.append(f"{len(loop) / kib(kernel, constants):.0f}" + (f" ({local} local)" if local else ""))
    registers = re.search(r"REG:(\d+)", code)
    return f"{' or '.join(counts)}, {registers[1] if registers else '?'} registers"


def main() -> None:
    driver.set_active(compiling.NoCard())
    for name, multiply in matrices():
        if len(sys.argv) == 1 or any(word in name for word in sys.argv[1:]):
            print(f"{name}: 1 row {count(multiply, 1)}; 64 rows {count(multiply, 64)}", flush=True)


if __name__ == "__main__":
    main()

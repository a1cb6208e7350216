"""Compiles every kernel for a Hopper card, which needs no card, and prints what the assembler made of it.

Run as a program: `compile_for_hopper.py [--all]`. One line a kernel: name, registers, bytes of shared memory,
bytes spilled, whether its matrix products run on the matrix units of that generation. The interpreter takes much that
the compiler refuses, and says nothing about any of these.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.pop("TRITON_INTERPRET", None)
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from worker_svc.checkpoints.grouped import Quantization
from worker_svc.model.attention import Segment
from worker_svc.model.cuda_operations import TritonOperations
from worker_svc.model.cuda_quantized import KernelWeight
from worker_svc.model.kernels.choose import choose
from worker_svc.model.kernels.float8 import rows_to_float8
from worker_svc.model.kv_cache import CacheShape, KVCache
from worker_svc.model.kv_formats import Float8, Int4, Int8, KVFormat, Plain
from worker_svc.model.quantization import quantize

HOPPER = GPUTarget("cuda", 90, 32)


class NoCard:
    """Says which card to compile for, and that nothing runs."""

    def get_current_target(self) -> GPUTarget:
        return HOPPER

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(kernel: JITFunction[Any], grid: object, compiled: dict[str, Any]) -> Any:
    def launch(*args: Any, **options: Any) -> None:
        made = kernel.warmup(*args, grid=grid, **options)
        compiled[made.hash] = made

    return launch


def cases(everything: bool) -> Iterator[tuple[torch.dtype, KVFormat, int, int, int, bool]]:
    """Model dtype, KV format, head dim, page size, window, reproducible."""
    bf16 = torch.bfloat16
    yield bf16, Plain(bf16), 128, 64, 0, True
    yield bf16, Plain(bf16), 128, 64, 0, False
    if everything:
        yield bf16, Int4(), 80, 16, 100, True
        yield bf16, Float8(), 128, 64, 0, True
        formats = [Plain(bf16), Int8(), Int4()]
        for stored, head_dim, size, window, same in itertools.product(
            formats, (64, 96, 128, 256), (16, 64, 256), (0, 100), (True, False)
        ):
            yield bf16, stored, head_dim, size, window, same
        for dtype in (torch.float16, torch.float32):
            yield from (
                (dtype, Plain(dtype), head_dim, 64, 0, same) for head_dim in (128, 256) for same in (True, False)
            )


def run_all(
    dtype: torch.dtype,
    stored: KVFormat,
    head_dim: int,
    page_size: int,
    window: int,
    same: bool,
    everything: bool = True,
) -> None:
    """One call of everything that launches a kernel; else without the fast decodes, which take as long to compile as
    all others."""
    operations = TritonOperations(264, reproducible=same)
    pages = 4096 // page_size
    cache = KVCache(CacheShape(1, pages, page_size, 8, head_dim, stored), "cpu")
    held = np.arange(pages)
    segments = [Segment(0, 1, 4000, held), Segment(1, 5, 9, held), Segment(6, 200, 300, held)]
    qkv = torch.zeros(206, 48, head_dim, dtype=dtype)
    rotation = (torch.zeros(206, 1, head_dim), torch.zeros(206, 1, head_dim))
    q = operations.rotate_and_store(qkv, rotation, cache, 0, torch.zeros(2, 206, dtype=torch.int64))
    if not same and not everything:
        segments = segments[2:]
    operations.plan(segments[:1], cache, 32, window).attend(cache.keys[0], cache.values[0], q, 1.0)
    operations.plan(segments, cache, 32, window).attend(cache.keys[0], cache.values[0], q, 1.0)
    for kind in (Quantization(8, 0), Quantization(4, 64)):
        if everything or (kind.bits == 4) == same:
            grouped = quantize(torch.zeros(64, 4096), kind)
            weight = KernelWeight(kind, 64, 4096, grouped, torch.device("cpu"), reproducible=same)
            weight(torch.zeros(1, 4096, dtype=dtype))
            if not same:
                weight(torch.zeros(600, 4096, dtype=dtype))
    if same and not everything:
        return
    x = torch.zeros(4, 4096, dtype=dtype)
    operations.add_norm(x, x, x[0], 1e-5)
    operations.add_norm(x, None, x[0], 1e-5)
    operations.swiglu(x, 2048)
    rows_to_float8(x)
    logits, numbers = torch.zeros(4, 128_256), torch.zeros(4)
    choose(logits, numbers, numbers.double())


def resources(made: Any) -> dict[str, Any]:
    """What the assembler says about one compiled kernel."""
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        code = subprocess.run(
            [tools / "cuobjdump", "--dump-resource-usage", "-sass", file.name],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    registers = re.search(r"REG:(\d+) STACK:(\d+)", code)
    assert registers is not None, code[:1000]
    return {
        "kernel": made.metadata.name,
        "registers": int(registers[1]),
        "stack": int(registers[2]),
        "shared": made.metadata.shared,
        "warps": made.metadata.num_warps,
        "spills": len(re.findall(r"\b(?:STL|LDL)\b", code)),
        "wgmma": len(re.findall(r"\bHGMMA\b", code)),
        "mma": len(re.findall(r"\bHMMA\b", code)),
        "wide_loads": len(re.findall(r"LDG\.E\.\S*128|LDGSTS\.E\.\S*128", code)),
    }


def main() -> None:
    driver.set_active(NoCard())
    for case in cases("--all" in sys.argv):
        compiled: dict[str, Any] = {}
        with patch.object(
            JITFunction, "__getitem__", lambda kernel, grid, into=compiled: compile_only(kernel, grid, into)
        ):
            run_all(*case, everything="--all" in sys.argv)
        for made in compiled.values():
            dtype, stored, head_dim, page_size, window, same = case
            about = {"dtype": str(dtype), "kv": stored.name, "head_dim": head_dim, "page_size": page_size}
            print(json.dumps(about | {"window": window, "reproducible": same} | resources(made)), flush=True)


if __name__ == "__main__":
    main()

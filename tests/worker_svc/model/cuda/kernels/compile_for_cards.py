"""Compiles for every generation of GPUs that is served the kernels that need the most shared memory, and for one with
and one without dependent launches those that look ahead; prints a JSON line for each. Without the assembler, which
takes half of the time.

Run as a program: `compile_for_cards.py [--all]`; without `--all` for the card whose programs have the least shared
memory alone, and of products, those of experts and attention over latents what needs the most of it.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from typing import Any
from unittest.mock import patch

os.environ.pop("TRITON_INTERPRET", None)

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from tandem.worker.checkpoints.grouped import Quantization
from tandem.worker.model.cuda.kernels import dependent, paged_attention, prefill
from tandem.worker.model.cuda.kernels.add_norm import add_norm
from tandem.worker.model.cuda.kernels.card import HOPPER, Card
from tandem.worker.model.cuda.kernels.swiglu import swiglu
from tandem.worker.model.cuda.operations import TritonOperations
from tandem.worker.model.cuda.products import few_rows, same_bits
from tandem.worker.model.kv_formats import Plain
from tests.worker_svc.model.cuda.kernels import compile_for_hopper as compiling

# Shared memory of a program and of a processor, KiB: NVIDIA's CUDA programming guide, "Technical Specifications per
# Compute Capability".
ROOMS = {(8, 0): (163, 164), (8, 6): (99, 100), (8, 9): (99, 100), (10, 0): (227, 228), (12, 0): (99, 100)}
CARDS = [HOPPER, *(Card(capability, 128, one << 10, all_ << 10) for capability, (one, all_) in ROOMS.items())]


def no_assembler(backend: object, source: str, metadata: dict[str, Any], *_: object) -> str:
    metadata.setdefault("name", "not assembled")
    return ""


def use(card: Card) -> None:
    major, minor = card.capability

    class There(compiling.NoCard):
        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 10 * major + minor, 32)

        def get_current_device(self) -> int:
            """A number for each, for what is compiled for one device is taken for that device again."""
            return 10 * major + minor

    driver.set_active(There())


def dependents(card: Card) -> None:
    """What runs while the kernel before ends is what comes before `griddepcontrol.wait`."""
    use(card)
    made: list[Any] = []

    def launch(kernel: JITFunction[Any], grid: object) -> Any:
        return lambda *args, **options: made.append(kernel.warmup(*args, grid=grid, **options))

    x = torch.zeros(4, 4096, dtype=torch.bfloat16)
    with (
        patch.object(JITFunction, "__getitem__", launch),
        patch.object(dependent, "card_of", lambda device: card),
        patch.object(dependent, "ON", True),
        patch.object(CUDABackend, "make_cubin", no_assembler),
    ):
        few_rows(x[:1], torch.zeros(4096, 4096, dtype=torch.bfloat16))
        add_norm(x, x, x[0].float(), 1e-5)
        swiglu(x, 2048)
    codes = {kernel.metadata.name: kernel.asm["ptx"].partition("griddepcontrol.wait") for kernel in made}
    about = {
        name: {"waits": bool(wait), "fetches": before.count("prefetch.global.L2"), "loads": before.count("ld.global")}
        for name, (before, wait, _) in codes.items()
    }
    print(json.dumps({"capability": card.capability, "dependents": about}), flush=True)


def products(everything: bool) -> None:
    """Our products with matrices of floats, those of experts, and attention over latents as DeepSeek has it: with few
    rows in the fast mode, which needs the most memory; with everything also with many in the other, quantized, and
    layers with states."""
    bf16 = torch.bfloat16
    x, matrix = torch.zeros(1, 512, dtype=bf16), torch.zeros(512, 512, dtype=bf16)
    kinds: list[Quantization | None] = [None, Quantization(4, 64)] if everything else [None]
    for same, tokens in ((True, 4096), (False, 1)) if everything else ((False, 1),):
        (same_bits if same else few_rows)(x, matrix)
        compiling.latents(compiling.Case(bf16, Plain(bf16), 576, 64, 0, same, 128, 1, 512))
        compiling.experts(compiling.Case(bf16, Plain(bf16), 128, 64, 0, same), kinds, tokens)
    if everything:
        compiling.states(bf16, everything)


def compile_for(card: Card, everything: bool) -> None:
    major, minor = card.capability
    use(card)
    made: dict[str, Any] = {}

    def launch(kernel: JITFunction[Any], grid: object) -> Any:
        def warm(*args: Any, **options: Any) -> None:
            shared = kernel.warmup(*args, grid=grid, **options).metadata.shared
            made[kernel.fn.__name__] = max(shared, made.get(kernel.fn.__name__, 0))

        return warm

    bf16 = torch.bfloat16
    with (
        patch.object(JITFunction, "__getitem__", launch),
        patch.object(compiling, "TritonOperations", functools.partial(TritonOperations, card=card)),
        patch.object(paged_attention, "card_of", lambda device: card),
        patch.object(prefill, "card_of", lambda device: card),
    ):
        for same in (True, False):
            compiling.attend(compiling.Case(bf16, Plain(bf16), 256, 64, 0, same, 12, 1), everything=False)
        products(everything)
    print(json.dumps({"capability": [major, minor], "room": card.shared, "shared": made}), flush=True)


def main() -> None:
    for card in CARDS[:2]:
        dependents(card)
    with patch.object(CUDABackend, "make_ptx", no_assembler), patch.object(CUDABackend, "make_cubin", no_assembler):
        everything = "--all" in sys.argv
        for card in CARDS if everything else [min(CARDS, key=lambda card: card.shared)]:
            compile_for(card, everything)


if __name__ == "__main__":
    main()

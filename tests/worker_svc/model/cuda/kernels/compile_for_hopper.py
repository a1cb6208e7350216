"""Compiles every kernel for a Hopper card, which needs no card, and prints what the compiler made of it.

Run as a program: `compile_for_hopper.py [--all]`. One JSON line a kernel: bytes of shared memory, matrix products that
run on the matrix units of that generation and on older ones, loads of 16 bytes, copies of 4. With --all, for what cards
are tested with and more (some minutes), and also what the assembler made of it: registers, bytes of stack, spills, and
how many programs fit on a processor. The interpreter takes much that the compiler refuses, and says nothing about any
of these.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

os.environ.pop("TRITON_INTERPRET", None)
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from tandem.worker.checkpoints.grouped import E8M0, Grouped, Quantization
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.heads import AttentionKind, KVHeads
from tandem.worker.checkpoints.model_parts.mlp import ClampedSwiGLU
from tandem.worker.checkpoints.model_parts.recurrences import DeltaNet, KimiDelta, Lightning, Mamba, ShortConvolution
from tandem.worker.model.attention import Scores, Segment
from tandem.worker.model.cuda.kernels.changes import add_at
from tandem.worker.model.cuda.kernels.choose import Changes, choose, rules_of
from tandem.worker.model.cuda.kernels.float8 import rows_to_float8
from tandem.worker.model.cuda.operations import FLOAT32_ROWS, TritonOperations
from tandem.worker.model.cuda.products import few_rows, same_bits
from tandem.worker.model.cuda.quantized import KernelWeight
from tandem.worker.model.delta_rule import DeltaRule
from tandem.worker.model.kimi_delta_rule import KimiDeltaRule
from tandem.worker.model.kv_cache import CacheShape, KeyChannels, KVCache
from tandem.worker.model.kv_formats import FEW_BITS, Int8, KVFormat, Plain
from tandem.worker.model.lightning import LightningRule
from tandem.worker.model.linear import HeadLinear, Linear, PlainWeight
from tandem.worker.model.mamba_rule import MambaRule
from tandem.worker.model.moe import MixtureOfExperts
from tandem.worker.model.quantization import quantize
from tandem.worker.model.recurrence import Rule
from tandem.worker.model.selection import Selecting
from tandem.worker.model.short_convolution import ConvolutionRule
from tandem.worker.model.states import StateCache, StatePlan, StateShape, StateWork
from tandem.worker.model.unfinished import FINISHED, Unfinished

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


class Case(NamedTuple):
    """What attention is compiled for."""

    dtype: torch.dtype
    stored: KVFormat
    head_dim: int
    page_size: int
    window: int
    reproducible: bool
    heads: int = 32
    kv_heads: int = 8
    latent: int = 0  # of its numbers, what is the value too

    def describe(self) -> dict[str, Any]:
        return self._asdict() | {"dtype": str(self.dtype).removeprefix("torch."), "stored": self.stored.name}


def cases(everything: bool) -> Iterator[Case]:
    """The last one of each mode is followed by all other kernels."""
    bf16 = torch.bfloat16
    for same in (True, False):
        if everything:
            shapes = [(64, 16, 0, 32, 8), (80, 32, 100, 4, 4), (96, 48, 0, 12, 1), (256, 256, 100, 12, 1)]
            shapes.append((512, 64, 0, 32, 4))
            for head_dim, size, window, heads, kv_heads in shapes:
                yield Case(bf16, Plain(bf16), head_dim, size, window, same, heads, kv_heads)
            for stored in FEW_BITS:
                yield Case(bf16, stored, 64, 16, 100, same)
                yield Case(bf16, stored, 128, 64, 0, same)
            yield Case(torch.float16, Plain(torch.float16), 128, 64, 0, same)
            for head_dim, heads, kv_heads in ((8, 8, 4), (64, 32, 8), (128, 12, 1), (256, 12, 1)):
                yield Case(torch.float32, Plain(torch.float32), head_dim, 64, 0, same, heads, kv_heads)
            for stored in FEW_BITS:
                yield Case(torch.float32, stored, 128, 64, 0, same)
            for stored in (Plain(bf16), *FEW_BITS):
                yield Case(bf16, stored, 576, 64, 0, same, 128, 1, 512)
            for stored in (Plain(torch.float32), *FEW_BITS):
                yield Case(torch.float32, stored, 576, 64, 0, same, 16, 1, 512)
            yield Case(bf16, Plain(bf16), 288, 16, 0, same, 40, 1, 256)
        elif same:
            yield Case(bf16, Int8(), 128, 64, 0, same)
        yield Case(bf16, Plain(bf16), 128, 64, 0, same)


def attend(case: Case, everything: bool) -> None:
    """Every attention kernel of a case; else without the fast decodes, which take as long to compile as all others."""
    operations = TritonOperations(264, reproducible=case.reproducible, float32=case.dtype == torch.float32)
    operations.float32_rows = FLOAT32_ROWS
    pages = 4096 // case.page_size
    shape = CacheShape((KVHeads(case.kv_heads, case.head_dim),), pages, case.page_size, case.stored)
    channels = None
    if case.stored.normalizes_keys:
        channels = [KeyChannels(*torch.zeros(2, case.kv_heads, case.head_dim))]
    cache, held = KVCache(shape, "cpu", channels), np.arange(pages)
    segments = [Segment(0, 1, 4000, held), Segment(1, 16, 9, held), Segment(17, 200, 300, held)]
    qkv = torch.zeros(217, case.heads + 2 * case.kv_heads, case.head_dim, dtype=case.dtype)
    rotation = (torch.zeros(217, 1, case.head_dim), torch.zeros(217, 1, case.head_dim))
    first = FINISHED
    if case.window or case.stored.name == "int8":
        weight = torch.zeros(case.head_dim)
        first = Unfinished(torch.zeros(qkv.shape[1] * case.head_dim, dtype=case.dtype), (weight, weight), 1e-5)
    q = operations.rotate_and_store(qkv, rotation, cache, 0, torch.zeros(2, 217, dtype=torch.int64), first)
    if not case.reproducible and not everything:
        segments = segments[2:]
    scores = Scores(1.0, 30.0, torch.zeros(case.heads)) if case.window else Scores(1.0)  # a soft cap and sinks
    kind = AttentionKind(case.window, shape.heads[0])
    for some in (segments[:1], segments):
        operations.plan(some, cache, case.heads, kind).attend(cache.keys[0], cache.values[0], q, scores)


def latents(case: Case) -> None:
    """Attention over latents and what stands around it, with queries and values of 128 numbers."""
    same, dtype, rank = case.reproducible, case.dtype, case.latent
    operations = TritonOperations(264, reproducible=same, float32=dtype == torch.float32)
    operations.float32_rows = FLOAT32_ROWS
    pages = 4096 // case.page_size
    shape = CacheShape((KVHeads(1, case.head_dim, rank, 128),), pages, case.page_size, case.stored)
    channels = [KeyChannels(*torch.zeros(2, 1, case.head_dim))] if case.stored.normalizes_keys else None
    cache, held = KVCache(shape, "cpu", channels), np.arange(pages)
    segments = [Segment(0, 1, 4000, held), Segment(1, 200, 300, held)]
    rotated = case.head_dim - rank
    latent, weight = torch.zeros(201, case.head_dim, dtype=dtype), torch.zeros(rank)
    projected = torch.zeros(201, case.heads, 128 + rotated, dtype=dtype)
    rotation = (torch.zeros(201, 1, rotated), torch.zeros(201, 1, rotated))
    of_queries, of_values = (HeadLinear(case.heads, *sizes, dtype) for sizes in ((128, rank), (rank, 128)))
    for heads in (of_queries, of_values):
        matrix = torch.zeros(heads.weight_rows, heads.in_features, dtype=dtype)
        heads.weights.extend([PlainWeight(matrix)] * case.heads)
        heads.joined = operations.join_heads(heads)
    absorbed = of_queries(projected[..., :128]).view(201, case.heads, rank)
    slots = torch.zeros(2, 201, dtype=torch.int64)
    q = operations.store_latents(latent, (weight, 1e-6), projected, absorbed, rotation, cache, 0, slots)
    kind = AttentionKind(0, shape.heads[0]._replace(index_size=0))
    for some in ([segments[0]], segments):
        plan = operations.plan(some, cache, case.heads, kind)
        of_values(plan.attend(cache.keys[0], cache.values[0], q, Scores(1.0)))
    chosen = operations.plan(segments, cache, case.heads, kind._replace(most=2048))
    assert isinstance(chosen, Selecting)
    chosen.choose(cache.index_keys[0], torch.zeros(201, 64, 128, dtype=dtype), torch.zeros(201, 64))
    chosen.attend(cache.keys[0], cache.values[0], q, Scores(1.0))


def experts(case: Case, kinds: Sequence[Quantization | None], *numbers_of_tokens: int) -> None:
    """Layers of experts."""
    same, dtype, device = case.reproducible, case.dtype, torch.device("cpu")
    operations = TritonOperations(264, reproducible=same)
    for kind, gated in [*((kind, True) for kind in kinds), (kinds[0], False)]:
        gpt_oss = kind is not None and bool(kind.code)
        config = Experts(8, 4, 512, True, biases=gpt_oss, clamped=ClampedSwiGLU(1.7, 7.0) if gpt_oss else None)
        if not gated:
            config = Experts(8, 4, 512, True, activation="relu2", gated=False)
        mixture = MixtureOfExperts(512, config, dtype, operations)
        for linear in (each for each in mixture.modules() if isinstance(each, Linear)):
            shape = linear.out_features, linear.in_features
            if kind is None or linear is mixture.router:
                linear.weights.append(PlainWeight(torch.zeros(shape, dtype=dtype)))
                continue
            rows = quantize(torch.zeros(shape), kind) if not kind.code else zeros_of_code(kind, *shape)
            linear.weights.append(operations.quantized_weight(kind, *shape, rows, device))
        mixture.join()
        assert not mixture.apart, mixture.apart
        for tokens in numbers_of_tokens:
            mixture(torch.zeros(tokens, 512, dtype=dtype))


def states(dtype: torch.dtype, everything: bool) -> None:
    """Layers with states: of the sizes of Qwen3.6-35B-A3B, Kimi-Linear-48B-A3B, Granite-4.0-H-Tiny, LFM2-1.2B
    and MiniMax-Text-01."""
    delta_net = DeltaNet((0,), 16, 32, 128, 128, 4)
    kimi = KimiDelta((0,), 32, 128, 4)
    mamba = Mamba((0,), 48, 64, 1, 128, 4)
    convolution = ShortConvolution((0,), 2048, 3)
    lightning = Lightning((0,), 64, 128)

    def zeros(*numbers: int) -> list[torch.Tensor]:
        return [torch.zeros(number) for number in numbers]

    rules: list[Rule] = [
        DeltaRule(delta_net, 1e-6, torch.zeros(4, delta_net.channels), *zeros(32, 32, 128)),
        KimiDeltaRule(kimi, 1e-6, torch.zeros(4, kimi.channels), *zeros(32, kimi.size, 128)),
        KimiDeltaRule(replace(kimi, least=-5.0), 1e-6, torch.zeros(4, kimi.channels), *zeros(32, kimi.size, 128)),
        ConvolutionRule(convolution, torch.zeros(3, 2048), None),
        LightningRule(lightning, 1e-6, torch.zeros(1, lightning.channels), *zeros(64, 64, lightning.size)),
    ]
    if everything:  # all norms, and sizes that fill no power of two
        plain = Mamba((0,), 6, 40, 2, 24, 4, norm="none")
        for sizes, biases in (
            (mamba, torch.zeros(mamba.channels)),
            (replace(mamba, norm="before"), None),
            (plain, None),
        ):
            rest = zeros(sizes.heads, sizes.heads, sizes.heads, sizes.size)
            rules.append(MambaRule(sizes, 1e-6, torch.zeros(4, sizes.channels), biases, *rest))
    for rule in rules:
        cache = StateCache(StateShape(rule.sizes, 2, 9), "cpu")
        plan = StatePlan([(0, 3, 1, StateWork(0, 0, 2, ((1, 1),)))], cache)
        channels, short = rule.sizes.channels, isinstance(rule, ConvolutionRule)
        mixed = torch.zeros(3, channels + (0 if short else rule.sizes.size), dtype=dtype)
        gates = torch.zeros(3, channels if short else rule.sizes.factors, dtype=dtype)
        TritonOperations(264).plan_states(plan, cache.device).recur(rule, 0, mixed, gates)


def zeros_of_code(kind: Quantization, rows: int, columns: int, scales: torch.dtype = E8M0) -> Grouped:
    """Numbers of 4 bits, usually with powers of two for scales."""
    scale = torch.zeros((rows, columns // kind.group), dtype=scales)
    return Grouped(kind, torch.zeros((rows, columns), dtype=torch.uint8), scale, None)


def other_kernels(case: Case, everything: bool) -> None:
    """Everything else; few of them twice unless `everything` is wanted."""
    same, dtype = case.reproducible, case.dtype
    operations = TritonOperations(264, reproducible=same)
    for kind in (Quantization(8, 0), Quantization(4, 64)):
        if everything or (kind.bits == 4) == same:
            grouped = quantize(torch.zeros(256, 4096), kind)
            weight = KernelWeight(kind, 256, 4096, grouped, torch.device("cpu"), reproducible=same)
            weight(torch.zeros(1, 4096, dtype=dtype))
            weight.gated(torch.zeros(1, 4096, dtype=dtype))
            if not same:
                weight(torch.zeros(600, 4096, dtype=dtype))
    if same:  # codes, with powers of two for scales
        kind = Quantization(4, 32, "e2m1")
        coded = zeros_of_code(kind, 64, 4096)
        weight = KernelWeight(kind, 64, 4096, coded, torch.device("cpu"), reproducible=same)
        weight(torch.zeros(1, 4096, dtype=dtype))
    if same or everything:
        kinds: list[Quantization | None] = [None, Quantization(4, 64)] if same else [None]
        more = [Quantization(8, 0), Quantization(4, 32, "e2m1")] if everything else []
        experts(case, kinds + more, 1, 4096)  # the last takes the larger tile
    matrix = torch.zeros(64, 4096, dtype=dtype)
    for multiply in (same_bits,) if same else (few_rows,):
        multiply(torch.zeros(1, 4096, dtype=dtype), matrix)
        if everything:
            multiply(torch.zeros(1, 4096), matrix.float())
            if same:
                same_bits(torch.zeros(1, 4096, dtype=dtype), matrix.to(torch.float8_e4m3fn), torch.zeros(64, 1))
    if same and not everything:
        return
    states(dtype, everything=True)
    x = torch.zeros(4, 4096, dtype=dtype)
    weight_of_norm = torch.zeros(4096)
    operations.add_norm(x, x, weight_of_norm, 1e-5)
    if everything:
        operations.add_norm(x, None, weight_of_norm, 1e-5)
    operations.swiglu(x, 2048)
    operations.add_norm_float8(x, x, weight_of_norm, 1e-5)
    operations.swiglu_float8(x, 2048)
    rows_to_float8(x)
    logits, numbers = torch.zeros(4, 151_936), torch.zeros(4)
    masks, counts = torch.zeros(4, 4748, dtype=torch.int32), torch.zeros(4, 151_936, dtype=torch.int32)
    add_at(logits, numbers.long(), numbers)
    choose(logits, rules_of(numbers, numbers), Changes(masks, counts), filtered=True)
    if everything:
        choose(logits.to(dtype), rules_of(numbers, numbers))
        choose(logits, rules_of(numbers, numbers), bounded=True)


def resources(made: Any) -> dict[str, Any]:
    """What the compiler says about one compiled kernel."""
    code = made.asm["ptx"]
    return {
        "kernel": made.metadata.name,
        "shared": made.metadata.shared,
        "warps": made.metadata.num_warps,
        "wgmma": len(re.findall(r"\bwgmma\.mma_async", code)),
        "mma": len(re.findall(r"\bmma\.sync", code)),
        "wide_loads": len(re.findall(r"\bld\.global\.\S*v4\.b32|\bld\.global\.\S*v2\.b64|\bcp\.async\.cg", code)),
        "counts": len(re.findall(r"\bbar\.sync\b(?:(?!st\.global)[\s\S])*?\batom\.global\.gpu\.acq_rel\.add", code)),
        "narrow_copies": len(re.findall(r"\bcp\.async\.ca\S* \[[^]]*\], \[[^]]*\], 0x4,", code)),
    }


def disassembled(made: Any) -> str:
    """What the assembler made of a kernel, and what that takes."""
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        return subprocess.run(
            [tools / "cuobjdump", "--dump-resource-usage", "-sass", file.name],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip


def assembled(made: Any) -> dict[str, Any]:
    """What the assembler says about it; takes as long as a compilation."""
    code = disassembled(made)
    found = re.search(r"REG:(\d+) STACK:(\d+)", code)
    assert found is not None, code[:1000]
    registers = -(-int(found[1]) // 8) * 8  # as they are given out
    fits = min(65536 // (registers * 32 * made.metadata.num_warps), (228 << 10) // (made.metadata.shared + 1024))
    return {
        "registers": int(found[1]),
        "stack": int(found[2]),
        "spills": len(re.findall(r"\b(?:STL|LDL)\b", code)),
        "programs_on_a_processor": min(fits, 64 // made.metadata.num_warps),
    }


def main() -> None:
    everything = "--all" in sys.argv
    driver.set_active(NoCard())
    for case in cases(everything):
        compiled: dict[str, Any] = {}
        with patch.object(
            JITFunction, "__getitem__", lambda kernel, grid, into=compiled: compile_only(kernel, grid, into)
        ):
            if case.latent:
                latents(case)
            else:
                attend(case, everything)
            if case.head_dim == 128 and case.stored.name == "bfloat16":
                other_kernels(case, everything)
        for made in compiled.values():
            about = case.describe() | resources(made) | (assembled(made) if everything else {})
            print(json.dumps(about), flush=True)


if __name__ == "__main__":
    main()

"""What `gpu.py` measures of kernels, products and single steps."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.random_llama import RandomCheckpoint, llama
from tandem.worker.checkpoints.grouped import Float8Rows, to_float8
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.heads import AttentionKind, KVHeads
from tandem.worker.engine.process.build import BuiltEngine, build_engine
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.request import Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.model.attention import Scores, Segment
from tandem.worker.model.cuda import operations as cuda_operations
from tandem.worker.model.cuda import products as cuda_products
from tandem.worker.model.cuda.flash_infer import FlashInfer
from tandem.worker.model.cuda.kernels import dependent
from tandem.worker.model.cuda.kernels.product import Tile, product
from tandem.worker.model.cuda.operations import Sizes, TritonOperations
from tandem.worker.model.float8 import scaled_product
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import Plain
from tandem.worker.model.linear import PlainWeight
from tandem.worker.model.operations import Product
from tandem.worker.model.work import Work

GREEDY = Sampling(temperature=0.0)


@dataclasses.dataclass(frozen=True)
class Scale:
    """How large everything is."""

    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16
    models: dict[str, Literal["tiny", "1b", "8b"]] = dataclasses.field(default_factory=lambda: {"1b": "1b", "8b": "8b"})
    copied: int = 1 << 32  # bytes
    copies: int = 24  # of a matrix, at most, that products read in turn
    square: int = 8192  # side of the matrices of the matrix rate
    repeats: int = 15
    calls: int = 4  # in a row, so that the host's part is hidden
    sequences: int = 64  # of the decode kernel
    context: int = 4096  # of each of them
    prefill: int = 8192
    heads: tuple[int, int] = (32, 8)  # of queries and keys
    head_dim: int = 128
    delta_heads: tuple[int, int] = (16, 32)  # of keys and values, where layers have states
    batch: int = 256
    lengths: tuple[int, int] = (100, 1025)
    thousand: int = 1000
    decode_context: int = 1024
    peer_tokens: int = 128

    @staticmethod
    def small() -> Scale:
        """Whatever a CPU does in seconds, by the same code."""
        return Scale(
            "cpu", torch.float32, {"1b": "tiny", "8b": "tiny"}, copied=1 << 16, copies=1, square=32, repeats=1, calls=1,
            sequences=2, context=64, prefill=40, heads=(4, 2), head_dim=16, delta_heads=(1, 2), batch=4, lengths=(4, 9),
            thousand=8, decode_context=80, peer_tokens=3,
        )  # fmt: skip


class Stopwatch:
    """Times by the device's own clock, where it has one."""

    def __init__(self, device: str) -> None:
        self._on_card = device == "cuda"
        self._marks: list[tuple[Any, Any]] = []

    def _now(self) -> Any:
        if not self._on_card:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextmanager
    def running(self) -> Iterator[None]:
        began = self._now()
        yield
        self._marks.append((began, self._now()))

    def seconds(self) -> list[float]:
        """Of every run, in order."""
        if not self._on_card:
            return [ended - began for began, ended in self._marks]
        torch.cuda.synchronize()
        return [began.elapsed_time(ended) / 1e3 for began, ended in self._marks]


def median_seconds(run: Callable[[], object], scale: Scale) -> float:
    """Median device time of a call; warmed up."""
    for _ in range(min(2, scale.calls)):
        run()
    watch = Stopwatch(scale.device)
    for _ in range(scale.repeats):
        with watch.running():
            for _ in range(scale.calls):
                run()
        watch.seconds()  # waits, so that measurements stay apart
    return statistics.median(watch.seconds()) / scale.calls


def ceilings(scale: Scale) -> dict[str, float]:
    source = torch.empty(scale.copied, dtype=torch.uint8, device=scale.device).random_()
    target = torch.empty_like(source)
    copy = median_seconds(lambda: target.copy_(source), scale)
    a, b = torch.randn(2, scale.square, scale.square, device=scale.device, dtype=scale.dtype)
    product = median_seconds(lambda: a @ b, scale)
    return {"copy_bytes_per_second": 2 * scale.copied / copy, "bf16_flops_per_second": 2 * scale.square**3 / product}


def kernels(reproducible: bool, ceiling: dict[str, float], scale: Scale) -> dict[str, Any]:
    """Both attention kernels over a cache far larger than the L2; in fast mode also with other tiles and numbers of
    programs than ours."""
    (heads, kv_heads), head_dim, size = scale.heads, scale.head_dim, 64
    pages_each = -(-scale.context // size)
    shape = CacheShape((KVHeads(kv_heads, head_dim),), scale.sequences * pages_each, size, Plain(scale.dtype))
    cache = KVCache(shape, scale.device)
    for layer in (*cache.keys, *cache.values):
        layer[0].normal_()
    pages = np.random.default_rng(0).permutation(cache.shape.pages).reshape(scale.sequences, -1)
    decodes = [Segment(row, 1, scale.context - 1, pages[row]) for row in range(scale.sequences)]
    prefill = [Segment(0, scale.prefill, 0, np.concatenate(pages[: -(-scale.prefill // scale.context)]))]

    def timed(
        segments: list[Segment],
        programs: int = cuda_operations.PROGRAMS_PER_PROCESSOR,
        flash_infer: FlashInfer | None = None,
    ) -> float:
        operations = TritonOperations(programs * _processors(scale), reproducible=reproducible)
        operations.flash_infer = flash_infer
        rows = sum(s.length for s in segments)
        q = torch.randn(rows, heads, head_dim, device=scale.device, dtype=scale.dtype)
        plan = operations.plan(segments, cache, heads, AttentionKind(0, shape.heads[0]))
        return median_seconds(lambda: plan.attend(cache.keys[0], cache.values[0], q, Scores(head_dim**-0.5)), scale)

    moved = scale.sequences * scale.context * cache.shape.bytes_per_token
    flops = 4 * heads * head_dim * scale.prefill * (scale.prefill + 1) / 2

    def decode_share(seconds: float) -> float:
        return moved / seconds / ceiling["copy_bytes_per_second"]

    def prefill_share(seconds: float) -> float:
        return flops / seconds / ceiling["bf16_flops_per_second"]

    decode, first = timed(decodes), timed(prefill)
    result: dict[str, Any] = {
        "decode": {"seconds": decode, "bytes_per_second": moved / decode, "bandwidth_share": decode_share(decode)},
        "prefill": {"seconds": first, "flops_per_second": flops / first, "rate_share": prefill_share(first)},
    }
    if not reproducible:
        result["decode"]["by_programs"] = {n: decode_share(timed(decodes, n)) for n in (1, 3, 4)}
        if (library := FlashInfer.installed()) is not None:
            share = prefill_share(timed(prefill, flash_infer=library))
            result["prefill"]["rate_share_by_flash_infer"] = library.refused or share
        ours = Sizes.prefill_tile
        try:
            for tile in (32, 64):
                Sizes.prefill_tile = property(lambda sizes, tile=tile: tile)  # type: ignore[method-assign,assignment,misc]
                result["prefill"][f"rate_share_with_tiles_of_{tile}"] = prefill_share(timed(prefill))
        finally:
            Sizes.prefill_tile = ours  # type: ignore[method-assign]
    return result


def _processors(scale: Scale) -> int:
    return torch.cuda.get_device_properties(0).multi_processor_count if scale.device == "cuda" else 2


def products(reproducible: bool, ceiling: dict[str, float], scale: Scale) -> dict[str, Any]:
    """Each matrix of a layer of the 8b model and its output, by the library and by the kernel of ours that this mode
    may take, in fast mode also with other tiles, as shares of the copy bandwidth."""
    ways: dict[str, Product] = {"library": F.linear, "ours": cuda_products.same_bits}
    if not reproducible:
        ways["ours"] = cuda_products.few_rows
        for tile in (Tile(16, 32, 128), Tile(16, 64, 128)):
            ways["ours_with_tiles_of_{1}_x_{2}".format(*tile)] = lambda x, w, tile=tile: product(x, w, tile)  # type: ignore[misc]
    config = llama(scale.models["8b"])
    matrices = {
        "qkv": (config.q_size + 2 * config.kv_size, config.hidden_size),
        "attention_output": (config.hidden_size, config.q_size),
        "gate_up": (2 * config.intermediate_size, config.hidden_size),
        "down": (config.hidden_size, config.intermediate_size),
        "output": (config.vocab_size, config.hidden_size),
    }
    shares: dict[str, Any] = {}
    for name, (outputs, columns) in matrices.items():
        # So many copies that none is still in the L2 when its turn comes again.
        count = min(scale.copies, max(2, (1 << 29) // (outputs * columns * 2)))
        weights = torch.randn(count, outputs, columns, device=scale.device, dtype=scale.dtype)
        for rows in (1, 16, 64, scale.batch):
            x = torch.randn(rows, columns, device=scale.device, dtype=scale.dtype)
            moved = count * (outputs * columns + rows * (outputs + columns)) * x.itemsize
            for way, multiply in ways.items():
                if "tiles" in way and rows > 16:
                    continue
                seconds = median_seconds(lambda m=multiply, w=weights, x=x: [m(x, each) for each in w], scale)  # type: ignore[misc]
                share = moved / seconds / ceiling["copy_bytes_per_second"]
                shares.setdefault(f"rows_{rows}", {}).setdefault(name, {})[way] = share
    return shares


def float8_products(ceiling: dict[str, float], scale: Scale) -> dict[str, Any]:
    """The gate and up matrix of the 8b model in 8-bit floats, where a padded row may pay: vLLM fills up to 17 rows."""
    config = llama(scale.models["8b"])
    outputs, columns = 2 * config.intermediate_size, config.hidden_size
    count = min(scale.copies, max(2, (1 << 29) // (outputs * columns)))
    numbers = torch.randn(outputs, columns, device=scale.device)
    weights = [to_float8(numbers) for _ in range(count)]
    ways: dict[str, Callable[[torch.Tensor, Float8Rows], torch.Tensor]] = {
        "ours": lambda x, w: cuda_products.same_bits(x, w.q, w.scale),
        "ours_with_16_rows": lambda x, w: product(x, w.q, cuda_products.FEW_ROWS, w.scale),
    }
    if scale.device == "cuda":
        ways["library"] = scaled_product
    shares: dict[str, Any] = {}
    for rows in (1, 16, 17, 64):
        x = torch.randn(rows, columns, device=scale.device, dtype=scale.dtype)
        moved = count * (outputs * columns + rows * (outputs + columns) * x.itemsize)
        for way, multiply in ways.items():
            seconds = median_seconds(lambda m=multiply, x=x: [m(x, each) for each in weights], scale)  # type: ignore[misc]
            shares.setdefault(f"rows_{rows}", {})[way] = moved / seconds / ceiling["copy_bytes_per_second"]
    return shares


def model_of(size: str, scale: Scale) -> ModelConfig:
    """The shape of a model by its name. `experts`: 12 of the 48 layers of Qwen3-30B-A3B, tiny where all is."""
    if size != "experts":
        return llama(scale.models[size])
    if scale.models["8b"] == "tiny":
        return dataclasses.replace(llama("tiny"), experts=Experts(4, 2, 32, True))
    return dataclasses.replace(
        llama("8b", layers=12), hidden_size=2048, num_heads=32, num_kv_heads=4, vocab_size=151_936, qk_norm="head",
        experts=Experts(128, 8, 768, True),
    )  # fmt: skip


def built(size: str, quantize: str, reproducible: bool, scale: Scale) -> BuiltEngine:
    """An engine with what users get: the rest is left to the defaults, but for what a CPU would take long for."""
    small: dict[str, Any] = {"max_running_requests": scale.batch, "kv_cache_tokens": scale.batch * 2112}
    said: dict[str, Any] = {"dtype": str(scale.dtype).removeprefix("torch."), "quantize": quantize}
    options = EngineConfig(
        model="random", device=scale.device, reproducible=reproducible, **said,
        **(small if scale.device == "cpu" else {}),
    )  # fmt: skip
    checkpoint = RandomCheckpoint(model_of(size, scale), scale.device, scale.dtype)
    return build_engine(options, checkpoint=checkpoint)


def about(engine: BuiltEngine) -> dict[str, Any]:
    """What the start has decided, and what it has taken."""
    runner = engine.engine._runner
    plain = {weight.product for weight in runner.model.modules() if isinstance(weight, PlainWeight)}
    told: dict[str, Any] = {
        "row_invariant": engine.row_invariant,
        "product": "ours" if cuda_products.same_bits in plain else "library",
        "row_multiple": runner.row_multiple,
        "max_running_requests": engine.engine.scheduler.limits.max_running,
        "max_batch_tokens": engine.engine.scheduler.limits.max_batch_tokens,
        "kv_cache_tokens": engine.shape.pages * engine.shape.page_size,
    }
    if engine.device.type == "cuda":
        statistics = torch.cuda.memory_stats(engine.device)
        names = ("allocated_bytes.all.current", "allocated_bytes.all.peak", "reserved_bytes.all.current")
        told["memory"] = {name: statistics.get(name, 0) for name in names}
        told["memory"]["free"] = torch.cuda.mem_get_info(engine.device)[0]
    return told


def dependent_launches(make: Callable[[], BuiltEngine], ceiling: dict[str, float], scale: Scale) -> dict[str, Any]:
    """Recorded steps of one decode with kernels that begin while the one before them ends, and without; with the
    library's products, and with ours, which look ahead at their weights. `make` makes a new engine."""
    found: dict[str, Any] = {}
    for rows, way in ((0, "library"), (16, "ours")):
        for on in (False, True):
            with patch.object(cuda_products, "FAST_ROWS", rows), patch.object(dependent, "ON", on):
                step = decodes(make(), 1, ceiling, scale)["forward"]
            found[f"{way}_{'dependent' if on else 'usual'}"] = step
    return found


def prompt(generator: np.random.Generator, length: int, engine: BuiltEngine) -> np.ndarray[Any, Any]:
    return generator.integers(0, engine.config.vocab_size, length)


def decodes(engine: BuiltEngine, batch: int, ceiling: dict[str, float], scale: Scale) -> dict[str, Any]:
    """Steps of a batch, by the forward pass alone and by the whole engine."""
    runner, context = engine.engine._runner, scale.decode_context
    stored = runner.model.embedding.stored
    embedding = sum(each.nbytes for each in (*stored.parameters(), *stored.buffers()))
    read = engine.weight_bytes - (0 if engine.config.tie_embeddings else embedding)
    moved = read + batch * context * engine.shape.bytes_per_token
    held = np.arange(batch * (context // 64 + 1)).reshape(batch, -1)
    work = [Work(np.array([row], dtype=np.int32), context - 1, held[row], 1) for row in range(batch)]
    forward = median_seconds(lambda: runner.forward(work), scale)

    generator = np.random.default_rng(0)
    told = min(192, context - 32)
    for number in range(batch):
        ids = prompt(generator, context - told // 3, engine)
        engine.engine.submit(Request.make(number, ids, GREEDY, Stopping(max_tokens=told)))
    while engine.engine.scheduler.waiting or any(r.output_tokens < 16 for r in engine.engine.scheduler.running):
        engine.engine.step()
    seconds = []
    while engine.engine.has_work:
        began = time.perf_counter()
        engine.engine.step()
        if len(engine.engine.scheduler.running) == batch:
            seconds.append(time.perf_counter() - began)
    step = statistics.median(seconds)
    return {
        name: {
            "seconds_per_step": value,
            "tokens_per_second": batch / value,
            "bandwidth_share": moved / value / ceiling["copy_bytes_per_second"],
        }
        for name, value in (("forward", forward), ("engine", step))
    }

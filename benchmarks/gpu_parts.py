"""What `gpu.py` measures: one function a part, each with the engine that it is given."""

from __future__ import annotations

import dataclasses
import hashlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.random_llama import RandomCheckpoint, llama
from tandem.worker.engine.process.build import BuiltEngine, build_engine
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.request import Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.model.attention import Segment
from tandem.worker.model.cuda import operations as cuda_operations
from tandem.worker.model.cuda import products as cuda_products
from tandem.worker.model.cuda.kernels.product import Tile, product
from tandem.worker.model.cuda.operations import Sizes, TritonOperations
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import Plain
from tandem.worker.model.operations import Product
from tandem.worker.model.runner import Work

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
            sequences=2, context=64, prefill=40, heads=(4, 2), head_dim=16, batch=4, lengths=(4, 9), thousand=8,
            decode_context=80, peer_tokens=3,
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
    shape = CacheShape(1, scale.sequences * pages_each, size, kv_heads, head_dim, Plain(scale.dtype))
    cache = KVCache(shape, scale.device)
    for layer in (*cache.keys, *cache.values):
        layer[0].normal_()
    pages = np.random.default_rng(0).permutation(cache.shape.pages).reshape(scale.sequences, -1)
    decodes = [Segment(row, 1, scale.context - 1, pages[row]) for row in range(scale.sequences)]
    prefill = [Segment(0, scale.prefill, 0, np.concatenate(pages[: -(-scale.prefill // scale.context)]))]

    def timed(segments: list[Segment], programs: int = cuda_operations.PROGRAMS_PER_PROCESSOR) -> float:
        operations = TritonOperations(programs * _processors(scale), reproducible=reproducible)
        rows = sum(s.length for s in segments)
        q = torch.randn(rows, heads, head_dim, device=scale.device, dtype=scale.dtype)
        plan = operations.plan(segments, cache, heads)
        return median_seconds(lambda: plan.attend(cache.keys[0], cache.values[0], q, head_dim**-0.5), scale)

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


def built(size: str, quantize: str, reproducible: bool, max_running: int, scale: Scale) -> BuiltEngine:
    options = EngineConfig(
        model="random", device=scale.device, dtype=str(scale.dtype).removeprefix("torch."), reproducible=reproducible,
        max_running_requests=max_running, max_batch_tokens=4096, kv_cache_tokens=max_running * 2112, quantize=quantize,
    )  # fmt: skip
    checkpoint = RandomCheckpoint(llama(scale.models[size]), scale.device, scale.dtype)
    return build_engine(options, checkpoint=checkpoint)


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


def run_requests(engine: BuiltEngine, lengths: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Requests of (prompt, output) tokens, all at once."""
    generator = np.random.default_rng(0)
    for number, (before, after) in enumerate(lengths):
        ids = prompt(generator, before, engine)
        engine.engine.submit(Request.make(number, ids, GREEDY, Stopping(max_tokens=after), bypass=True))
    runner, forward = engine.engine._runner, engine.engine._runner.forward
    passes = Stopwatch(engine.device.type)

    def timed(work: Sequence[Work], sampled: torch.Tensor | None = None) -> torch.Tensor:
        with passes.running():
            return forward(work, sampled)

    before = dataclasses.replace(engine.engine.scheduler.statistics)
    runner.forward = timed  # type: ignore[method-assign]
    try:
        told = []
        began = time.perf_counter()
        while engine.engine.has_work:
            told.append(engine.engine.step())
        forwards = passes.seconds()
        seconds = time.perf_counter() - began
    finally:
        runner.forward = forward  # type: ignore[method-assign]
    ids = np.concatenate([result.sampled.ids for result in told])
    ids = ids[np.concatenate([result.numbers for result in told]).argsort(kind="stable")]
    return {
        "seconds": seconds,
        "steps": len(forwards),
        "output_tokens_per_second": sum(after for _, after in lengths) / seconds,
        "forward_share": sum(forwards) / seconds,
        "overlapped_steps": engine.engine.scheduler.statistics.overlapped_steps - before.overlapped_steps,
        "ids": hashlib.sha256(ids.tobytes()).hexdigest()[:16],
    }


def serving(engine: BuiltEngine, scale: Scale) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return run_requests(engine, [tuple(draw.integers(*scale.lengths, 2).tolist()) for _ in range(scale.batch)])


def overlap(engine: BuiltEngine, scale: Scale) -> dict[str, Any]:
    """The same requests with and without, twice each in turn; they all begin at once, so that their steps are alike."""
    runs: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    usual = engine.engine.overlap
    for on in (True, False, True, False):
        engine.engine.overlap = on
        runs[on].append(run_requests(engine, [(64, scale.peer_tokens)] * scale.batch))
    engine.engine.overlap = usual
    best = {on: max(each["output_tokens_per_second"] for each in runs[on]) for on in runs}
    return {
        "on": runs[True],
        "off": runs[False],
        "ratio": best[True] / best[False],
        "same_ids": len({each["ids"] for each in (*runs[True], *runs[False])}) == 1,
    }


def peer(engine: BuiltEngine, scale: Scale) -> dict[str, Any]:
    """transformers' continuous batching on the same device, prompts and numbers of tokens."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    draw, new = np.random.default_rng(1), scale.peer_tokens
    lengths = [int(length) for length in draw.integers(*scale.lengths, scale.sequences)]
    ours = run_requests(engine, [(length, new) for length in lengths])
    config = engine.config
    with torch.device(scale.device):
        torch.set_default_dtype(scale.dtype)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size, hidden_size=config.hidden_size, head_dim=config.head_dim,
                intermediate_size=config.intermediate_size, num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads, num_key_value_heads=config.num_kv_heads,
                max_position_embeddings=config.context_length,
            )
        )  # fmt: skip
        torch.set_default_dtype(torch.float32)
    model.train(False)
    generator = np.random.default_rng(0)
    prompts = [prompt(generator, length, engine).tolist() for length in lengths]
    options = GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0)
    model.generate_batch(inputs=prompts[:2], generation_config=options)  # warm
    began = time.perf_counter()
    results = model.generate_batch(inputs=prompts, generation_config=options)
    seconds = time.perf_counter() - began
    made = sum(len(result.generated_tokens) for result in results.values())
    return {
        "ours_tokens_per_second": ours["output_tokens_per_second"],
        "theirs_tokens_per_second": made / seconds,
        "ratio": ours["output_tokens_per_second"] / (made / seconds),
    }

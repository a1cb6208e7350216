"""How near to the card does the worker come? Run on a CUDA machine; needs torch, triton, numpy and safetensors.

    python benchmarks/gpu.py [--output FOLDER] [--budget 450] [--only 8b kernels]

ceilings    device-to-device copy and a bf16 matrix product, measured in this run: what the shares below are of
kernels     decode attention of 64 sequences of 4,096 tokens, prefill attention of 8,192
8b, 1b      decodes at batch 1 and context 1,024; 8b also at batch 64
serving     8b, 256 sequences of 100 to 1,024 tokens in and out, and how much of the time the forward pass is running
overlap     8b, 256 sequences, steps launched before the last one is read, and not; whether the ids are the same
fp8         8b with fp8 weights: decodes, and 256 sequences of 1,000 tokens in and 1,000 out
int4, int8  8b with such weights: decodes at batch 1, 16 and 64
peer        8b, 64 sequences, beside transformers' continuous batching on the same prompts

Parts run in this order, what matters most first, in fast mode and then in reproducible mode: each in a process of its
own, since cuBLAS reads its environment once. Results are written after every part. Weights are random and made on the
card. A part that fails is reported with its error, and one that no longer fits into the budget is left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from benchmarks.machine import RESULTS, describe_machine
from benchmarks.random_llama import RandomCheckpoint, llama
from worker_svc.engine.build import BuiltEngine, build_engine
from worker_svc.engine.config import EngineConfig
from worker_svc.engine.request import Request, Sampling, Stopping
from worker_svc.model import cuda_device
from worker_svc.model.attention import Segment
from worker_svc.model.cuda_operations import TritonOperations
from worker_svc.model.kv_cache import CacheShape, KVCache
from worker_svc.model.kv_formats import Plain
from worker_svc.model.runner import Work

GREEDY = Sampling(temperature=0.0)
PARTS = ["kernels", "8b", "serving", "overlap", "fp8", "1b", "int4", "int8", "peer"]
# part, goal, key of the result, whether more is better
GOALS = [
    ("8b decode, batch 1, share of the copy bandwidth", "8b.batch_1.engine.bandwidth_share", 0.75),
    ("1b decode, batch 1, share of the copy bandwidth", "1b.batch_1.engine.bandwidth_share", 0.60),
    ("8b, 256 sequences, output tokens/s", "serving.output_tokens_per_second", 9000),
    ("8b, 64 sequences, times transformers' continuous batching", "peer.ratio", 3.0),
    ("decode attention, share of the copy bandwidth", "kernels.decode.bandwidth_share", 0.80),
    ("prefill attention, share of the matrix rate", "kernels.prefill.rate_share", 0.55),
    ("8b, 256 sequences, share of the time that a forward pass runs", "serving.forward_share", 0.97),
    (
        "8b with fp8 weights, 256 sequences of 1,000 in and out, output tokens/s",
        "fp8.serving.output_tokens_per_second",
        14000,
    ),
    ("8b, 256 sequences, tokens/s with overlap against without", "overlap.ratio", 1.0),
]


def median_seconds(run: Callable[[], object], repeats: int = 20) -> float:
    """Median device time of a call, by events; warmed up."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        run()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended) / 1e3)
    return statistics.median(times)


def ceilings() -> dict[str, float]:
    source = torch.empty(1 << 32, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    copy = median_seconds(lambda: target.copy_(source))
    a, b = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16)
    product = median_seconds(lambda: a @ b)
    return {"copy_bytes_per_second": 2 * (1 << 32) / copy, "bf16_flops_per_second": 2 * 8192**3 / product}


def kernels(reproducible: bool, ceiling: dict[str, float]) -> dict[str, Any]:
    """Both attention kernels over a cache far larger than the L2."""
    operations = TritonOperations.on(torch.device("cuda"), reproducible=reproducible)
    heads, kv_heads, head_dim, size = 32, 8, 128, 64
    cache = KVCache(CacheShape(1, 64 * 4096 // size, size, kv_heads, head_dim, Plain(torch.bfloat16)), "cuda")
    for layer in (*cache.keys, *cache.values):
        layer[0].normal_()
    pages = np.random.default_rng(0).permutation(cache.shape.pages).reshape(64, -1)

    def timed(segments: list[Segment]) -> float:
        q = torch.randn(sum(s.length for s in segments), heads, head_dim, device="cuda", dtype=torch.bfloat16)
        plan = operations.plan(segments, cache, heads)
        return median_seconds(lambda: plan.attend(cache.keys[0], cache.values[0], q, head_dim**-0.5))

    decode = timed([Segment(row, 1, 4095, pages[row]) for row in range(64)])
    moved = 64 * 4096 * cache.shape.bytes_per_token
    prefill = timed([Segment(0, 8192, 0, np.concatenate(pages[:2]))])
    flops = 4 * heads * head_dim * 8192 * 8193 / 2
    return {
        "decode": {
            "seconds": decode,
            "bytes_per_second": moved / decode,
            "bandwidth_share": moved / decode / ceiling["copy_bytes_per_second"],
        },
        "prefill": {
            "seconds": prefill,
            "flops_per_second": flops / prefill,
            "rate_share": flops / prefill / ceiling["bf16_flops_per_second"],
        },
    }


def built(size: str, quantize: str, reproducible: bool, max_running: int) -> BuiltEngine:
    config = llama(size)  # type: ignore[arg-type]
    options = EngineConfig(
        model="random", device="cuda", dtype="bfloat16", reproducible=reproducible, max_running=max_running,
        max_batch_tokens=4096, kv_cache_tokens=max_running * 2112, quantize=quantize,
    )  # fmt: skip
    return build_engine(options, checkpoint=RandomCheckpoint(config, "cuda", torch.bfloat16))


def prompt(generator: np.random.Generator, length: int, engine: BuiltEngine) -> np.ndarray[Any, Any]:
    return generator.integers(0, engine.config.vocab_size, length)


def decodes(engine: BuiltEngine, batch: int, ceiling: dict[str, float], context: int = 1024) -> dict[str, Any]:
    """Steps of a batch, by the forward pass alone and by the whole engine."""
    runner = engine.engine._runner
    stored = runner.model.embedding.stored
    embedding = sum(each.nbytes for each in (*stored.parameters(), *stored.buffers()))
    read = engine.weight_bytes - (0 if engine.config.tie_embeddings else embedding)
    moved = read + batch * context * engine.shape.bytes_per_token
    held = np.arange(batch * (context // 64 + 1)).reshape(batch, -1)
    work = [Work(np.array([row], dtype=np.int32), context - 1, held[row], 1) for row in range(batch)]
    forward = median_seconds(lambda: runner.forward(work))

    generator = np.random.default_rng(0)
    for handle in range(batch):
        ids = prompt(generator, context - 64, engine)
        engine.engine.submit(Request.make(handle, ids, GREEDY, Stopping(max_tokens=192)))
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
    for handle, (before, after) in enumerate(lengths):
        ids = prompt(generator, before, engine)
        engine.engine.submit(Request.make(handle, ids, GREEDY, Stopping(max_tokens=after), bypass=True))
    runner, forward = engine.engine._runner, engine.engine._runner.forward
    passes: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def timed(work: Sequence[Work], sampled: torch.Tensor | None = None) -> torch.Tensor:
        passes.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        passes[-1][0].record()
        logits = forward(work, sampled)
        passes[-1][1].record()
        return logits

    runner.forward = timed  # type: ignore[method-assign]
    before = dataclasses.replace(engine.engine.scheduler.statistics)
    told = []
    began = time.perf_counter()
    while engine.engine.has_work:
        told.append(engine.engine.step())
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    ids = np.concatenate([result.sampled.ids for result in told])
    ids = ids[np.concatenate([result.handles for result in told]).argsort(kind="stable")]
    runner.forward = forward  # type: ignore[method-assign]
    return {
        "seconds": seconds,
        "steps": len(passes),
        "output_tokens_per_second": sum(after for _, after in lengths) / seconds,
        "forward_share": sum(a.elapsed_time(b) for a, b in passes) / 1e3 / seconds,
        "overlapped_steps": engine.engine.scheduler.statistics.overlapped_steps - before.overlapped_steps,
        "ids": hashlib.sha256(ids.tobytes()).hexdigest()[:16],
    }


def serving(engine: BuiltEngine) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return run_requests(engine, [tuple(draw.integers(100, 1025, 2).tolist()) for _ in range(256)])


def overlap(engine: BuiltEngine) -> dict[str, Any]:
    """The same requests with and without, twice each in turn; they all begin at once, so that their steps are alike."""
    runs: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for on in (True, False, True, False):
        engine.engine.overlap = on
        runs[on].append(run_requests(engine, [(64, 128)] * 256))
    engine.engine.overlap = True
    best = {on: max(each["output_tokens_per_second"] for each in runs[on]) for on in runs}
    return {
        "on": runs[True],
        "off": runs[False],
        "ratio": best[True] / best[False],
        "same_ids": len({each["ids"] for each in (*runs[True], *runs[False])}) == 1,
    }


def quantized(engine: BuiltEngine, ceiling: dict[str, float], batches: Sequence[int]) -> dict[str, Any]:
    return {f"batch_{batch}": decodes(engine, batch, ceiling) for batch in batches}


def peer(engine: BuiltEngine) -> dict[str, Any]:
    """transformers' continuous batching on the same card, prompts and numbers of tokens."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    draw, new = np.random.default_rng(1), 128
    lengths = [int(length) for length in draw.integers(100, 1025, 64)]
    ours = run_requests(engine, [(length, new) for length in lengths])
    config = engine.config
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
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


def run_mode(mode: str, only: Sequence[str], deadline: float) -> None:
    """All parts of one mode, in this process; one JSON line a part."""
    reproducible = mode == "reproducible"
    cuda_device.prepare(torch.device("cuda"), reproducible=reproducible)
    ceiling = ceilings()
    print(json.dumps({"part": "ceilings", "result": ceiling}), flush=True)
    engines: dict[str, BuiltEngine] = {}

    def engine(size: str, quantize: str = "auto") -> BuiltEngine:
        name = size if quantize == "auto" else f"{size}-{quantize}"
        if name not in engines:
            engines.clear()
            gc.collect()
            torch.cuda.empty_cache()
            began = time.perf_counter()
            engines[name] = built(size, quantize, reproducible, 256 if size == "8b" else 16)
            seconds = time.perf_counter() - began
            about = {"start_seconds": seconds, "row_invariant": engines[name].row_invariant}
            print(json.dumps({"part": f"start_{name}", "result": about}), flush=True)
        return engines[name]

    def fp8() -> dict[str, Any]:
        made = engine("8b", "fp8")
        return quantized(made, ceiling, (1, 64)) | {"serving": run_requests(made, [(1000, 1000)] * 256)}

    parts: list[tuple[str, float, Callable[[], Any]]] = [
        ("kernels", 20, lambda: kernels(reproducible, ceiling)),
        ("8b", 60, lambda: {f"batch_{n}": decodes(engine("8b"), n, ceiling) for n in (1, 64)}),
    ]
    if not reproducible:
        parts += [
            ("serving", 45, lambda: serving(engine("8b"))),
            ("overlap", 30, lambda: overlap(engine("8b"))),
            ("fp8", 70, fp8),
            ("1b", 30, lambda: {"batch_1": decodes(engine("1b"), 1, ceiling)}),
            ("int4", 40, lambda: quantized(engine("8b", "int4"), ceiling, (1, 16, 64))),
            ("int8", 40, lambda: quantized(engine("8b", "int8"), ceiling, (1, 16, 64))),
            ("peer", 75, lambda: peer(engine("8b"))),
        ]
    for name, expected, run in parts:
        if only and name not in only:
            continue
        try:
            if time.time() + expected > deadline:
                raise TimeoutError("left out: the time budget is used up")
            result = run()
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps({"part": name, "result": result}), flush=True)


def look_up(results: dict[str, Any], path: str) -> Any:
    found: Any = results
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def table(results: dict[str, Any]) -> str:
    """Goals and what was measured."""
    fast, same = results.get("fast", {}), results.get("reproducible", {})
    rows = [(what, goal, look_up(fast, path)) for what, path, goal in GOALS]
    steps = [look_up(mode, "8b.batch_64.engine.seconds_per_step") for mode in (fast, same)]
    rows.append(
        ("reproducible against fast, 8b at batch 64, tokens/s", 0.9, steps[0] / steps[1] if all(steps) else None)
    )
    lines = ["| | goal | measured |", "|---|---|---|"]
    for what, goal, found in rows:
        lines.append(f"| {what} | {goal:,g} | {'not measured' if found is None else format(found, ',.4g')} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    parser.add_argument("--budget", type=float, default=450.0, help="seconds in all")
    parser.add_argument("--only", nargs="*", default=[], choices=PARTS, help="parts to run")
    parser.add_argument("--mode", choices=["fast", "reproducible"], help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} sees no CUDA device: this benchmark needs one")
    if options.mode:
        run_mode(options.mode, options.only, options.deadline)
        return
    began = time.time()
    card = torch.cuda.get_device_name()
    about = {"card": card, "driver_cuda": torch.version.cuda, "triton": __import__("triton").__version__}
    results: dict[str, Any] = {}
    now = datetime.now(UTC)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"gpu-{card.lower().replace(' ', '-')}-{now:%Y-%m-%d}.json"
    for mode, share in (("fast", 0.75), ("reproducible", 1.0)):
        results[mode] = {}
        command = [sys.executable, __file__, f"--mode={mode}", f"--deadline={began + share * options.budget}"]
        command += ["--only", *options.only] if options.only else []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if not line.startswith("{"):
                    continue
                part = json.loads(line)
                results[mode][part["part"]] = part["result"]
                print(f"{time.time() - began:6.1f} s {mode} {line.strip()[:600]}", flush=True)
                document = {"machine": describe_machine() | about, "date": now.isoformat(), "results": results}
                path.write_text(json.dumps(document, indent=1))
    print(table(results))
    print(path)


if __name__ == "__main__":
    main()

"""How near to the card does the worker come? Run on a CUDA machine; needs torch, triton, numpy and safetensors.

    python benchmarks/gpu.py [--output FOLDER] [--budget 450] [--only 8b kernels]
    TRITON_INTERPRET=1 python benchmarks/gpu.py --dry-run       every part but peer, tiny, on a CPU: does it run?

ceilings    device-to-device copy and a bf16 matrix product, measured in this run: what the shares below are of
kernels     decode attention of 64 sequences of 4,096 tokens, prefill attention of 8,192, and other tiles beside ours
products    the matrices of 8b at 1 to 256 rows, by the library and by our kernel
8b, 1b      decodes at batch 1 and context 1,024; 8b also at batch 64
serving     8b, 256 sequences of 100 to 1,024 tokens in and out, and how much of the time the forward pass is running
overlap     8b, 256 sequences, steps launched before the last one is read, and not; whether the ids are the same
fp8         8b with fp8 weights: decodes, and 256 sequences of 1,000 tokens in and 1,000 out
int4, int8  8b with such weights: decodes at batch 1, 16 and 64
peer        8b, 64 sequences, beside transformers' continuous batching on the same prompts

Parts run in this order, what matters most first, in fast mode and then in reproducible mode: each in a process of its
own, since cuBLAS reads its environment once. Results are written after every part. Weights are random and made on the
card. A part that fails is reported with its error, one that breaks the card's context or takes three times as long as
it should is followed by a new process for the rest, and one that no longer fits into the budget is left out.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.gpu_parts import (
    Scale,
    built,
    ceilings,
    decodes,
    kernels,
    overlap,
    peer,
    products,
    run_requests,
    serving,
)
from benchmarks.machine import RESULTS, describe_machine
from tandem.worker.engine.process.build import BuiltEngine
from tandem.worker.model.cuda import device as cuda_device

# Seconds that each may take; a part of fast mode alone is not in the other.
PARTS = {
    "kernels": 30, "8b": 60, "serving": 45, "products": 60, "overlap": 30, "fp8": 70, "1b": 30, "int4": 40, "int8": 40,
    "peer": 75,
}  # fmt: skip
IN_BOTH_MODES = ("kernels", "8b", "products")
GOALS = [  # what, key of the result, goal
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


def tell(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def run_mode(mode: str, parts: Sequence[str], deadline: float, scale: Scale) -> None:
    """Some parts of one mode, in this process; one JSON line a part."""
    same = mode == "reproducible"
    if scale.device == "cuda":
        cuda_device.prepare(torch.device("cuda"), reproducible=same)
    ceiling = ceilings(scale)
    tell(part="ceilings", result=ceiling)
    engines: dict[str, BuiltEngine] = {}

    def engine(size: str, quantize: str = "auto") -> BuiltEngine:
        name = size if quantize == "auto" else f"{size}-{quantize}"
        if name not in engines:
            engines.clear()
            gc.collect()
            torch.cuda.empty_cache()
            began = time.perf_counter()
            engines[name] = built(size, quantize, same, scale.batch if size == "8b" else 16, scale)
            about = {"start_seconds": time.perf_counter() - began, "row_invariant": engines[name].row_invariant}
            tell(part=f"start_{name}", result=about)
        return engines[name]

    def at(made: BuiltEngine, batches: Sequence[int]) -> dict[str, Any]:
        return {f"batch_{n}": decodes(made, n, ceiling, scale) for n in batches if n <= scale.batch}

    def fp8() -> dict[str, Any]:
        made = engine("8b", "fp8")
        return at(made, (1, 64)) | {"serving": run_requests(made, [(scale.thousand, scale.thousand)] * scale.batch)}

    runs: dict[str, Callable[[], Any]] = {
        "kernels": lambda: kernels(same, ceiling, scale),
        "8b": lambda: at(engine("8b"), (1, 64)),
        "serving": lambda: serving(engine("8b"), scale),
        "products": lambda: products(same, ceiling, scale),
        "overlap": lambda: overlap(engine("8b"), scale),
        "fp8": fp8,
        "1b": lambda: at(engine("1b"), (1,)),
        "int4": lambda: at(engine("8b", "int4"), (1, 16, 64)),
        "int8": lambda: at(engine("8b", "int8"), (1, 16, 64)),
        "peer": lambda: peer(engine("8b"), scale),
    }
    for name in parts:
        if time.time() + PARTS[name] > deadline:
            tell(part=name, result={"error": "left out: the time budget is used up"})
            continue
        tell(began=name)
        try:
            result = runs[name]()
        except Exception as error:
            engines.clear()  # a request that was cut off would still be there
            tell(part=name, result={"error": f"{type(error).__name__}: {error}"[:2000]})
            if scale.device == "cuda":
                torch.cuda.synchronize()  # ends this process where the card's context is broken: a new one goes on
            continue
        tell(part=name, result=result)


def told_by(command: list[str], patience: Callable[[str], float]) -> Iterator[dict[str, Any]]:
    """What a process tells, line by line; `patience(part)` seconds without a word about the part it began end it."""
    began, silent_since = "", time.time()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as process, selectors.DefaultSelector() as s:
        assert process.stdout is not None
        s.register(process.stdout, selectors.EVENT_READ)
        buffered = b""
        while True:
            if not s.select(timeout=1.0):
                if time.time() - silent_since > patience(began):
                    process.kill()
                    break
                continue
            got = os.read(process.stdout.fileno(), 1 << 16)
            if not got:
                break
            *lines, buffered = (buffered + got).split(b"\n")
            for line in lines:
                if line.startswith(b"{"):
                    silent_since = time.time()
                    said = json.loads(line)
                    began = said.get("began", began)
                    yield said


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
    parser.add_argument("--dry-run", action="store_true", help="on a CPU; the numbers mean nothing and are not kept")
    parser.add_argument("--mode", choices=["fast", "reproducible"], help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not (options.dry_run or torch.cuda.is_available()):
        sys.exit(f"torch {torch.__version__} sees no CUDA device: this benchmark needs one")
    if options.mode:
        run_mode(options.mode, options.only, options.deadline, Scale.small() if options.dry_run else Scale())
        return
    began = time.time()
    card = "cpu" if options.dry_run else torch.cuda.get_device_name()
    about = {"card": card, "driver_cuda": torch.version.cuda, "triton": __import__("triton").__version__}
    results: dict[str, Any] = {}
    now = datetime.now(UTC)
    path = options.output / f"gpu-{card.lower().replace(' ', '-')}-{now:%Y-%m-%d}.json"
    for mode, share in (("fast", 0.75), ("reproducible", 1.0)):
        found = results[mode] = {}
        wanted = options.only or [n for n in PARTS if not (options.dry_run and n == "peer")]  # which is slow there
        left = [n for n in PARTS if n in wanted and (mode == "fast" or n in IN_BOTH_MODES)]
        while left:
            command = [sys.executable, __file__, f"--mode={mode}", f"--deadline={began + share * options.budget}"]
            command += ["--dry-run"] * options.dry_run + ["--only", *left]
            running = "ceilings"
            for told in told_by(command, lambda part: 3 * PARTS.get(part, 30)):
                running = told.get("began", running)
                if "part" in told:
                    found[told["part"]] = told["result"]
                    print(f"{time.time() - began:6.1f} s {mode} {json.dumps(told)[:600]}", flush=True)
                    if not options.dry_run:
                        options.output.mkdir(parents=True, exist_ok=True)
                        document = {"machine": describe_machine() | about, "date": now.isoformat(), "results": results}
                        path.write_text(json.dumps(document, indent=1))
            if all(part in found for part in left):
                break
            found.setdefault(running, {"error": "its process ended or told nothing for too long"})
            if running == "ceilings":  # nothing runs at all
                break
            left = [part for part in left if part not in found]
    print(table(results))
    if options.dry_run:
        failed = {f"{mode} {part}" for mode in results for part in results[mode] if "error" in results[mode][part]}
        sys.exit(f"failed: {', '.join(sorted(failed))}" if failed else 0)
    print(path)


if __name__ == "__main__":
    main()

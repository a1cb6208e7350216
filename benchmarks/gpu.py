"""How near to the card does the worker come? Run on a CUDA machine; needs torch, triton, numpy and safetensors.

    python benchmarks/gpu.py --sitting 1 [--output FOLDER]     1 to 5, what explains most first; each stands alone
    python benchmarks/gpu.py --only 8b kernels [--budget 450]   some parts, in both modes
    TRITON_INTERPRET=1 python benchmarks/gpu.py --dry-run       every part but peer, tiny, on a CPU: does it run?

ceilings      device-to-device copy and a bf16 matrix product, measured in this run: what the shares below are of
trace         8b, recorded steps of 1, 64 and 256 rows: every kernel's time, and the gaps between them
kernels       decode attention of 64 sequences of 4,096 tokens, prefill attention of 8,192, and other tiles beside ours
products      the matrices of 8b at 1 to 256 rows, by the library and by our kernel
fp8_products  its largest matrix in 8-bit floats at 1, 16, 17 and 64 rows
dependent     8b, a step of one decode with kernels that begin while the one before them ends, and without
8b, 1b        decodes at batch 1 and context 1,024; 8b also at batch 64
serving       8b, 256 sequences of 100 to 1,024 tokens in and out with top_p 0.9 and greedy, and how much of the time
              the forward pass is running
traffic       8b, 256 sequences greedy beside top_p, penalties, drafts that are looked up, and one guided row in 64
overlap       8b, 256 sequences, steps launched before the last one is read, and not; whether the ids are the same
fp8           8b with fp8 weights: decodes, and 256 sequences of 1,000 tokens in and 1,000 out
int4, int8    8b with such weights: decodes at batch 1, 16 and 64
experts       12 of the 48 layers of Qwen3-30B-A3B: decodes at batch 1 and 64
peer          8b, 64 sequences, beside transformers' continuous batching on the same prompts

Engines are built with the settings that users get. Parts run in this order, each mode in a process of its own, since
cuBLAS reads its environment once. Results are written after every part. Weights are random and made on the card. A
part that fails is reported with its error, one that breaks the card's context or takes three times as long as it
should is followed by a new process for the rest, and one that no longer fits into the budget is left out.
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
    about,
    built,
    ceilings,
    decodes,
    dependent_launches,
    float8_products,
    kernels,
    products,
)
from benchmarks.gpu_states import states
from benchmarks.gpu_traffic import overlap, peer, run_requests, serving, table_of, trace, traffic
from benchmarks.machine import RESULTS, describe_machine
from tandem.worker.engine.process.build import BuiltEngine
from tandem.worker.model.cuda import device as cuda_device

# Seconds that each may take.
PARTS = {
    "trace": 45, "kernels": 30, "8b": 60, "serving": 100, "products": 60, "fp8_products": 15, "dependent": 100,
    "traffic": 90, "overlap": 40, "fp8": 90, "1b": 40, "int4": 50, "int8": 50, "experts": 60, "states": 15,
    "peer": 120,
}  # fmt: skip
IN_BOTH_MODES = ("trace", "kernels", "8b", "products", "serving")
SITTINGS: dict[str, list[tuple[str, tuple[str, ...]]]] = {  # six to nine minutes each; (mode, parts)
    "1": [("fast", ("trace", "8b", "serving", "traffic"))],
    "2": [("reproducible", ("trace", "8b", "serving", "products", "kernels"))],
    "3": [("fast", ("kernels", "products", "fp8_products", "1b", "overlap", "dependent"))],
    "4": [("fast", ("fp8", "int4", "int8", "experts", "states"))],
    "5": [("fast", ("peer",))],
}
SITTING_SECONDS = 540.0
# What, key of the result, goal, and what arithmetic predicts of an H200 (docs/gpu.md); none where nobody has reckoned.
GOALS: list[tuple[str, str, float, str]] = [
    ("8b decode, batch 1, share of the copy bandwidth", "8b.batch_1.engine.bandwidth_share", 0.75, "0.63 to 0.71"),
    ("1b decode, batch 1, share of the copy bandwidth", "1b.batch_1.engine.bandwidth_share", 0.60, "0.42 to 0.45"),
    ("8b, 256 sequences, top_p 0.9, output tokens/s", "serving.top_p.output_tokens_per_second", 9000, "5,500 to 7,500"),
    ("the same, greedy", "serving.greedy.output_tokens_per_second", 9000, "8,400 to 10,400"),
    ("8b, 64 sequences, times transformers' continuous batching", "peer.ratio", 3.0, "5 to 10"),
    ("decode attention, share of the copy bandwidth", "kernels.decode.bandwidth_share", 0.80, "0.75 to 0.85"),
    ("prefill attention, share of the matrix rate", "kernels.prefill.rate_share", 0.55, "0.33 to 0.45"),
    ("8b, 256 sequences, share of the time that a forward pass runs", "serving.greedy.forward_share", 0.97, ""),
    (
        "8b with fp8 weights, 256 sequences of 1,000 in and out, output tokens/s",
        "fp8.serving.output_tokens_per_second",
        14000,
        "10,200",
    ),
    ("8b, 256 sequences, tokens/s with overlap against without", "overlap.ratio", 1.0, ""),
    ("12 layers with 128 experts, batch 1, tokens/s", "experts.batch_1.engine.tokens_per_second", 600, ""),
]


def tell(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def run_mode(mode: str, parts: Sequence[str], deadline: float, scale: Scale, folder: Path | None = None) -> None:
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
            release()
            began = time.perf_counter()
            engines[name] = built(size, quantize, same, scale)
            tell(part=f"start_{name}", result={"start_seconds": time.perf_counter() - began} | about(engines[name]))
        return engines[name]

    def release() -> None:
        engines.clear()
        gc.collect()
        torch.cuda.empty_cache()

    def alone(part: Callable[[], Any]) -> Any:
        release()  # an engine takes nearly all of the memory
        return part()

    def traced() -> Any:
        found = trace(engine("8b"), scale, mode, folder)
        print(table_of(found), flush=True)
        return found

    def at(made: BuiltEngine, batches: Sequence[int]) -> dict[str, Any]:
        return {f"batch_{n}": decodes(made, n, ceiling, scale) for n in batches if n <= scale.batch}

    def fp8() -> dict[str, Any]:
        made = engine("8b", "fp8")
        return at(made, (1, 64)) | {"serving": run_requests(made, [(scale.thousand, scale.thousand)] * scale.batch)}

    runs: dict[str, Callable[[], Any]] = {
        "trace": traced,
        "kernels": lambda: alone(lambda: kernels(same, ceiling, scale)),
        "8b": lambda: at(engine("8b"), (1, 64)),
        "serving": lambda: serving(engine("8b"), scale),
        "products": lambda: alone(lambda: products(same, ceiling, scale)),
        "fp8_products": lambda: alone(lambda: float8_products(ceiling, scale)),
        "dependent": lambda: dependent_launches(lambda: alone(lambda: engine("8b")), ceiling, scale),
        "traffic": lambda: traffic(engine("8b"), scale),
        "overlap": lambda: overlap(engine("8b"), scale),
        "fp8": fp8,
        "1b": lambda: at(engine("1b"), (1,)),
        "int4": lambda: at(engine("8b", "int4"), (1, 16, 64)),
        "int8": lambda: at(engine("8b", "int8"), (1, 16, 64)),
        "experts": lambda: at(engine("experts"), (1, 64)),
        "states": lambda: alone(lambda: states(ceiling, scale)),
        "peer": lambda: peer(lambda: engine("8b"), scale, release),
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
    """Goals, what was predicted and what was measured."""
    fast, same = results.get("fast", {}), results.get("reproducible", {})
    rows = [(what, goal, predicted, look_up(fast, path)) for what, path, goal, predicted in GOALS]
    for what, path, predicted in (
        ("decodes of 8b at batch 64", "8b.batch_64.engine.tokens_per_second", "0.92 to 0.97"),
        ("8b, 256 sequences, top_p 0.9", "serving.top_p.output_tokens_per_second", ""),
    ):
        both = [look_up(mode, path) for mode in (same, fast)]
        ratio = both[0] / both[1] if all(both) else None
        rows.append((f"reproducible against fast, {what}, tokens/s", 0.9, predicted, ratio))
    lines = ["| | goal | predicted | measured |", "|---|---|---|---|"]
    for what, goal, predicted, found in rows:
        measured = "not measured" if found is None else format(found, ",.4g")
        lines.append(f"| {what} | {goal:,g} | {predicted} | {measured} |")
    return "\n".join(lines)


def plan_of(options: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """Which parts run in which mode."""
    if options.sitting:
        return [(mode, list(parts)) for mode, parts in SITTINGS[options.sitting]]
    wanted = options.only or [n for n in PARTS if not (options.dry_run and n == "peer")]  # which is slow there
    fast = [n for n in PARTS if n in wanted]
    return [("fast", fast), ("reproducible", [n for n in fast if n in IN_BOTH_MODES])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    parser.add_argument("--sitting", choices=SITTINGS, help="parts of six to nine minutes together")
    parser.add_argument("--budget", type=float, default=SITTING_SECONDS, help="seconds in all")
    parser.add_argument("--only", nargs="*", default=[], choices=PARTS, help="parts to run")
    parser.add_argument("--dry-run", action="store_true", help="on a CPU; the numbers mean nothing and are not kept")
    parser.add_argument("--mode", choices=["fast", "reproducible"], help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not (options.dry_run or torch.cuda.is_available()):
        sys.exit(f"torch {torch.__version__} sees no CUDA device: this benchmark needs one")
    if options.mode:
        scale = Scale.small() if options.dry_run else Scale()
        run_mode(options.mode, options.only, options.deadline, scale, None if options.dry_run else options.output)
        return
    began = time.time()
    card = "cpu" if options.dry_run else torch.cuda.get_device_name()
    machine = {"card": card, "driver_cuda": torch.version.cuda, "triton": __import__("triton").__version__}
    results: dict[str, Any] = {}
    now = datetime.now(UTC)
    path = (
        options.output
        / f"gpu-{card.lower().replace(' ', '-')}-{now:%Y-%m-%d}{'-' + options.sitting if options.sitting else ''}.json"
    )
    plan = plan_of(options)
    for number, (mode, left) in enumerate(plan):
        found = results[mode] = {}
        share = 1.0 if number == len(plan) - 1 else 0.75
        while left:
            command = [sys.executable, __file__, f"--mode={mode}", f"--deadline={began + share * options.budget}"]
            command += ["--dry-run"] * options.dry_run + [f"--output={options.output}", "--only", *left]
            running = "ceilings"
            for told in told_by(command, lambda part: 3 * PARTS.get(part, 30)):
                running = told.get("began", running)
                if "part" in told:
                    found[told["part"]] = told["result"]
                    print(f"{time.time() - began:6.1f} s {mode} {json.dumps(told)[:600]}", flush=True)
                    if not options.dry_run:
                        options.output.mkdir(parents=True, exist_ok=True)
                        document = {
                            "machine": describe_machine() | machine,
                            "date": now.isoformat(),
                            "results": results,
                        }
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

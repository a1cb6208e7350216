"""How fast are models of published shapes, beside llama.cpp? Both read the same GGUF file of random weights.

decode     tokens/s of 1, 8 and 16 sequences of `--context` tokens, the median of `--steps` steps, of a single one of
           four times as many, since these are short beside what disturbs them
prefill    tokens/s of prompts of `--prompts` tokens
greedy     how many of the tokens that follow the first 1, 2, .. of `ALIKE` random ones are llama.cpp's
reading    of a step of one sequence: the bytes of its weights, all experts' included, over its time; beside what two
           threads read of other memory between such steps

Each side is a program that stays loaded. In each of `--rounds` rounds all sides measure one thing, one behind the
other, then all the next one: memory of a shared machine is quick in one minute and slow in another. Told are medians,
and of ratios the medians of those within a round.

Ours is the whole engine in process: pages, scheduler and sampler included. llama.cpp is `llama_decode` alone, called
through llama-cpp-python with the interpreter of `--llama-cpp-python`, with the same prompts, each followed by the ids
that are likeliest; without it, its columns stay empty. vLLM is its engine in process, compiled, with the same shape in
bf16 and weights of its own (`--vllm`, an interpreter that has its CPU build). ik_llama.cpp is its `llama_decode`, of a
checkout whose shared libraries are in `build`, with weights as they are stored, and interleaved while they are loaded.
mistral.rs is its `Runner` with the same file, its scheduler, sampler and streams of text included. Files lie in a
temporary folder and are removed, unless `--folder` keeps them for the next run.

    python benchmarks/models.py [--llama-cpp-python PATH] [--vllm PATH] [--mistralrs PATH] [--ik-llama-cpp FOLDER]
                                [--shapes llama-1b ...|all] [--kinds BF16 Q8_0 Q4_0]

Shapes (`shapes.py`) are those of published models, less most of their layers where these are many; all vocabularies are
cut to 32,000. `--add` keeps what the result file of today has of other shapes and kinds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.machine import HOMES, save, saved_today
from benchmarks.peer_engines import IK_LLAMA, LLAMA_CPP, MISTRALRS, VLLM, VLLM_CPU, compile_ik_llama, prompt
from benchmarks.random_gguf import write_config, write_gguf
from benchmarks.shapes import SHAPES
from benchmarks.sides import Ended, Side
from tandem.worker.engine.process.child import engine_environment

OWN_ENGINE = Path(__file__).resolve().with_name("own_engine.py")
OURS = ("tandem", "other")  # sides that tell how quickly memory is read
PAUSE = 0.3  # seconds after which threads of the one before sleep
BATCHES = {1: 4, 8: 1, 16: 1}  # sequences of a step, and how many times `--steps` of them are measured
ENGINE = engine_environment()
FEWEST_STEPS = 3
ALIKE = 24  # ids after which both engines choose the next
CLOCKS = {"wall": "perf_counter", "processor": "process_time"}
KINDS: dict[str, dict[str, Any]] = {  # of the file -> what our engine is told beside
    "F32": {"dtype": "float32"},
    "BF16": {"dtype": "bfloat16"},
    "F16": {"dtype": "float16"},
    "Q8_0": {},
    "Q8_0 with int8 activations": {"int8_activations": True},
    "Q8_0 as int8 channels": {"quantize": "int8"},
    "Q4_0": {},
    "Q4_K_M": {},
    "Q6_K": {},
    "IQ4_NL": {},
    "Q4_0 as int4 groups of 128": {"quantize": "int4", "quantize_group": 128},
}


def turns(sides: dict[str, Side], options: argparse.Namespace) -> dict[str, Any]:
    """What each side measured, the medians of `--rounds` and all of them, or why it could not; and `greedy`."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in sides}
    failed: dict[str, str] = {}

    def ask(name: str, *what: Any) -> Any:
        if name in failed:
            return None
        try:
            return sides[name].ask(*what)
        except Ended as why:
            failed[name] = str(why)
        finally:
            time.sleep(PAUSE)

    chosen = [ask(name, "greedy", prompt(0, ALIKE)) for name in ("tandem", "llama.cpp") if name in sides]
    for turn in range(options.rounds + 1):
        order = list(sides)[:: 1 if turn % 2 else -1]  # each begins as often
        for length, name in itertools.product(options.prompts, order):
            if (seconds := ask(name, "prefill", length)) and turn:  # the first ones make what the others find
                found[name].setdefault(f"prefill_{length}", []).append(length / seconds)
        for (batch, times), name in itertools.product(BATCHES.items(), order if turn else []):
            if seconds := ask(name, "decode", batch, options.context, times * options.steps):
                step = statistics.median(seconds)
                found[name].setdefault(f"decode_{batch}", []).append(batch / step)
                if batch == 1 and name in OURS and (read := ask(name, "read")):
                    limit = read["read_bytes_per_second"]
                    found[name].setdefault("read_gb_per_second", []).append(limit / 1e9)
                    found[name].setdefault("of_the_read_limit", []).append(read["bytes_of_a_step"] / step / limit)
    answers: dict[str, Any] = {
        name: failed.get(name, {what: statistics.median(each) for what, each in rows.items()} | {"rounds": rows})
        for name, rows in found.items()
    }
    return answers | ({} if failed or len(chosen) < 2 else {"greedy": sum(map(int.__eq__, *chosen))})


def ratios(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """Medians of those within rounds."""
    return {
        name: statistics.median(a / b for a, b in zip(ours["rounds"][name], each, strict=True))
        for name, each in theirs["rounds"].items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp-python", default="", metavar="PATH", help="an interpreter that has llama_cpp")
    parser.add_argument("--vllm", default="", metavar="PATH", help="an interpreter that has vLLM's CPU build; for BF16")
    parser.add_argument("--ik-llama-cpp", default="", metavar="FOLDER", help="a checkout with its build")
    parser.add_argument("--mistralrs", default="", metavar="PATH", help="an interpreter that has mistralrs")
    parser.add_argument("--tree", default="", help="another checkout, whose engine is measured too, as `other`")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["BF16", "Q8_0", "Q4_0"])
    parser.add_argument("--shapes", nargs="+", default=["llama-1b"], help="of shapes.py")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, help="instead of the shape's own")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor: for one thread on a busy machine")
    parser.add_argument("--folder", help="where the files are, or stay once they are made")
    parser.add_argument("--runner", type=shlex.split, default=[], help='command that starts each: "chrt -f 50"')
    parser.add_argument("--machine", default=f"cpu{len(os.sched_getaffinity(0))}")
    parser.add_argument("--write", action="store_true", help="make the files in --folder, and measure nothing")
    parser.add_argument(
        "--add", action="store_true", help="to the results of several shapes, or beside mistralrs, of today"
    )
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    if options.steps < FEWEST_STEPS:
        parser.error(f"--steps: at least {FEWEST_STEPS}: sequences that begin later leave fewer steps of all together")
    names = list(SHAPES) if options.shapes == ["all"] else options.shapes
    if unknown := [name for name in names if name not in SHAPES]:
        parser.error(f"--shapes: {', '.join(unknown)}; there are all, {', '.join(SHAPES)}")
    benchmark = "models" if names == ["llama-1b"] else f"models-{names[0] if len(names) == 1 else 'shapes'}"
    benchmark = "models-mistralrs" if options.mistralrs else "models-shapes" if options.add else benchmark
    results: dict[str, dict[str, dict[str, Any]]] = saved_today(benchmark, options.machine) if options.add else {}
    longest = max(*options.prompts, options.context + max(BATCHES.values()) * options.steps) + 16
    together = max(longest, max(BATCHES) * (options.context + options.steps + 128))
    numbers = [*map(str, (options.threads, longest, together, max(BATCHES))), CLOCKS[options.clock]]
    print(f"| shape | kind | {' | '.join(measured(options.prompts))} |")
    print(f"|---|---|{'---|' * (len(BATCHES) + len(options.prompts))}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tandem-models-") as temporary:
        folder = Path(options.folder or temporary)
        for name, kind in itertools.product(names, options.kinds):
            layers = options.layers or SHAPES[name].layers
            stored = kind.split()[0]
            path = folder / f"{name}-{layers}-layers-{stored}.gguf"
            if not path.exists():
                write_gguf(path, stored, SHAPES[name], layers)
            if options.write:
                continue
            own = [sys.executable, str(OWN_ENGINE), str(path), *numbers, json.dumps(KINDS[kind])]
            commands = {"tandem": (own, ENGINE)}
            if options.llama_cpp_python:
                commands["llama.cpp"] = [options.llama_cpp_python, "-c", LLAMA_CPP, str(path), *numbers], {}
            if options.ik_llama_cpp:
                library = compile_ik_llama(Path(options.ik_llama_cpp), Path(temporary))
                for side, way in (("ik_llama.cpp", "as stored"), ("ik_llama.cpp, repacked", "repacked")):
                    commands[side] = [sys.executable, "-c", IK_LLAMA, str(path), *numbers, str(library), way], {}
            if options.mistralrs:
                told = {"RAYON_NUM_THREADS": numbers[0]}
                commands["mistralrs"] = [options.mistralrs, "-c", MISTRALRS, str(path), *numbers], told
            if options.vllm and kind == "BF16":
                write_config(path.with_suffix(""), SHAPES[name], layers)
                bound = {**VLLM_CPU, "VLLM_CPU_OMP_THREADS_BIND": f"0-{options.threads - 1}"}
                commands["vllm"] = [options.vllm, "-c", VLLM, str(path.with_suffix("")), *numbers], bound
            if options.tree:
                homes = ":".join(str(Path(options.tree).resolve() / home) for home in HOMES)
                commands["other"] = own, {**ENGINE, "PYTHONPATH": homes}
            answer: dict[str, Any] = {"layers": layers, "llama.cpp": "not measured: --llama-cpp-python is not given"}
            with ExitStack() as stack:
                sides = {
                    side: stack.enter_context(closing(Side([*options.runner, *command], more)))
                    for side, (command, more) in commands.items()
                }
                answer |= turns(sides, options)
            for side in commands:
                if isinstance(answer[side], str):
                    print(f"{side}: {answer[side]}", file=sys.stderr)
            ours, other = answer["tandem"], answer["llama.cpp"]
            if isinstance(ours, dict) and isinstance(other, dict):
                print(f"  greedy ids that are llama.cpp's: {answer['greedy']} of {ALIKE}")
                answer["ratio"] = ratios(ours, other)
            for peer in ("vllm", "ik_llama.cpp", "ik_llama.cpp, repacked", "mistralrs", "other"):
                if isinstance(ours, dict) and isinstance(found := answer.get(peer), dict):
                    answer[f"ratio to {peer}"] = beside = ratios(ours, found)
                    print(f"  beside {peer}: {', '.join(f'{what} {ratio:.2f}' for what, ratio in beside.items())}")
            results.setdefault(name, {})[kind] = answer
            print(f"| {name} | {kind} | {' | '.join(cells(answer, options.prompts))} |", flush=True)
            if not options.folder:
                path.unlink()
            save(benchmark, options, results)


def measured(prompts: list[int]) -> list[str]:
    """What is measured, by its keys in the results."""
    return [*(f"decode_{batch}" for batch in BATCHES), *(f"prefill_{length}" for length in prompts)]


def cells(answer: dict[str, Any], prompts: list[int]) -> list[str]:
    """A row of the table: ours / llama.cpp = ratio, which is bold where it is under 1."""
    found = []
    for name in measured(prompts):
        sides = [answer[side][name] if isinstance(answer[side], dict) else None for side in ("tandem", "llama.cpp")]
        shown = " / ".join("-" if side is None else f"{side:.{1 if side < 30 else 0}f}" for side in sides)
        ratio = answer["ratio"][name] if "ratio" in answer else None
        found.append(
            shown if ratio is None else f"{shown} = {ratio:.2f}" if ratio >= 1 else f"{shown} = **{ratio:.2f}**"
        )
    return found


if __name__ == "__main__":
    main()

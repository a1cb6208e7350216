"""How fast are models of published shapes, beside llama.cpp? Both read the same GGUF file of random weights.

decode     tokens/s of 1, 8 and 16 sequences of `--context` tokens, the median of `--steps` steps, of a single one of
           four times as many, since these are short beside what disturbs them
prefill    tokens/s of prompts of `--prompts` tokens, the median of `--rounds`
greedy     how many of the tokens that follow the first 1, 2, .. of `ALIKE` random ones are llama.cpp's
reading    of a step of one sequence: the bytes of its weights, all experts' included, over its time; beside what two
           threads read of other memory between such steps

Ours is the whole engine in process: pages, scheduler and sampler included. llama.cpp is `llama_decode` alone, called
through llama-cpp-python with the interpreter of `--llama-cpp-python`, with the same prompts, each followed by the ids
that are likeliest; without it, its columns stay empty. vLLM is its
engine in process, compiled, with the same shape in bf16 and weights of its own (`--vllm`, an interpreter that has its
CPU build). mistral.rs is its `Runner` with the same file, its scheduler, sampler and streams of text included. One
process at a time, alternating; files lie in a temporary folder and are removed, unless `--folder` keeps them for the
next run.

python benchmarks/models.py [--llama-cpp-python PATH] [--vllm PATH] [--mistralrs PATH] [--shapes llama-1b ...|all]
                            [--kinds BF16 Q8_0 Q4_0]

Shapes (`shapes.py`) are those of published models, less most of their layers where these are many; all vocabularies are
cut to 32,000. `--add` keeps what the result file of today has of other shapes and kinds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

BATCHES = {1: 4, 8: 1, 16: 1}  # sequences of a step, and how many times `--steps` of them are measured
ENGINE = {"GOMP_SPINCOUNT": "1000", "THP_MEM_ALLOC_ENABLE": "1"}  # what the worker sets for its engine's process
READ = 1 << 27  # numbers of 8 bytes that tell how quickly memory is read
ALIKE = 24  # ids after which both engines choose the next
CLOCKS = {"wall": "perf_counter", "processor": "process_time"}
KINDS: dict[str, dict[str, Any]] = {  # of the file -> what our engine is told beside
    "F32": {"dtype": "float32"},
    "BF16": {"dtype": "bfloat16"},
    "F16": {"dtype": "float16"},
    "Q8_0": {},
    "Q8_0 as int8 channels": {"quantize": "int8"},
    "Q4_0": {},
    "Q4_K_M": {},
    "Q4_0 as int4 groups of 128": {"quantize": "int4", "quantize_group": 128},
}


def measure_ours(path: str, fields: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    import numpy as np
    import torch

    from benchmarks.peer_engines import prompt
    from tandem.worker.engine.process.build import build_engine
    from tandem.worker.engine.process.config import EngineConfig
    from tandem.worker.engine.request import Request, Stopping
    from tandem.worker.engine.sampling import Sampling

    built = build_engine(
        EngineConfig(
            model=path,
            threads=options.threads,
            kv_cache_tokens=max(16 * 256, max(options.prompts) + 256),
            max_batch_tokens=1024,
            state_slots=2 * max(BATCHES),
            **fields,
        )
    )
    engine, number = built.engine, 0
    clock = getattr(time, CLOCKS[options.clock])

    def submit(sequence: int, length: int, tokens: int) -> int:
        nonlocal number
        number += 1
        ids, greedy = np.array(prompt(sequence, length), np.int32), Sampling(temperature=0.0)
        engine.submit(Request.make(number, ids, greedy, Stopping(max_tokens=tokens), bypass=True))
        return number

    read = built.weight_bytes - (0 if built.config.tie_embeddings else embedding_bytes(built.engine))
    result: dict[str, Any] = {"weight_bytes": built.weight_bytes, "bytes_of_a_step": read}
    chosen: dict[int, int] = {}
    asked = [submit(0, length, 1) for length in range(1, ALIKE + 1)]
    while engine.has_work:
        step = engine.step()
        chosen |= dict(zip(step.numbers.tolist(), step.sampled.ids.tolist(), strict=True))
    result["greedy"] = [chosen[each] for each in asked]
    for length in options.prompts:
        rates = []
        for _ in range(options.rounds + 1):
            submit(0, length, 1)
            began = clock()
            while engine.has_work:
                engine.step()
            rates.append(length / (clock() - began))
        result[f"prefill_{length}"] = statistics.median(rates[1:])
    for batch, times in BATCHES.items():
        for sequence in range(batch):
            submit(sequence, options.context, times * options.steps + 3)
        seconds: list[float] = []
        reading: list[float] = []
        plain = torch.ones(READ, dtype=torch.int64) if batch == 1 else None
        while engine.has_work:
            began = clock()
            step = engine.step()
            if not step.prefill_tokens and step.decode_tokens == batch:
                seconds.append(clock() - began)
            if plain is not None and len(seconds) % 4 == 3:
                began = clock()
                plain.sum()
                reading.append(clock() - began)
        result[f"decode_{batch}"] = batch / statistics.median(seconds)
        if plain is not None:
            limit = plain.nbytes / statistics.median(reading[1:])
            result["read_gb_per_second"] = limit / 1e9
            result["of_the_read_limit"] = read / statistics.median(seconds) / limit
    return result


def embedding_bytes(engine: Any) -> int:
    """Of the table of which a step reads some rows."""
    embedding = engine._runner.model.embedding
    return sum(weight.nbytes for weight in (*embedding.parameters(), *embedding.buffers()))


def in_process(command: list[str], environment: dict[str, str]) -> dict[str, Any] | str:
    """The last line of a process as JSON, or why there is none."""
    done = subprocess.run(command, capture_output=True, text=True, env={**environment, **os.environ}, check=False)
    if done.returncode:
        return (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def medians(answers: list[dict[str, Any] | str]) -> dict[str, Any] | str:
    """Of each number, and of lists the first; or why there is none."""
    measured: list[dict[str, Any]] = []
    for answer in answers:
        if isinstance(answer, str):
            return answer
        measured.append(answer)
    return {
        name: first if isinstance(first, list) else statistics.median(each[name] for each in measured)
        for name, first in measured[0].items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp-python", default="", metavar="PATH", help="an interpreter that has llama_cpp")
    parser.add_argument("--vllm", default="", metavar="PATH", help="an interpreter that has vLLM's CPU build; for BF16")
    parser.add_argument("--mistralrs", default="", metavar="PATH", help="an interpreter that has mistralrs")
    parser.add_argument("--tree", default="", help="another checkout, whose engine is measured too, as `other`")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["BF16", "Q8_0", "Q4_0"])
    parser.add_argument("--shapes", nargs="+", default=["llama-1b"], help="of shapes.py")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, help="instead of the shape's own")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=1, help="how often each process runs, one after the other")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor: for one thread on a busy machine")
    parser.add_argument("--folder", help="where the files are, or stay once they are made")
    parser.add_argument("--runner", nargs="*", default=[], help="command that starts each measurement")
    parser.add_argument("--ours", nargs=2, help=argparse.SUPPRESS)  # file and kind: the child that measures
    parser.add_argument("--machine", default=f"cpu{len(os.sched_getaffinity(0))}")
    parser.add_argument("--write", action="store_true", help="make the files in --folder, and measure nothing")
    parser.add_argument(
        "--add", action="store_true", help="to the results of several shapes, or beside mistralrs, of today"
    )
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    if options.ours:
        path, kind = options.ours
        print(json.dumps(measure_ours(path, KINDS[kind], options)))
        return
    from benchmarks.machine import HOMES, save, saved_today
    from benchmarks.peer_engines import LLAMA_CPP, MISTRALRS, VLLM, VLLM_CPU, prompt
    from benchmarks.random_gguf import write_config, write_gguf
    from benchmarks.shapes import SHAPES

    names = list(SHAPES) if options.shapes == ["all"] else options.shapes
    if unknown := [name for name in names if name not in SHAPES]:
        parser.error(f"--shapes: {', '.join(unknown)}; there are all, {', '.join(SHAPES)}")
    benchmark = "models" if names == ["llama-1b"] else f"models-{names[0] if len(names) == 1 else 'shapes'}"
    benchmark = "models-mistralrs" if options.mistralrs else "models-shapes" if options.add else benchmark
    results: dict[str, dict[str, dict[str, Any]]] = saved_today(benchmark, options.machine) if options.add else {}
    numbers = [str(options.threads), str(options.rounds), str(options.steps)]
    work = json.dumps(
        [list(BATCHES.items()), options.prompts, options.context, CLOCKS[options.clock], prompt(0, ALIKE)]
    )
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
            own = [sys.executable, __file__, "--ours", str(path), kind]
            own += ["--threads", numbers[0], "--rounds", numbers[1], "--steps", numbers[2]]
            own += ["--context", str(options.context), "--clock", options.clock]
            own += ["--prompts", *map(str, options.prompts)]
            commands = {"tandem": (own, ENGINE)}
            if options.llama_cpp_python:
                commands["llama.cpp"] = [options.llama_cpp_python, "-c", LLAMA_CPP, str(path), *numbers, work], {}
            if options.mistralrs:
                told = {"RAYON_NUM_THREADS": numbers[0]}
                commands["mistralrs"] = [options.mistralrs, "-c", MISTRALRS, str(path), *numbers, work], told
            if options.vllm and kind == "BF16":
                write_config(path.with_suffix(""), SHAPES[name], layers)
                bound = {**VLLM_CPU, "VLLM_CPU_OMP_THREADS_BIND": f"0-{options.threads - 1}"}
                commands["vllm"] = [options.vllm, "-c", VLLM, str(path.with_suffix("")), *numbers, work], bound
            if options.tree:
                homes = ":".join(str(Path(options.tree).resolve() / home) for home in HOMES)
                commands["other"] = own, {**ENGINE, "PYTHONPATH": homes}
            turns = [
                {name: in_process([*options.runner, *command], more) for name, (command, more) in commands.items()}
                for _ in range(options.turns)
            ]
            answer: dict[str, Any] = {"layers": layers, "llama.cpp": "not measured: --llama-cpp-python is not given"}
            answer |= {name: medians([turn[name] for turn in turns]) for name in commands}
            for side in commands:
                if isinstance(answer[side], str):
                    print(f"{side}: {answer[side]}", file=sys.stderr)
            ours, other = answer["tandem"], answer["llama.cpp"]
            greedy = [answer[side].pop("greedy", []) for side in commands if isinstance(answer[side], dict)]
            if isinstance(ours, dict) and isinstance(other, dict):
                answer["greedy"] = sum(map(int.__eq__, *greedy[:2]))
                print(f"  greedy ids that are llama.cpp's: {answer['greedy']} of {ALIKE}")
                answer["ratio"] = {name: ours[name] / other[name] for name in other}
            for peer in ("vllm", "mistralrs"):
                if isinstance(ours, dict) and isinstance(found := answer.get(peer), dict):
                    ratios = answer[f"ratio to {peer}"] = {name: ours[name] / found[name] for name in found}
                    print(f"  beside {peer}: {', '.join(f'{n} {r:.2f}' for n, r in ratios.items())}")
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

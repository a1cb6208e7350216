"""What does a whole model's decode step cost at a long context, beside a short one, by how keys and values are stored?

One sequence, the forward pass of all layers, `--context` tokens against `--short`, in turn. The keys and values of the
long context are made up: nobody waits for its prefill. `read` is the sum of a tensor by all threads, before each step,
so that each finds weights and cache in memory, and none in a last cache of hundreds of megabytes; what the long context
costs more is told as a multiple of what its bytes take at that rate. All are medians. `avx2` is the same without
AVX-512 in attention, in turn, where the processor has it.

llama.cpp reads the same file: `llama_decode` by llama-cpp-python with the interpreter of `--llama-cpp-python`, flash
attention on; its context is 1,024 tokens that were computed, copied and turned to their places. Its steps follow each
other, so that a last cache as large as the model favours it.

    python benchmarks/long_context.py [--llama-cpp-python PATH] [--shapes qwen3-0.6b llama-1b] [--kind Q8_0]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.models import ENGINE
from benchmarks.sides import in_process

FORMATS = ("auto", "int8", "fp8", "int6", "int4")  # auto: bf16
THEIR_FORMATS = ("f16", "q8_0", "q4_0")
BLOCK = 1024  # tokens that are repeated over the context


def measure_ours(path: str, form: str, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of a step at both contexts, and bytes a token of the cache."""
    import numpy as np
    import torch

    from tandem.worker.engine.process.build import build_engine
    from tandem.worker.engine.process.config import EngineConfig
    from tandem.worker.model.cpu import native
    from tandem.worker.model.runner import ModelRunner
    from tandem.worker.model.work import Work

    room = options.context + options.steps + 64
    built = build_engine(
        EngineConfig(
            model=path,
            dtype="bfloat16",
            threads=options.threads,
            kv_cache_dtype=form,  # type: ignore[arg-type]
            kv_cache_tokens=room,
            max_running_requests=1,
            context_length=room,
            rope_scale=16.0,  # a model's own context may be shorter; it is no other work
        )
    )
    runner = built.engine._runner
    assert isinstance(runner, ModelRunner)
    cache, size = runner.cache, built.shape.page_size
    generator = torch.Generator().manual_seed(0)
    for places in torch.arange(cache.shape.pages * size).split(BLOCK):
        heads = cache.shape.heads[0]
        k, v = (torch.randn(len(places), heads.number, heads.size, generator=generator) for _ in range(2))
        cache.write(0, torch.stack([places // size, places % size]), k, v)
    for layer in range(1, len(cache.keys)):
        for stored in (cache.keys, cache.values):
            for part, first in zip(stored[layer], stored[0], strict=True):
                part.copy_(first)
    pages = np.arange(cache.shape.pages)
    plain = torch.ones(1 << 27, dtype=torch.int64)
    ways = {"": True, "_avx2": False} if native.allow_wide_attention(True) else {"": True}
    contexts = {"short": options.short, "long": options.context}
    seconds: dict[str, list[float]] = {}

    def note(name: str, call: Callable[[], object]) -> None:
        began = time.perf_counter()
        call()
        seconds.setdefault(name, []).append(time.perf_counter() - began)

    torch.set_num_threads(options.threads)
    for step in range(options.steps + 1):
        token = np.array([3 + step], dtype=np.int32)
        for way, wide in ways.items():
            native.allow_wide_attention(wide)
            for name, context in contexts.items():
                note("read", plain.sum)
                note(name + way, functools.partial(runner.forward, [Work(token, context + step, pages, 1)]))
    took = {name: statistics.median(each[1:]) for name, each in seconds.items()}  # the first one warms up
    rate = plain.nbytes / took.pop("read") / 1e9
    return took | {"bytes_per_token": built.shape.bytes_per_token, "read_gb_per_second": rate}


LLAMA_CPP = """
import ctypes, json, math, statistics, sys, time
import llama_cpp as l
path, kind = sys.argv[1:3]
threads, steps, short, context, block = map(int, sys.argv[3:])
quiet = l.llama_log_callback(lambda *a: None)  # kept: llama.cpp calls it as long as it runs
l.llama_log_set(quiet, ctypes.c_void_p(0))
l.llama_backend_init()
model = l.llama_model_load_from_file(path.encode(), l.llama_model_default_params())
p = l.llama_context_default_params()
p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = context + 2 * block, block, 512, 3
p.n_threads = p.n_threads_batch = threads
p.kv_unified, p.flash_attn_type = True, 1
p.type_k = p.type_v = {"f16": 1, "q8_0": 8, "q4_0": 2}[kind]
ctx = l.llama_init_from_model(model, p)
memory = l.llama_get_memory(ctx)
room = l.llama_batch_init(block, 0, 1)
def decode(places, sequence):
    room.n_tokens = len(places)
    for i, place in enumerate(places):
        room.token[i], room.pos[i], room.n_seq_id[i] = 5 + i, place, 1
        room.seq_id[i][0], room.logits[i] = sequence, i == len(places) - 1
    began = time.perf_counter()
    assert l.llama_decode(ctx, room) == 0
    l.llama_synchronize(ctx)
    seconds = time.perf_counter() - began
    assert math.isfinite(sum(l.llama_get_logits_ith(ctx, len(places) - 1)[:100]))
    return seconds
def measured(at, sequence):
    return statistics.median([decode([at + n], sequence) for n in range(steps + 1)][1:])
decode(range(short), 2)
result = {"short": measured(short, 2)}
l.llama_memory_seq_rm(memory, 2, -1, -1)
decode(range(block), 0)
size = l.llama_state_seq_get_size(ctx, 0)
state = (ctypes.c_uint8 * size)()
assert l.llama_state_seq_get_data(ctx, state, size, 0) == size
for place in range(block, context, block):
    assert l.llama_state_seq_set_data(ctx, state, size, 1)
    l.llama_memory_seq_add(memory, 1, 0, -1, place)
    l.llama_memory_seq_cp(memory, 1, 0, -1, -1)
    l.llama_memory_seq_rm(memory, 1, -1, -1)
assert l.llama_memory_seq_pos_max(memory, 0) == context - 1
decode([context], 0)
result["long"] = measured(context + 1, 0)
print(json.dumps(result))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp-python", default="", metavar="PATH", help="an interpreter that has llama_cpp")
    parser.add_argument("--shapes", nargs="+", default=["qwen3-0.6b", "llama-1b"], help="of shapes.py")
    parser.add_argument("--kind", default="Q8_0", choices=("BF16", "Q8_0", "Q4_0"), help="of the weights")
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    parser.add_argument("--their-formats", nargs="+", default=THEIR_FORMATS, choices=THEIR_FORMATS)
    parser.add_argument("--layers", type=int, help="instead of the shape's own")
    parser.add_argument("--context", type=int, default=16384)
    parser.add_argument("--short", type=int, default=128)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", help="where the files are, or stay once they are made")
    parser.add_argument("--write", action="store_true", help="make the files in --folder, and measure nothing")
    parser.add_argument("--ours", nargs=2, help=argparse.SUPPRESS)  # file and format: the child that measures
    parser.add_argument("--machine", default=f"cpu{len(os.sched_getaffinity(0))}")
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    if options.ours:
        path, form = options.ours
        print(json.dumps(measure_ours(path, form, options)))
        return
    from benchmarks.machine import save
    from benchmarks.random_gguf import write_gguf
    from benchmarks.shapes import SHAPES

    results: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory(prefix="tandem-long-") as temporary:
        for name in options.shapes:
            layers = options.layers or SHAPES[name].layers
            path = Path(options.folder or temporary) / f"{name}-{layers}-layers-{options.kind}.gguf"
            if not path.exists():
                write_gguf(path, options.kind, SHAPES[name], layers)
            if options.write:
                continue
            results[name] = found = {"layers": layers}
            numbers = ["--threads", str(options.threads), "--steps", str(options.steps)]
            numbers += ["--context", str(options.context), "--short", str(options.short)]
            for form in options.formats:
                command = [sys.executable, __file__, "--ours", str(path), form, *numbers]
                found[form] = told(in_process(command, ENGINE), options)
                print(f"{name} {form}: {json.dumps(found[form])}", flush=True)
                save("long_context", options, results)
            for form in options.their_formats if options.llama_cpp_python else ():
                work = map(str, (options.threads, options.steps, options.short, options.context, BLOCK))
                answer = in_process([options.llama_cpp_python, "-c", LLAMA_CPP, str(path), form, *work], {})
                found[f"llama.cpp {form}"] = answer
                print(f"{name} llama.cpp {form}: {json.dumps(answer)}", flush=True)
                save("long_context", options, results)


def told(answer: dict[str, float] | str, options: argparse.Namespace) -> dict[str, float] | str:
    """With what the bytes of the long context take at the read limit, and how many times that a step takes more."""
    if isinstance(answer, str):
        return answer
    extra = answer["bytes_per_token"] * (options.context - options.short)
    limit = extra / answer["read_gb_per_second"] / 1e9
    avx2 = (
        {"extra_over_limit_avx2": (answer["long_avx2"] - answer["short_avx2"]) / limit} if "long_avx2" in answer else {}
    )
    return (
        answer
        | avx2
        | {
            "extra_bytes": extra,
            "bytes_at_the_limit": limit,
            "extra_over_limit": (answer["long"] - answer["short"]) / limit,
            "step_over_limit": answer["long"] / (answer["short"] + limit),
        }
    )


if __name__ == "__main__":
    main()

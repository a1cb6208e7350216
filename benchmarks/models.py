"""How fast is a model of a published shape, beside llama.cpp? Both read the same GGUF file of random weights.

decode     tokens/s of 1, 8 and 16 sequences of `--context` tokens, the median step
prefill    tokens/s of prompts of `--prompts` tokens, the median of `--rounds`

Ours is the whole engine in process: pages, scheduler and sampler included. llama.cpp is `llama_decode` alone, called
through llama-cpp-python with the interpreter of `--llama-cpp-python`; without it, its columns stay empty. One process
at a time, alternating; files lie in a temporary folder and are removed, unless `--folder` keeps them for the next run.

python benchmarks/models.py [--llama-cpp-python PATH] [--shape llama-1b] [--kinds BF16 Q8_0 Q4_0] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

BATCHES = (1, 8, 16)
VOCABULARY = 32000


@dataclass(frozen=True)
class Shape:
    """What a file of random weights looks like."""

    architecture: str  # by GGUF's name
    layers: int  # as many as are measured unless --layers says otherwise
    hidden: int
    inner: int  # of an expert, if there are any
    heads: int
    kv_heads: int
    head_dim: int
    head_norms: bool = False  # of queries and keys
    experts: int = 0
    chosen: int = 0  # of them by each token


SHAPES = {
    "llama-1b": Shape("llama", 22, 2048, 5632, 32, 4, 64),
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, head_norms=True),
    # Qwen3-30B-A3B, which has 48 layers.
    "qwen3-moe": Shape("qwen3moe", 4, 2048, 768, 32, 4, 128, head_norms=True, experts=128, chosen=8),
}
ENGINE = {"GOMP_SPINCOUNT": "1000", "THP_MEM_ALLOC_ENABLE": "1"}  # what the worker sets for its engine's process
CLOCKS = {"wall": "perf_counter", "processor": "process_time"}
KINDS = {  # of the file -> what our engine is told beside
    "F32": {"dtype": "float32"},
    "BF16": {"dtype": "bfloat16"},
    "F16": {"dtype": "float16"},
    "Q8_0": {},
    "Q8_0 as int8 channels": {"quantize": "int8"},
    "Q4_0": {},
    "Q4_K_M": {},
    "Q4_0 as int4 groups of 128": {"quantize": "int4", "quantize_group": 128},
}


# Numbers and bytes of a block, and its float16 numbers by where they stand.
BLOCKS = {
    "Q8_0": (32, 34, {0: 0.0004}),
    "Q4_0": (32, 18, {0: 0.006}),
    "Q4_K": (256, 144, {0: 0.0002, 2: 0.0015}),
    "Q6_K": (256, 210, {208: 0.00002}),
}


def write_file(path: Path, kind: str, shape: Shape, layers: int) -> None:
    """A model of random weights. With Q4_0 the output is Q8_0, as llama.cpp's own files have more bits there; Q4_K_M is
    Q4_K, and Q6_K in the output and, in every second layer, in values and down."""
    import numpy as np
    from gguf import GGMLQuantizationType as Type
    from gguf import GGUFWriter

    generator = np.random.default_rng(0)
    writer = GGUFWriter(path, shape.architecture, use_temp_file=True)
    writer.add_block_count(layers)
    writer.add_context_length(2048)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.chosen)
        writer.add_expert_feed_forward_length(shape.inner)

    def add(name: str, kind: str, rows: int, columns: int, experts: int = 0) -> None:
        count = max(experts, 1) * rows
        if kind in BLOCKS:
            numbers, size, halves = BLOCKS[kind]
            blocks = generator.integers(0, 256, (count, columns // numbers, size), dtype=np.uint8)
            for at, half in halves.items():
                blocks[..., at : at + 2] = np.frombuffer(np.float16(half).tobytes(), dtype=np.uint8)
            data = blocks.reshape(count, -1)
        else:
            data = generator.standard_normal((count, columns), dtype=np.float32) * 0.03
            if kind == "F16":
                data = data.astype(np.float16)
            elif kind == "BF16":
                data = (data.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        if experts:
            data = data.reshape(experts, rows, -1)
        writer.add_tensor(name, data, raw_dtype=Type[kind])

    def add_ones(name: str, size: int) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(size, dtype=np.float32))

    hidden, inner, heads, kv_heads = shape.hidden, shape.inner, shape.heads, shape.kv_heads
    mixed = kind == "Q4_K_M"
    kind = "Q4_K" if mixed else kind
    wide = {"Q4_0": "Q8_0", "Q4_K": "Q6_K"}.get(kind, kind)
    add("token_embd.weight", kind, VOCABULARY, hidden)
    add("output.weight", wide, VOCABULARY, hidden)
    add_ones("output_norm", hidden)
    for layer in range(layers):
        block, more = f"blk.{layer}", wide if mixed and layer % 2 else kind
        add_ones(f"{block}.attn_norm", hidden)
        add_ones(f"{block}.ffn_norm", hidden)
        if shape.head_norms:
            add_ones(f"{block}.attn_q_norm", shape.head_dim)
            add_ones(f"{block}.attn_k_norm", shape.head_dim)
        add(f"{block}.attn_q.weight", kind, heads * shape.head_dim, hidden)
        add(f"{block}.attn_k.weight", kind, kv_heads * shape.head_dim, hidden)
        add(f"{block}.attn_v.weight", more, kv_heads * shape.head_dim, hidden)
        add(f"{block}.attn_output.weight", kind, hidden, heads * shape.head_dim)
        many = "_exps" if shape.experts else ""
        if shape.experts:
            add(f"{block}.ffn_gate_inp.weight", "F32", shape.experts, hidden)
        add(f"{block}.ffn_gate{many}.weight", kind, inner, hidden, shape.experts)
        add(f"{block}.ffn_up{many}.weight", kind, inner, hidden, shape.experts)
        add(f"{block}.ffn_down{many}.weight", more, hidden, inner, shape.experts)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def measure_ours(path: str, fields: dict[str, object], options: argparse.Namespace) -> dict[str, float]:
    import numpy as np

    from tandem.worker.engine.process.build import build_engine
    from tandem.worker.engine.process.config import EngineConfig
    from tandem.worker.engine.request import Request, Stopping
    from tandem.worker.engine.sampling import Sampling

    built = build_engine(
        EngineConfig(
            model=path,
            threads=options.threads,
            kv_cache_tokens=16 * 256,
            max_batch_tokens=1024,
            **fields,  # type: ignore[arg-type]
        )
    )
    engine, generator, number = built.engine, np.random.default_rng(0), 0
    clock = getattr(time, CLOCKS[options.clock])

    def submit(length: int, tokens: int) -> None:
        nonlocal number
        number += 1
        prompt = generator.integers(3, VOCABULARY, length).astype(np.int32)
        engine.submit(Request.make(number, prompt, Sampling(temperature=0.0), Stopping(max_tokens=tokens), bypass=True))

    result: dict[str, float] = {"weight_bytes": built.weight_bytes}
    for length in options.prompts:
        rates = []
        for _ in range(options.rounds + 1):
            submit(length, 1)
            began = clock()
            while engine.has_work:
                engine.step()
            rates.append(length / (clock() - began))
        result[f"prefill_{length}"] = statistics.median(rates[1:])
    for batch in BATCHES:
        for _ in range(batch):
            submit(options.context, options.steps + 3)
        seconds = []
        while engine.has_work:
            began = clock()
            step = engine.step()
            if not step.prefill_tokens and step.decode_tokens == batch:
                seconds.append(clock() - began)
        result[f"decode_{batch}"] = batch / statistics.median(seconds)
    return result


LLAMA_CPP = """
import ctypes, json, statistics, sys, time
import llama_cpp as l
path, threads, rounds, steps = sys.argv[1], *map(int, sys.argv[2:5])
batches, prompts, context, clock = json.loads(sys.argv[5])
clock = getattr(time, clock)
quiet = l.llama_log_callback(lambda *a: None)  # kept: llama.cpp calls it as long as it runs
l.llama_log_set(quiet, ctypes.c_void_p(0))
l.llama_backend_init()
model = l.llama_model_load_from_file(path.encode(), l.llama_model_default_params())
p = l.llama_context_default_params()
p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = 16 * 256, 1024, 512, max(batches)
p.n_threads = p.n_threads_batch = threads
p.kv_unified = True
ctx = l.llama_init_from_model(model, p)
room = l.llama_batch_init(1024, 0, 1)
def decode(rows):
    room.n_tokens = len(rows)
    for i, (token, place, sequence, wanted) in enumerate(rows):
        room.token[i], room.pos[i], room.n_seq_id[i] = token, place, 1
        room.seq_id[i][0], room.logits[i] = sequence, wanted
    began = clock()
    assert l.llama_decode(ctx, room) == 0
    l.llama_synchronize(ctx)
    return clock() - began
def clear():
    l.llama_memory_clear(l.llama_get_memory(ctx), True)
result = {}
for length in prompts:
    rates = []
    for _ in range(rounds + 1):
        clear()
        rates.append(length / decode([(5 + i % 1000, i, 0, i == length - 1) for i in range(length)]))
    result[f"prefill_{length}"] = statistics.median(rates[1:])
for batch in batches:
    clear()
    for s in range(batch):
        decode([(5 + i, i, s, i == context - 1) for i in range(context)])
    seconds = [decode([(7 + s, context + n, s, 1) for s in range(batch)]) for n in range(steps)]
    result[f"decode_{batch}"] = batch / statistics.median(seconds[1:])
print(json.dumps(result))
"""


def in_process(command: list[str], environment: dict[str, str]) -> dict[str, float] | str:
    """The last line of a process as JSON, or why there is none."""
    done = subprocess.run(command, capture_output=True, text=True, env={**environment, **os.environ}, check=False)
    if done.returncode:
        return (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp-python", default="", metavar="PATH", help="an interpreter that has llama_cpp")
    parser.add_argument("--tree", default="", help="another checkout, whose engine is measured too, as `other`")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["BF16", "Q8_0", "Q4_0"])
    parser.add_argument("--shape", choices=SHAPES, default="llama-1b")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, help="instead of the shape's own")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor: for one thread on a busy machine")
    parser.add_argument("--folder", help="where the files are, or stay once they are made")
    parser.add_argument("--runner", nargs="*", default=[], help="command that starts each measurement")
    parser.add_argument("--ours", nargs=2, help=argparse.SUPPRESS)  # file and kind: the child that measures
    parser.add_argument("--machine", default=f"cpu{len(os.sched_getaffinity(0))}")
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    if options.ours:
        path, kind = options.ours
        print(json.dumps(measure_ours(path, KINDS[kind], options)))
        return
    from benchmarks.machine import HOMES, save

    results: dict[str, object] = {}
    numbers = [str(options.threads), str(options.rounds), str(options.steps)]
    work = json.dumps([BATCHES, options.prompts, options.context, CLOCKS[options.clock]])
    shape = SHAPES[options.shape]
    options.layers = options.layers or shape.layers
    with tempfile.TemporaryDirectory(prefix="tandem-models-") as temporary:
        folder = Path(options.folder or temporary)
        for kind in options.kinds:
            stored = kind.split()[0]
            path = folder / f"{options.shape}-{options.layers}-layers-{stored}.gguf"
            if not path.exists():
                write_file(path, stored, shape, options.layers)
            own = [sys.executable, __file__, "--ours", str(path), kind]
            own += ["--threads", numbers[0], "--rounds", numbers[1], "--steps", numbers[2]]
            own += ["--context", str(options.context), "--clock", options.clock]
            own += ["--prompts", *map(str, options.prompts)]
            answer: dict[str, object] = {"tandem": in_process([*options.runner, *own], ENGINE)}
            if options.llama_cpp_python:
                theirs = [options.llama_cpp_python, "-c", LLAMA_CPP, str(path), *numbers, work]
                answer["llama.cpp"] = in_process([*options.runner, *theirs], {})
            else:
                answer["llama.cpp"] = "not measured: --llama-cpp-python is not given"
            if options.tree:
                homes = ":".join(str(Path(options.tree).resolve() / home) for home in HOMES)
                answer["other"] = in_process([*options.runner, *own], {**ENGINE, "PYTHONPATH": homes})
            ours, other = answer["tandem"], answer["llama.cpp"]
            if isinstance(ours, dict) and isinstance(other, dict):
                answer["ratio"] = {name: ours[name] / other[name] for name in other}
            results[kind] = answer
            print(json.dumps({kind: answer}), flush=True)
            if not options.folder:
                path.unlink()
            save("models" if options.shape == "llama-1b" else f"models-{options.shape}", options, results)


if __name__ == "__main__":
    main()

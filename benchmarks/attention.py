"""How long does a decode look at a long context on a CPU, by how keys and values are stored?

Attention of one query over `--keys` keys of each of `--layers` layers, `--threads` threads, random numbers; the formats
in turn, `--rounds` times; the least and the median of milliseconds, of the processor where there is one thread, and
what the median is in gigabytes of the cache a second. `read` is the sum of a tensor of as many bytes as the cache has
in bf16, `times_reading` how much longer than that the same bytes take; `avx2` the same without AVX-512, where the
processor has it.

One layer may stay in the caches from round to round: of memory, ask for layers that have a gigabyte and more.

python benchmarks/attention.py [--keys 16384] [--heads 32x4x64 16x16x128] [--formats bfloat16 int8]
python benchmarks/attention.py --layers 64 --threads 2 --without-avx2 --heads 32x4x64
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from benchmarks.machine import add_output_flags, save
from tandem.worker.checkpoints.model_parts.heads import AttentionKind, KVHeads
from tandem.worker.engine.process.child import engine_environment
from tandem.worker.model.attention import Scores, Segment
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.native.layers import attention_call
from tandem.worker.model.cpu.operations import NativePlan
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import FEW_BITS, Plain, kv_format

PAGE = 64  # tokens
SHAPES = ("32x32x64", "32x4x64", "16x16x128", "32x8x128")  # heads, those of keys and values, numbers
FORMATS = ("bfloat16", *(form.name for form in FEW_BITS))


def decode(name: str, keys: int, layers: int, heads: int, kv_heads: int, size: int) -> tuple[Callable[[], object], int]:
    """Attention of one query over that many keys of each layer, and the bytes of these and their values."""
    form = Plain(torch.bfloat16) if name == "bfloat16" else kv_format(name, torch.float32)
    kind = AttentionKind(0, KVHeads(kv_heads, size))
    cache = KVCache(CacheShape((kind.heads,) * layers, -(-keys // PAGE), PAGE, form), "cpu")
    generator = torch.Generator().manual_seed(0)
    for places in torch.arange(keys).split(2048):
        k, v = (torch.randn(len(places), kv_heads, size, generator=generator) for _ in range(2))
        for layer in range(layers):
            cache.write(layer, torch.stack([places // PAGE, places % PAGE]), k, v)
    q = torch.randn(1, heads, size, generator=generator)
    segment = Segment(0, 1, keys - 1, np.arange(cache.shape.pages))
    plan = NativePlan([segment], cache, heads, kind)
    out, scores = torch.empty(q.shape), Scores(size**-0.5)
    # Made before: as a step's layers are one call, nothing else is to take the caches between two of them.
    calls = [
        attention_call(plan.work, form.name, of_layer, values, q, scores, 0, out)
        for of_layer, values in zip(cache.keys, cache.values, strict=True)
    ]

    def attend(*_alive: object) -> None:
        for call in calls:
            call()

    return functools.partial(attend, cache, plan, q, out), cache.shape.bytes_per_token * keys


def by_avx2(call: Callable[[], object]) -> None:
    native.allow_wide_attention(False)
    call()
    native.allow_wide_attention(True)


def measure(shape: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Returns what each format takes."""
    heads, kv_heads, size = map(int, shape.split("x"))
    calls = {name: decode(name, options.keys, options.layers, heads, kv_heads, size) for name in options.formats}
    if native.allow_wide_attention(True) and not options.without_avx2:
        calls |= {f"{name} avx2": (functools.partial(by_avx2, call), size) for name, (call, size) in calls.items()}
    plain = torch.ones(options.layers * options.keys * kv_heads * size // 2, dtype=torch.int64)
    calls["read"] = (plain.sum, plain.nbytes)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    clock = time.process_time if options.threads == 1 else time.perf_counter
    for round_number in range(options.rounds + 1):
        for name, (call, _) in calls.items():
            began = clock()
            call()
            if round_number:
                seconds[name].append(clock() - began)
    rates = {name: calls[name][1] / statistics.median(took) for name, took in seconds.items()}
    return {
        name: {
            "least_ms": min(took) * 1e3,
            "median_ms": statistics.median(took) * 1e3,
            "gb_per_second": rates[name] / 1e9,
            "times_reading": rates["read"] / rates[name],
        }
        for name, took in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=16384)
    parser.add_argument("--heads", nargs="+", default=SHAPES, metavar="HEADSxKV_HEADSxNUMBERS")
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--without-avx2", action="store_true", help="do not measure it")
    parser.add_argument("--rounds", type=int, default=15)
    add_output_flags(parser)
    options = parser.parse_args()
    # Huge pages, and so on, as an engine's process has them; but there all layers of a step are one call, in which
    # threads do not sleep between two of them.
    environment = engine_environment() | {"GOMP_SPINCOUNT": "10000000"}
    if environment != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    torch.set_num_threads(options.threads)
    results = {}
    for shape in options.heads:
        results[shape] = measure(shape, options)
        print(json.dumps({shape: results[shape]}), flush=True)
    save("attention", options, results)


if __name__ == "__main__":
    main()

"""How long does a decode look at a long context on a CPU, by how keys and values are stored?

Attention of one query over `--keys` keys of one layer, one thread, random numbers; the formats in turn, `--rounds`
times; the least and the median of the processor's milliseconds, and what the least is in gigabytes of the cache a
second. `read` is the sum of a tensor of as many bytes as the cache has in bf16; `avx2` the same without AVX-512, where
the processor has it.

python benchmarks/attention.py [--keys 16384] [--heads 32x4x64 16x16x128] [--formats bfloat16 int8]
"""

from __future__ import annotations

import argparse
import functools
import json
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
from tandem.worker.model.attention import Scores, Segment
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.operations import NativeOperations
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import FEW_BITS, Plain, kv_format

PAGE = 64  # tokens
SHAPES = ("32x32x64", "32x4x64", "16x16x128", "32x8x128")  # heads, those of keys and values, numbers
FORMATS = ("bfloat16", *(form.name for form in FEW_BITS))


def decode(name: str, keys: int, heads: int, kv_heads: int, size: int) -> tuple[Callable[[], object], int]:
    """Attention of one query over that many keys, and the bytes of these and their values."""
    form = Plain(torch.bfloat16) if name == "bfloat16" else kv_format(name, torch.float32)
    kind = AttentionKind(0, KVHeads(kv_heads, size))
    cache = KVCache(CacheShape((kind.heads,), -(-keys // PAGE), PAGE, form), "cpu")
    generator = torch.Generator().manual_seed(0)
    for places in torch.arange(keys).split(2048):
        k, v = (torch.randn(len(places), kv_heads, size, generator=generator) for _ in range(2))
        cache.write(0, torch.stack([places // PAGE, places % PAGE]), k, v)
    q = torch.randn(1, heads, size, generator=generator)
    segment = Segment(0, 1, keys - 1, np.arange(cache.shape.pages))
    plan = NativeOperations().plan([segment], cache, heads, kind)
    scores = Scores(size**-0.5)
    return lambda: plan.attend(cache.keys[0], cache.values[0], q, scores), cache.shape.bytes_per_token * keys


def by_avx2(call: Callable[[], object]) -> None:
    native.allow_wide_attention(False)
    call()
    native.allow_wide_attention(True)


def measure(shape: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Returns what each format takes."""
    heads, kv_heads, size = map(int, shape.split("x"))
    calls = {name: decode(name, options.keys, heads, kv_heads, size) for name in options.formats}
    if native.allow_wide_attention(True):
        calls |= {f"{name} avx2": (functools.partial(by_avx2, call), size) for name, (call, size) in calls.items()}
    plain = torch.ones(options.keys * kv_heads * size // 2, dtype=torch.int64)
    calls["read"] = (plain.sum, plain.nbytes)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for round_number in range(options.rounds + 1):
        for name, (call, _) in calls.items():
            began = time.process_time()
            call()
            if round_number:
                seconds[name].append(time.process_time() - began)
    return {
        name: {
            "least_ms": min(took) * 1e3,
            "median_ms": statistics.median(took) * 1e3,
            "gb_per_second": calls[name][1] / min(took) / 1e9,
        }
        for name, took in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=16384)
    parser.add_argument("--heads", nargs="+", default=SHAPES, metavar="HEADSxKV_HEADSxNUMBERS")
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    parser.add_argument("--rounds", type=int, default=15)
    add_output_flags(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for shape in options.heads:
        results[shape] = measure(shape, options)
        print(json.dumps({shape: results[shape]}), flush=True)
    save("attention", options, results)


if __name__ == "__main__":
    main()

"""How fast are the experts of a layer on a CPU, in one compiled call and one expert after the other?

One layer of the shape of Qwen3-30B-A3B (hidden 2,048, 128 experts of 768, 8 a token), random weights, the router
included. Both ways in turn, `--rounds` times; the medians, in milliseconds. Every round has other rows, which choose
other experts.

python benchmarks/experts.py [--kinds bfloat16 int8 int4] [--rows 1 8 16 128 1024] [--threads 2]
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.machine import add_output_flags, save
from tandem.worker.checkpoints.grouped import Grouped, Quantization
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.model.cpu.operations import cpu_operations
from tandem.worker.model.linear import Linear, PlainWeight, Weight, panels_for
from tandem.worker.model.moe import MixtureOfExperts
from tandem.worker.model.quantization import QuantizedWeight

HIDDEN = 2048
EXPERTS = Experts(count=128, per_token=8, intermediate_size=768, normalized=True)
KINDS = {
    "bfloat16": None,
    "int8": Quantization(8, 32),
    "int4": Quantization(4, 32, "int4"),
}  # as Q8_0 and Q4_0 are stored


@functools.cache
def numbers(rows: int, columns: int, kind: Quantization | None) -> torch.Tensor | Grouped:
    """Random numbers of one matrix, as all have them: time does not depend on what they are."""
    if kind is None:
        return torch.randn(rows, columns).mul_(0.03).bfloat16()
    dtype, most = (torch.int8, 127) if kind.bits == 8 else (torch.uint8, 15)
    q = torch.randint(0, most, (rows, columns), dtype=dtype)
    scale = torch.full((rows, columns // kind.group), 0.0004 if kind.bits == 8 else 0.006, dtype=torch.float16)
    return Grouped(kind, q, scale, None)


def fill(linear: Linear, kind: Quantization | None) -> None:
    """Gives a linear its matrix."""
    rows, columns = linear.out_features, linear.in_features
    matrix = numbers(rows, columns, kind)
    if isinstance(matrix, Grouped):
        weight: Weight = QuantizedWeight(matrix.kind, rows, columns, matrix, torch.device("cpu"))
    else:
        panels = panels_for(torch.bfloat16, lambda: True)
        assert panels is not None, "there are no compiled products here"
        weight = panels(rows, columns, torch.bfloat16)
    weight.fill(0, matrix)  # type: ignore[arg-type]
    linear.weights.append(weight)


def measure(kind: Quantization | None, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Returns for each number of rows the medians of both ways."""
    torch.manual_seed(0)
    layer = MixtureOfExperts(HIDDEN, EXPERTS, torch.float32, cpu_operations())
    layer.router.weights.append(PlainWeight(torch.randn(EXPERTS.count, HIDDEN)))
    for linear in layer.experts.modules():
        if isinstance(linear, Linear):
            fill(linear, kind)
    layer.join()
    assert not layer.apart, layer.apart
    ways = {"together": layer.joined, "apart": None}
    results = {}
    for rows in options.rows:
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(options.rounds + 1):
            x = torch.randn(rows, HIDDEN)
            for way, joined in ways.items():
                layer.joined = joined
                began = time.perf_counter()
                layer(x)
                seconds[way].append(time.perf_counter() - began)
        results[str(rows)] = {way: statistics.median(each[1:]) * 1000 for way, each in seconds.items()}
    return results


def main() -> None:
    """Measures each kind and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 16, 128, 1024])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    add_output_flags(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results: dict[str, object] = {}
    with torch.inference_mode():
        for kind in options.kinds:
            results[kind] = measure(KINDS[kind], options)
            print(json.dumps({kind: results[kind]}), flush=True)
            save("experts", options, results)


if __name__ == "__main__":
    main()

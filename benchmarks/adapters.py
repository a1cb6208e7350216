"""What LoRA adapters beside a model cost: steps without one, with one and with several, in one run, in turn.

none     no sequence has an adapter
one      all have the same
mixed    a third has none, the others take turns between two

The adapters change all matrices of all layers. Times are those of steps without, beside which they are told.

    python benchmarks/adapters.py [--shape 1.1b] [--rank 16] [--batches 1 4 16] [--rounds 9] [--threads 2]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from benchmarks.machine import add_output_flags, save
from benchmarks.random_llama import RandomCheckpoint, llama
from tandem.worker.checkpoints.adapters import LowRank
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import Plain
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.row_invariance import known_padding
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.work import Work

PAGE, CONTEXT = 64, 128
PARTS = ("attention.q", "attention.k", "attention.v", "attention.output", "mlp.gate", "mlp.up", "mlp.down")
WAYS = {"none": (-1,), "one": (0,), "mixed": (-1, 0, 1)}  # the adapters that sequences take turns between


@dataclass(frozen=True)
class Drawn:
    """A change of random numbers, as `LowRank` has it."""

    of: str
    a: torch.Tensor
    b: torch.Tensor
    scale: float = 2.0


def changes_of(config: ModelConfig, rank: int, seed: int) -> dict[str, LowRank]:
    """An adapter for all matrices of attention and of feed-forward parts."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, Drawn] = {}
    for name, (rows, columns) in (
        (each, shape) for each, shape in config.tensor_shapes().items() if each.endswith(PARTS)
    ):
        a, b = torch.randn((rank, columns), generator=generator), torch.randn((rows, rank), generator=generator)
        found[name] = Drawn(name, a * 0.02, b * 0.02)
    return cast(dict[str, LowRank], found)


def work_of(way: str, batch: int, tokens: int, position: int) -> list[Work]:
    ids, pages = np.arange(tokens, dtype=np.int32) + 5, CONTEXT // PAGE + 2
    turns = WAYS[way]
    return [
        Work(ids, position, np.arange(row * pages, (row + 1) * pages), 1, adapter=turns[row % len(turns)])
        for row in range(batch)
    ]


def seconds_of(runner: ModelRunner, work: list[Work]) -> float:
    began = time.perf_counter()
    runner.forward(work)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="1.1b", choices=["tiny", "1b", "1.1b", "8b"])
    parser.add_argument("--layers", type=int, default=None)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    add_output_flags(parser)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(options.threads)
    config = llama(options.shape, layers=options.layers)
    adapters = [changes_of(config, options.rank, seed) for seed in range(2)]
    checkpoint = RandomCheckpoint(config, "cpu", torch.bfloat16)
    model = load_transformer(checkpoint, "cpu", torch.bfloat16, adapters=adapters)
    pages = max(options.batches) * (CONTEXT // PAGE + 2)
    runner = ModelRunner(model, KVCache(CacheShape(config.cache_heads, pages, PAGE, Plain(torch.bfloat16)), "cpu"))
    known_padding(runner)
    rows = []
    for batch, tokens in [*((batch, 1) for batch in options.batches), (1, CONTEXT)]:
        runner.forward(work_of("none", batch, CONTEXT, 0))  # what is looked back at
        position = CONTEXT if tokens == 1 else 0
        taken: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(options.rounds + 1):
            for way in WAYS:
                # Two of a kind: the first one makes what the second one finds.
                seconds_of(runner, work_of(way, batch, tokens, position))
                taken[way].append(seconds_of(runner, work_of(way, batch, tokens, position)))
        times = {way: statistics.median(each[1:]) for way, each in taken.items()}
        row = {
            "sequences": batch,
            "tokens_each": tokens,
            "milliseconds": {way: round(1000 * each, 2) for way, each in times.items()},
            "of_none": {way: round(times[way] / times["none"], 3) for way in ("one", "mixed")},
            "rounds": {way: [round(1000 * each, 2) for each in some[1:]] for way, some in taken.items()},
        }
        rows.append(row)
        print({key: row[key] for key in ("sequences", "tokens_each", "milliseconds", "of_none")}, flush=True)
    save("adapters", options, rows)


if __name__ == "__main__":
    main()

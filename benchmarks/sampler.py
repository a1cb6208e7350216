"""What sampling costs beside a bare softmax + multinomial on the same logits.

    python benchmarks/sampler.py

All ways take turns within a round, each on logits of its own copy (the engine overwrites them, so the copy is made
outside of the measured time); medians of the rounds, of wall-clock and of processor time, which a busy machine
distorts less (with one thread). Two kinds of logits: steep ones (the probability of the token of
rank r falls with r^-2, so that a nucleus of 0.95 has a dozen tokens), where a few hundred candidates decide, and flat
ones (standard normal: that nucleus has 83,000 tokens), where they do not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from benchmarks.machine import add_output_flags, describe_machine, save
from tandem.worker.engine.request import LogprobOptions, Request, Stopping
from tandem.worker.engine.sampler import Rows, SamplingTable, sample
from tandem.worker.engine.sampling import Sampling

FULL = Sampling(
    temperature=0.8,
    dynamic_temperature_range=0.2,
    top_k=200,
    tail_free_z=0.99,
    typical_p=0.98,
    top_p=0.95,
    min_p=0.01,
    top_a=0.01,
    xtc_probability=0.5,
    xtc_threshold=0.1,
    repetition_penalty=1.1,
    repetition_decay=64,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    dry_multiplier=0.8,
    logit_bias=((5, 1.0), (6, -1.0), (7, 0.5)),
    banned_ids=(8, 9),
    banned_sequences=((3, 4),),
)
WAYS: dict[str, tuple[Sampling, LogprobOptions]] = {
    "greedy": (Sampling(temperature=0.0), LogprobOptions()),
    "temperature": (Sampling(temperature=0.8), LogprobOptions()),
    "temperature, top_p": (Sampling(temperature=0.8, top_p=0.95), LogprobOptions()),
    "temperature, top_k": (Sampling(temperature=0.8, top_k=50), LogprobOptions()),
    "temperature, top_k, top_p, min_p": (
        Sampling(temperature=0.8, top_k=50, top_p=0.95, min_p=0.02),
        LogprobOptions(),
    ),
    "typical_p": (Sampling(typical_p=0.9), LogprobOptions()),
    "mirostat 2": (Sampling(mirostat=2), LogprobOptions()),
    "repetition penalty": (Sampling(repetition_penalty=1.1), LogprobOptions()),
    "temperature, 5 top logprobs": (Sampling(temperature=0.8), LogprobOptions(sampled=True, top=5)),
    "full chain": (FULL, LogprobOptions()),
    "full chain, 5 top logprobs": (FULL, LogprobOptions(sampled=True, top=5)),
}


def steep(rows: int, vocabulary: int, generator: torch.Generator) -> torch.Tensor:
    ranks = torch.stack([torch.randperm(vocabulary, generator=generator) for _ in range(rows)]) + 1
    return -2.0 * ranks.double().log().float() + 0.1 * torch.randn(rows, vocabulary, generator=generator)


def flat(rows: int, vocabulary: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=generator)


KINDS = {"steep": steep, "flat": flat}


def bare(logits: torch.Tensor) -> None:
    torch.multinomial(torch.softmax(logits, dim=-1), 1)


def chain(sampling: Sampling, logprobs: LogprobOptions, rows: int, context: int) -> Callable[[torch.Tensor], None]:
    """A way that samples `rows` requests with so many tokens behind them."""
    generator = np.random.default_rng(0)
    requests = [
        Request.make(
            row,
            generator.integers(0, 1000, context),
            replace(sampling, seed=row),
            Stopping(max_tokens=8),
            logprobs=logprobs,
        )
        for row in range(rows)
    ]
    table = SamplingTable(rows)
    return lambda logits: void(sample(logits, Rows.next_tokens(requests), table))


def void(_: object) -> None:
    return None


def medians(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    walls, cpus = zip(*pairs, strict=True)
    return statistics.median(walls), statistics.median(cpus)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--logits", nargs="+", choices=KINDS, default=list(KINDS))
    add_output_flags(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    results: dict[str, dict[str, dict[str, float]]] = {}
    for kind in options.logits:
        logits = KINDS[kind](options.rows, options.vocabulary, torch.Generator().manual_seed(0))
        ways: dict[str, Callable[[torch.Tensor], None]] = {"softmax + multinomial": bare}
        ways |= {name: chain(*way, options.rows, options.context) for name, way in WAYS.items()}
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for round_number in range(options.rounds + 1):
            for name, way in ways.items():
                own = logits.clone()
                began = time.perf_counter(), time.process_time()
                way(own)
                if round_number:
                    seconds[name].append((time.perf_counter() - began[0], time.process_time() - began[1]))
        base, base_cpu = medians(seconds["softmax + multinomial"])
        results[kind] = {}
        for name, values in seconds.items():
            wall, cpu = medians(values)
            ratios = {"ratio": wall / base, "cpu_ratio": cpu / base_cpu}
            results[kind][name] = {"ms": wall * 1e3, "cpu_ms": cpu * 1e3, **ratios}
            words = f"{kind:6} {name:34} {wall * 1e3:7.0f} ms {wall / base:5.2f}"
            print(f"{words}, processor {cpu * 1e3:6.0f} ms {cpu / base_cpu:5.2f}", flush=True)
    save("sampler", options, results)


if __name__ == "__main__":
    print(describe_machine()["processor"])
    main()

"""What speculation saves: tokens/s and forward passes with prompt lookup and without, in one run, in turn.

repeated   greedy on a prompt that repeats a passage, which the model goes on repeating
plain      temperature 1 on ordinary text, where there is little to look up: what it costs in vain

    python benchmarks/speculation.py [--model models/demo] [--batches 1 4 16] [--rounds 5] [--threads 1]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from benchmarks.machine import add_output_flags, save
from tandem.worker.engine.process.build import BuiltEngine, build_engine
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.request import Drafting, Request, Stopping
from tandem.worker.engine.sampling import Sampling

NEW_TOKENS = 200
Measured = tuple[float, int, int, int, list[list[int]]]


def prompts(kind: str, batch: int, vocabulary: int) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    if kind == "repeated":
        passages = [generator.integers(10, vocabulary, 24) for _ in range(batch)]
        return [np.concatenate([[1], *[passage] * 8]) for passage in passages]
    return [np.concatenate([[1], generator.integers(10, vocabulary, 120)]) for _ in range(batch)]


def run(built: BuiltEngine, kind: str, batch: int, drafts: int) -> Measured:
    """Seconds, tokens, forward passes, drafts proposed, and what came out."""
    engine = built.engine
    engine.table.clear()
    requests = []
    for number, prompt in enumerate(prompts(kind, batch, built.config.vocab_size)):
        sampling = Sampling(temperature=0.0 if kind == "repeated" else 1.0, seed=number)
        request = Request.make(number, prompt, sampling, Stopping(NEW_TOKENS))
        if drafts:
            request.drafting = Drafting(drafts, ngram=3)
        requests.append(request)
        engine.submit(request)
    began = time.perf_counter()
    while engine.has_work:
        engine.step()
    seconds = time.perf_counter() - began
    passes = sum(request.statistics.forward_passes for request in requests)
    proposed = sum(request.statistics.draft_tokens_proposed for request in requests)
    outputs = [request.known[request.prompt_tokens :].tolist() for request in requests]
    return seconds, batch * NEW_TOKENS, passes, proposed, outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/demo")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--drafts", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    add_output_flags(parser)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    built = build_engine(EngineConfig(model=options.model, threads=options.threads, dtype="float32"))
    rows = []
    for kind in ("repeated", "plain"):
        for batch in options.batches:
            ways: dict[int, list[Measured]] = {0: [], options.drafts: []}
            for round_ in range(options.rounds):
                for drafts in sorted(ways, reverse=bool(round_ % 2)):
                    ways[drafts].append(run(built, kind, batch, drafts))
            off, on = ways[0], ways[options.drafts]
            assert all(one[4] == off[0][4] for one in (*off, *on)), "speculation changed an answer"
            speed = [statistics.median(tokens / seconds for seconds, tokens, *_ in way) for way in (off, on)]
            # Neighbours in time: a machine that changes its pace in between changes both.
            speedup = statistics.median(one[0] / other[0] for one, other in zip(off, on, strict=True))
            row = {
                "text": kind,
                "batch": batch,
                "tokens_per_second_off": round(speed[0], 1),
                "tokens_per_second_on": round(speed[1], 1),
                "speedup": round(speedup, 2),
                "forward_passes_off": statistics.median(way[2] for way in off),
                "forward_passes_on": statistics.median(way[2] for way in on),
                "drafts_proposed": statistics.median(way[3] for way in on),
            }
            rows.append(row)
            print(row, flush=True)
    save("speculation", options, rows)


if __name__ == "__main__":
    main()

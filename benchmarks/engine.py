"""What does the engine add to the forward pass? Five questions, each answered as medians of one run:

schedule   scheduler and page table at 256 running requests of 2,000 tokens: us a step, us a scheduled token, and
           us a token to look a prompt up
loop       64 requests on the demo model: tokens/s of the engine against a bare loop over the same forward passes, each
           repeated right after its step (no scheduler, no sampler but argmax)
prefix     time to the first token of a prompt that is cached against one that is not
kv         tokens/s and bytes a token of the KV cache formats
bits       what reproducible bits cost: a decode step of a 1.1 B Llama (random weights) as the engine computes it,
           against the same model without padding and a fixed order of keys: over the same pages, which are gathered for
           one batched product; and over keys that lie densely (the quicker of torch's scaled_dot_product_attention and
           one batched product), which is what pages cost too

    python benchmarks/engine.py [--model models/demo] [--rounds 5] [--only loop kv] [--threads 1] [--dtype float32]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from benchmarks.machine import add_output_flags, save
from benchmarks.random_llama import llama
from benchmarks.unpaged import RandomModel
from tandem.worker.checkpoints.checkpoint import DTYPES
from tandem.worker.engine.pages import PageTable
from tandem.worker.engine.process.build import BuiltEngine, build_engine
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.request import Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.engine.scheduler import Scheduler, SchedulerLimits
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.work import Work

GREEDY = Sampling(temperature=0.0)


def schedule(options: argparse.Namespace) -> dict[str, float]:
    requests, context = 256, 2000
    table = PageTable(requests * 40, 64)
    scheduler = Scheduler(table, SchedulerLimits(max_batch_tokens=8192, max_running=requests))
    generator = np.random.default_rng(0)
    for number in range(requests):
        prompt = generator.integers(0, 30_000, context)
        scheduler.add(Request.make(number, prompt, GREEDY, Stopping(max_tokens=512)))
    seconds, tokens = [], []
    for _ in range(360):
        began = time.perf_counter()
        chunks = scheduler.schedule()
        scheduler.launch(chunks)
        for chunk in chunks:
            if chunk.samples:
                chunk.request.append(1)
        scheduler.land(chunks)
        seconds.append(time.perf_counter() - began)
        tokens.append(sum(chunk.length for chunk in chunks))
    decode = statistics.median(s for s, t in zip(seconds, tokens, strict=True) if t == requests)
    prefill = statistics.median(s / t for s, t in zip(seconds, tokens, strict=True) if t > requests)
    known = scheduler.running[0].known
    began = time.perf_counter()
    for _ in range(100):
        table.chains.longest(known, "")
    lookup = (time.perf_counter() - began) / 100 / len(known)
    return {
        "decode_step_us": decode * 1e6,
        "us_per_decoded_token": decode / requests * 1e6,
        "us_per_prefilled_token": prefill * 1e6,
        "us_per_token_looked_up": lookup * 1e6,
    }


def build(options: argparse.Namespace, **fields: object) -> BuiltEngine:
    return build_engine(EngineConfig(model=options.model, threads=options.threads, dtype="float32", **fields))  # type: ignore[arg-type]


def random_prompts(built: BuiltEngine, count: int, length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, built.config.vocab_size, (count, length)).astype(np.int32)


def in_engine(built: BuiltEngine, prompts: np.ndarray, tokens: int) -> float:
    """Seconds for `tokens` greedy tokens of each prompt."""
    for number, prompt in enumerate(prompts):
        built.engine.submit(Request.make(number, prompt, GREEDY, Stopping(max_tokens=tokens), bypass=True))
    began = time.perf_counter()
    while built.engine.has_work:
        built.engine.step()
    return time.perf_counter() - began


class Recorder:
    """A `Runner` that remembers the last batch."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._work: Sequence[Work] = ()
        self.copy, self.zero = runner.copy, runner.zero

    def forward(self, work: Sequence[Work], sampled: torch.Tensor | None = None) -> torch.Tensor:
        assert sampled is None, "on a CPU steps do not overlap"
        self._work = work
        return self._runner.forward(work)

    def again(self) -> None:
        """The same forward pass, and the largest logit of each row that was wanted. It writes what is there already."""
        wanted = sum(item.samples for item in self._work)
        self._runner.forward(self._work)[:wanted].argmax(-1).numpy()


def loop(options: argparse.Namespace) -> dict[str, object]:
    """In seconds of the processor, which others on the machine disturb less than those on the wall."""
    built = build(options)
    engine = built.engine
    runner = engine._runner
    assert isinstance(runner, ModelRunner)
    recorder = Recorder(runner)
    engine._runner = recorder  # type: ignore[assignment]  # what this loop calls of it
    requests, length, tokens = 64, 64, 64
    seconds: dict[str, list[float]] = {"engine": [], "bare": []}
    for round_number in range(options.rounds + 1):
        for number, prompt in enumerate(random_prompts(built, requests, length, round_number)):
            engine.submit(Request.make(number, prompt, GREEDY, Stopping(max_tokens=tokens), bypass=True))
        spent = dict.fromkeys(seconds, 0.0)
        while engine.has_work:
            for name, way in (("engine", engine.step), ("bare", recorder.again)):
                began = time.process_time()
                way()
                spent[name] += time.process_time() - began
        if round_number:  # the first round warms up
            for name, total in spent.items():
                seconds[name].append(total)
    ratios = [bare / engine for bare, engine in zip(seconds["bare"], seconds["engine"], strict=True)]
    medians = {name: requests * tokens / statistics.median(values) for name, values in seconds.items()}
    return {
        "engine_tokens_per_second": medians["engine"],
        "bare_tokens_per_second": medians["bare"],
        "share": statistics.median(ratios),
        "all_rounds": seconds,
    }


def prefix(options: argparse.Namespace) -> dict[str, float]:
    built = build(options, rope_scale=2.0, context_length=1024)  # the demo model's own context is shorter
    length = 1000
    cold: list[float] = []
    warm: list[float] = []
    for round_number in range(options.rounds + 1):
        prompt = random_prompts(built, 1, length, 100 + round_number)[0]
        for seconds in (cold, warm):
            built.engine.submit(Request.make(0, prompt, GREEDY, Stopping(max_tokens=1)))
            began = time.perf_counter()
            while built.engine.has_work:
                built.engine.step()
            if round_number:
                seconds.append(time.perf_counter() - began)
    cold_ms, warm_ms = statistics.median(cold) * 1e3, statistics.median(warm) * 1e3
    return {"prompt_tokens": length, "cold_ms": cold_ms, "cached_ms": warm_ms, "share": warm_ms / cold_ms}


def kv(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    formats = {name: build(options, kv_cache_dtype=name) for name in ("auto", "int8", "int6", "int4")}
    rates: dict[str, list[float]] = {name: [] for name in formats}
    for round_number in range(options.rounds + 1):
        for name, built in formats.items():
            seconds = in_engine(built, random_prompts(built, 16, 192, round_number), 48)
            if round_number:
                rates[name].append(16 * 48 / seconds)
    return {
        name: {
            "tokens_per_second": statistics.median(rates[name]),
            "bytes_per_token": built.shape.bytes_per_token,
        }
        for name, built in formats.items()
    }


def bits(options: argparse.Namespace) -> dict[str, object]:
    """In seconds of the processor, as `loop`."""
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    batches, first, steps = options.batches, 128, options.steps
    config = llama("1.1b", 2048, options.layers)
    model = RandomModel(config, DTYPES[options.dtype], batch=max(batches), length=first + 4 * steps + 2)
    answer: dict[str, object] = {
        "dtype": options.dtype,
        "layers": options.layers,
        "row_invariant": model.row_invariant,
        "rows_multiple_of": model.runner.row_multiple,
    }
    for batch in batches:
        ids = np.random.default_rng(0).integers(3, config.vocab_size, batch).astype(np.int32)
        ways: dict[str, Callable[[np.ndarray, int], object]] = {
            "reproducible": model.reproducible_step,
            "paged": partial(model.plain_step, kind="paged"),
            "bmm": partial(model.plain_step, kind="bmm"),
            "sdpa": partial(model.plain_step, kind="sdpa"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        names = list(ways)
        for step in range(steps * max(1, 4 // batch) + 1):  # the quickest vary most
            names = names[1:] + names[:1]  # so that none always follows the same one
            for name in names:
                began = time.process_time()
                ways[name](ids, first + step)
                if step:  # the first one warms up
                    seconds[name].append(time.process_time() - began)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        dense = "bmm" if medians["bmm"] < medians["sdpa"] else "sdpa"

        def cost(other: str, seconds: dict[str, list[float]] = seconds) -> float:
            """Of the same steps: what else the machine does hits neighbours in time alike."""
            ratios = [a / b for a, b in zip(seconds["reproducible"], seconds[other], strict=True)]
            return statistics.median(ratios) - 1

        answer[f"batch {batch}"] = {
            **{f"{name}_ms": value * 1e3 for name, value in medians.items()},
            "cost": cost("paged"),
            "cost_against_dense": cost(dense),
        }
        print(f"  batch {batch}: {answer[f'batch {batch}']}", flush=True)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/demo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="of bits")
    parser.add_argument("--layers", type=int, default=22, help="of bits")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32], help="of bits")
    parser.add_argument("--steps", type=int, default=9, help="of bits, at each batch")
    questions = (schedule, loop, prefix, kv, bits)
    parser.add_argument("--only", nargs="+", choices=[question.__name__ for question in questions])
    add_output_flags(parser)
    options = parser.parse_args()
    results: dict[str, object] = {}
    for question in questions:
        if options.only and question.__name__ not in options.only:
            continue
        results[question.__name__] = answer = question(options)
        print(f"{question.__name__:10s} {answer}")
    if bits_answer := results.pop("bits", None):
        save("reproducibility", options, bits_answer)
    if results:
        save("engine", options, results)


if __name__ == "__main__":
    main()

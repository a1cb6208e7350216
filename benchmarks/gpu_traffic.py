"""What `gpu.py` measures of whole engines: traffic, traces, and a peer beside it."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # torch does not list it
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_parts import GREEDY, Scale, Stopwatch, median_seconds, prompt
from tandem.worker.engine.guides.guide import Guide
from tandem.worker.engine.process.build import BuiltEngine
from tandem.worker.engine.request import Drafting, Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.model.work import Work

TOP_P = Sampling(temperature=0.6, top_p=0.9)  # as Llama 3 comes
_TRACED = 3  # steps
_KERNELS = 16  # of a table


Change = Callable[[Request], object]  # what else a request asks for, by its number


def run_requests(
    engine: BuiltEngine,
    lengths: Sequence[tuple[int, int]],
    sampling: Sampling = GREEDY,
    change: Change = lambda request: None,
) -> dict[str, Any]:
    """Requests of (prompt, output) tokens, all at once."""
    generator = np.random.default_rng(0)
    for number, (before, after) in enumerate(lengths):
        ids = prompt(generator, before, engine)
        chosen = dataclasses.replace(sampling, seed=number)
        request = Request.make(number, ids, chosen, Stopping(max_tokens=after), bypass=True)
        change(request)
        engine.engine.submit(request)
    runner = engine.engine._runner
    forward = runner.forward
    passes = Stopwatch(engine.device.type)

    def timed(work: Sequence[Work], sampled: torch.Tensor | None = None) -> torch.Tensor:
        with passes.running():
            return forward(work, sampled)

    counted = dataclasses.replace(engine.engine.scheduler.statistics)
    runner.forward = timed  # type: ignore[method-assign]
    try:
        told = []
        began = time.perf_counter()
        while engine.engine.has_work:
            told.append(engine.engine.step())
        forwards = passes.seconds()
        seconds = time.perf_counter() - began
    finally:
        runner.forward = forward  # type: ignore[method-assign]
    ids = np.concatenate([result.sampled.ids for result in told])
    ids = ids[np.concatenate([result.numbers for result in told]).argsort(kind="stable")]
    return {
        "seconds": seconds,
        "steps": len(forwards),
        "output_tokens_per_second": len(ids) / seconds,
        "forward_share": sum(forwards) / seconds,
        "overlapped_steps": engine.engine.scheduler.statistics.overlapped_steps - counted.overlapped_steps,
        "ids": hashlib.sha256(ids.tobytes()).hexdigest()[:16],
    }


def serving(engine: BuiltEngine, scale: Scale) -> dict[str, Any]:
    """The same requests greedy, and as most models' own defaults sample."""
    draw = np.random.default_rng(0)
    lengths = [tuple(draw.integers(*scale.lengths, 2).tolist()) for _ in range(scale.batch)]
    return {"top_p": run_requests(engine, lengths, TOP_P), "greedy": run_requests(engine, lengths)}


def traffic(engine: BuiltEngine, scale: Scale) -> dict[str, Any]:
    """What some ask for besides, as steps of everybody: each beside the same requests, greedy."""
    lengths = [(64, scale.peer_tokens)] * scale.batch
    kinds: dict[str, tuple[Sampling, Change]] = {
        "greedy": (GREEDY, lambda request: None),
        "top_p": (TOP_P, lambda request: None),
        "penalties": (dataclasses.replace(TOP_P, presence_penalty=0.5), lambda request: None),
        "drafts_looked_up": (GREEDY, lambda request: setattr(request, "drafting", Drafting(4, ngram=1))),
    }
    if find_spec("llguidance"):
        grammars = engine.engine.grammars
        grammars.load([b"%d" % number for number in range(engine.config.vocab_size)], [])

        def guide(request: Request) -> None:
            if request.number % 64 == 0:
                request.matcher = grammars.matcher(Guide("regex", "[0-9]*"))

        kinds["one_guided_in_64"] = (GREEDY, guide)
    return {kind: run_requests(engine, lengths, *how) for kind, how in kinds.items()}


def trace(engine: BuiltEngine, scale: Scale, name: str, folder: Path | None) -> dict[str, Any]:
    """Three steps of decodes at 1, 64 and 256 rows as the profiler sees them: which kernel takes how long, and how much
    of the time none runs. In `folder` a trace for a browser (chrome://tracing, ui.perfetto.dev)."""
    on_card, context, found = scale.device == "cuda", scale.decode_context, {}
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_card else [])]
    for batch in sorted({min(rows, scale.batch) for rows in (1, 64, 256)}):
        held = np.arange(batch * (context // 64 + 1)).reshape(batch, -1)
        work = [Work(np.array([row], dtype=np.int32), context - 1, held[row], 1) for row in range(batch)]
        step = median_seconds(lambda work=work: engine.engine._runner.forward(work), scale)  # type: ignore[misc]
        with profile(activities=activities) as profiler:
            for _ in range(_TRACED):
                engine.engine._runner.forward(work)
            if on_card:
                torch.cuda.synchronize()
        rows = []
        for event in profiler.key_averages():
            if on_card == (event.device_type == DeviceType.CUDA):
                micros = event.self_device_time_total if on_card else event.self_cpu_time_total
                rows.append((micros / _TRACED, event.count / _TRACED, event.key))
        busy = sum(micros for micros, _, _ in rows)
        found[f"rows_{batch}"] = {
            "step_microseconds": step * 1e6,
            "busy_microseconds": busy,
            "gap_share": max(0.0, 1 - busy / (step * 1e6)),
            "kernels": [
                {"name": key[:80], "calls": count, "microseconds": micros, "share": micros / max(busy, 1e-9)}
                for micros, count, key in sorted(rows, reverse=True)[:_KERNELS]
            ],
        }
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(folder / f"trace-{name}-{batch}.json"))
    return found


def table_of(traced: dict[str, Any]) -> str:
    """What `trace` has found, to read."""
    lines = []
    for rows, about in traced.items():
        step, gap = about["step_microseconds"], about["gap_share"]
        lines.append(f"{rows}: {step:,.0f} us a step, none runs for {gap:.0%} of it")
        lines += [
            f"  {each['microseconds']:9,.1f} us  {each['share']:5.1%}  {each['calls']:6.1f} x  {each['name']}"
            for each in about["kernels"]
        ]
    return "\n".join(lines)


def overlap(engine: BuiltEngine, scale: Scale) -> dict[str, Any]:
    """The same requests with and without, twice each in turn; they all begin at once, so that their steps are alike."""
    runs: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    usual = engine.engine.overlap
    for on in (True, False, True, False):
        engine.engine.overlap = on
        runs[on].append(run_requests(engine, [(64, scale.peer_tokens)] * scale.batch))
    engine.engine.overlap = usual
    best = {on: max(each["output_tokens_per_second"] for each in runs[on]) for on in runs}
    return {
        "on": runs[True],
        "off": runs[False],
        "ratio": best[True] / best[False],
        "same_ids": len({each["ids"] for each in (*runs[True], *runs[False])}) == 1,
    }


def peer(make: Callable[[], BuiltEngine], scale: Scale, release: Callable[[], None]) -> dict[str, Any]:
    """transformers' continuous batching on the same device, prompts and numbers of tokens. `release` gives back what
    `make` has made, so that both have the whole memory."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    draw, new = np.random.default_rng(1), scale.peer_tokens
    lengths = [int(length) for length in draw.integers(*scale.lengths, scale.sequences)]
    engine = make()
    ours = run_requests(engine, [(length, new) for length in lengths])
    generator = np.random.default_rng(0)
    prompts = [prompt(generator, length, engine).tolist() for length in lengths]
    config = engine.config
    del engine
    release()
    with torch.device(scale.device):
        torch.set_default_dtype(scale.dtype)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size, hidden_size=config.hidden_size, head_dim=config.head_dim,
                intermediate_size=config.intermediate_size, num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads, num_key_value_heads=config.num_kv_heads,
                max_position_embeddings=config.context_length,
            )
        )  # fmt: skip
        torch.set_default_dtype(torch.float32)
    model.train(False)
    options = GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0)

    def run() -> int:
        results = model.generate_batch(inputs=prompts, generation_config=options, persistent_manager=True)
        return sum(len(result.generated_tokens) for result in results.values())

    run()  # makes its cache and its recordings, which the manager keeps
    began = time.perf_counter()
    made = run()
    seconds = time.perf_counter() - began
    return {
        "ours_tokens_per_second": ours["output_tokens_per_second"],
        "theirs_tokens_per_second": made / seconds,
        "their_attention": model.config._attn_implementation,  # with sdpa it goes without CUDA graphs: no fair race
        "ratio": ours["output_tokens_per_second"] / (made / seconds),
    }

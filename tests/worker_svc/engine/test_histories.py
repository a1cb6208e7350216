"""Random engine histories on a real transformer: every answer is bit-equal to the one that its request gets alone, and
some are cut somewhere and go on, by a worker that still has their pages or by one that has nothing.

`TANDEM_HISTORIES`, for all variants together, and `TANDEM_HISTORY_STEPS` make it longer; 200 and 1000 is what a release
is tried with. The seed of a history is its number and its variant. `TANDEM_HISTORY_FIRST` is the first one's number, so
that others than the suite's are tried, or one that a failure has told.

Alone, one request of `TOKEN_BY_TOKEN` gets its tokens one by one. The others' answers are put to the test as drafts:
each token is sampled anew, from a forward pass of the request alone, and the first that differs ends the draft. That
takes a tenth of the steps.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.worker.engine.account import FinishReason
from tandem.worker.engine.engine import Engine
from tandem.worker.engine.pages import PageTable
from tandem.worker.engine.process.build import build_engine
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.request import Drafting, Request
from tandem.worker.engine.scheduler import SchedulerLimits
from tandem.worker.engine.speculation.costs import Free
from tandem.worker.engine.states import StateTable
from tandem.worker.model.head import Head, HeadRunner
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import kv_format
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.states import StateCache, StateShape
from tests.worker_svc.engine.history_models import CONTEXT, saved_models
from tests.worker_svc.engine.history_requests import (
    Answer,
    Expectation,
    Forgetful,
    again,
    collect,
    gone_on,
    other_sample,
    random_request,
)

HISTORIES = int(os.environ.get("TANDEM_HISTORIES", "12"))
STEPS = int(os.environ.get("TANDEM_HISTORY_STEPS", "20"))
FIRST = int(os.environ.get("TANDEM_HISTORY_FIRST", "0"))
CROWD = 16  # no more arrive while so many run or wait: a longer queue shows nothing new and takes long to repeat alone
TOKEN_BY_TOKEN = 8
GOES_ON = 3  # so many requests, one of which is cut
VARIANTS = [("llama", dtype, kv) for dtype in ("float32", "bfloat16") for kv in ("auto", "fp8", "int8", "int4")]
# The layers with states are compiled where their sizes are multiples of 8.
VARIANTS += [("hybrid", "float32", "auto"), ("hybrid", "bfloat16", "int8"), ("hybrid in torch", "float32", "auto")]
# Heads of two sizes, layers that look at another one's keys, and inputs of layers.
VARIANTS += [("gemma4", "float32", "auto"), ("gemma4", "bfloat16", "int4")]
# Layers in chunks, queries that grow, and one expert a token.
VARIANTS += [("llama4", dtype, kv) for dtype, kv in (("float32", "auto"), ("bfloat16", "int8"), ("float32", "int4"))]
# Convolutions beside experts, Mamba-2 beside attention in one layer, and in layers of their own.
VARIANTS += [("lfm2", "float32", "auto"), ("lfm2", "bfloat16", "int4"), ("falcon", "bfloat16", "auto")]
VARIANTS += [("nemotron", "bfloat16", "auto")]
VARIANTS += [("experts", "bfloat16", "auto")]  # compiled
VARIANTS += [("latents", "float32", "auto"), ("latents", "bfloat16", "int8"), ("latents", "float32", "int4")]
VARIANTS += [("latents", "bfloat16", "fp8")]
VARIANTS += [("granite", "bfloat16", "auto")]  # Mamba-2 in layers of their own beside experts
# A place in the list is a variant's seed: what is new comes last.
VARIANTS += [("llama", "float32", "int6"), ("llama", "bfloat16", "int6"), ("latents", "bfloat16", "int6")]
# States, and the head of the model's own checkpoint guesses.
VARIANTS += [("head", "float32", "auto"), ("head", "bfloat16", "int8")]
# Tokens that an indexer chooses, for two layers.
VARIANTS += [("indexed", "float32", "auto"), ("indexed", "bfloat16", "int8"), ("indexed", "float32", "fp8")]
# Norms by the kind of layer and betas of up to 2, Mamba-2 beside layers that rotate, a table of positions, convolutions
# beside windows, and a delta rule beside experts.
VARIANTS += [("olmo hybrid", "float32", "auto"), ("bamba", "bfloat16", "auto"), ("gpt2", "bfloat16", "auto")]
VARIANTS += [("lfm3", "bfloat16", "auto"), ("qwen3 next", "bfloat16", "int4"), ("olmo hybrid", "bfloat16", "int8")]
# Decays of each row of a state beside latents, values shorter than keys beside sinks and windows, queries that grow.
VARIANTS += [("kimi", "float32", "auto"), ("mimo", "bfloat16", "auto"), ("mistral4", "float32", "auto")]
VARIANTS += [("kimi", "bfloat16", "int8"), ("mimo", "float32", "int4")]
# Heads of queries by layer, gates of heads, gates with limits, parts that rotate by the kind of layer.
VARIANTS += [
    ("minimax", "float32", "auto"),
    ("minimax", "bfloat16", "int8"),
    ("step", "bfloat16", "auto"),
    ("laguna", "float32", "auto"),
    ("laguna", "bfloat16", "int8"),
]
# Gates of heads of latents, and decays with a bound.
VARIANTS += [("ling", "float32", "auto"), ("ling", "bfloat16", "int8")]
# Several streams, gates that are thinned, and layers that look at another one's keys.
VARIANTS += [("gemma3n", "float32", "auto"), ("gemma3n", "bfloat16", "int8"), ("gemma3n", "float32", "int4")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return saved_models(tmp_path_factory)


@pytest.mark.parametrize(("kind", "dtype", "kv_cache_dtype"), VARIANTS)
def test_any_history_gives_each_request_what_it_gets_alone(
    folders: dict[str, Path], kind: str, dtype: str, kv_cache_dtype: str
):
    built = build_engine(
        EngineConfig(
            model=str(folders[kind]),
            device="cpu",
            threads=1,
            dtype=dtype,
            kv_cache_dtype=kv_cache_dtype,
            page_size=8,
            draft_model="mtp" if kind == "head" else "",
        )
    )
    assert built.row_invariant
    runner = built.engine._runner
    assert isinstance(runner, ModelRunner)
    per_variant = max(2, HISTORIES // len(VARIANTS))
    sizes = built.config.recurrence
    head = built.engine._draft_runner.model if built.engine._draft_runner is not None else None
    drafts = overlapped = kept = 0
    for history in range(FIRST, FIRST + 5 * per_variant):
        # What is drawn of random weights is another processor's in the last bits: a few histories may accept no draft.
        if history >= FIRST + per_variant and drafts and overlapped and kept:
            break
        print(f"history {history}")  # which pytest tells of a failure
        plain = history % 2 == 1
        draw = np.random.default_rng([history, VARIANTS.index((kind, dtype, kv_cache_dtype))])
        pages = int(draw.integers(13, 40))
        stored = kv_format(kv_cache_dtype, getattr(torch, dtype))
        shape = CacheShape(built.config.cache_heads, pages, 8, stored, built.shape.hidden)
        cache = KVCache(shape, "cpu", runner.cache.key_channels)
        # The same model guesses for itself in half of the histories.
        guesser = ModelRunner(runner.model, KVCache(shape, "cpu", runner.cache.key_channels))
        if isinstance(head, Head):
            assert cache.hidden is not None
            cache.hidden.fill_(50.0)
            head.follow(runner.model, cache.hidden)
            plain_format = kv_format("auto", getattr(torch, dtype))
            head_shape = CacheShape(head.config.cache_heads, pages, 8, plain_format)
            guesser = HeadRunner(ModelRunner(head, KVCache(head_shape, "cpu")), 64)
        # A stale number that was read would show.
        caches = cache, guesser.cache
        parts = [part for one in caches for layer in (*one.keys, *one.values) for part in layer]
        for part in (*parts, *(keys for one in caches for keys in one.index_keys.values())):
            part.copy_((torch.randn(part.shape) * 50).to(part.dtype))
        limits = SchedulerLimits(max_batch_tokens=int(draw.integers(8, 80)), max_running=int(draw.integers(1, 9)))
        slots, states = None, None
        if sizes is not None:
            slots = StateTable(limits.max_running + int(draw.integers(1, 12)), 1, int(draw.integers(1, 10)))
            slots.spare = slots.total - limits.max_running
            states = StateCache(StateShape(sizes, slots.total, slots.journal), "cpu")
            for part in (*states.recurrent, *states.tails, *states.journals):
                part.fill_(torch.nan)
        engine = Engine(
            ModelRunner(runner.model, cache, states),
            PageTable(pages, 8, states=slots),
            limits,
            draft_runner=guesser if not plain and (sizes is None or head is not None) else None,
            draft_context_length=CONTEXT,
            overlap=True,
            costs=Free(),
        )
        if sizes is not None and head is None and not plain:
            engine._speculation.model = Forgetful(guesser)

        requests: dict[int, Request] = {}
        answers: dict[int, Answer] = {}
        step = 0
        while step < STEPS or engine.has_work:
            alive = len(engine.scheduler.running) + engine.scheduler.waiting
            if step < STEPS and alive < CROWD and draw.random() < 0.3:
                for _ in range(draw.integers(1, 4)):
                    request = random_request(draw, len(requests), pages * 8, plain=plain)
                    count = int(draw.integers(1, 5)) if draw.random() < 0.2 else 1
                    samples = [request, *(other_sample(request, len(requests) + i) for i in range(1, count))]
                    requests |= {sample.number: sample for sample in samples}
                    answers |= {sample.number: Answer() for sample in samples}
                    engine.submit(*samples)
            if requests and draw.random() < 0.05:
                engine.abort(int(draw.integers(0, len(requests))))
            if draw.random() < 0.01:
                engine.table.clear()
            if engine.has_work:
                collect(engine, answers)
                overlapped += engine._flight is not None
            else:
                engine.tidy()
            engine.check()
            step += 1
        assert engine.table.referenced == 0
        statistics = engine.scheduler.statistics
        # Of a head of random numbers, hardly any are accepted.
        drafts += statistics.draft_tokens_accepted if head is None else statistics.draft_tokens_proposed
        kept += engine.scheduler.statistics.cached_prompt_tokens
        engine.overlap = False
        engine._speculation.model = expectation = Expectation()

        for number, request in requests.items():
            crowded = answers[number]
            assert crowded.reason is not None
            alone = {number: Answer()}
            lonely = again(request)
            if number % TOKEN_BY_TOKEN:
                expectation.ids = crowded.ids
                lonely.drafting = Drafting(CONTEXT, ngram=0)
                engine._speculation.learn(lonely, 10_000, 10_000)  # as if all were accepted
            engine.submit(lonely)
            while engine.has_work:
                collect(engine, alone)
            expected = alone[number]
            if crowded.reason is FinishReason.CANCELLED:
                expected.ids = expected.ids[: len(crowded.ids)]
                expected.logprobs = expected.logprobs[: len(crowded.logprobs)]
            else:
                assert (crowded.reason, crowded.trim) == (expected.reason, expected.trim)
            assert crowded.ids == expected.ids
            assert crowded.logprobs == expected.logprobs, "not the same bits"
            if number % GOES_ON == 0 and len(crowded.ids) > 1 and crowded.reason is not FinishReason.CANCELLED:
                cut = int(draw.integers(1, len(crowded.ids)))
                if draw.random() < 0.5:
                    engine.table.clear()  # another worker
                rest = {number: Answer()}
                expectation.ids = crowded.ids
                engine.submit(gone_on(request, crowded.ids[:cut]))
                while engine.has_work:
                    collect(engine, rest)
                assert rest[number].ids == crowded.ids[cut:]
                assert rest[number].logprobs == crowded.logprobs[cut:], "not the same bits"
                assert (rest[number].reason, rest[number].trim) == (crowded.reason, crowded.trim)
                engine.check()
    assert drafts and overlapped and kept

"""A whole engine on a virtual card: it gives the answers that it gives on a processor, its recorded steps and what is
launched behind them wait for nothing, and what does not fit is refused with words that help."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

pytest.importorskip("triton")

import torch

from benchmarks.random_llama import RandomCheckpoint, llama
from tandem.worker.checkpoints.model_parts.beside_stream import PerLayerInputs, Streams
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.heads import KVHeads
from tandem.worker.checkpoints.model_parts.indexer import Indexer
from tandem.worker.checkpoints.model_parts.latents import Latents
from tandem.worker.checkpoints.model_parts.mlp import ClampedSwiGLU
from tandem.worker.checkpoints.model_parts.rope import QueryGrowth
from tandem.worker.engine.guides.guide import Guide
from tandem.worker.engine.process import build
from tandem.worker.engine.process.build import BuiltEngine, build_engine
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.request import Drafting, LogprobOptions, Request, Stopping
from tandem.worker.engine.sampler import prepare
from tandem.worker.engine.sampling import Sampling
from tandem.worker.engine.stops import StopSequences
from tandem.worker.model.cuda import experts
from tandem.worker.model.cuda import products as cuda_products
from tandem.worker.model.cuda.graphs import GraphedRunner
from tandem.worker.model.cuda.kernels import dependent
from tandem.worker.model.work import Work
from tests.exhaustive import some
from tests.worker_svc.card.virtual_card import DEVICE, VirtualCard, Wait, absent, present

pytestmark = [
    pytest.mark.usefixtures("_quick"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real card"),
]

MODEL = replace(llama("tiny", 64), vocab_size=160)
GREEDY = Sampling(temperature=0.0)
MODES = [pytest.param(True, id="reproducible"), pytest.param(False, id="fast")]


@pytest.fixture(scope="module")
def both() -> tuple[VirtualCard, BuiltEngine, BuiltEngine]:
    """A card, an engine there, and the same on a processor."""
    with present(VirtualCard()) as there:
        on_card = built()
    return there, on_card, built("cpu")


def checkpoint(model: object = MODEL, dtype: torch.dtype = torch.float32) -> RandomCheckpoint:
    return RandomCheckpoint(model, "cpu", dtype)  # type: ignore[arg-type]


def built(device: str = "cuda", model: object = MODEL, **fields: object) -> BuiltEngine:
    options: dict[str, object] = {
        "dtype": "float32", "kv_cache_tokens": 26 * 8, "page_size": 8, "max_running_requests": 4,
        "max_batch_tokens": 16, "threads": 1,
        "reproducible": False,  # else the check of rows at start takes longer than most tests
    }  # fmt: skip
    with torch.no_grad():
        return build_engine(
            EngineConfig(model="random", device=device, **(options | fields)),  # type: ignore[arg-type]
            checkpoint=checkpoint(model),
        )


def on_processor(requests: Sequence[Request], **fields: object) -> Answers:
    with absent():
        return answers(built("cpu", **fields), requests)  # type: ignore[arg-type]


def some_requests(count: int, *samplings: Sampling, output: int = 8) -> list[Request]:
    draw = np.random.default_rng(count)
    return [
        Request.make(
            number,
            draw.integers(3, MODEL.vocab_size, draw.integers(1, 25)),
            replace(samplings[number % len(samplings)], seed=number),
            Stopping(max_tokens=int(draw.integers(2, output))),
        )
        for number in range(count)
    ]


Answers = dict[int, list[tuple[int, float]]]


def answers(built: BuiltEngine, requests: Sequence[Request]) -> Answers:
    """Ids and logprobs of each request; some come when others run already."""
    engine = built.engine
    ids: Answers = defaultdict(list)
    coming = list(requests)
    while coming or engine.has_work:
        for request in coming[:3]:
            engine.submit(request)
        del coming[:3]
        result = engine.step()
        told = result.numbers.tolist(), result.sampled.ids.tolist(), result.sampled.logprobs.tolist()
        for number, token, logprob in zip(*told, strict=True):
            ids[number].append((token, logprob))
        engine.check()
    assert engine.table.referenced == 0
    return ids


def assert_alike(one: Answers, other: Answers) -> None:
    assert one.keys() == other.keys()
    for number in one:
        for (token, logprob), (other_token, other_logprob) in zip(one[number], other[number], strict=True):
            assert token == other_token
            assert logprob == pytest.approx(other_logprob, abs=1e-4, nan_ok=True)


BOTH_MODES = [("usual", True), ("usual", False), ("latents", False), ("latents", True)]
BOTH_MODES += [("latents of chosen tokens", False), ("latents of chosen tokens", True)]


@pytest.mark.parametrize(("kind", "reproducible"), some(BOTH_MODES, *BOTH_MODES[:3], BOTH_MODES[4]))
def test_answers_are_those_of_a_processor(kind: str, reproducible: bool, card: VirtualCard) -> None:
    model = MODELS.get(kind, MODEL)
    engine = built(model=model, reproducible=reproducible, kv_cache_tokens=12 * 8)
    samplings = GREEDY, Sampling(temperature=0.8)
    on_card = answers(engine, some_requests(8, *samplings, output=39))
    statistics = engine.engine.scheduler.statistics
    assert statistics.preemptions and statistics.overlapped_steps and card.replays
    assert_alike(on_card, on_processor(some_requests(8, *samplings, output=39), model=model))


ORDINARY = (  # of it, nothing waits
    GREEDY,
    Sampling(temperature=0.7),
    Sampling(temperature=0.6, top_p=0.9),
    Sampling(top_k=20, top_p=0.95, min_p=0.01),
    Sampling(top_n_sigma=1.0, repetition_penalty=1.2, repetition_window=5),
    Sampling(presence_penalty=0.5, frequency_penalty=0.3, logit_bias=((7, 2.0), (9, -3.0))),
    Sampling(top_p=0.9, allowed_ids=tuple(range(20, 60)), banned_ids=(33,), banned_sequences=((3, 4), (40, 41))),
)


def read_of_the_ids(waits: list[Wait]) -> bool:
    return len(waits) == 1 and "read < _land" in waits[0].who


@pytest.mark.parametrize("reproducible", MODES)
def test_the_host_waits_for_ids_alone_and_behind_the_next_step(reproducible: bool, card: VirtualCard) -> None:
    engine = built(reproducible=reproducible, kv_cache_tokens=1024).engine
    prepare(MODEL.vocab_size, DEVICE, torch.float32)
    for request in some_requests(9, *ORDINARY, output=24):
        request.stopping = replace(request.stopping, min_tokens=2, eos_ids=frozenset({5}))
        engine.submit(request)
    compiled = {name: set(variants) for name, variants in card.compiled.items()}
    while engine.has_work:
        card.waits.clear()
        engine.step()
        assert read_of_the_ids(card.waits)
        # The card has the next step to do while the host looks at this one.
        assert card.waits[0].behind > 10 or engine._flight is None
    assert engine.scheduler.statistics.overlapped_steps >= engine.scheduler.statistics.steps - 2
    new = {name: variants - compiled.get(name, set()) for name, variants in card.compiled.items()}
    assert not any(new.values()), new


def test_a_step_that_was_waited_for_does_not_count_as_overlapped(card: VirtualCard) -> None:
    engine = built(kv_cache_tokens=1024).engine
    for request in some_requests(3, GREEDY, Sampling(top_a=0.01, temperature=0.7), output=7):
        engine.submit(request)
    ahead = 0
    while engine.has_work:
        card.waits.clear()
        before = engine.scheduler.statistics.overlapped_steps
        engine.step()
        ahead += engine._flight is not None
        if engine.scheduler.statistics.overlapped_steps > before:
            assert not any("launch < sample" in wait.who for wait in card.waits)
    assert ahead > engine.scheduler.statistics.overlapped_steps


def test_a_step_sends_the_pages_that_it_has_and_not_those_that_it_might_have(card: VirtualCard) -> None:
    sent = []
    for context in (64, 4096):
        runner = built(model=replace(MODEL, context_length=context), kv_cache_tokens=64).engine._runner
        card.sent = 0
        runner.forward([Work(np.full(1, 3, dtype=np.int32), 9, np.arange(2), 1)])
        sent.append(card.sent)
    assert sent[0] == sent[1]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(top_k=5, temperature=0.7),
        Sampling(top_p=0.8, min_p=0.01, typical_p=0.9, tail_free_z=0.9, top_a=0.01),
        Sampling(xtc_probability=0.5, xtc_threshold=0.001, temperature_last=False, temperature=0.5),
        Sampling(dynamic_temperature_range=0.3, top_k=20),
        Sampling(mirostat=1),
        Sampling(mirostat=2, mirostat_tau=3.0),
        Sampling(adaptive_p_target=0.4, min_p=0.01),
        Sampling(top_n_sigma=1.0),
        Sampling(repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1, repetition_decay=4),
        Sampling(dry_multiplier=0.8, dry_allowed_length=1, temperature=0.0),
        Sampling(logit_bias=((5, 3.0), (9, -1.0)), banned_ids=(7,), banned_sequences=((3, 4), (8,))),
        Sampling(allowed_ids=tuple(range(20, 60)), top_p=0.999),
    ],
)
def test_samplers_of_every_kind_draw_what_they_draw_on_a_processor(
    sampling: Sampling, both: tuple[VirtualCard, BuiltEngine, BuiltEngine]
) -> None:
    def requests() -> list[Request]:
        some = some_requests(4, sampling, GREEDY, output=9)
        some[0].logprobs = LogprobOptions(sampled=True, top=3, ids=(4, 9))
        some[1].logprobs = LogprobOptions(sampled=True, top=2, processed=True)
        some[2].logprobs = LogprobOptions(sampled=True, prompt=True, top=1)
        return some

    card, on_card, on_processor = both
    with present(card):
        there = answers(on_card, requests())
        on_card.engine.table.clear()
    assert_alike(there, answers(on_processor, requests()))
    on_processor.engine.table.clear()


def test_places_are_not_filled_again_before_what_they_held_is_there(card: VirtualCard) -> None:
    runner = built().engine._runner
    assert isinstance(runner, GraphedRunner)
    card.settle()
    card.waits.clear()
    for position in range(4):
        tokens = np.full(1, 3 + position, dtype=np.int32)
        runner.forward([Work(tokens, position, np.arange(2), 1)])
        # Two buffers: with nobody who reads, the third step waits for the first one's copy, and for no more.
        assert len(card.waits) == max(0, position - 1)
    assert {wait.why for wait in card.waits} == {"an event"} and all(wait.behind > 10 for wait in card.waits)


def test_a_start_leaves_every_page_free(card: VirtualCard) -> None:
    runner = built().engine._runner
    assert isinstance(runner, GraphedRunner)
    for (part,) in (*runner.cache.keys, *runner.cache.values):
        assert not part[: runner.cache.padding_page].any()


def test_samples_of_one_prompt_share_its_pages(card: VirtualCard) -> None:
    def run(engine: BuiltEngine) -> Answers:
        samples = [
            Request.make(number, np.arange(3, 24), Sampling(seed=number), Stopping(max_tokens=9)) for number in range(4)
        ]
        engine.engine.submit(*samples)
        found = answers(engine, [])
        assert samples[3].statistics.cached_prompt_tokens >= 16
        return found

    assert_alike(run(built(kv_cache_tokens=512)), run(built("cpu", kv_cache_tokens=512)))


def test_copies_and_clearings_of_pages_wait_for_nothing(card: VirtualCard) -> None:
    engine = built(kv_cache_tokens=1024)
    runner = engine.engine._runner
    assert isinstance(runner, GraphedRunner)
    pages = runner.cache.keys[0][0]
    for page in range(4):
        pages[page] = page
    card.waits.clear()
    runner.copy([1, 2], [2, 3])
    runner.zero([1])
    assert not card.waits
    assert pages[:4].amax((1, 2, 3)).tolist() == [0, 0, 1, 2]


def test_the_prompt_cache_is_laid_out_anew_without_a_wait(card: VirtualCard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.worker.engine.defragmentation.WORTHWHILE_BREAKS", 1)
    monkeypatch.setattr("tandem.worker.engine.defragmentation.WORTHWHILE_SHARE", 0.0)
    engine = built(kv_cache_tokens=512)
    first = answers(engine, some_requests(8, GREEDY))
    card.waits.clear()
    while engine.engine.tidy():
        pass
    assert engine.engine.table.statistics.moved_pages and not card.waits
    assert_alike(answers(engine, some_requests(8, GREEDY)), first)
    assert engine.engine.scheduler.statistics.cached_prompt_tokens


@pytest.mark.parametrize("drafts", ["looked up", "by a model"])
def test_speculation_changes_no_answer(drafts: str, card: VirtualCard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "open_checkpoint", lambda path: checkpoint())
    kinds = GREEDY, Sampling(temperature=0.6, top_p=0.9), Sampling(temperature=0.9)
    samplings = [replace(kind, allowed_ids=tuple(range(20, 24))) for kind in kinds]  # which soon repeat
    requests = some_requests(5, *samplings, output=20)
    for request in requests:
        request.drafting = Drafting(4, ngram=1 if drafts == "looked up" else 0)
    engine = built(draft_model="" if drafts == "looked up" else "draft", kv_cache_tokens=512, speculate="always")
    on_card = answers(engine, requests)
    statistics = engine.engine.scheduler.statistics
    assert statistics.draft_tokens_proposed
    if drafts == "by a model":  # which is the model itself, and draws by the same numbers
        assert statistics.draft_tokens_accepted == statistics.draft_tokens_proposed
        assert card.replays >= statistics.draft_tokens_proposed // 4  # of so many requests at a time
    plain = some_requests(5, *samplings, output=20)
    assert_alike(on_card, on_processor(plain))


def test_steps_that_verify_drafts_are_replayed_and_those_beside_them_overlap(card: VirtualCard) -> None:
    engine = built(kv_cache_tokens=1024, speculate="always").engine
    requests = [
        Request.make(
            number,
            np.tile([5, 6, 7], 4),
            Sampling(seed=number, allowed_ids=(5, 6, 7)),  # which all have come before
            Stopping(30 if number else 12),
        )
        for number in range(4)
    ]
    requests[0].drafting = Drafting(4, ngram=1)
    for request in requests:
        engine.submit(request)
    while not all(request.output_tokens for request in requests):
        engine.step()
    card.launches.clear()
    while engine.has_work:
        engine.step()
    statistics = engine.scheduler.statistics
    assert statistics.draft_tokens_proposed
    assert not {"_store", "_attend"} & set(card.launches)  # of the model nothing was launched by itself
    assert statistics.overlapped_steps >= statistics.steps - 3


def test_the_host_reads_the_drafts_of_a_model_once(card: VirtualCard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "open_checkpoint", lambda path: checkpoint())
    engine = built(draft_model="draft", kv_cache_tokens=512, speculate="always").engine
    for request in some_requests(4, GREEDY, Sampling(temperature=0.6, top_p=0.9), output=39):
        request.drafting = Drafting(4, ngram=0)
        engine.submit(request)
    while engine.has_work:
        card.waits.clear()
        engine.step()
        waits = [wait for wait in card.waits if "propose" in wait.who]
        assert sum(wait.who.startswith("read") for wait in waits) <= 1
        # Others are for places to fill in, with a step of the draft model still to come.
        assert all(wait.behind > 10 for wait in waits if not wait.who.startswith("read"))
    assert engine.scheduler.statistics.draft_tokens_accepted == engine.scheduler.statistics.draft_tokens_proposed > 0


def test_masks_of_grammars_and_of_stops_come_along(card: VirtualCard) -> None:
    pytest.importorskip("llguidance")

    def run(engine: BuiltEngine) -> Answers:
        grammars = engine.engine.grammars
        grammars.load([bytes([i]) if i < 128 else b"%d" % i for i in range(MODEL.vocab_size)], [0, 1, 2])
        requests = some_requests(3, GREEDY, Sampling(temperature=0.9))
        requests[0].matcher = grammars.matcher(Guide("regex", "[ab]{3}[0-9]*"))
        stopping = Stopping(9, 5, stop_ids=frozenset(range(90)), sequences=StopSequences([[100], [99, 98]]))
        return answers(engine, [*requests, Request.make(3, [4, 5, 6], GREEDY, stopping)])

    engine = built()
    on_card = run(engine)
    assert bytes(token for token, _ in on_card[0])[:3].strip(b"ab") == b""
    # Rows with masks do not keep steps from being launched before the one before them is read.
    statistics = engine.engine.scheduler.statistics
    assert statistics.overlapped_steps >= statistics.steps - 2 - 2 * statistics.guide_left_out_rows
    assert_alike(on_card, run(built("cpu")))


MULTIPLIERS = {"embedding_multiplier": 6.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3}
LATENTS = Latents(rank=24, rotated=8, unrotated=12, value=10, query_rank=16)
OVER_LATENTS: dict[str, object] = {
    "latents": LATENTS, "num_kv_heads": 1, "head_dim": LATENTS.size, "rotary_dim": LATENTS.rotated
}  # fmt: skip
MODELS = {
    "windows": replace(MODEL, windows=(0, 9)),
    "biases and norms": replace(MODEL, qkv_bias=True, output_bias=True, mlp_bias=True, qk_norm="head"),
    "norms of one key head": replace(MODEL, num_kv_heads=1, qk_norm="head", tie_embeddings=True),
    "norms after and over all heads": replace(MODEL, norm_placement="after", qk_norm="whole"),
    "multipliers, a layer that does not rotate": replace(MODEL, unrotated_layers=(0,), **MULTIPLIERS),
    "queries that grow": replace(MODEL, query_growth=QueryGrowth(0.5, 8)),
    "norms of layers, no gate": replace(MODEL, norm="layer", norm_bias=True, gated=False, activation="gelu_tanh"),
    "parts side by side": replace(MODEL, norm="layer", parallel=True, windows=(9, 0), window_rope_theta=300.0),
    "parts side by side, norms of their own": replace(
        MODEL, norm="layer", norm_bias=True, parallel=True, parallel_norms=True, gated=False, activation="gelu"
    ),
    "norms without weights, a limit": replace(MODEL, norm="layer", norm_weights=False, qkv_limit=0.5, qkv_bias=True),
    "learned positions": replace(
        MODEL,
        learned_positions=MODEL.context_length + 2,
        position_offset=2,
        unrotated_layers=tuple(range(MODEL.num_layers)),
    ),
    "xIELU": replace(MODEL, activation="xielu", gated=False, qk_norm="head"),
    "norms behind the rotation": replace(MODEL, qk_norm="behind", qkv_bias=True),
    "norms around, gelu": replace(MODEL, norm_placement="both", activation="gelu_tanh", embedding_multiplier=7.0),
    "soft caps": replace(MODEL, windows=(0, 9), attention_soft_cap=2.0, logit_soft_cap=3.0),
    "rotated in part, a bias of the output": replace(MODEL, rotary_dim=4, logit_bias=True),
    "sinks": replace(MODEL, windows=(0, 9), sinks=True),
    "shorter values, sinks of layers with a window, fewer heads of the others": replace(
        MODEL,
        windows=(0, 9),
        full_heads=KVHeads(1, 16),
        sinks=True,
        sinks_in_windows=True,
        value_dim=6,
        mixing_multiplier=0.7,
        qkv_bias=True,
    ),
    "experts of gpt-oss": replace(
        MODEL, sinks=True, experts=Experts(4, 2, 32, True, biases=True, clamped=ClampedSwiGLU(1.7, 0.5))
    ),
    "heads of two sizes, shared keys, inputs of layers": replace(
        MODEL,
        num_layers=5,
        windows=(9, 0, 9, 9, 0),
        window_rope_theta=300.0,
        full_heads=KVHeads(1, 32),
        shared_layers=2,
        shared_widening=2,
        qk_norm="head",
        value_norm=True,
        values_are_keys=True,
        norm_placement="both",
        activation="gelu_tanh",
        per_layer_inputs=PerLayerInputs(8, 160),
        layer_scale=True,
        experts=Experts(4, 2, 32, True, activation="gelu_tanh", beside=True, weighed=True),
    ),
    "several streams, gates that are thinned, shared keys": replace(
        MODEL,
        num_layers=4,
        windows=(9, 0, 9, 0),
        shared_layers=2,
        qk_norm="head",
        value_norm=True,
        norm_placement="both",
        activation="gelu_tanh",
        attention_multiplier=1.0,
        logit_soft_cap=30.0,
        per_layer_inputs=PerLayerInputs(8, 100),
        streams=Streams(3, 0, 8),
        sparsity=(0.7, 0.0, 0.4, 0.0),
    ),
    "chunks, layers without positions, norms without weights": replace(
        MODEL,
        num_layers=3,
        windows=(9, 9, 0),
        chunked=True,
        unrotated_layers=(2,),
        qk_norm="unit",
        query_growth=QueryGrowth(0.5, 8, 1, True),
        experts=Experts(4, 1, 32, False, (1,), "sigmoid", shared_size=32, weighs_input=True),
    ),
    "layers of one part, experts without a gate": replace(
        MODEL,
        num_layers=3,
        feed_forward_alone=(1, 2),
        gated=False,
        activation="relu2",
        experts=Experts(
            **{"count": 4, "per_token": 2, "intermediate_size": 32, "normalized": True, "dense_layers": (2,)},
            **{
                "score": "sigmoid",
                "biased": True,
                "shared_size": 16,
                "activation": "relu2",
                "gated": False,
                "latent": 24,
            },
        ),
    ),
    "latents": replace(MODEL, num_heads=5, **OVER_LATENTS),
    "latents of chosen tokens": replace(
        MODEL, num_heads=5, **OVER_LATENTS, num_layers=3, indexer=Indexer(heads=6, size=16, most=11, layers=(0, 2))
    ),
    "experts": replace(MODEL, experts=Experts(4, 2, 32, True)),
    "experts in groups, a shared one": replace(
        MODEL, experts=Experts(4, 2, 32, False, (), "sigmoid", True, 2, 2, 1.5, shared_size=16, shared_router=True)
    ),
}


@pytest.mark.parametrize(
    "kind",
    some(
        MODELS,
        "biases and norms",
        "norms of one key head",
        "soft caps",
        "experts of gpt-oss",
        "heads of two sizes, shared keys, inputs of layers",
        "chunks, layers without positions, norms without weights",
        "experts in groups, a shared one",
        "layers of one part, experts without a gate",
        "latents of chosen tokens",
    ),
)
def test_models_of_every_kind_answer_as_on_a_processor(kind: str, card: VirtualCard) -> None:
    model = MODELS[kind]
    engine = built(model=model)
    card.waits.clear()
    on_card = answers(engine, some_requests(5, GREEDY))
    assert card.replays and all(read_of_the_ids([wait]) for wait in card.waits)
    assert_alike(on_card, on_processor(some_requests(5, GREEDY), model=model))


def test_experts_that_cannot_be_joined_are_computed_one_after_the_other(
    card: VirtualCard, caplog: pytest.LogCaptureFixture
) -> None:
    model = MODELS["experts"]
    with patch.object(experts, "_kind", id):  # as of a file whose experts are of several kinds
        on_card = answers(built(model=model), some_requests(2, GREEDY))
    assert not card.replays and "experts' matrices are of different kinds" in caplog.text
    assert_alike(on_card, on_processor(some_requests(2, GREEDY), model=model))


FEW_BITS: dict[str, dict[str, object]] = {
    **{f"pages of {name}": {"kv_cache_dtype": name} for name in ("fp8", "int8", "int6", "int4")},
    **{f"latents in {name}": {"kv_cache_dtype": name, "kind": "latents"} for name in ("fp8", "int8", "int6", "int4")},
    "chosen latents in int8": {"kv_cache_dtype": "int8", "kind": "latents of chosen tokens"},
    "latents, int4": {"quantize": "int4", "dtype": "bfloat16", "reproducible": True, "kind": "latents"},
    **{
        f"{name}{', reproducible' * same}": {"quantize": name, "dtype": "bfloat16", "reproducible": same}
        for name in ("int8", "int4", "fp8")
        for same in (True, False)
    },
    **{
        f"experts of {name}": {"quantize": name, "dtype": "bfloat16", "kind": "experts of gpt-oss"}
        for name in ("int4", "fp8")
    },
}


@pytest.mark.parametrize("name", some(FEW_BITS, "pages of int8", "int4, reproducible", "fp8", "experts of int4"))
def test_few_bits_are_recorded_too(name: str, card: VirtualCard) -> None:
    options = dict(FEW_BITS[name])
    engine = built(model=MODELS.get(str(options.pop("kind", "")), MODEL), **options)
    for request in some_requests(6, GREEDY, Sampling(temperature=0.7)):
        engine.engine.submit(request)
    while engine.engine.has_work:
        card.waits.clear()
        result = engine.engine.step()
        assert result.sampled.finite.all() and read_of_the_ids(card.waits)
    assert card.replays


@pytest.mark.parametrize("graphs", [True, False], ids=["recorded", "launched"])
def test_logits_of_16_bits_stay_so_and_choose_what_they_would_as_float32(graphs: bool, card: VirtualCard) -> None:
    fields = {"dtype": "bfloat16", "kv_cache_tokens": 512, "cuda_graphs": graphs}
    samplings = GREEDY, Sampling(top_p=0.9), Sampling(frequency_penalty=0.5), Sampling(top_a=0.01)
    narrow, wide = built(**fields), built(**fields)
    runner = wide.engine._runner
    runner.model._converts_logits = True
    runner.forget()
    runner.prepare()
    logits = [
        engine.engine._runner.forward([Work(np.full(1, 3, dtype=np.int32), 0, np.arange(2), 1)])
        for engine in (narrow, wide)
    ]
    assert [each.dtype for each in logits] == [torch.bfloat16, torch.float32]
    assert_alike(*(answers(engine, some_requests(8, *samplings)) for engine in (narrow, wide)))


def test_kernels_that_begin_early_are_recorded_and_answer_alike(
    card: VirtualCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependent, "ON", True)
    monkeypatch.setattr(cuda_products, "FAST_ROWS", 16)
    on_card = answers(built(), some_requests(4, GREEDY))
    early = {name for name, variants in card.compiled.items() if all("launch_pdl" in str(key) for key in variants)}
    assert card.replays and early >= {"_store", "_attend", "_add_norm", "_swiglu", "_product"}
    assert_alike(on_card, on_processor(some_requests(4, GREEDY)))

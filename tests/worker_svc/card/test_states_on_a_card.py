"""Models with states on a virtual card: slots, journals and snapshots are there, recorded steps move them, and the
answers are those of a processor."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

pytest.importorskip("triton")

import torch

from tandem.worker.checkpoints.heads import head_config
from tandem.worker.checkpoints.model_parts.latents import Latents
from tandem.worker.checkpoints.model_parts.recurrences import DeltaNet, KimiDelta, Lightning, Mamba, ShortConvolution
from tandem.worker.checkpoints.model_parts.stream import KeptNorms
from tandem.worker.engine.process import build
from tandem.worker.engine.process.build import BuiltEngine
from tandem.worker.engine.process.config import BuildError
from tandem.worker.engine.request import Drafting, Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.model.cuda.graphs import GraphedRunner
from tandem.worker.model.head import HeadRunner
from tandem.worker.model.states import StateWork
from tandem.worker.model.work import Work
from tests.exhaustive import some
from tests.worker_svc.card.states_in_torch import KERNELS
from tests.worker_svc.card.test_engine_on_a_card import (
    GREEDY,
    MODEL,
    Answers,
    answers,
    assert_alike,
    built,
    checkpoint,
    read_of_the_ids,
    some_requests,
)
from tests.worker_svc.card.test_engine_on_a_card import (
    MODELS as OTHERS,
)
from tests.worker_svc.card.virtual_card import VirtualCard, absent

pytestmark = [
    pytest.mark.usefixtures("_quick"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real card"),
]

MODELS = {
    "delta rule": replace(MODEL, recurrence=DeltaNet((0,), 2, 4, 8, 16, 4)),
    "Kimi's delta rule beside latents": replace(
        MODEL,
        recurrence=KimiDelta((0,), 4, 8, 4),
        latents=Latents(16, 8, 8, 8),
        num_kv_heads=1,
        head_dim=24,
        rotary_dim=8,
        unrotated_layers=(0, 1),
    ),
    "Kimi's delta rule with a bound beside latents with gates": replace(
        MODEL,
        recurrence=KimiDelta((0,), 4, 8, 4, directly=True, least=-5.0),
        latents=Latents(16, 8, 8, 8),
        attention_gate=True,
        gate_by_head=True,
        num_kv_heads=1,
        head_dim=24,
        rotary_dim=8,
    ),
    "lightning attention, norms that take the stream's place": replace(
        MODEL, recurrence=Lightning((0,), 4, 16), kept_norms=KeptNorms(1.5, 2.5, 0.7)
    ),
    "convolution": replace(MODEL, recurrence=ShortConvolution((0,), 64, 3)),
    "convolution, norms around, gates of heads": replace(
        MODEL,
        recurrence=ShortConvolution((0,), 64, 7),
        norm_placement="both",
        attention_gate=True,
        gate_by_head=True,
    ),
    "state space": replace(MODEL, recurrence=Mamba((1,), 4, 16, 2, 8, 4, least_dt=0.1, most_dt=0.9)),
    "state space beside attention": replace(
        MODEL, recurrence=Mamba((0, 1), 4, 16, 2, 8, 4, norm="none", multipliers=(0.8, 0.9, 1.3, 1.2, 0.7),
                                beside_attention=True)
    ),
}  # fmt: skip
NARROW: dict[str, object] = {"kv_cache_tokens": 10 * 8, "state_slots": 8}


@pytest.mark.parametrize("kind", some(MODELS, "delta rule"))
def test_answers_are_those_of_a_processor_though_sequences_are_preempted(kind: str, card: VirtualCard) -> None:
    fields: dict[str, object] = {"model": MODELS[kind], **NARROW}
    engine = built(**fields)
    samplings = GREEDY, Sampling(temperature=0.8, top_p=0.9)
    compiled = {name: set(variants) for name, variants in card.compiled.items() if name in KERNELS}
    assert "_keep" in compiled
    card.waits.clear()
    on_card = answers(engine, some_requests(5, *samplings, output=30))
    statistics = engine.engine.scheduler.statistics
    assert statistics.preemptions and statistics.overlapped_steps and card.replays
    assert all(read_of_the_ids([wait]) for wait in card.waits)
    assert compiled == {name: card.compiled[name] for name in compiled}  # nothing anew after the start
    with absent():
        assert_alike(on_card, answers(built("cpu", **fields), some_requests(5, *samplings, output=30)))


def next_turns(engine: BuiltEngine) -> Answers:
    """What is answered to a prompt, and to others that go on where it ends or part from it; with drafts."""
    found: Answers = {}
    prompt = list(range(3, 28))
    for number, tokens in enumerate((prompt, [*prompt, 40, 41], [*prompt[:17], 50], [*prompt[:17], 60, 61])):
        request = Request.make(number, np.array(tokens), replace(GREEDY, allowed_ids=(5, 6)), Stopping(max_tokens=14))
        request.drafting = Drafting(4, ngram=1)
        found |= answers(engine, [request])
    return found


def test_prefixes_are_used_again_from_their_snapshots_and_drafts_change_no_answer(card: VirtualCard) -> None:
    fields: dict[str, object] = {"model": MODELS["delta rule"], "speculate": "always", "state_slots": 8}
    engine = built(**fields)
    on_card = next_turns(engine)
    statistics = engine.engine.scheduler.statistics
    assert statistics.state_snapshots and statistics.cached_prompt_tokens >= 24
    assert statistics.draft_tokens_accepted and card.replays
    with absent():
        assert_alike(on_card, next_turns(built("cpu", **fields)))


@pytest.mark.parametrize("kind", some(("delta rule", "latents"), "delta rule"))
def test_a_head_beside_the_model_guesses_in_recorded_steps_and_changes_no_answer(kind: str, card: VirtualCard) -> None:
    model = (MODELS | OTHERS)[kind]
    fields: dict[str, object] = {"model": model, "speculate": "always", "state_slots": 8, "draft_model": "mtp"}

    def requests() -> list[Request]:
        wanted = some_requests(4, Sampling(temperature=3.0, allowed_ids=(5, 6), seed=3), output=14)
        for request in wanted:
            request.drafting = Drafting(4, ngram=0)
        return wanted

    replayed: list[int] = []

    def answered(device: str) -> tuple[Answers, int]:
        with patch.object(build, "open_head", lambda path: checkpoint(head_config(model))):
            engine = built(device, **fields)
        drafting = engine.engine._draft_runner
        assert isinstance(drafting, HeadRunner)
        if isinstance(drafting._runner, GraphedRunner):
            for rows, graph in drafting._runner._graphs.items():
                wrapped = patch.object(graph, "replay", side_effect=graph.replay)
                wrapped.start().side_effect = lambda rows=rows, replay=graph.replay: (replayed.append(rows), replay())
        got = answers(engine, requests())
        return got, engine.engine.scheduler.statistics.draft_tokens_accepted

    on_card, accepted = answered("cuda")
    assert accepted and {1, 2, 4} <= set(replayed)
    with absent():
        on_processor, as_often = answered("cpu")
    assert_alike(on_card, on_processor)
    assert accepted == as_often, "the same guesses"


def test_states_take_their_share_of_a_cards_memory(card: VirtualCard) -> None:
    fields: dict[str, object] = {"model": MODELS["delta rule"], "kv_cache_tokens": 0, "cuda_graphs": False}
    card.memory = 2_000_000
    engine = built(**fields, max_running_requests=400, max_batch_tokens=400)
    assert engine.state_shape is not None
    assert 0.1 * card.memory < engine.state_shape.bytes < 0.5 * card.memory
    assert engine.kv_cache_bytes > 0.4 * card.memory and card.most <= card.memory
    card.forget()
    card.memory = 1_000_000
    with pytest.raises(BuildError, match="raise state_slots or kv_cache_fraction"):
        built(**fields, kv_cache_fraction=0.01)


def test_a_step_that_repeats_more_than_a_recording_has_room_for_takes_a_larger_one(card: VirtualCard) -> None:
    runner = built(model=MODELS["delta rule"], state_slots=8).engine._runner
    assert isinstance(runner, GraphedRunner)

    def run(*states: StateWork) -> None:
        position = states[0].commit
        runner.forward([Work(np.full(1, 3, dtype=np.int32), position, np.arange(2), 1, state=s) for s in states])

    runner.forward([Work(np.arange(3, 11, dtype=np.int32), 0, np.arange(2), 8, state=StateWork(1, 0, 0))])
    card.launches.clear()
    replays = card.replays
    run(StateWork(1, 0, 8))
    assert card.replays == replays + 1 and not card.launches  # with room for the nine tokens

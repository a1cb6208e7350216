"""The sampler against Hugging Face's logits processors, and as a distribution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tandem.limits.fields import FLOAT32_MAX, FLOAT32_SMALLEST
from tandem.worker.engine.randomness import uniform
from tandem.worker.engine.request import LogprobOptions, Request, Stopping
from tandem.worker.engine.sampler import Rows, Sampled, SamplingTable, launch
from tandem.worker.engine.sampler import sample as sample_rows
from tandem.worker.engine.sampling import Sampling

VOCABULARY = 1000


def request(sampling: Sampling, prompt=(1, 2, 3), number: int = 0, **options) -> Request:
    return Request.make(number, prompt, sampling, options.pop("stopping", Stopping(max_tokens=8)), **options)


def sample(logits: torch.Tensor, requests: list[Request], table: SamplingTable) -> Sampled:
    """The next token of each request."""
    return sample_rows(logits, Rows.next_tokens(requests), table)


def logits_of(rows: int, seed: int = 0, vocabulary: int = VOCABULARY, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * spread


def draw_many(logits: torch.Tensor, sampling: Sampling, count: int) -> np.ndarray:
    """`count` draws from one row of logits, each with a seed of its own."""
    table = SamplingTable(count)
    requests = [request(Sampling(**{**_fields(sampling), "seed": seed}), number=seed) for seed in range(count)]
    return sample(logits.expand(count, -1).clone(), requests, table).ids


def _fields(sampling: Sampling) -> dict[str, float]:
    return {name: getattr(sampling, name) for name in Sampling.__dataclass_fields__}


CASES = [
    Sampling(),
    Sampling(temperature=0.6),
    Sampling(temperature=1.7),
    Sampling(top_k=1),
    Sampling(top_k=5),
    Sampling(top_k=5000),
    Sampling(top_p=0.5),
    Sampling(top_p=0.95),
    Sampling(top_p=0.0),
    Sampling(min_p=0.1),
    Sampling(min_p=1.0),
    Sampling(repetition_penalty=1.3),
    Sampling(repetition_penalty=0.7),
    Sampling(temperature=0.8, top_k=40, top_p=0.9, min_p=0.02, repetition_penalty=1.1),
]


def reference_probabilities(logits: torch.Tensor, prompt: list[int], sampling: Sampling) -> np.ndarray:
    """Hugging Face's processors, in our order of stages, in float64 where they allow it."""
    ids = torch.tensor([prompt])
    stages = LogitsProcessorList()
    if sampling.repetition_penalty != 1.0:
        stages.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.top_k:
        stages.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        stages.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        stages.append(MinPLogitsWarper(sampling.min_p))
    stages.append(TemperatureLogitsWarper(sampling.temperature))
    return torch.softmax(stages(ids, logits.clone().double()), dim=-1)[0].numpy()


@pytest.mark.parametrize("sampling", CASES, ids=range(len(CASES)))
@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_draws_follow_the_distribution_of_hugging_faces_processors(sampling: Sampling, spread: float):
    prompt = [1, 2, 3, 3, 7]
    logits = logits_of(1, seed=3, vocabulary=60, spread=spread)
    count = 5_000
    expected = reference_probabilities(logits, prompt, sampling)
    table = SamplingTable(count)
    requests = [request(Sampling(**{**_fields(sampling), "seed": seed}), prompt, number=seed) for seed in range(count)]
    drawn = np.bincount(sample(logits.expand(count, -1).clone(), requests, table).ids, minlength=60)
    assert not drawn[expected == 0].any(), "a filtered id was drawn"
    kept = expected > 0
    statistic = ((drawn[kept] - count * expected[kept]) ** 2 / (count * expected[kept])).sum()
    freedom = kept.sum() - 1
    assert statistic <= freedom + 5 * np.sqrt(2 * max(1, freedom)), "chi-squared is more than five deviations off"


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
def test_top_p_of_a_row_too_flat_for_the_candidates_is_exact(top_p: float):
    logits = logits_of(1, vocabulary=4000, spread=0.01)
    expected = reference_probabilities(logits, [1], Sampling(top_p=top_p))
    drawn = draw_many(logits, Sampling(top_p=top_p), 2000)
    assert (expected[drawn] > 0).all()
    assert len(set(drawn.tolist())) > 0.3 * min(2000, (expected > 0).sum())


def test_zero_temperature_takes_the_largest_after_the_penalty():
    logits = torch.tensor([[0.0, 3.0, 2.9, -1.0]])
    sampling = Sampling(temperature=0.0, repetition_penalty=1.2)
    table = SamplingTable(1)
    assert sample(logits.clone(), [request(sampling, prompt=[1])], table).ids.tolist() == [2]
    # Outside of the window nothing is penalized.
    outside = Sampling(temperature=0.0, repetition_penalty=1.2, repetition_window=2)
    assert sample(logits.clone(), [request(outside, prompt=[1, 0, 0], number=2)], SamplingTable(1)).ids.tolist() == [1]


def test_a_row_draws_the_same_token_alone_and_in_a_crowd():
    rows = 64
    logits = logits_of(rows, vocabulary=517)
    requests = [
        request(
            Sampling(**{**_fields(CASES[row % len(CASES)]), "seed": row}),
            number=row,
            logprobs=LogprobOptions(sampled=row % 2 == 0),
        )
        for row in range(rows)
    ]
    together = sample(logits.clone(), requests, SamplingTable(rows))
    for row in range(rows):
        alone = sample(logits[row : row + 1].clone(), [requests[row]], SamplingTable(1))
        assert alone.ids[0] == together.ids[row]
        assert np.array_equal(alone.logprobs, together.logprobs[row : row + 1], equal_nan=True)


def test_several_positions_of_a_request_are_sampled_in_one_call_as_one_by_one():
    sampling = Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.4, seed=5)
    stopping = Stopping(max_tokens=8, min_tokens=2, eos_ids=frozenset({3}))
    drafts = [9, 7, 3, 1]
    logits = logits_of(len(drafts) + 1, vocabulary=20)
    drafted = request(sampling, stopping=stopping)
    drafted.tokens[3 : 3 + len(drafts)] = drafts
    rows = Rows([drafted] * 5, 3 + np.arange(5), None)
    together = sample_rows(logits.clone(), rows, SamplingTable(1)).ids
    for place in range(5):
        one = request(sampling, stopping=stopping, resumed=drafts[:place])
        assert sample(logits[place : place + 1].clone(), [one], SamplingTable(1)).ids[0] == together[place]


def test_a_mask_constrains_its_row_and_no_other():
    vocabulary = 70
    logits = logits_of(3, vocabulary=vocabulary)
    requests = [request(Sampling(seed=h), number=h) for h in range(3)]
    free = sample(logits.clone(), requests, SamplingTable(3)).ids
    mask = np.full((3, 3), -1, dtype=np.int32)
    mask[1] = 0
    allowed = [0, 31, 33, 69]
    for token in allowed:
        mask[1, token // 32] |= np.int32(np.uint32(1 << token % 32).view(np.int32))
    positions = Rows.next_tokens(requests).positions
    constrained = sample_rows(logits.clone(), Rows(requests, positions, mask), SamplingTable(3)).ids
    assert constrained[[0, 2]].tolist() == free[[0, 2]].tolist()
    drawn = {
        int(
            sample_rows(
                logits[1:2].clone(), Rows([request(Sampling(seed=s))], positions[:1], mask[1:2]), SamplingTable(1)
            ).ids[0]
        )
        for s in range(300)
    }
    assert drawn <= set(allowed)
    assert len(drawn) > 1


def test_logprobs_are_of_the_raw_logits():
    logits = logits_of(2)
    sampling = Sampling(temperature=0.5, top_k=3, repetition_penalty=2.0)
    result = sample(
        logits.clone(),
        [request(sampling, logprobs=LogprobOptions(sampled=True)), request(sampling, number=1)],
        SamplingTable(2),
    )
    assert result.logprobs[0] == pytest.approx(
        torch.log_softmax(logits.double(), -1)[0, result.ids[0]].item(), abs=1e-5
    )
    assert np.isnan(result.logprobs[1])


def test_stop_ids_cannot_be_drawn_before_min_tokens():
    logits = torch.zeros(1, 8)
    logits[0, 3] = 100.0
    stopping = Stopping(max_tokens=8, min_tokens=1, eos_ids=frozenset({3}), stop_ids=frozenset({4}))
    early = request(Sampling(temperature=0.0), stopping=stopping)
    assert sample(logits.clone(), [early], SamplingTable(1)).ids[0] not in (3, 4)
    later = request(Sampling(temperature=0.0), stopping=stopping, resumed=[0], number=1)
    assert sample(logits.clone(), [later], SamplingTable(1)).ids[0] == 3


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_with_broken_numbers_are_named_and_the_others_unharmed(bad: float):
    logits = logits_of(4)
    clean = sample(logits.clone(), [request(Sampling(seed=h), number=h) for h in range(4)], SamplingTable(4))
    logits[2, 17] = bad
    result = sample(logits.clone(), [request(Sampling(seed=h), number=h) for h in range(4)], SamplingTable(4))
    assert result.finite.tolist() == [True, True, False, True]
    assert result.ids[[0, 1, 3]].tolist() == clean.ids[[0, 1, 3]].tolist()


@pytest.mark.parametrize("temperature", [1e-30, 1e30])
def test_extreme_temperatures_do_not_overflow(temperature: float):
    logits = logits_of(1, vocabulary=50)
    result = sample(logits.clone(), [request(Sampling(temperature=temperature))], SamplingTable(1))
    assert 0 <= result.ids[0] < 50
    if temperature < 1:
        assert result.ids[0] == logits.argmax()


@pytest.mark.parametrize(
    "asked",
    [
        Sampling(mirostat=1),
        Sampling(mirostat=2),
        Sampling(top_k=3, temperature_last=False),
        Sampling(typical_p=0.5),
        Sampling(top_k=3),
        Sampling(temperature=FLOAT32_MAX, dynamic_temperature_range=FLOAT32_MAX, temperature_last=False),
        Sampling(temperature=0.0),
    ],
)
@pytest.mark.parametrize(
    "change",
    [
        {"repetition_penalty": FLOAT32_SMALLEST},
        {"repetition_penalty": FLOAT32_MAX},
        {"logit_bias": ((3, FLOAT32_MAX), (5, -FLOAT32_MAX)), "repetition_penalty": 0.1},
        {"logit_bias": ((3, -FLOAT32_MAX),), "dry_multiplier": FLOAT32_MAX, "dry_allowed_length": 1},
    ],
)
def test_penalties_and_biases_of_any_size_leave_a_distribution(asked: Sampling, change: dict[str, float]):
    logits = logits_of(2, vocabulary=60)
    logits[:, 40:] = float("-inf")
    prompt, told = (3, 5, 7, 3, 5, 7, 3), {"logprobs": LogprobOptions(processed=True, top=1)}
    requests = [request(replace(asked, **change), prompt, 0, **told), request(Sampling(), prompt, 1, **told)]
    result = sample(logits.clone(), requests, SamplingTable(2))
    assert (result.ids < 40).all() and result.possible.all()
    assert np.isfinite(result.logprobs).all()
    alone = sample(logits[1:].clone(), [request(Sampling(), prompt, 1, **told)], SamplingTable(1))
    assert (alone.ids[0], alone.logprobs[0]) == (result.ids[1], result.logprobs[1])


def test_a_slot_is_used_again_and_holds_the_new_parameters():
    table = SamplingTable(1)
    logits = torch.tensor([[0.0, 1.0, 0.9]])
    first = request(Sampling(temperature=0.0), number=1)
    assert sample(logits.clone(), [first], table).ids[0] == 1
    table.free(first)
    second = request(Sampling(temperature=0.0, repetition_penalty=5.0), prompt=[1], number=2)
    assert sample(logits.clone(), [second], table).ids[0] == 2


def test_uniform_numbers_are_uniform_independent_and_pure():
    seeds, positions = np.meshgrid(np.arange(300, dtype=np.uint64), np.arange(300, dtype=np.uint64))
    numbers = uniform(seeds, positions)
    assert np.array_equal(numbers, uniform(seeds, positions))
    assert (numbers >= 0).all()
    assert (numbers < 1).all()
    counts, _ = np.histogram(numbers, bins=100, range=(0, 1))
    expected = numbers.size / 100
    assert ((counts - expected) ** 2 / expected).sum() < 99 + 5 * np.sqrt(198)
    for other in (numbers[1:, :], numbers[:, 1:].T):  # next position, next seed
        base = numbers[:-1, :] if other.shape == numbers[1:, :].shape and other is not None else numbers[:, :-1].T
        correlation = np.corrcoef(base.ravel()[: other.size], other.ravel())[0, 1]
        assert abs(correlation) < 0.02
    assert uniform(np.array([2**64 - 1], dtype=np.uint64), np.array([2**40], dtype=np.uint64))[0] < 1


def test_the_samples_of_a_prompt_share_their_lists():
    listed = Sampling(allowed_ids=tuple(range(20)), banned_ids=(3, 4), logit_bias=((5, 1.0),))
    samples = [request(replace(listed, seed=seed), number=seed) for seed in range(3)]
    table = SamplingTable(4)
    rows = table.gather([*samples, request(Sampling(allowed_ids=(7,)), number=3)])
    *lists, other = (table.lists(slot) for slot in rows["slot"].tolist())
    assert all(each.allowed_ids is lists[0].allowed_ids and each.banned_ids is lists[0].banned_ids for each in lists)
    assert (lists[0].allowed_ids.tolist(), lists[0].banned_ids.tolist()) == (list(range(20)), [3, 4])
    assert (other.allowed_ids.tolist(), other.banned_ids.tolist()) == ([7], [])


GREEDY = Sampling(temperature=0.0)
LARGEST = 7  # the largest logit's id in the next test


@pytest.mark.parametrize(
    ("sampling", "options", "expected"),
    [
        pytest.param(GREEDY, {}, LARGEST, id="plain"),
        pytest.param(Sampling(temperature=0.0, logit_bias=((9, 50.0),)), {}, 9, id="bias"),
        pytest.param(Sampling(temperature=0.0, banned_ids=(LARGEST,)), {}, 8, id="banned"),
        pytest.param(Sampling(temperature=0.0, allowed_ids=(3, 4)), {}, 4, id="allowed"),
        pytest.param(Sampling(temperature=0.0, banned_sequences=((3, LARGEST),)), {}, 8, id="banned sequence"),
        pytest.param(
            Sampling(temperature=0.0, repetition_penalty=100.0), {"prompt": (1, LARGEST)}, 8, id="repetition penalty"
        ),
        pytest.param(
            GREEDY,
            {"stopping": Stopping(4, min_tokens=1, stop_ids=frozenset((LARGEST,)))},
            8,
            id="a stop before min_tokens",
        ),
        pytest.param(GREEDY, {"stopping": Stopping(4, stop_ids=frozenset((LARGEST,)))}, LARGEST, id="a stop"),
        pytest.param(GREEDY, {"logprobs": LogprobOptions(sampled=True)}, LARGEST, id="logprobs"),
    ],
)
def test_who_takes_the_largest_logit_gets_all_else_that_is_asked_for(
    sampling: Sampling, options: dict[str, object], expected: int
) -> None:
    logits = torch.linspace(1, 2, VOCABULARY).flip(0).roll(LARGEST)
    logits[:LARGEST] = torch.linspace(-3, -2, LARGEST)
    asked = {"stopping": Stopping(4), "logprobs": LogprobOptions(), "prompt": (1, 2, 3)} | options
    one = Request.make(0, asked.pop("prompt"), sampling, **asked)
    beside = Request.make(1, (1, 2), GREEDY, Stopping(4))
    for company in ([one], [one, beside]):
        rows = Rows.next_tokens(company)
        made = launch(logits.expand(len(company), -1).clone(), rows, SamplingTable(2))
        told = made.read()
        assert told.ids.tolist() == made.ids.tolist() == [expected, LARGEST][: len(company)]
        assert np.isnan(told.logprobs).tolist() == [not one.logprobs.wanted, True][: len(company)]
        assert told.finite.all() and told.possible.all()

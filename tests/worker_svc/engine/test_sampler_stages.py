"""Each stage of the sampler, and all of them together, against the formulas one row at a time in float64."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from tandem.worker.engine.randomness import Stage, uniform
from tandem.worker.engine.request import LogprobOptions, Request, Stopping
from tandem.worker.engine.sampler import Rows, Sampled, SamplingTable, sample
from tandem.worker.engine.sampling import Sampling
from tests.worker_svc.engine import sampler_reference as reference

DRAWS = int(os.environ.get("TANDEM_DRAWS", "50000"))  # the acceptance run takes 1000000

STAGES = [
    Sampling(temperature=0.7),
    Sampling(temperature=1.0, dynamic_temperature_range=0.6),
    Sampling(temperature=0.9, dynamic_temperature_range=2.0, dynamic_temperature_exponent=0.5),
    Sampling(temperature=0.0, dynamic_temperature_range=1.5),
    Sampling(temperature=0.8, dynamic_temperature_range=0.5, temperature_last=False, top_p=0.8),
    Sampling(temperature=2.0, temperature_last=False, top_p=0.8),
    Sampling(temperature=2.0, top_p=0.8),
    Sampling(top_k=1),
    Sampling(top_k=7),
    Sampling(top_k=900),
    Sampling(top_k=10**9),
    Sampling(tail_free_z=0.0),
    Sampling(tail_free_z=0.3),
    Sampling(tail_free_z=0.95),
    Sampling(tail_free_z=0.999999),
    Sampling(typical_p=0.0),
    Sampling(typical_p=0.2),
    Sampling(typical_p=0.9),
    Sampling(typical_p=0.999),
    Sampling(top_p=0.0),
    Sampling(top_p=0.5),
    Sampling(top_p=0.99),
    Sampling(min_p=0.02),
    Sampling(min_p=0.5),
    Sampling(min_p=1.0),
    Sampling(top_a=0.0001),
    Sampling(top_a=0.3),
    Sampling(top_a=1.0),
    Sampling(top_n_sigma=1.0),
    Sampling(top_n_sigma=2.5, top_k=100, allowed_ids=tuple(range(0, 40, 3))),
    Sampling(adaptive_p_target=0.3),
    Sampling(adaptive_p_target=0.01, min_p=0.05, temperature=0.8),
    Sampling(adaptive_p_target=0.0, top_k=20, temperature_last=False),
    Sampling(adaptive_p_target=1.0, xtc_probability=1.0, xtc_threshold=0.05),
    Sampling(xtc_probability=1.0, xtc_threshold=0.05),
    Sampling(xtc_probability=1.0, xtc_threshold=0.0002),
    Sampling(xtc_probability=1.0, xtc_threshold=0.6),
    Sampling(temperature=0.0, xtc_probability=1.0, xtc_threshold=0.01),
    Sampling(temperature=0.0, typical_p=0.3),
    Sampling(mirostat=1, mirostat_tau=3.0),
    Sampling(mirostat=1, mirostat_tau=6.0, temperature=0.8),
    Sampling(mirostat=2, mirostat_tau=2.0),
    Sampling(mirostat=2, mirostat_tau=5.0, temperature=1.3),
    Sampling(mirostat=2, mirostat_tau=0.0),
    Sampling(repetition_penalty=1.7),
    Sampling(repetition_penalty=0.5, repetition_window=3),
    Sampling(repetition_penalty=1.7, repetition_window=2, repetition_decay=5),
    Sampling(repetition_penalty=1.7, repetition_window=0, repetition_decay=100),
    Sampling(repetition_penalty=1.7, repetition_window=0),
    Sampling(presence_penalty=1.5),
    Sampling(frequency_penalty=0.7, presence_penalty=-0.4, repetition_window=6, repetition_decay=4),
    Sampling(dry_multiplier=0.8),
    Sampling(dry_multiplier=3.0, dry_base=1.0, dry_allowed_length=1),
    Sampling(dry_multiplier=0.5, dry_allowed_length=3, dry_window=12),
    Sampling(dry_multiplier=1.0, dry_window=0),
    Sampling(dry_multiplier=1.0, dry_allowed_length=1, dry_sequence_breakers=((7,), (5, 6))),
    Sampling(logit_bias=((1, 3.0), (2, -50.0), (900, 8.0))),
    Sampling(allowed_ids=(3, 1, 500)),
    Sampling(banned_ids=(0, 1, 2, 3)),
    Sampling(banned_sequences=((5, 6, 8), (6, 9), (4,), (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16))),
    Sampling(
        temperature=0.8,
        dynamic_temperature_range=0.3,
        top_n_sigma=3.0,
        top_k=300,
        tail_free_z=0.99,
        typical_p=0.97,
        top_p=0.95,
        min_p=0.001,
        top_a=0.01,
        xtc_probability=1.0,
        xtc_threshold=0.02,
        repetition_penalty=1.2,
        repetition_decay=5,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        dry_multiplier=0.7,
        logit_bias=((3, 1.0),),
        banned_ids=(8,),
    ),
]
# Repeats itself in several ways, with breakers in between.
TOKENS = [1, 2, 3, 7, 5, 6, 8, 1, 2, 3, 4, 5, 6, 9, 5, 6, 1, 2, 3, 4, 5, 6]


def make_logits(vocabulary: int, spread: float, seed: int = 0) -> torch.Tensor:
    """No two alike, so that no cut falls between equals."""
    generator = np.random.default_rng(seed)
    values = generator.permutation(np.linspace(-3, 3, vocabulary)) + generator.normal(0, 0.01, vocabulary)
    return torch.from_numpy(np.sinh(values * spread).astype(np.float32) if spread > 0.6 else values.astype(np.float32))


def make_request(sampling: Sampling, number: int = 0, tokens=TOKENS, **options: object) -> Request:
    return Request.make(number, tokens, sampling, Stopping(max_tokens=8), **options)  # type: ignore[arg-type]


def sample_requests(logits: torch.Tensor, requests: list[Request], table: SamplingTable | None = None) -> Sampled:
    return sample(logits.clone(), Rows.next_tokens(requests), table or SamplingTable(len(requests)))


def distributions(logits: torch.Tensor, samplings: list[Sampling]) -> tuple[np.ndarray, Sampled]:
    """The probabilities `[rows, vocabulary]` from which the engine says it drew, by its processed logprobs."""
    everything = LogprobOptions(processed=True, ids=tuple(range(logits.shape[1])))
    requests = [make_request(sampling, number, logprobs=everything) for number, sampling in enumerate(samplings)]
    result = sample_requests(logits, requests)
    return np.exp(result.alternatives.logprobs.astype(np.float64)).reshape(len(samplings), -1), result


def xtc_strikes(sampling: Sampling, position: int) -> bool:
    coin = uniform(np.array([sampling.seed], np.uint64), np.array([position], np.uint64), Stage.XTC)[0]
    return bool(coin < sampling.xtc_probability)


def check(found: np.ndarray, logits: torch.Tensor, sampling: Sampling) -> None:
    expected = reference.probabilities(
        logits.double().numpy(), TOKENS, sampling, excludes=xtc_strikes(sampling, len(TOKENS))
    )
    assert found.sum() == pytest.approx(1, abs=1e-4)
    different = np.flatnonzero((found > 0) != (expected > 1e-30))
    # The float32 arithmetic may see the last token of a cut on the other side.
    assert different.size <= 1, (different, found[different], expected[different])
    assert np.abs(found - expected).max() < 2e-4 + expected[different].sum() + found[different].sum()
    assert found[different].sum() + expected[different].sum() < 0.02


@pytest.mark.parametrize("vocabulary", [40, 1000, 1500], ids=lambda v: f"v{v}")
@pytest.mark.parametrize("spread", [0.5, 0.9])
def test_every_stage_gives_the_distribution_of_its_formula(vocabulary: int, spread: float):
    logits = make_logits(max(vocabulary, 40), spread)
    stages = [s for s in STAGES if vocabulary > 900 or not {500, 900} & {*dict(s.logit_bias), *s.allowed_ids}]
    found, _ = distributions(logits.expand(len(stages), -1), stages)
    for row, sampling in enumerate(stages):
        try:
            check(found[row], logits, sampling)
        except AssertionError as error:
            raise AssertionError(f"{sampling}: {error}") from error


def test_a_large_vocabulary_goes_through_groups_of_candidates_exactly():
    vocabulary = 40_001
    logits = make_logits(vocabulary, 0.9, seed=5)
    largest = tuple(logits.argsort(descending=True)[:2600].tolist())
    for sampling in [
        Sampling(top_k=50),
        Sampling(top_p=0.5),
        Sampling(typical_p=0.3),
        Sampling(tail_free_z=0.9),
        Sampling(top_k=800),  # the last two keep more than the candidates
        Sampling(temperature=1.3, temperature_last=False, top_p=0.2),
    ]:
        request = make_request(sampling, logprobs=LogprobOptions(processed=True, ids=largest))
        result = sample_requests(logits.unsqueeze(0), [request])
        found = np.zeros(vocabulary)
        found[result.alternatives.ids] = np.exp(result.alternatives.logprobs.astype(np.float64))
        check(found, logits, sampling)


def test_the_reported_probability_is_that_of_the_draw():
    logits = make_logits(1000, 0.7).expand(len(STAGES), -1)
    found, result = distributions(logits, STAGES)
    drawn = found[np.arange(len(STAGES)), result.ids]
    assert (drawn > 0).all()
    assert np.allclose(np.exp(result.logprobs.astype(np.float64)), drawn)
    expected_ranks = 1 + (found > drawn[:, None]).sum(axis=1)
    assert result.ranks.tolist() == expected_ranks.tolist()


DRAWN = [
    Sampling(),
    Sampling(temperature=0.6),
    Sampling(temperature=0.9, dynamic_temperature_range=0.7),
    Sampling(top_k=7),
    Sampling(tail_free_z=0.9),
    Sampling(typical_p=0.6),
    Sampling(top_p=0.8),
    Sampling(min_p=0.05),
    Sampling(top_a=0.2),
    Sampling(mirostat=1, mirostat_tau=2.0, mirostat_eta=0.0),
    Sampling(mirostat=2, mirostat_tau=1.5, mirostat_eta=0.0),
    Sampling(temperature=0.8, top_k=20, tail_free_z=0.98, typical_p=0.95, top_p=0.95, min_p=0.01, top_a=0.01),
]


@pytest.mark.parametrize("sampling", DRAWN, ids=range(len(DRAWN)))
def test_draws_are_distributed_as_they_should(sampling: Sampling):
    logits = make_logits(40, 0.55)
    expected = reference.probabilities(logits.double().numpy(), TOKENS, sampling)
    check_draws(logits, sampling, expected)


def test_xtc_strikes_as_often_as_it_should_and_independently_of_the_draw():
    logits = make_logits(40, 0.55)
    sampling = Sampling(xtc_probability=0.3, xtc_threshold=0.04)
    with_it, without = (
        reference.probabilities(logits.double().numpy(), TOKENS, sampling, excludes=strikes)
        for strikes in (True, False)
    )
    check_draws(logits, sampling, 0.3 * with_it + 0.7 * without)


def check_draws(logits: torch.Tensor, sampling: Sampling, expected: np.ndarray) -> None:
    request = make_request(replace(sampling, seed=99))
    drawn = np.zeros(logits.shape[0])
    table = SamplingTable(1)
    block = min(DRAWS, 50_000)
    for start in range(0, DRAWS, block):
        rows = Rows([request] * block, start + 1000 + np.arange(block))
        drawn += np.bincount(sample(logits.expand(block, -1).clone(), rows, table).ids, minlength=drawn.size)
    assert not drawn[expected < 1e-12].any(), "a token was drawn that cannot be"
    enough = expected * DRAWS >= 5
    observed, wanted = drawn[enough], expected[enough] * DRAWS
    if (~enough).any():
        observed, wanted = np.append(observed, drawn[~enough].sum()), np.append(wanted, expected[~enough].sum() * DRAWS)
        if wanted[-1] < 5:
            observed, wanted = observed[:-1], wanted[:-1]
    if observed.size > 1:
        wanted *= observed.sum() / wanted.sum()
        assert stats.chisquare(observed, wanted).pvalue > 1e-6


VALUES: dict[str, list[object]] = {
    "temperature": [0.0, 0.7, 1.5],
    "dynamic_temperature_range": [0.0, 0.5],
    "temperature_last": [True, False],
    "top_n_sigma": [0.0, 1.5],
    "top_k": [0, 30],
    "tail_free_z": [1.0, 0.97],
    "typical_p": [1.0, 0.9],
    "top_p": [1.0, 0.9],
    "min_p": [0.0, 0.02],
    "top_a": [0.0, 0.05],
    "xtc_probability": [0.0, 0.5],
    "mirostat": [0, 1, 2],
    "adaptive_p_target": [-1.0, 0.3],
    "repetition_penalty": [1.0, 1.3],
    "repetition_decay": [0, 7],
    "presence_penalty": [0.0, 0.5],
    "frequency_penalty": [0.0, -0.3],
    "dry_multiplier": [0.0, 0.8],
    "dry_sequence_breakers": [(), ((7,),)],
    "logit_bias": [(), ((3, 1.5), (4, -2.0))],
    "allowed_ids": [(), tuple(range(0, 600, 2))],
    "banned_ids": [(), (2, 9)],
    "banned_sequences": [(), ((5, 6, 8),)],
}


def pairwise_cover() -> list[Sampling]:
    """Every pair of values of any two parameters occurs in some row; greedily, from a fixed seed."""
    names = list(VALUES)
    left = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(range(len(names)), 2)
        for i in range(len(VALUES[names[a]]))
        for j in range(len(VALUES[names[b]]))
    }
    generator = np.random.default_rng(3)
    cover = []
    while left:
        pairs = sorted(left)
        (first, i), (second, j) = pairs[int(generator.integers(len(pairs)))]
        chosen = {first: i, second: j}
        for place in generator.permutation(len(names)).tolist():
            if place not in chosen:
                gains = [
                    sum(tuple(sorted([(place, v), other])) in left for other in chosen.items())
                    for v in range(len(VALUES[names[place]]))
                ]
                chosen[place] = int(np.argmax(gains))
        left -= {tuple(sorted(pair)) for pair in itertools.combinations(chosen.items(), 2)}  # type: ignore[misc]
        values = {names[place]: VALUES[names[place]][v] for place, v in chosen.items()}
        if values["mirostat"]:
            values["adaptive_p_target"] = -1.0  # the contract refuses both
        cover.append(Sampling(**values, seed=len(cover)))  # type: ignore[arg-type]
    return cover


def test_a_batch_of_every_pair_of_parameters_draws_as_each_row_alone():
    cover = pairwise_cover()
    rows = [replace(cover[row % len(cover)], seed=row) for row in range(max(64, len(cover)))]
    vocabulary = 700
    logits = torch.stack([make_logits(vocabulary, 0.5 + 0.3 * (row % 2), seed=row) for row in range(len(rows))])
    options = [LogprobOptions(sampled=True, top=row % 4, processed=row % 3 == 0) for row in range(len(rows))]

    def requests(begin: int, end: int) -> list[Request]:
        return [make_request(rows[row], row, logprobs=options[row]) for row in range(begin, end)]

    together_table = SamplingTable(len(rows))
    crowd = requests(0, len(rows))
    # Twice, so that mirostat's second draw depends on its first.
    first, second = (sample_requests(logits, crowd, together_table) for _ in range(2))
    for row in range(len(rows)):
        own_table = SamplingTable(1)
        own = requests(row, row + 1)
        for together in (first, second):
            alone = sample_requests(logits[row : row + 1], own, own_table)
            expected = together.take([row])
            for name in ("ids", "logprobs", "ranks", "finite", "possible"):
                assert np.array_equal(getattr(alone, name), getattr(expected, name)), (name, rows[row])
            for name in ("counts", "ids", "logprobs", "ranks"):
                found, wanted = getattr(alone.alternatives, name), getattr(expected.alternatives, name)
                assert np.array_equal(found, wanted), (name, rows[row])


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_steers_the_surprise_to_its_target(version: int):
    tau, eta = 3.0, 0.2
    sampling = Sampling(mirostat=version, mirostat_tau=tau, mirostat_eta=eta, seed=4)
    vocabulary = 1000
    table, request = SamplingTable(1), make_request(sampling)
    mu, surprises = 2 * tau, []
    generator = np.random.default_rng(1)
    for step in range(300):
        logits = torch.from_numpy(generator.gumbel(0, 1.5, vocabulary).astype(np.float32)).unsqueeze(0)
        rows = Rows([request], np.array([100 + step]))
        token = int(sample(logits.clone(), rows, table).ids[0])
        p = reference.probabilities(logits[0].double().numpy(), TOKENS, sampling, mu=mu)
        assert p[token] > 0
        surprises.append(-np.log2(p[token]))
        mu -= eta * (surprises[-1] - tau)
        assert table.gather([request])["state"][0] == pytest.approx(mu, rel=1e-3)
        mu = float(table.gather([request])["state"][0])
    assert np.mean(surprises[50:]) == pytest.approx(tau, abs=0.35)


def test_adaptive_p_steers_the_probability_to_its_target():
    sampling = Sampling(adaptive_p_target=0.3, adaptive_p_decay=0.8, min_p=0.02, seed=4)
    table, request = SamplingTable(1), make_request(sampling)
    mean, drawn = 0.3, []
    generator = np.random.default_rng(1)
    for step in range(300):
        logits = torch.from_numpy(generator.gumbel(0, 2.0, 1000).astype(np.float32)).unsqueeze(0)
        token = int(sample(logits.clone(), Rows([request], np.array([100 + step])), table).ids[0])
        x = logits[0].double().numpy()
        assert reference.probabilities(x, TOKENS, sampling, mean=mean)[token] > 0
        drawn.append(reference.probabilities(x, TOKENS, replace(sampling, adaptive_p_target=-1.0))[token])
        mean = 0.8 * mean + 0.2 * drawn[-1]
        assert table.gather([request])["state"][0] == pytest.approx(mean, rel=1e-3)
        mean = float(table.gather([request])["state"][0])
    assert np.mean(drawn[50:]) == pytest.approx(0.3, abs=0.1)


def test_equal_logits_stay_together_in_every_filter():
    logits = torch.tensor([[2.0, 2.0, 2.0, 1.0, 1.0, 0.0, -5.0]])
    for sampling, kept in [
        (Sampling(top_k=1), {0, 1, 2}),
        (Sampling(top_k=4), {0, 1, 2, 3, 4}),
        (Sampling(top_p=0.01), {0, 1, 2}),
        (Sampling(min_p=1.0), {0, 1, 2}),
        (Sampling(xtc_probability=1.0, xtc_threshold=0.05), {3, 4, 5, 6}),
    ]:
        found, _ = distributions(logits, [sampling])
        assert set(np.flatnonzero(found[0]).tolist()) == kept, sampling


def test_constraints_that_leave_nothing_are_named_and_harm_nobody():
    logits = make_logits(30, 0.5).expand(2, -1)
    nothing = Sampling(allowed_ids=(8,), banned_sequences=((6, 8),))
    requests = [make_request(nothing, 0), make_request(Sampling(seed=3), 1)]
    result = sample_requests(logits, requests)
    assert result.possible.tolist() == [False, True]
    assert result.finite.tolist() == [True, True]
    assert result.ids[1] == sample_requests(logits[1:], requests[1:]).ids[0]


def test_logprobs_of_the_most_probable_and_of_given_ids_have_ranks():
    logits = make_logits(500, 0.5).expand(3, -1)
    options = [LogprobOptions(top=5, ids=(7, 3)), LogprobOptions(sampled=True), LogprobOptions(ids=(499,))]
    requests = [make_request(Sampling(seed=row), row, logprobs=each) for row, each in enumerate(options)]
    result = sample_requests(logits, requests)
    expected = torch.log_softmax(logits[0].double(), -1).numpy()
    order = np.argsort(-expected)
    assert result.alternatives.counts.tolist() == [7, 0, 1]
    ids = [*order[:5].tolist(), 7, 3, 499]
    assert result.alternatives.ids.tolist() == ids
    assert result.alternatives.logprobs == pytest.approx(expected[ids], abs=1e-5)
    assert result.alternatives.ranks.tolist() == [int((expected > expected[i]).sum()) + 1 for i in ids]
    assert result.alternatives.take(np.array([2, 0])).ids.tolist() == [499, *ids[:7]]

"""The kernels that choose tokens: what they keep is what a sort keeps, and their ids are those of the sampler on a CPU,
by the same random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from tandem.worker.engine.request import Request, Stopping
from tandem.worker.engine.sampler import Rows, Sampled, SamplingTable, draw, ordered, pipeline, sample
from tandem.worker.engine.sampler.on_card import draw_on_card
from tandem.worker.engine.sampling import Sampling
from tandem.worker.model.cuda.kernels import choose as kernel
from tandem.worker.model.cuda.kernels import survey
from tandem.worker.model.cuda.kernels.choose import choose, rules_of
from tests.worker_svc.model.cuda.kernels.conftest import DEVICE

VOCABULARY = 300
CANDIDATES = 16


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several parts a row, the last one not whole, and few candidates."""
    monkeypatch.setattr(survey, "PART", 128)
    monkeypatch.setattr(kernel, "_CANDIDATES", CANDIDATES)
    monkeypatch.setattr(ordered, "CANDIDATES", CANDIDATES)


def random_logits(rows: int, scale: float = 4.0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(rows)) * scale


def requests(samplings: Sequence[Sampling]) -> list[Request]:
    return [
        Request.make(i, [1, 2, 3 + i, 2, 9], replace(sampling, seed=7 * i), Stopping(50))
        for i, sampling in enumerate(samplings)
    ]


def drawn_by_kernels(logits: torch.Tensor, rows: Rows, table: SamplingTable | None = None) -> Sampled:
    table = table or SamplingTable(64)
    parameters = table.gather(rows.requests)
    assert not parameters["waits"].any()
    return draw_on_card(logits.to(DEVICE), rows, parameters, table).read()


def assert_alike(ours: Sampled, theirs: Sampled) -> None:
    assert ours.finite.tolist() == theirs.finite.tolist()
    assert ours.possible.tolist() == theirs.possible.tolist()
    sound = ours.finite & ours.possible
    assert ours.ids[sound].tolist() == theirs.ids[sound].tolist()


COLD = Sampling(temperature=0.0)
FILTERS = [
    Sampling(top_p=0.9),
    Sampling(top_p=0.5, temperature=2.0),
    Sampling(top_k=5),
    Sampling(top_k=CANDIDATES),
    Sampling(top_k=100, top_p=0.7),
    Sampling(top_k=VOCABULARY + 3, temperature=0.5),
    Sampling(min_p=0.05, temperature=1.4),
    Sampling(min_p=1.0),
    Sampling(top_n_sigma=1.0, top_k=20, top_p=0.95, min_p=0.01),
    Sampling(top_n_sigma=3.0, min_p=0.001, temperature=3.0),
    Sampling(top_p=1e-9),
    Sampling(top_p=0.9999, temperature=5.0),
]
PLAIN = [COLD, Sampling(temperature=0.3), Sampling(), Sampling(temperature=2.5), replace(COLD, top_k=5, top_p=0.3)]


def adversarial() -> torch.Tensor:
    """Rows in which much is equal, forbidden, alike or far away."""
    rows = random_logits(8)
    rows[0] = 0.0
    rows[1], rows[1, 5:9] = -3.0, 2.0
    rows[2], rows[2, 77] = float("-inf"), -4.0
    rows[3, 20:] = float("-inf")
    rows[4] = rows[4].round()  # many ties at every bound
    rows[5] = torch.linspace(-1e-3, 1e-3, VOCABULARY)[torch.randperm(VOCABULARY)] * 1e-3
    rows[6, ::2], rows[6, 3] = -0.0, 1e30
    rows[7] = rows[7] * 1e-30
    return rows


def kept_by_a_sort(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The least logit that the filters keep of rows that are ordered as a whole."""
    some = requests([sampling] * len(logits))
    parameters = SamplingTable(64).gather(some)
    whole = ordered.Ordered.of(logits, logits.sort(dim=-1, descending=True).values)
    pipeline._filter(whole, parameters, np.full(len(logits), 5))
    return whole.at(whole.end - 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_logits_of_16_bits_are_chosen_from_as_if_they_were_wide(dtype: torch.dtype) -> None:
    some = Rows.next_tokens(requests([*PLAIN[:3], *FILTERS[:3], Sampling(presence_penalty=1.0)]))
    narrow = random_logits(len(some)).to(dtype)
    changed = drawn_by_kernels(narrow, some)
    assert_alike(changed, drawn_by_kernels(narrow.float(), some))
    unchanged = some.take(np.arange(len(some) - 1))  # of which the kernels read 16 bits
    assert_alike(drawn_by_kernels(narrow[:-1], unchanged), drawn_by_kernels(narrow[:-1].float(), unchanged))


def test_filters_keep_exactly_what_a_sort_keeps() -> None:
    strange = adversarial()
    rows = [(strange[i % 8], FILTERS[(3 * i + i // 8) % len(FILTERS)]) for i in range(12)]
    rows += [(random_logits(1, 0.5 + i)[0], sampling) for i, sampling in enumerate(FILTERS)]
    some = requests([sampling for _, sampling in rows])
    parameters = SamplingTable(64).gather(some)
    rules = rules_of(torch.from_numpy(parameters["temperature"].copy()), torch.full((len(rows),), 0.3))
    for place, name in (
        (survey.SIGMA, "top_n_sigma"),
        (survey.K, "top_k"),
        (survey.P, "top_p"),
        (survey.MIN_P, "min_p"),
    ):
        rules[place.value] = torch.from_numpy(parameters[name].astype(np.float64))
    logits = torch.stack([row for row, _ in rows])
    least = choose(logits.to(DEVICE), rules.to(DEVICE), filtered=True).least.cpu()
    for bound, (row, sampling) in zip(least, rows, strict=True):
        expected = kept_by_a_sort(row.unsqueeze(0), sampling).float()
        assert torch.equal((row >= bound).nonzero(), (row >= expected).nonzero()), sampling


def test_ids_are_those_of_the_sampler_on_a_cpu() -> None:
    rows = Rows.next_tokens(requests([*PLAIN, *FILTERS]))
    logits = random_logits(len(rows))
    logits[1, ::3] = logits[0, :200] = float("-inf")
    logits[4, [260, 70, 150]] = 100.0  # the first of several
    ours, theirs = drawn_by_kernels(logits, rows), sample(logits.clone(), rows, SamplingTable(64))
    assert_alike(ours, theirs)
    assert ours.ids[4] == 70 and ours.finite.all() and ours.possible.all()


def test_what_changes_logits_changes_them_as_on_a_cpu() -> None:
    penalties = Sampling(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.7, repetition_window=4)
    kinds = [
        penalties,
        replace(penalties, temperature=0.0, repetition_window=2, logit_bias=((3, 50.0), (299, -1.0), (2, 30.0))),
        replace(penalties, allowed_ids=(2, 3, 9, 260), top_p=0.99),
        Sampling(banned_ids=tuple(range(0, 300, 2)), top_k=3),
        Sampling(temperature=0.0, banned_sequences=((2, 9, 5), (4,)), logit_bias=((4, 90.0), (5, 80.0), (6, 70.0))),
        Sampling(allowed_ids=(4,), banned_ids=(4,)),
        Sampling(top_p=0.8),
        COLD,
    ]
    some = requests(kinds)
    some[7].stopping = Stopping(50, min_tokens=9, eos_ids=frozenset({8}), stop_ids=frozenset({31}))
    masks = np.full((len(some), -(-VOCABULARY // 32)), -1, dtype=np.int32)
    masks[0, 3:] = masks[6, :8] = 0
    table, reference = SamplingTable(8), SamplingTable(8)
    for step in range(4):  # the window moves, and one request comes anew as another
        if step == 2:
            table.free(some[0])
            reference.free(some[0])
            some[0] = Request.make(77, [5] * 9, replace(penalties, seed=5), Stopping(9))
        rows = replace(Rows.next_tokens(some), mask=masks)
        logits = random_logits(len(some) + step)[: len(some)]
        logits[7, [8, 31]] = 40.0
        ours, theirs = drawn_by_kernels(logits.clone(), rows, table), sample(logits, rows, reference)
        assert_alike(ours, theirs)
        assert not ours.possible[5] and not {8, 31} & {int(ours.ids[7])}
        for request, token in zip(some, theirs.ids.tolist(), strict=True):
            request.append(token)


def test_a_row_is_drawn_alike_alone_and_in_a_crowd_and_broken_numbers_stay_in_theirs() -> None:
    kinds = [
        COLD,
        Sampling(),
        FILTERS[0],
        Sampling(),
        Sampling(presence_penalty=1.0),
        FILTERS[11],
        Sampling(),
        FILTERS[4],
    ]
    rows = Rows.next_tokens(requests(kinds))
    logits = random_logits(len(kinds))
    logits[1, 260], logits[4, 3], logits[7, 1], logits[6] = float("nan"), float("inf"), float("nan"), float("-inf")
    crowd = drawn_by_kernels(logits.clone(), rows)
    assert crowd.finite.tolist() == [True, False, True, True, False, True, False, False]
    for row in (0, 2, 5):
        alone = drawn_by_kernels(logits[row : row + 1].clone(), rows.take(np.array([row])))
        assert alone.ids[0] == crowd.ids[row]


def test_logits_of_16_bits_are_drawn_as_their_numbers() -> None:
    rows = Rows.next_tokens(requests([*PLAIN, FILTERS[2]]))
    logits = random_logits(len(rows)).half()
    assert drawn_by_kernels(logits, rows).ids.tolist() == drawn_by_kernels(logits.float(), rows).ids.tolist()


def test_rows_of_torch_are_drawn_by_the_kernel_as_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [COLD, Sampling(typical_p=0.9), Sampling(xtc_probability=1.0, xtc_threshold=0.1), Sampling(top_a=0.01)]
    rows = Rows.next_tokens(requests([*kinds, *kinds]))
    logits = random_logits(len(rows))
    on_cpu = sample(logits.clone(), rows, SamplingTable(32))
    for module in (draw, pipeline):
        monkeypatch.setattr(module, "has_kernel", lambda logits: True)
    assert sample(logits.to(DEVICE), rows, SamplingTable(32)).ids.tolist() == on_cpu.ids.tolist()


def test_draws_follow_the_cumulative_distribution_between_two_bounds() -> None:
    count = 6
    logits = random_logits(1).to(DEVICE).expand(count, -1)
    low, high = (torch.full((count,), value, device=DEVICE) for value in (-2.0, 5.0))
    uniforms = torch.linspace(0, 1, count, dtype=torch.float64)
    uniforms[-1] = 1 - 2.0**-52  # the largest that is drawn
    rules = rules_of(torch.full((count,), 1.5, device=DEVICE), uniforms.to(DEVICE), low, high)
    chosen = choose(logits, rules, bounded=True)
    weights = (logits[0].double().cpu() / 1.5).exp()
    weights[(logits[0].cpu() < -2) | (logits[0].cpu() > 5)] = 0
    reached = weights.cumsum(0)
    expected = torch.searchsorted(reached, uniforms * reached[-1], right=True)
    assert chosen.ids.cpu().tolist() == expected.tolist()
    top = logits[0][logits[0] <= 5].max().item()
    torch.testing.assert_close(chosen.mass.cpu(), (reached[-1] / np.exp(top / 1.5)).expand(count), rtol=1e-6, atol=0)

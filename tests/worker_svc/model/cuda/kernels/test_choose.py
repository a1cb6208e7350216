"""The kernel that chooses tokens: the ids of the sampler on a CPU, by the same random numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tandem.worker.engine.request import LogprobOptions, Request, Stopping
from tandem.worker.engine.sampler import Rows, SamplingTable, draw, pipeline, sample
from tandem.worker.engine.sampler.launch import is_plain, launch_plain
from tandem.worker.engine.sampling import Sampling
from tandem.worker.model.cuda.kernels import choose as kernel
from tandem.worker.model.cuda.kernels.choose import choose
from tests.worker_svc.model.cuda.kernels.conftest import DEVICE

VOCABULARY = 1500


@pytest.fixture(autouse=True)
def _several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_MOST", 512)


def random_logits(rows: int, scale: float = 4.0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(rows)) * scale


def requests(temperatures: list[float]) -> list[Request]:
    return [
        Request.make(i, [1, 2, 3 + i], Sampling(temperature=t, seed=7 * i), Stopping(50))
        for i, t in enumerate(temperatures)
    ]


def test_ids_are_those_of_the_sampler_on_a_cpu() -> None:
    rows = Rows.next_tokens(requests([0.0, 0.3, 1.0, 2.5] * 6))
    logits = random_logits(len(rows))
    logits[3, ::3] = logits[0, :1000] = float("-inf")
    logits[4, [900, 70, 1400]] = 100.0  # the first of several
    table = SamplingTable(32)
    rules = table.gather(rows.requests)
    assert is_plain(rows, rules)
    launched = launch_plain(logits.to(DEVICE), rows, rules)
    ours, theirs = launched.read(), sample(logits, rows, table)
    assert ours.ids.tolist() == theirs.ids.tolist() == launched.ids.tolist()
    assert ours.ids[4] == 70
    assert ours.finite.all() and ours.possible.all()


def test_rows_that_ask_for_more_are_drawn_by_the_kernel_as_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = requests([0.0, 0.4, 1.5] * 4)
    sampled = LogprobOptions(sampled=True, processed=True)
    asking = [
        Request.make(50 + i, [1, i], sampling, Stopping(5), logprobs=sampled)
        for i, sampling in enumerate(
            [
                Sampling(seed=1, top_p=0.9),
                Sampling(seed=2, temperature=3.0, top_p=0.999),
                Sampling(seed=3, top_k=5),
                Sampling(seed=4, temperature=0.5, repetition_penalty=1.3),
                Sampling(temperature=0.0, logit_bias=((3, 50.0),)),
            ]
        )
    ]
    rows = Rows.next_tokens([*plain, *asking])
    logits = random_logits(len(rows))
    on_cpu = sample(logits.clone(), rows, SamplingTable(32))
    for module in (draw, pipeline):
        monkeypatch.setattr(module, "has_kernel", lambda logits: True)
    by_kernel = sample(logits.to(DEVICE), rows, SamplingTable(32))
    assert by_kernel.ids.tolist() == on_cpu.ids.tolist()
    np.testing.assert_allclose(by_kernel.logprobs, on_cpu.logprobs, rtol=1e-5, atol=1e-5)
    some = Rows.next_tokens(plain)
    alone = launch_plain(logits[: len(plain)].to(DEVICE), some, SamplingTable(32).gather(plain)).read()
    assert alone.ids.tolist() == by_kernel.ids[: len(plain)].tolist()


def test_a_row_is_drawn_alike_alone_and_in_a_crowd_and_broken_numbers_stay_in_theirs() -> None:
    rows = Rows.next_tokens(requests([0.0, 1.0, 0.7, 1.0]))
    logits = random_logits(4).to(DEVICE)
    logits[1, 1234], logits[2, 3] = float("nan"), float("inf")
    table = SamplingTable(4)
    crowd = launch_plain(logits, rows, table.gather(rows.requests)).read()
    assert crowd.finite.tolist() == [True, False, False, True]
    for row in (0, 3):
        one = Rows([rows.requests[row]], rows.positions[row : row + 1])
        alone = launch_plain(logits[row : row + 1], one, table.gather(one.requests)).read()
        assert alone.ids[0] == crowd.ids[row]


def test_draws_follow_the_cumulative_distribution_between_two_bounds() -> None:
    count = 24
    logits = random_logits(1).to(DEVICE).expand(count, -1)
    low, high = (torch.full((count,), value, device=DEVICE) for value in (-2.0, 5.0))
    uniforms = torch.linspace(0, 1, count, dtype=torch.float64)
    uniforms[-1] = 1 - 2.0**-52  # the largest that is drawn
    chosen = choose(logits, torch.full((count,), 1.5, device=DEVICE), uniforms.to(DEVICE), low, high)
    weights = (logits[0].double().cpu() / 1.5).exp()
    weights[(logits[0].cpu() < -2) | (logits[0].cpu() > 5)] = 0
    reached = weights.cumsum(0)
    expected = torch.searchsorted(reached, uniforms * reached[-1], right=True)
    assert chosen.ids.cpu().tolist() == expected.tolist()
    top = logits[0][logits[0] <= 5].max().item()
    torch.testing.assert_close(chosen.mass.cpu(), (reached[-1] / np.exp(top / 1.5)).expand(count), rtol=1e-6, atol=0)


def test_what_asks_for_more_is_not_plain() -> None:
    table = SamplingTable(4)
    for sampling, options in [
        (Sampling(top_k=5), LogprobOptions()),
        (Sampling(top_p=0.9), LogprobOptions()),
        (Sampling(repetition_penalty=1.1), LogprobOptions()),
        (Sampling(dynamic_temperature_range=0.5), LogprobOptions()),
        (Sampling(temperature=0.0, logit_bias=((3, 1.0),)), LogprobOptions()),
        (Sampling(), LogprobOptions(sampled=True)),
    ]:
        request = Request.make(9, [1], sampling, Stopping(5), logprobs=options)
        assert not is_plain(Rows.next_tokens([request]), table.gather([request]))
        table.free(request)
    greedy = Request.make(9, [1], Sampling(temperature=0.0, top_k=5, top_p=0.3), Stopping(5))
    assert is_plain(Rows.next_tokens([greedy]), table.gather([greedy]))

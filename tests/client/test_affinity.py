"""Which worker gets a prompt: equal beginnings together, few moves, bounded load, conversations that stick."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.client import affinity
from tandem.client.affinity import (
    CANDIDATES,
    FAILURE_HALF_LIFE,
    FREE_REQUESTS,
    HALF_LIFE,
    PAGE_TOKENS,
    PREFIX_TOKENS,
    Failures,
    LoadReport,
    Pages,
    PrefixMemory,
    candidates,
    estimated_loads,
    prefix_key,
)

WORKERS = [f"worker-{n}:50052" for n in range(5)]


def pick(key: str, workers: list[str], running: dict[str, int] | None = None, **options: object) -> str:
    loads = [(running or {}).get(worker, 0) for worker in workers]
    few = candidates(key, workers, loads, **options)  # type: ignore[arg-type]
    return workers[min(few, key=loads.__getitem__)]


IDS = st.integers(0, 2**32 - 1)


@given(st.lists(IDS, min_size=PREFIX_TOKENS, max_size=PREFIX_TOKENS), st.lists(IDS, max_size=5))
def test_prompts_that_begin_alike_have_one_key(beginning: list[int], rest: list[int]) -> None:
    assert prefix_key("", beginning + rest) == prefix_key("", beginning)


def test_salts_and_short_prompts_are_told_apart() -> None:
    keys = {prefix_key(salt, ids) for salt in ("", "a", "b") for ids in ([], [0], [0, 0], [1])}
    assert len(keys) == 12


def test_a_worker_that_leaves_moves_only_its_own_keys() -> None:
    keys = [str(number) for number in range(500)]
    before = {key: pick(key, WORKERS) for key in keys}
    after = {key: pick(key, WORKERS[:-1]) for key in keys}
    assert all(after[key] == before[key] for key in keys if before[key] != WORKERS[-1])
    assert all(count > 50 for count in Counter(before.values()).values()), "keys spread"


def test_the_order_in_which_workers_are_given_does_not_matter() -> None:
    assert all(pick(str(n), WORKERS) == pick(str(n), WORKERS[::-1]) for n in range(100))


@given(st.integers(0, 300))
def test_one_hot_key_cannot_overload_its_worker(requests: int) -> None:
    running: dict[str, int] = {}
    for _ in range(requests):
        worker = pick("hot", WORKERS, running)
        running[worker] = running.get(worker, 0) + 1
    assert max(running.values(), default=0) <= max(FREE_REQUESTS, 1.25 * (requests / len(WORKERS)) + 2)


def test_a_key_of_the_caller_s_own_keeps_to_its_worker() -> None:
    assert len({pick("key", WORKERS, dict.fromkeys(WORKERS, 3)), pick("key", WORKERS)}) == 1


def test_while_nothing_runs_anywhere_one_beginning_has_one_worker() -> None:
    assert len({pick("key", WORKERS, share=1.0) for _ in range(50)}) == 1


@given(st.integers(1, 40), st.floats(0, 1), st.integers(0, 30), st.randoms(use_true_random=False))
def test_those_that_are_asked_are_few_and_different(count: int, share: float, load: int, draw: random.Random) -> None:
    names = [str(number) for number in range(count)]
    few = candidates("key", names, [load] * count, share=share, draw=draw.random)
    assert len(set(few)) == len(few) and set(few) <= set(range(count))
    assert min(2, count) <= len(few) <= min(CANDIDATES, count)
    assert len(candidates("key", names, [load] * count)) == 1, "of the caller's own key"


@pytest.mark.parametrize("count", [2, 3, 20])
def test_a_beginning_that_all_have_in_common_spreads_over_all(count: int) -> None:
    draw = random.Random(count)
    workers = [str(number) for number in range(count)]
    running = Counter({workers[0]: 1})
    for _ in range(20 * count):
        running[pick("system", workers, running, share=1.0, draw=draw.random)] += 1
    assert max(running.values()) <= 1.25 * 20 + 2


def test_a_rare_beginning_keeps_to_a_few_workers_of_many() -> None:
    workers = [str(number) for number in range(100)]
    used = {pick("rare", workers, {"7": 1}, share=0.001) for _ in range(200)}
    assert len(used) == 2


def talk(*parts: int) -> Pages:
    """A prompt of whole pages."""
    return Pages.of("", [part for part in parts for _ in range(PAGE_TOKENS)])


def test_a_conversation_goes_on_where_it_was_and_a_common_beginning_does_not() -> None:
    memory = PrefixMemory()
    memory.remember(talk(1, 1, 10), "a")
    assert memory.worker_of(talk(1, 1, 10, 11, 12)) == "a", "its next turn"
    assert memory.worker_of(talk(1, 1, 10)) == "a", "the same again"
    assert memory.worker_of(talk(1, 1, 20)) is None, "only the system prompt is the same"
    memory.remember(talk(1, 1, 20), "b")
    assert memory.worker_of(talk(1, 1)) is None
    assert memory.worker_of(talk(1, 1, 10, 11)) == "a" and memory.worker_of(talk(1, 1, 20, 21)) == "b"
    memory.remember(talk(1, 1, 10, 11), "c")
    assert memory.worker_of(talk(1, 1, 10, 11, 12)) == "c", "where it was last"
    assert memory.worker_of(talk(9)) is None and memory.worker_of(talk()) is None
    assert memory.worker_of(Pages.of("salt", [1] * 5 * PAGE_TOKENS)) is None


def test_a_short_question_behind_a_common_beginning_is_no_conversation_and_its_answer_makes_it_one() -> None:
    memory = PrefixMemory()
    system, question, answer = [1] * 3 * PAGE_TOKENS, [5, 6, 7], [8] * PAGE_TOKENS
    memory.remember(Pages.of("", system + question), "a")
    assert memory.worker_of(Pages.of("", system + question + answer)) == "a"
    assert memory.worker_of(Pages.of("", [*system, 5, 9, 9])) is None
    memory.remember(Pages.of("", [*system, 5, 9, 9]), "b")
    assert memory.worker_of(Pages.of("", system + question)) is None, "known to be common now"


def test_a_conversation_leaves_a_worker_that_is_overloaded_or_gone() -> None:
    assert pick("key", WORKERS, {WORKERS[2]: 2}, sticks_to=WORKERS[2]) == WORKERS[2]
    assert pick("key", WORKERS, {WORKERS[2]: 40}, sticks_to=WORKERS[2]) != WORKERS[2]
    assert pick("key", WORKERS[:2], sticks_to=WORKERS[2]) in WORKERS[:2]


def test_the_memory_is_bounded_and_forgets_what_was_used_longest_ago(monkeypatch) -> None:
    monkeypatch.setattr(affinity, "MOST_REMEMBERED", 10)
    memory = PrefixMemory()
    for number in range(100):
        memory.remember(talk(number, number), "a")
        memory.remember(talk(7, 7), "b")
    assert len(memory) == 10
    assert memory.worker_of(talk(7, 7)) == "b" and memory.worker_of(talk(99, 99)) == "a"
    assert memory.worker_of(talk(50, 50)) is None


def test_what_was_told_fades_into_the_mean_and_the_mean_into_nothing() -> None:
    reports = [LoadReport(8, 100.0), LoadReport(0, 100.0), None]
    assert estimated_loads([1, 0, 0], reports, 100.0) == [9, 0, 4]
    later = estimated_loads([1, 0, 0], reports, 100.0 + 2 * HALF_LIFE)
    assert 1 < later[1] + 1 < later[0] - 1 < 8
    assert all(load < 0.1 for load in estimated_loads([0, 0, 0], reports, 100.0 + 20 * HALF_LIFE))
    assert estimated_loads([2, 1], [None, None], 5.0) == [2, 1]


def test_failures_weigh_and_fade() -> None:
    failures = Failures()
    assert failures.weigh(7.0, 50.0) == 7
    for _ in range(3):
        failures.add(100.0)
    assert failures.weigh(0, 100.0) == 4**3 - 1 and failures.weigh(1, 100.0) == 2 * 4**3 - 1
    assert failures.weigh(0, 100.0 + FAILURE_HALF_LIFE) == 4**1.5 - 1
    assert failures.weigh(7, 100.0 + 30 * FAILURE_HALF_LIFE) == pytest.approx(7)
    for _ in range(10_000):
        failures.add(200.0)
    assert failures.weigh(0, 200.0) == 4**3 - 1


def test_a_key_s_share_is_of_the_last_requests() -> None:
    memory = PrefixMemory()
    assert memory.share_of("a") == 1.0
    assert [memory.share_of("b") for _ in range(3)][-1] == 0.75
    for _ in range(affinity.RECENT_KEYS):
        memory.share_of("c")
    assert memory.share_of("a") == 1 / affinity.RECENT_KEYS and len(memory._counts) == 2


def test_a_conversation_that_stays_costs_no_ranking_of_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "score", lambda key, worker: pytest.fail("ranked"))
    assert pick("key", WORKERS, {WORKERS[2]: 2}, sticks_to=WORKERS[2], share=0.5) == WORKERS[2]

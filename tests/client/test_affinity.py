"""Which worker gets a prompt: equal beginnings together, few moves, bounded load."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tandem.client.affinity import FREE_REQUESTS, PREFIX_TOKENS, choose, prefix_key

WORKERS = [f"worker-{n}:50052" for n in range(5)]


def pick(key: str, workers: list[str], running: dict[str, int] | None = None) -> str:
    return choose(key, workers, lambda worker: worker, lambda worker: (running or {}).get(worker, 0))


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


def test_an_idle_pool_keeps_to_the_preferred_worker() -> None:
    assert len({pick("key", WORKERS, dict.fromkeys(WORKERS, 3)), pick("key", WORKERS)}) == 1

"""How well does the SDK's choice of a worker do in a fleet? A simulation with the real functions of `affinity.py`.

Conversations begin at random moments (Poisson), each with one of a few system prompts, whose popularity is Zipf's, and
the first takes a third of all. Each turn sends the whole conversation and adds an answer and a question. Clients are
many processes that know nothing of each other but what workers tell with each answer. A worker keeps the pages used
last; a request occupies it for the time of what it computes.

    python benchmarks/routing.py [--workers 3 50 300] [--requests-per-worker 400]

Reported for the SDK, the SDK as if it knew all loads, round robin, random choice, least loaded (which knows all loads),
and the choice by the first 64 tokens alone: prompt tokens found in caches, relative to one big worker with all the
memory; and the busiest worker's computing time relative to the mean.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import statistics
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.machine import add_output_flags, save
from tandem.client.affinity import LoadReport, Pages, PrefixMemory, choose, estimated_loads, prefix_key

PAGE = 64
CACHE_PAGES = 2_000  # of a worker: 128,000 tokens
SYSTEM_PROMPTS = 12
OUTPUT_TOKENS = 100
SECONDS_PER_PROMPT_TOKEN, SECONDS_PER_OUTPUT_TOKEN = 0.0005, 0.01
UTILIZATION = 8.0  # requests that run on a worker, on average, if nothing is cached


@dataclass
class Cache:
    """The pages that were used last."""

    capacity: int
    pages: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def take(self, names: list[int]) -> int:
        """Looks a prompt up and keeps it; returns how many of its pages were there, from the front."""
        found = 0
        for name in names:
            if name not in self.pages:
                break
            found += 1
        for name in reversed(names):  # the first was used last: chains are evicted from their ends
            self.pages[name] = None
            self.pages.move_to_end(name)
        while len(self.pages) > self.capacity:
            self.pages.popitem(last=False)
        return found


@dataclass(eq=False)
class Worker:
    name: str
    cache: Cache = field(default_factory=lambda: Cache(CACHE_PAGES))
    running: int = 0
    busy_seconds: float = 0.0
    requests: int = 0


@dataclass
class Client:
    """One process with the SDK: what it knows."""

    memory: PrefixMemory = field(default_factory=PrefixMemory)
    running: dict[str, int] = field(default_factory=dict)
    reports: dict[str, LoadReport] = field(default_factory=dict)


@dataclass
class Conversation:
    client: int
    tokens: list[int]
    turns: int


Policy = Callable[[Client, list[Worker], list[int], float], Worker]


def sdk(draw: random.Random, *, omniscient: bool = False) -> Policy:
    """The SDK's choice; `omniscient`: as if each client knew every worker's load at every moment."""

    def policy(client: Client, workers: list[Worker], tokens: list[int], now: float) -> Worker:
        pages = Pages.of("", tokens)

        own = [client.running.get(worker.name, 0) for worker in workers]
        loads = estimated_loads(own, [client.reports.get(worker.name) for worker in workers], now)
        if omniscient:
            loads = [float(worker.running) for worker in workers]
        sticks_to = client.memory.worker_of(pages)
        key = prefix_key("", tokens)
        share = client.memory.share_of(key)
        worker = choose(key, workers, lambda each: each.name, loads, sticks_to=sticks_to, share=share, draw=draw.random)
        client.memory.remember(pages, worker.name)
        return worker

    return policy


def first_tokens(client: Client, workers: list[Worker], tokens: list[int], now: float) -> Worker:
    key = prefix_key("", tokens)
    return choose(key, workers, lambda each: each.name, [client.running.get(each.name, 0) for each in workers])


def least_loaded(client: Client, workers: list[Worker], tokens: list[int], now: float) -> Worker:
    return min(workers, key=lambda worker: worker.running)


def round_robin() -> Policy:
    turns = itertools.count()
    return lambda client, workers, tokens, now: workers[next(turns) % len(workers)]


def at_random(draw: random.Random) -> Policy:
    return lambda client, workers, tokens, now: draw.choice(workers)


def simulate(policy: Policy, count: int, requests: int, seed: int) -> dict[str, float]:
    """Runs a fleet of `count` workers until so many requests have been sent."""
    draw = random.Random(seed)
    workers = [Worker(f"10.0.{number // 256}.{number % 256}:50052") for number in range(count)]
    big = Cache(count * CACHE_PAGES)
    clients = [Client() for _ in range(max(4, count // 2))]
    systems = [[draw.randrange(32_000) for _ in range(draw.randrange(200, 2_000))] for _ in range(SYSTEM_PROMPTS)]
    weights = [1 / (rank + 1) for rank in range(SYSTEM_PROMPTS)]
    mean_turns = 4
    seconds = 800 * SECONDS_PER_PROMPT_TOKEN + OUTPUT_TOKENS * SECONDS_PER_OUTPUT_TOKEN
    rate = UTILIZATION * count / seconds / mean_turns
    order = itertools.count()
    events: list[tuple[float, int, str, object]] = [(0.0, next(order), "begin", None)]
    sent = found = found_big = total = 0
    loads: list[tuple[float, list[int]]] = []
    while events and sent < requests:
        now, _, kind, what = heapq.heappop(events)
        if kind == "begin":
            system = draw.choices(systems, weights)[0]
            tokens = [*system, *(draw.randrange(32_000) for _ in range(draw.randrange(10, 200)))]
            talk = Conversation(draw.randrange(len(clients)), tokens, 1 + int(draw.expovariate(1 / (mean_turns - 1))))
            heapq.heappush(events, (now, next(order), "ask", talk))
            heapq.heappush(events, (now + draw.expovariate(rate), next(order), "begin", None))
        elif kind == "ask":
            assert isinstance(what, Conversation)
            client, tokens = clients[what.client], what.tokens
            worker = policy(client, workers, tokens, now)
            names = whole_pages(tokens)
            hits = worker.cache.take(names)
            sent, total, found = sent + 1, total + len(tokens), found + PAGE * hits
            found_big += PAGE * big.take(names)
            cost = (len(tokens) - PAGE * hits) * SECONDS_PER_PROMPT_TOKEN + OUTPUT_TOKENS * SECONDS_PER_OUTPUT_TOKEN
            worker.running += 1
            worker.requests += 1
            worker.busy_seconds += cost
            client.running[worker.name] = client.running.get(worker.name, 0) + 1
            client.reports[worker.name] = LoadReport(worker.running - client.running[worker.name], now)
            heapq.heappush(events, (now + cost, next(order), "end", (what, worker)))
            if sent % count == 0:
                loads.append((now, [each.running for each in workers]))
        else:
            assert isinstance(what, tuple)
            talk, worker = what
            worker.running -= 1
            clients[talk.client].running[worker.name] -= 1
            talk.turns -= 1
            if talk.turns > 0:
                talk.tokens = [
                    *talk.tokens,
                    *(draw.randrange(32_000) for _ in range(OUTPUT_TOKENS + draw.randrange(10, 80))),
                ]
                heapq.heappush(events, (now + draw.expovariate(1 / 10), next(order), "ask", talk))
    mean = statistics.fmean(worker.busy_seconds for worker in workers)
    return {
        "hits": found / total,
        "hits_of_one_big": found / found_big,
        "busiest": max(worker.busy_seconds for worker in workers) / mean,
        "seconds_per_request": count * mean / sent,
    }


def whole_pages(tokens: list[int]) -> list[int]:
    """Names of all whole pages, whatever their number."""
    name, names = 0, []
    for start in range(0, len(tokens) - PAGE + 1, PAGE):
        name = hash((name, tuple(tokens[start : start + PAGE])))
        names.append(name)
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[3, 50, 300])
    parser.add_argument("--requests-per-worker", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    add_output_flags(parser)
    options = parser.parse_args()
    results: dict[str, dict[str, dict[str, float]]] = {}
    for count in options.workers:
        policies: dict[str, Policy] = {
            "sdk": sdk(random.Random(options.seed)),
            "sdk, loads known": sdk(random.Random(options.seed), omniscient=True),
            "first 64 tokens": first_tokens,
            "least loaded": least_loaded,
            "round robin": round_robin(),
            "random": at_random(random.Random(options.seed)),
        }
        results[str(count)] = {}
        for name, policy in policies.items():
            found = simulate(policy, count, count * options.requests_per_worker, options.seed)
            results[str(count)][name] = found
            print(
                f"{count:4} workers  {name:16} hits {found['hits']:.3f}  of one big worker's "
                f"{found['hits_of_one_big']:.3f}  busiest/mean {found['busiest']:.2f}"
            )
    save("routing", options, results)


if __name__ == "__main__":
    main()

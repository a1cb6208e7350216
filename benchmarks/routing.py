"""How well does the SDK's choice of a worker do in a fleet? A simulation with the real functions of `affinity.py`.

Conversations begin at random moments (Poisson), each with one of a few system prompts, whose popularity is Zipf's, and
the first takes a third of all. Each turn sends the whole conversation and adds an answer and a question. Clients are
many processes that know nothing of each other but what workers tell with each answer, and when they are asked for their
loads. Requests, questions and answers take time on their way; what is told is as old as its way back was long, some
is late, and some is lost. A worker keeps the pages used last; a request occupies it for the time of what it computes.

    python benchmarks/routing.py [--workers 3 50 300] [--requests-per-worker 400] [--only sdk]

Reported for the SDK, the SDK if it asked nobody, the SDK as if it knew all loads, round robin, random choice, least
loaded (which knows all loads), and the choice by the first 64 tokens alone: prompt tokens found in caches, relative to
one big worker with all the memory; and the busiest worker's computing time relative to the mean.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import itertools
import math
import random
import statistics
import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.machine import add_output_flags, save
from tandem.client import affinity
from tandem.client.affinity import LoadReport, Pages, PrefixMemory, candidates, estimated_loads, prefix_key
from tandem.client.settings import ConnectionSettings

affinity.score = functools.lru_cache(None)(affinity.score)  # asked anew for each prompt, it would be most of the time

PAGE = 64
CACHE_PAGES = 2_000  # of a worker: 128,000 tokens
SYSTEM_PROMPTS = 12
OUTPUT_TOKENS = 100
SECONDS_PER_PROMPT_TOKEN, SECONDS_PER_OUTPUT_TOKEN = 0.0005, 0.01
TICKS = (1, 1.25, 2, 4, 8, 16)  # of the plot
LOST_PROBES = 0.005  # share of those that are never answered
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
    place: int
    name: str
    cache: Cache = field(default_factory=lambda: Cache(CACHE_PAGES))
    running: int = 0
    busy_seconds: float = 0.0
    requests: int = 0


@dataclass
class Client:
    """One process with the SDK: what it knows, of each worker by its place."""

    running: list[int]
    reports: list[LoadReport | None]
    memory: PrefixMemory = field(default_factory=PrefixMemory)


@dataclass
class Conversation:
    client: int
    tokens: array[int]
    turns: int


Choice = Generator[list[Worker], float, Worker]
"""Yields workers whose loads it asks for, and is resumed at the time when it waits no longer; returns its choice."""
Policy = Callable[[Client, list[Worker], Sequence[int], float], Choice]


def sdk(draw: random.Random, *, probes: bool = True, omniscient: bool = False) -> Policy:
    """The SDK's choice; `omniscient`: as if each client knew every worker's load at every moment."""

    def policy(client: Client, workers: list[Worker], tokens: Sequence[int], now: float) -> Choice:
        pages, key, names = Pages.of("", tokens), prefix_key("", tokens), [worker.name for worker in workers]

        def loads() -> list[float]:
            if omniscient:
                return [float(worker.running) for worker in workers]
            return estimated_loads(client.running, client.reports, now)

        sticks_to, share = client.memory.worker_of(pages), client.memory.share_of(key)
        known = loads()
        few = candidates(key, names, known, sticks_to=sticks_to, share=share, draw=draw.random)
        stale = [place for place in few if is_stale(client.reports[place], now)]
        if stale and probes and not omniscient and len(few) > 1:
            now = yield [workers[place] for place in stale]
            known = loads()
        worker = workers[min(few, key=known.__getitem__)]
        client.memory.remember(pages, worker.name)
        return worker

    return policy


def first_tokens(client: Client, workers: list[Worker], tokens: Sequence[int], now: float) -> Choice:
    return workers[candidates(prefix_key("", tokens), [worker.name for worker in workers], client.running)[0]]
    yield


def least_loaded(client: Client, workers: list[Worker], tokens: Sequence[int], now: float) -> Choice:
    return min(workers, key=lambda worker: worker.running)
    yield


def round_robin() -> Policy:
    turns = itertools.count()

    def policy(client: Client, workers: list[Worker], tokens: Sequence[int], now: float) -> Choice:
        return workers[next(turns) % len(workers)]
        yield

    return policy


def at_random(draw: random.Random) -> Policy:
    def policy(client: Client, workers: list[Worker], tokens: Sequence[int], now: float) -> Choice:
        return draw.choice(workers)
        yield

    return policy


def simulate(policy: Policy, count: int, requests: int, seed: int) -> dict[str, float]:
    """Runs a fleet of `count` workers until so many requests have been sent."""
    draw = random.Random(seed)
    workers = [Worker(place, f"10.0.{place // 256}.{place % 256}:50052") for place in range(count)]
    big = Cache(count * CACHE_PAGES)
    clients = [Client([0] * count, [None] * count) for _ in range(max(4, count // 2))]
    systems = [some_tokens(draw, draw.randrange(200, 2_000)) for _ in range(SYSTEM_PROMPTS)]
    weights = [1 / (rank + 1) for rank in range(SYSTEM_PROMPTS)]
    mean_turns = 4
    seconds = 800 * SECONDS_PER_PROMPT_TOKEN + OUTPUT_TOKENS * SECONDS_PER_OUTPUT_TOKEN
    rate = UTILIZATION * count / seconds / mean_turns
    order = itertools.count()
    events: list[tuple[float, int, str, Any]] = []
    sent = found = found_big = total = probes = late = 0
    waited, probe_seconds = 0.0, ConnectionSettings().probe_seconds

    def push(at: float, kind: str, what: object) -> None:
        heapq.heappush(events, (at, next(order), kind, what))

    push(0.0, "begin", None)
    while events and sent < requests:
        now, _, kind, what = heapq.heappop(events)
        if kind == "begin":
            tokens = draw.choices(systems, weights)[0] + some_tokens(draw, draw.randrange(10, 200))
            talk = Conversation(draw.randrange(len(clients)), tokens, 1 + int(draw.expovariate(1 / (mean_turns - 1))))
            push(now, "ask", talk)
            push(now + draw.expovariate(rate), "begin", None)
        elif kind == "ask":
            assert isinstance(what, Conversation)
            push(now, "choose", (what, policy(clients[what.client], workers, what.tokens, now), None))
        elif kind == "choose":
            talk, choice, since = what
            try:
                asked = next(choice) if since is None else choice.send(now)
            except StopIteration as chosen:
                waited += now - (now if since is None else since)
                worker, client = chosen.value, clients[talk.client]
                client.running[worker.place] += 1
                push(now + one_way(draw), "arrive", (talk, worker))
                continue
            until = now
            for worker in asked:
                probes += 1
                there = now + one_way(draw)
                back = math.inf if draw.random() < LOST_PROBES else there + one_way(draw)
                if back < math.inf:
                    push(there, "look", (talk.client, worker, back))
                until = max(until, back)
                late += back > now + probe_seconds
            push(min(until, now + probe_seconds), "choose", (talk, choice, now))
        elif kind == "look":
            number, worker, back = what
            push(back, "told", (number, worker, worker.running))
        elif kind == "told":
            number, worker, running = what
            client = clients[number]
            client.reports[worker.place] = LoadReport(max(0, running - client.running[worker.place]), now)
        elif kind == "arrive":
            talk, worker = what
            names = whole_pages(talk.tokens)
            hits = worker.cache.take(names)
            sent, total, found = sent + 1, total + len(talk.tokens), found + PAGE * hits
            found_big += PAGE * big.take(names)
            computed = len(talk.tokens) - PAGE * hits
            cost = computed * SECONDS_PER_PROMPT_TOKEN + OUTPUT_TOKENS * SECONDS_PER_OUTPUT_TOKEN
            worker.running += 1
            worker.requests += 1
            worker.busy_seconds += cost
            push(now + one_way(draw), "told", (talk.client, worker, worker.running))
            push(now + cost, "end", (talk, worker))
        else:
            talk, worker = what
            worker.running -= 1
            clients[talk.client].running[worker.place] -= 1
            talk.turns -= 1
            if talk.turns > 0:
                talk.tokens = talk.tokens + some_tokens(draw, OUTPUT_TOKENS + draw.randrange(10, 80))
                push(now + draw.expovariate(1 / 10), "ask", talk)
    mean = statistics.fmean(worker.busy_seconds for worker in workers)
    return {
        "hits": found / total,
        "hits_of_one_big": found / found_big,
        "busiest": max(worker.busy_seconds for worker in workers) / mean,
        "deviation": statistics.pstdev(worker.busy_seconds for worker in workers) / mean,
        "seconds_per_request": count * mean / sent,
        "probes_per_request": probes / sent,
        "late_probes": late / max(1, probes),
        "milliseconds_waited": 1000 * waited / sent,
    }


def one_way(draw: random.Random) -> float:
    """Seconds on the way to a worker or back, and until a processor has time for it: as gRPC in Python between busy
    processes takes, 1 ms there and back in the median and more than 8 ms once in a hundred."""
    return draw.lognormvariate(math.log(0.0005), 1.0)


def is_stale(report: LoadReport | None, now: float) -> bool:
    return report is None or report.at < now - affinity.FRESH_SECONDS


def some_tokens(draw: random.Random, count: int) -> array[int]:
    return array("I", draw.randbytes(4 * count))


def whole_pages(tokens: array[int]) -> list[int]:
    """Names of all whole pages, whatever their number."""
    name, names = 0, []
    for start in range(0, len(tokens) - PAGE + 1, PAGE):
        name = hash((name, tokens[start : start + PAGE].tobytes()))
        names.append(name)
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[3, 50, 300])
    parser.add_argument("--requests-per-worker", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", metavar="POLICY", help="of those reported, such as sdk; all if left out")
    parser.add_argument("--plot", type=Path, help="PNG file to draw the results to; needs matplotlib")
    add_output_flags(parser)
    options = parser.parse_args()
    results: dict[str, dict[str, dict[str, float]]] = {}
    for count in options.workers:
        policies: dict[str, Policy] = {
            "sdk": sdk(random.Random(options.seed)),
            "sdk, nobody asked": sdk(random.Random(options.seed), probes=False),
            "sdk, loads known": sdk(random.Random(options.seed), omniscient=True),
            "first 64 tokens": first_tokens,
            "least loaded": least_loaded,
            "round robin": round_robin(),
            "random": at_random(random.Random(options.seed)),
        }
        results[str(count)] = {}
        for name, policy in policies.items():
            if options.only and name not in options.only:
                continue
            found = simulate(policy, count, count * options.requests_per_worker, options.seed)
            results[str(count)][name] = found
            print(
                f"{count:4} workers  {name:17} hits {found['hits']:.3f}  of one big worker's "
                f"{found['hits_of_one_big']:.3f}  busiest/mean {found['busiest']:.2f}  "
                f"probes a request {found['probes_per_request']:.2f}",
                flush=True,
            )
    if options.plot:
        plot(results, options.plot)
    save("routing", options, results)


def plot(results: Mapping[str, Mapping[str, Mapping[str, float]]], path: Path) -> None:
    """Draws hits and balance of each policy, a field for each number of workers, with the goals as lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(results), 4), layout="constrained")
    for axis, (count, found) in zip(figure.subplots(1, len(results), squeeze=False).flat, results.items(), strict=True):
        for name, each in found.items():
            axis.plot(each["busiest"], each["hits_of_one_big"], "o", label=name)
        axis.axhline(0.95, color="grey", linestyle=":")
        axis.axvline(1.25, color="grey", linestyle=":")
        axis.set(title=f"{count} workers", xscale="log", xlabel="busiest worker over the mean", ylim=(0.7, 1.0))
        axis.minorticks_off()
        axis.set_xticks(TICKS, map(str, TICKS))
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("cached tokens, of one big worker's")
    figure.axes[-1].legend(fontsize="small")
    figure.savefig(path, dpi=100, format="png")


if __name__ == "__main__":
    main()

"""What cache-aware routing by events of cached pages gains: the gateway smg in front of two workers.

    pip install 'tandem-llm[gateway,bench]' smg          # smg may be in an environment of its own, on PATH
    python benchmarks/gateway.py [--conversations 48] [--rounds 2]

Conversations of several turns, 16 at a time, each turn with all that was said. The workers' caches hold each
conversation once, together, but not twice. Rounds alternate between the policies `round_robin` and `cache_aware`, which
follows the workers' events of cached pages. Reported: the share of prompt tokens found in caches, as the workers count
them, and the busier worker's share of the prompt tokens. Then 16 callers with one system prompt, through smg and
through the SDK.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import grpc

from benchmarks.machine import ROOT, add_output_flags, save
from benchmarks.serving import service
from tandem.client import AsyncClient
from tandem.client.bench.lengths import Lengths
from tandem.client.bench.load import Load
from tandem.client.bench.targets import Services, Target, openai_server
from tandem.client.bench.workload import MadeUp
from tandem.inference.v1 import admin_pb2, admin_pb2_grpc
from tests.integration.smg_process import running_smg

PAGE = 16
MODEL = str(ROOT / "models" / "demo")
TOKENS_PER_WORD = 2.6  # of the made-up words, to the demo model
# A worker that has the prefix is passed over sooner than by default (half as many requests again as the mean).
SPILL = ("--balance-abs-threshold", "1", "--balance-rel-threshold", "1.1")
POLICIES = ("round_robin", "cache_aware")


async def counts(workers: list[str]) -> list[tuple[int, int]]:
    """Prompt tokens that each worker has admitted, and those of them that were cached."""
    found = []
    for address in workers:
        async with grpc.aio.insecure_channel(address) as channel:
            load = await admin_pb2_grpc.WorkerAdminServiceStub(channel).GetLoad(admin_pb2.GetLoadRequest())
            found.append((load.prompt_tokens, load.cached_prompt_tokens))
    return found


async def measured(load: Load, talks: MadeUp, count: int, callers: int, workers: list[str]) -> dict[str, float]:
    """Runs a load; the share of cached prompt tokens and the busier worker's share of the prompt tokens."""
    before = await counts(workers)
    await load.run_closed(itertools.islice(talks, count), callers)
    errors = [record.error for record in load.records if record.error]
    assert not errors, errors[:3]
    grown = [(a - c, b - d) for (a, b), (c, d) in zip(await counts(workers), before, strict=True)]
    prompt = sum(each for each, _ in grown)
    hits, busier = sum(each for _, each in grown) / prompt, max(each for each, _ in grown) / prompt
    return {"hits": hits, "busier": busier, "prompt_tokens": prompt, "requests": len(load.records)}


def conversations(seed: int) -> MadeUp:
    """Six turns; in the end some 300 tokens."""
    one = Lengths.parse
    return MadeUp(one("30-40"), one("16"), one("6"), 0, 1, TOKENS_PER_WORD, seed)


def one_prefix(seed: int) -> MadeUp:
    """Single questions behind one system prompt."""
    one = Lengths.parse
    return MadeUp(one("20-40"), one("16"), one("1"), 1, 160, TOKENS_PER_WORD, seed)


async def through_smg(
    policy: str, talks: MadeUp, count: int, options: argparse.Namespace, *gateway: str
) -> dict[str, float]:
    """One run with fresh workers, whose caches are empty, and a fresh gateway with these flags."""
    async with AsyncExitStack() as stack:
        flags = ["--gateway", f"--model={MODEL}", "--model-name=demo", "--threads=1", f"--page-size={PAGE}"]
        flags += [f"--kv-cache-tokens={options.cache}", "--metrics-port=0"]
        workers = [await stack.enter_async_context(service("tandem.worker", *flags)) for _ in range(2)]
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        more = ("--block-size", str(PAGE), *gateway)
        client = await stack.enter_async_context(running_smg(folder, workers, "demo", *more, policy=policy))
        fixed = {"temperature": 0.0, "ignore_eos": True}
        opened = openai_server(str(client.base_url), "demo", "", 120, chat=False, fixed=fixed)
        target: Target = await stack.enter_async_context(opened)
        return await measured(Load(target), talks, count, options.callers, workers)


async def through_sdk(talks: MadeUp, count: int, options: argparse.Namespace) -> dict[str, float]:
    """The same by the SDK alone."""
    async with AsyncExitStack() as stack:
        flags = (f"--model={MODEL}", "--threads=1", f"--page-size={PAGE}", f"--kv-cache-tokens={options.cache}")
        workers = [await stack.enter_async_context(service("tandem.worker", *flags)) for _ in range(2)]
        tokenizer = await stack.enter_async_context(service("tandem.tokenizer", f"--tokenizer={MODEL}"))
        client = await stack.enter_async_context(AsyncClient(tokenizer, workers))
        target = Services(client, "sdk", chat=False, fixed={"temperature": 0.0, "ignore_eos": True})
        return await measured(Load(target), talks, count, options.callers, workers)


async def measure(options: argparse.Namespace) -> dict[str, object]:
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in POLICIES}
    for number in range(options.rounds):
        for name in POLICIES:
            found = await through_smg(name, conversations(number), options.conversations, options)
            rounds[name].append(found)
            print(f"{name:12} {found['hits']:.3f} of prompt tokens cached, busier {found['busier']:.2f}", flush=True)
    medians = {name: statistics.median(each["hits"] for each in found) for name, found in rounds.items()}
    gain = medians["cache_aware"] / medians["round_robin"]
    print(f"cache-aware finds {gain:.2f} x the prefixes of round robin")
    shared = {}
    for name, run in (
        ("smg", through_smg("cache_aware", one_prefix(0), 4 * options.conversations, options)),
        ("smg that spills", through_smg("cache_aware", one_prefix(0), 4 * options.conversations, options, *SPILL)),
        ("sdk", through_sdk(one_prefix(0), 4 * options.conversations, options)),
    ):
        shared[name] = await run
        print(f"one system prompt, {name}: busier {shared[name]['busier']:.2f}, hits {shared[name]['hits']:.3f}")
    return {"conversations": rounds, "median_hits": medians, "gain": gain, "one_system_prompt": shared}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=48)
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--cache", type=int, default=1792, help="tokens of each worker's KV cache")
    parser.add_argument("--rounds", type=int, default=2)
    add_output_flags(parser)
    options = parser.parse_args()
    save("gateway", options, asyncio.run(measure(options)))


if __name__ == "__main__":
    main()

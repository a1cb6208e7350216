"""`make chaos`: breaks both services in every way in turn while streams run, and compares their answers.

    python -m tests.chaos --rounds 100 --streams 32 --json chaos.json [--only WORDS]

Exit code 1 if an answer was lost, altered or doubled, or if anything hung.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tandem.client import AsyncClient, ConnectionSettings
from tests.chaos.faults import FAULTS
from tests.chaos.fleet import Fleet, running_fleet
from tests.chaos.load import Job, Load, Tally, answer

RECOVERY_SECONDS = 180.0  # a fault after which it takes longer is a hang
# A connection that is silent is found out in so many seconds; a shorter one than people use keeps rounds short.
KEEPALIVE_SECONDS = 2.0


@dataclass
class Round:
    """What one fault did."""

    fault: str
    seconds: float | None  # until all services worked and all streams went on; None: never
    tally: Tally


async def run(folder: Path, faults: list[str], streams: int, tokens: int, *, say: bool = True) -> list[Round]:
    """One round a fault, in order."""
    jobs = [Job(number, tokens) for number in range(16)]
    rounds: list[Round] = []
    async with running_fleet(folder) as fleet:
        connection = ConnectionSettings(
            keepalive_seconds=KEEPALIVE_SECONDS, keepalive_timeout_seconds=KEEPALIVE_SECONDS
        )
        tokenizer, *workers = (f"127.0.0.1:{member.proxy.port}" for member in fleet.members)
        async with AsyncClient(tokenizer, workers, connection=connection) as client:
            expected = [await answer(job, client) for job in jobs]
            load = Load(client, jobs, expected, streams)
            load.start()
            for number, name in enumerate(faults):
                rounds.append(await _round(fleet, load, name, number))
                if say:
                    print(f"{number + 1}/{len(faults)} {_line(rounds[-1])}", flush=True)
            load.tally = last = Tally()
            await load.end()
            rounds.append(Round("after the last fault", 0.0, last))
    return rounds


async def _round(fleet: Fleet, load: Load, name: str, number: int) -> Round:
    load.tally = tally = Tally()
    began = time.monotonic()
    undo = await FAULTS[name](fleet, number // len(FAULTS) + number)
    undo()
    healed = time.monotonic()
    seconds = None
    while time.monotonic() - began < RECOVERY_SECONDS:
        await asyncio.sleep(0.2)
        if seconds is None and await fleet.works() and load.progressed_since(healed):
            seconds = time.monotonic() - began
        if seconds is not None and load.answered_since(healed):
            break
    return Round(name, seconds, tally)


def _line(result: Round) -> str:
    tally = result.tally
    seconds = "never" if result.seconds is None else f"{result.seconds:.1f} s"
    reasons = "".join(f"\n      {count} x {reason}" for reason, count in tally.reasons.most_common())
    return (
        f"{result.fault}: back after {seconds}; silent for {tally.silence:.1f} s; {tally.right} right, "
        f"{tally.failovers} failovers, {tally.lost} lost, "
        f"{tally.altered} altered, {tally.hung} hung{reasons}"
    )


def clean(rounds: list[Round]) -> bool:
    """Nothing was lost, altered or doubled, and nothing hung."""
    return all(each.tally.clean and each.seconds is not None for each in rounds)


def table(rounds: list[Round]) -> str:
    """One line a fault. Silent: the longest time in which a stream got nothing."""
    by_fault = defaultdict(list)
    for each in rounds:
        by_fault[each.fault].append(each)
    lines = [
        "| fault | rounds | back after, median (longest), s | silent, s | right | failovers | lost | altered | hung |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for fault, several in by_fault.items():
        times = [each.seconds if each.seconds is not None else float("inf") for each in several]
        tallies = [each.tally for each in several]
        sums = [sum(getattr(tally, name) for tally in tallies) for name in _COLUMNS]
        back = f"{statistics.median(times):.1f} ({max(times):.1f})"
        silence = max(tally.silence for tally in tallies)
        lines.append(f"| {fault} | {len(several)} | {back} | {silence:.1f} | {' | '.join(map(str, sums))} |")
    return "\n".join(lines)


_COLUMNS = ("right", "failovers", "lost", "altered", "hung")


def _plain(result: Round) -> dict[str, object]:
    """A round for JSON; `asdict` would make a Counter of pairs out of the reasons."""
    return {**vars(result), "tally": {**vars(result.tally), "reasons": dict(result.tally.reasons)}}


def main() -> int:
    """Runs and tells."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="faults, in turn")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=100, help="of an answer, at most")
    parser.add_argument("--only", default="", help="only faults whose names have these words")
    parser.add_argument("--json", type=Path, default=None, help="file for the results")
    arguments = parser.parse_args()
    names = [name for name in FAULTS if arguments.only in name]
    faults = [names[number % len(names)] for number in range(arguments.rounds)]
    with tempfile.TemporaryDirectory(prefix="tandem-chaos-", dir="/tmp") as folder:
        rounds = asyncio.run(run(Path(folder), faults, arguments.streams, arguments.tokens))
    print(table(rounds))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([_plain(each) for each in rounds], indent=1) + "\n")
    return 0 if clean(rounds) else 1


if __name__ == "__main__":
    sys.exit(main())

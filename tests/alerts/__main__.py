"""The alerts of deploy/prometheus fire for their causes in a real Prometheus, and no others.

    python -m tests.alerts                     all causes; some twenty minutes
    python -m tests.alerts --only drained      those in whose words this is found
    python -m tests.alerts --prometheus PATH   a program that is not on PATH

A tokenizer service and two workers run under a little traffic, in which nothing may fire. Then one cause after the
other is provoked and undone: what must fire does, and nothing else but what the cause brings with it. Windows are
shortened (`rules.py`), thresholds are not. The exit code is 1 where an alert is not as it should be.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.alerts.causes import CAUSES, Cause
from tests.alerts.fleet import Fleet, crowd, running_fleet
from tests.alerts.prometheus import Prometheus, running_prometheus
from tests.alerts.rules import shortened

HEALTHY_SECONDS = shortened(6 * 3600) + 15  # longer than every window
FIRING_SECONDS = QUIET_SECONDS = 600.0  # bounds for a machine under load
_LOOK = 0.25  # seconds between two looks


async def _watch(prometheus: Prometheus, fleet: Fleet, seconds: float, done: Callable[[set[str]], bool]) -> set[str]:
    """Everything that fires until `done` says so of what has, or for so long."""
    seen: set[str] = set()
    until = time.monotonic() + seconds
    while time.monotonic() < until and not done(seen):
        prometheus.find(fleet.targets())
        seen |= await prometheus.firing()
        await asyncio.sleep(_LOOK)
    return seen


async def _provoke(cause: Cause, prometheus: Prometheus, fleet: Fleet) -> list[str]:
    """What is wrong with the alerts of a cause, and of the calm after it."""
    started = time.monotonic()
    async with cause.done(fleet):
        seen = await _watch(prometheus, fleet, FIRING_SECONDS, cause.fires.issubset)
    took = time.monotonic() - started
    prometheus.find(fleet.targets())
    until = time.monotonic() + QUIET_SECONDS
    while (firing := await prometheus.firing()) and time.monotonic() < until:
        seen |= firing
        await asyncio.sleep(_LOOK)
    wrong = [f"{name} did not fire" for name in sorted(cause.fires - seen)]
    wrong += [f"{name} fired" for name in sorted(seen - cause.fires - cause.also)]
    wrong += [f"{name} fires still" for name in sorted(firing)]
    words = ", ".join(sorted(cause.fires & seen)) or "nothing"
    with_it = ", ".join(sorted(seen & cause.also - cause.fires))
    print(f"{took:5.1f} s  {cause.what}: {words}" + (f" (with {with_it})" if with_it else ""), flush=True)
    return [f"{cause.what}: {each}" for each in wrong]


@contextmanager
def _services_apart(log: Path) -> Iterator[None]:
    """What services write goes there: they have much to say of what is done to them."""
    ours = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    except BaseException:
        os.write(ours, log.read_bytes()[-4000:])
        raise
    finally:
        os.dup2(ours, 2)
        os.close(ours)


async def check(program: str, causes: list[Cause], healthy_seconds: float) -> list[str]:
    """What is wrong."""
    with tempfile.TemporaryDirectory(prefix="tandem-alerts-") as name, _services_apart(Path(name, "services.log")):
        folder = Path(name)
        async with running_fleet(folder) as fleet, running_prometheus(program, folder, fleet.targets()) as prometheus:
            client = fleet.client()
            async with client, crowd(2, lambda number: client.generate(f"{number} ROMEO:", max_tokens=8), 1.0):
                seen = await _watch(prometheus, fleet, healthy_seconds, lambda seen: False)
                wrong = [f"healthy: {name} fired" for name in sorted(seen)] + await prometheus.broken()
                print(f"{healthy_seconds:5.1f} s  healthy: {', '.join(sorted(seen)) or 'nothing'}", flush=True)
                for cause in causes:
                    wrong += await _provoke(cause, prometheus, fleet)
            return wrong + await prometheus.broken()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", default="prometheus", help="its program")
    parser.add_argument("--only", default="", help="causes in whose words this expression is found")
    parser.add_argument("--healthy-seconds", type=float, default=HEALTHY_SECONDS, help="how long nothing is done")
    options = parser.parse_args()
    program = shutil.which(options.prometheus)
    if program is None:
        print("SKIPPED: there is no Prometheus here (Debian: apt-get install prometheus)", file=sys.stderr)
        return 3
    causes = [cause for cause in CAUSES if re.search(options.only, cause.what)]
    wrong = asyncio.run(check(program, causes, options.healthy_seconds))
    print("\n".join(["FAILED:", *wrong]) if wrong else "every alert fired for its cause, and no other")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

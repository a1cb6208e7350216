"""What does a start cost, from the command to the first token, and what does an engine's process compute until then?

    python benchmarks/start.py [--model models/demo] [--tree OTHER_CHECKOUT ...] [--rounds 5]

    run      wall-clock seconds of `tandem run` from its start to the first character of the answer
    engine   seconds of the processor that an engine's process has used when it is ready, and wall-clock seconds

This checkout and others (`--tree`) alternate, and medians are reported. The first round of each is left out: it
compiles what is not compiled yet, and finds out what is kept about the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.machine import HOMES, ROOT, add_output_flags, save

_ENGINE = """
import asyncio, json, sys, time
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.process.handle import ProcessEngine

async def main():
    engine = ProcessEngine(EngineConfig(model=sys.argv[1], threads=1), log_level="error")
    began = time.perf_counter()
    await engine.start(lambda message: None, lambda done, total: None)
    print(json.dumps({"wall": time.perf_counter() - began, "processor": engine.work().seconds}))
    await engine.stop()

asyncio.run(main())
"""


def of_engine(model: str, environment: dict[str, str]) -> dict[str, float]:
    """Starts an engine."""
    done = subprocess.run(
        [sys.executable, "-c", _ENGINE, model], env=environment, cwd="/", stdout=subprocess.PIPE, check=True
    )
    seconds: dict[str, float] = json.loads(done.stdout)
    return seconds


def of_run(model: str, environment: dict[str, str]) -> float:
    """Runs `tandem run` until it has said something."""
    command = [sys.executable, "-m", "tandem.client", "run", "ROMEO:", "--model", model, "--max-tokens=2"]
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, "--worker-flag=--threads=1"],
        env=environment,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1), "it ended before it said anything"
        seconds = time.perf_counter() - began
        process.stdout.read()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models" / "demo"))
    parser.add_argument("--tree", nargs="*", default=[], help="other checkouts to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    add_output_flags(parser)
    options = parser.parse_args()
    options.model = str(Path(options.model).resolve())
    trees = [str(ROOT), *options.tree]
    names = [f"other {number}" if number else "here" for number in range(len(trees))]
    rows: dict[str, dict[str, list[float]]] = {name: {"engine": [], "engine_wall": [], "run": []} for name in names}
    with tempfile.TemporaryDirectory() as compiled:
        for round_number in range(options.rounds + 1):
            for name, tree in zip(names, trees, strict=True):
                path = os.pathsep.join([tree, *(str(Path(tree) / home) for home in HOMES)])
                environment = os.environ | {"PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(Path(compiled, name))}
                environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled once
                engine = of_engine(options.model, environment)
                run = of_run(options.model, environment)
                if round_number:
                    rows[name]["engine"].append(engine["processor"])
                    rows[name]["engine_wall"].append(engine["wall"])
                    rows[name]["run"].append(run)
    medians = {name: {what: statistics.median(each) for what, each in row.items()} for name, row in rows.items()}
    for name, row in medians.items():
        print(
            f"{name:8} first token of tandem run {row['run']:.2f} s"
            f"   an engine {row['engine']:.2f} s of the processor, {row['engine_wall']:.2f} s"
        )
    options.tree = names[1:]  # not where they lie on this machine
    options.model = Path(options.model).name
    save("start", options, {"medians": medians, "all_rounds": rows, "load": os.getloadavg()})


if __name__ == "__main__":
    main()

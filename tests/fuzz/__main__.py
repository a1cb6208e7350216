"""`make fuzz`: requests, files, chat templates, and sizes and settings of models drawn by chance, for the real services
and loaders.

    python -m tests.fuzz --minutes 3
    python -m tests.fuzz --seed 7 --only services              the same calls once more
    python -m tests.fuzz --seed 7 --only files --first 41 --count 1
    python -m tests.fuzz --minutes 60 --only shapes

`services.py`, `files.py`, `shapes.py` and `settings.py` say what must hold. `tokenizer.py`, led by the branches that
its inputs reach, runs too where atheris is installed. The exit code is 1 where something was found.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

PARTS = ("services", "files", "shapes", "settings", "tokenizer")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=3.0, help="for all parts together")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: another one each time")
    parser.add_argument("--only", choices=PARTS, action="append", help="repeatable; default: all")
    parser.add_argument("--first", type=int, default=1, help="number of the first call, file and model")
    parser.add_argument("--count", type=int, default=None, help="of calls, files and models, at most")
    options = parser.parse_args()
    parts = options.only or [part for part in PARTS if part != "tokenizer" or importlib.util.find_spec("atheris")]
    weights = {"services": 2, "files": 1, "shapes": 1, "settings": 1, "tokenizer": 1}
    minutes = {part: options.minutes * weights[part] / sum(weights[each] for each in parts) for part in parts}
    print(f"seed {options.seed}", flush=True)
    # What the parts need is imported where they begin: processes that load files import this module as well.
    failed = []
    for part in parts:
        print(f"--- {part}: {minutes[part] * 60:.0f} s", flush=True)
        if not _clean(part, minutes[part], options):
            failed.append(part)
    print(f"FAILED: {', '.join(failed)}; seed {options.seed}" if failed else "nothing found")
    return 1 if failed else 0


def _clean(part: str, minutes: float, options: argparse.Namespace) -> bool:
    if part == "services":
        from tests.fuzz import services

        findings = asyncio.run(services.fuzz(minutes, options.seed, options.first, options.count))
        services.tell(findings)
        return not findings.counts
    if part == "files":
        from tests.fuzz import files

        return not files.fuzz(minutes, options.seed, options.first, options.count)
    if part == "shapes":
        from tests.fuzz import shapes

        return not shapes.fuzz(minutes, options.seed, options.first, options.count)
    if part == "settings":
        from tests.fuzz import settings

        return not settings.fuzz(minutes, options.seed, options.first, options.count)
    script = Path(__file__).with_name("tokenizer.py")
    command = [sys.executable, str(script), "--minutes", str(minutes), "--seed", str(options.seed)]
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())

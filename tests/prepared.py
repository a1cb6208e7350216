"""Programs that are forked from a process which has imported what they import: of a start that is most.

For tests that start many and do not ask how they start. What a program does on its own, from `python -m`, others show.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from types import ModuleType

SECONDS = 120  # a bound for a machine under load, not an expectation
STREAMS = (("in", os.O_RDONLY), ("out", os.O_WRONLY), ("err", os.O_WRONLY))

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "tandem.worker.__main__",
        "tandem.worker.engine.process.build",
        *(
            f"tandem.client.cli.{name}"
            for name in ("generate", "chat", "tokens", "show", "status", "top", "operate", "pull", "run")
        ),
    ]
)


def _run(module: str, arguments: Sequence[str], environment: Mapping[str, str], folder: str, streams: Path) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, (name, flags) in enumerate(STREAMS):
        os.dup2(os.open(streams / name, flags), number)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", errors="backslashreplace")
    sys.argv = [module, *arguments]
    raise SystemExit(import_module(module).main())


def main() -> None:
    """As `python -c`."""
    program = sys.modules["__main__"] = ModuleType("__main__")
    exec(sys.argv[1], vars(program))


def start(
    streams: Path, module: str, *arguments: str, environment: Mapping[str, str] | None = None, stdin: str = ""
) -> BaseProcess:
    """Begins `MODULE.main()` with these arguments, as the interpreter would run the module; its streams are files."""
    for name, _ in STREAMS:
        (streams / name).write_text(stdin if name == "in" else "", "utf-8")
    given = (module, arguments, dict(os.environ if environment is None else environment), str(Path.cwd()), streams)
    process = _context.Process(target=_run, args=given)
    process.start()
    return process


def run(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None, stdin: str = ""
) -> CompletedProcess[str]:
    """Runs `MODULE.main()` to its end."""
    with tempfile.TemporaryDirectory() as folder:
        streams = Path(folder)
        process = start(streams, module, *arguments, environment=environment, stdin=stdin)
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
            raise TimeoutExpired([module, *arguments], SECONDS)
        out, err = ((streams / name).read_text("utf-8") for name in ("out", "err"))
        return CompletedProcess([module, *arguments], process.exitcode, out, err)

"""`python -m tandem.worker --model PATH`: the inference worker.

`python -m tandem.worker --arguments-from-stdin` starts its engine and waits for the arguments: a line of standard input
with a JSON list. Without such a line it leaves.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Sequence
from contextlib import suppress

from tandem.common.early_stop import leave_at_signals
from tandem.worker.engine.process.child import EngineChild

_FROM_STDIN = "--arguments-from-stdin"
_TELLING = {"-h", "--help", "--version"}  # flags that start nothing


def main() -> int:
    """Runs the worker until it is told to stop; returns the exit code."""
    leave_at_signals()
    gc.disable()  # until all is imported, which stays: looking for what could go takes a tenth of that time
    arguments = sys.argv[1:]
    child = _first_engine(arguments)
    if arguments == [_FROM_STDIN]:
        line = _first_line()
        if not line:
            _end(child)
            return 0
        arguments = json.loads(line)
    # The engine's process imports what it needs meanwhile.
    from tandem.common.settings import load_settings
    from tandem.worker.settings import WorkerSettings

    try:
        settings = load_settings(WorkerSettings, arguments)
    except BaseException:  # also SystemExit
        _end(child)
        raise
    if settings.engine == "thread":
        _end(child)
        child = None
    if child is not None:
        child.begin(settings.engine_config(), log_format=settings.log_format, log_level=settings.log_level)
    # The engine loads meanwhile.
    from tandem.common.run_service import run_service
    from tandem.worker.front.server import WorkerService

    gc.freeze()
    gc.enable()
    return run_service(WorkerService(settings, child), settings)


def _first_line() -> bytes:
    """Reads a line of standard input and nothing behind it, whose end somebody else waits for."""
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        return stdin.readline()


def _first_engine(arguments: Sequence[str]) -> EngineChild | None:
    """Starts the process of the first engine; None where the front has to, or none is needed."""
    if _TELLING.isdisjoint(arguments):
        with suppress(OSError):  # which the front meets too, and tells
            return EngineChild()
    return None


def _end(child: EngineChild | None) -> None:
    """Ends a process that has no use."""
    if child is not None:
        child.kill()
        child.close()


if __name__ == "__main__":
    raise SystemExit(main())

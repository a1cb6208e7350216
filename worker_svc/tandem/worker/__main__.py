"""`python -m tandem.worker --model PATH`: the inference worker."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from contextlib import suppress

from tandem.worker.engine.process.child import EngineChild

_TELLING = {"-h", "--help", "--version"}  # flags that start nothing


def main() -> int:
    """Runs the worker until it is told to stop; returns the exit code."""
    gc.disable()  # until all is imported, which stays: looking for what could go takes a tenth of that time
    child = _first_engine(sys.argv[1:])
    # The engine's process imports what it needs meanwhile.
    from tandem.common.settings import load_settings
    from tandem.worker.settings import WorkerSettings

    try:
        settings = load_settings(WorkerSettings, sys.argv[1:])
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

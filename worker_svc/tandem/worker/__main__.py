"""`python -m tandem.worker --model PATH`: the inference worker."""

from __future__ import annotations

import sys
from contextlib import suppress

from tandem.common.settings import load_settings
from tandem.worker.engine.process.child import EngineChild
from tandem.worker.settings import WorkerSettings


def main() -> int:
    """Runs the worker until it is told to stop; returns the exit code."""
    settings = load_settings(WorkerSettings, sys.argv[1:])
    child = _first_engine(settings)
    # The engine loads meanwhile.
    from tandem.common.run_service import run_service
    from tandem.worker.front.server import WorkerService

    return run_service(WorkerService(settings, child), settings)


def _first_engine(settings: WorkerSettings) -> EngineChild | None:
    """Starts the process of the first engine; None where the front has to."""
    if settings.engine == "thread":
        return None
    with suppress(OSError):  # which the front meets too, and tells
        return EngineChild(settings.engine_config(), log_format=settings.log_format, log_level=settings.log_level)
    return None


if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m tandem.worker --model PATH`: the inference worker."""

from __future__ import annotations

import sys

from tandem.common.run_service import run_service
from tandem.common.settings import load_settings
from tandem.worker.front.server import WorkerService
from tandem.worker.settings import WorkerSettings


def main() -> int:
    """Runs the worker until it is told to stop; returns the exit code."""
    settings = load_settings(WorkerSettings, sys.argv[1:])
    return run_service(WorkerService(settings), settings)


if __name__ == "__main__":
    raise SystemExit(main())

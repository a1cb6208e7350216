"""`python -m worker_svc --model PATH`: the inference worker."""

from __future__ import annotations

import sys

from svc_common.lifecycle import run_service
from svc_common.settings import load_settings
from worker_svc.server import WorkerService
from worker_svc.settings import WorkerSettings


def main() -> int:
    """Runs the worker until it is told to stop; returns the exit code."""
    settings = load_settings(WorkerSettings, sys.argv[1:], prog="tandem-worker", env_prefix="TANDEM_WORKER_")
    return run_service(WorkerService(settings), settings)


if __name__ == "__main__":
    raise SystemExit(main())

"""The `tandem` command line."""

from __future__ import annotations

import sys

from tandem.client.cli import spawning


def main() -> None:
    """The entry point of the `tandem` command. Exit codes: 1 for errors, 2 for usage, 128 + n for signal n."""
    if sys.argv[1:2] == ["run"] and {"-h", "--help"}.isdisjoint(sys.argv):
        spawning.begin_early("tandem.worker")
    from tandem.client.cli.app import run_app  # imports a lot, while the worker's engine does

    try:
        run_app()
    finally:
        spawning.end_early()

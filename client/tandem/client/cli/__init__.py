"""The `tandem` command line."""

from __future__ import annotations

import os
import sys

from tandem.client.cli import spawning


def main() -> None:
    """The entry point of the `tandem` command. Exit codes: 1 for errors, 2 for usage, 128 + n for signal n."""
    _keep_standard_files()
    if sys.argv[1:2] == ["run"] and {"-h", "--help"}.isdisjoint(sys.argv):
        spawning.begin_early("tandem.worker")
    from tandem.client.cli.app import run_app  # imports a lot, while the worker's engine does

    try:
        run_app()
    finally:
        spawning.end_early()


def _keep_standard_files() -> None:
    """Puts /dev/null in the place of standard files that were closed: what is opened next would get their numbers, and
    with them what was meant for a terminal."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one

"""`tandem run` where nothing has been compiled yet: it says what takes so long, and leaves no compiler behind."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.client.test_cli_processes import ROOT, Command
from tests.client.test_cli_processes import command as command

pytest.importorskip("torch", reason="the worker needs torch")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_whoever_ends_a_first_start_ends_its_compilers(
    command: Callable[..., Command], tmp_path: Path, number: signal.Signals
) -> None:
    compiler, running = tmp_path / "compiler", tmp_path / "running"
    running.mkdir()
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in\n*/worker/*) touch {running}/$$; exec sleep 1000;;\n*) exec cc "$@";;\nesac\n'
    )
    compiler.chmod(0o755)
    run = command("run", "Hello", CC=str(compiler), XDG_CACHE_HOME=str(tmp_path), PYTHONPATH=str(ROOT))
    run.wait_for("the worker is compiling operations once")
    while not any(running.iterdir()):
        assert run.process.poll() is None, run.stderr
        time.sleep(0.01)
    run.look()
    assert {int(path.name) for path in running.iterdir()} & {process.pid for process in run.seen}

    run.process.send_signal(number)
    run.end()
    psutil.wait_procs(run.seen, timeout=60)
    assert not run.survivors()

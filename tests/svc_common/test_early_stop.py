"""SIGTERM and SIGINT end a server as asked while it still imports what it needs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Read by Python at the start of the process: importing `tandem.common.run_service` takes for ever.
SLOW = """
import pathlib, sys, time
class Slow:
    def find_spec(self, name, path, target=None):
        if name == "tandem.common.run_service" and "tandem.worker.engine.process.main" not in sys.orig_argv:
            pathlib.Path(__file__).with_name("importing").touch()
            time.sleep(1000)
sys.meta_path.insert(0, Slow())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize(
    "arguments",
    [
        ["tandem.tokenizer", "--tokenizer=a=b"],
        ["tandem.worker", "--model=models/demo"],
        ["tandem.http", "--tokenizer-address=localhost:1", "--worker-address=localhost:1"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_server_that_is_stopped_while_it_imports_ends_with_0(
    arguments: list[str], number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "importing").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0

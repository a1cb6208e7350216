"""Processes around an engine."""

from __future__ import annotations

import subprocess
import sys

# What orphans are given to, as the first process of a container is, with a child of its own that has ended, too.
PROGRAM = """
import ctypes, os, subprocess, sys
from tandem.worker.engine.process.processes import bury_orphans

PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
assert bury_orphans() == 0
guide = "import os; os.setsid(); print(os.getpid(), flush=True); os.read(0, 1)"
engine = f"import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', {guide!r}]); os.read(0, 1)"
read, write = os.pipe()
process = subprocess.Popen(
    [sys.executable, "-c", engine], stdin=read, stdout=subprocess.PIPE, start_new_session=True
)
orphan = int(process.stdout.readline())
process.kill()
process.wait()
assert bury_orphans() == 0  # it lives
own = subprocess.Popen([sys.executable, "-c", ""])
os.write(write, b"x")
os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
assert bury_orphans() == 1
assert own.wait() == 0
assert bury_orphans() == 0
print("buried")
"""


def test_what_a_dead_engine_left_is_buried_and_no_child_of_our_own() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.stdout == "buried\n", done.stderr

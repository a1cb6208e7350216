"""Begins the processes of services.

An engine imports torch for longer than everything else of a start takes. So `tandem run` begins its worker before it
has read its own flags, and before it has imported what reads them: that worker begins its engine, and waits for its
arguments, which it reads from its standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

# Settings of a service that our own start must decide; the environment may mean another instance.
_OURS = ("ADDRESS", "ADDRESS_FILE", "CONFIG", "EXIT_WHEN_STDIN_CLOSES", "HOST", "PORT", "METRICS_HOST", "METRICS_PORT")
_LEAVE_SECONDS = 5.0  # for one that was begun in vain

_waiting: dict[str, subprocess.Popen[bytes]] = {}  # by module


def begin_early(module: str) -> None:
    """Begins a service that waits for its arguments. Where that fails, `begin` will, and tell."""
    with contextlib.suppress(OSError):
        _waiting[module] = _begin(module, ["--arguments-from-stdin"])


def begin(module: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """Begins a service, or tells one that waits its arguments. Raises OSError: no processes or memory are left."""
    process = _waiting.pop(module, None)
    if process is None:
        return _begin(module, arguments)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended, which its log explains
        process.stdin.write(json.dumps(list(arguments)).encode() + b"\n")
        process.stdin.flush()
    return process


def end_early() -> None:
    """Ends what was begun in vain."""
    for process in _waiting.values():
        assert process.stdin is not None
        process.stdin.close()  # at which it leaves
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LEAVE_SECONDS)
        process.kill()
    _waiting.clear()


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns our environment without the settings that only we may set."""
    dropped = {f"TANDEM_{service}_{name}" for service in ("TOKENIZER", "WORKER", "HTTP") for name in _OURS}
    return {name: value for name, value in environment.items() if name not in dropped}


def _begin(module: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  (our own interpreter and modules)
        # -P: a folder that happens to be called tandem where we stand is not ours
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=child_environment(os.environ),
    )

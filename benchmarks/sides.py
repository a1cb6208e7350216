"""Programs that measure when they are told to: those beside each other take turns within seconds.

Memory of a shared machine is quick in one minute and slow in another, so what is compared must be near in time. A
program loads what it measures and then answers lines of its input, each the JSON of what to measure and with what.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ANSWER = "answer: "  # begins the lines that are answers; libraries write others


def serve(measures: Mapping[str, Callable[..., object]]) -> None:
    """Answers until the input ends."""
    for line in sys.stdin:
        name, *of = json.loads(line)
        print(f"{ANSWER}{json.dumps(measures[name](*of))}", flush=True)


# For interpreters that have none of this.
SERVE = f"""from __future__ import annotations
import json, sys
ANSWER = {ANSWER!r}
{inspect.getsource(serve)}
"""


class Ended(Exception):  # noqa: N818
    """A side's program has; with the last line of its errors."""


class Side:
    """A program that runs until it is closed."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (until `close`)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**environment, **os.environ},
        )

    def ask(self, *what: Any) -> Any:
        """What the program answers; raises `Ended` if it ends instead."""
        assert self._process.stdin and self._process.stdout
        try:
            print(json.dumps(what), file=self._process.stdin, flush=True)
            for line in self._process.stdout:
                if line.startswith(ANSWER):
                    return json.loads(line.removeprefix(ANSWER))
        except BrokenPipeError:
            pass
        code = self._process.wait()
        self._errors.seek(0)
        raise Ended((self._errors.read().strip() or f"exit code {code}").splitlines()[-1])

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def in_process(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any] | str:
    """The last line of a program as JSON, or why there is none."""
    done = subprocess.run(command, capture_output=True, text=True, env={**environment, **os.environ}, check=False)
    if done.returncode:
        return (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer

"""Guides that were written to hurt, by what they do to a compiler or to masks, and the processes that they run in."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import psutil

from tandem.inference.v1 import inference_pb2 as pb
from tests.integration.worker_process import Worker

RULES = 4_500
REFERENCES = 1_500


def chained_rules(count: int) -> str:
    """`count` rules of which each leads to the next."""
    return "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(count)) + f'r{count}: "a"\n'


def chained_terminals(count: int) -> str:
    """The same as terminals."""
    return "start: R0\n" + "".join(f"R{i}: R{i + 1}\n" for i in range(count)) + f'R{count}: "a"\n'


def chained_references(count: int) -> str:
    """A schema of `count` definitions, each of which refers to the next."""
    definitions: dict[str, Any] = {f"{i}": {"items": {"$ref": f"#/$defs/{i + 1}"}} for i in range(count)}
    schema = {"$ref": "#/$defs/0", "$defs": {**definitions, f"{count}": {"type": "string"}}}
    return json.dumps(schema, separators=(",", ":"))


# The depth of a schema within a grammar is not checked before: the compiler overflows its stack.
OVERFLOWING: dict[str, dict[str, Any]] = {
    "a schema in a grammar": {"grammar": f"start: %json {chained_references(REFERENCES)}"},
}

DEEP: dict[str, dict[str, Any]] = {
    "rules": {"grammar": chained_rules(RULES)},
    "terminals": {"grammar": chained_terminals(RULES)},
    "references": {"json_schema": chained_references(REFERENCES)},
}

# The first takes long where what it forces is drafted.
SLOW: dict[str, dict[str, Any]] = {
    "powers": {"regex": "(((a{1000}){1000}){1000}){1000}"},
    "counted": {"regex": "a{60000}"},
    "a long choice": {"choices": pb.ChoiceList(choices=["a" * 60_000])},
    "wildcards": {"regex": ".*" * 5_000},
}

ALL = {**DEEP, **SLOW, **OVERFLOWING}


def guides_processes(worker: Worker) -> list[psutil.Process]:
    """Those of one guide each."""
    assert worker.process is not None
    below = psutil.Process(worker.process.pid).children(recursive=True)
    servers, parents = set(), {}
    for process in below:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            parents[process] = process.ppid()
            if "tandem.worker.engine.guides.fork_server" in process.cmdline():
                servers.add(process.pid)
    return [process for process, parent in parents.items() if process.pid in servers and parent in servers]


def some_work(worker: Worker, percent: float = 5) -> bool:
    """Whether a guide's process takes so much of a processor."""
    for process in guides_processes(worker):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            if process.cpu_percent(0.05) > percent:
                return True
    return False

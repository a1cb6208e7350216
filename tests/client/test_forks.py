"""Clients of processes that fork, each shape in a program of its own (forking.py)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.client.fakes import ServersThread


def run(servers: ServersThread, shape: str) -> str:
    """What the program wrote to standard error."""
    command = [sys.executable, "-m", "tests.client.forking", servers.tokenizer_address, servers.worker_address, shape]
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    done = subprocess.run(command, timeout=120, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "shape", ["fork", "asynchronous", "pool", "ends as programs do", "grandchild", "kept", "not used yet"]
)
def test_a_child_makes_its_own_client_where_the_parent_has_closed_his(servers: ServersThread, shape: str) -> None:
    assert "skipping fork() handlers" not in run(servers, shape), "gRPC's words for a child that has no chance"


@pytest.mark.parametrize("shape", ["open", "open asynchronous"])
def test_a_child_is_told_at_once_where_a_client_was_open(servers: ServersThread, shape: str) -> None:
    assert "fork() handlers" not in run(servers, shape), "gRPC's words where it has half prepared itself"


CORE_ENDS_LATE = """
import ctypes, os, sys, threading

named, forking, ended = threading.Event(), threading.Event(), threading.Event()
in_time = None


def end():
    ctypes.CDLL(None).prctl(15, b"grpc_shutdown", 0, 0, 0)  # PR_SET_NAME: as the thread that ends gRPC's core is called
    named.set()
    forking.wait()
    ended.set()


def look():
    global in_time
    in_time = ended.is_set()


os.register_at_fork(before=look)  # the last of three: hooks run in reverse
from tandem.client import Client

tokenizer, worker = sys.argv[1:]
os.register_at_fork(before=forking.set)
with Client(tokenizer, worker, timeout=30) as client:
    client.generate("Hi", seed=0)
thread = threading.Thread(target=end)
thread.start()
named.wait()
if not (child := os.fork()):
    os._exit(0)
os.waitpid(child, 0)
thread.join()
assert in_time, "forked beside it"
"""


def test_a_fork_waits_for_the_thread_that_ends_grpcs_core(servers: ServersThread) -> None:
    """It holds the lock that a child's first channel takes."""
    command = [sys.executable, "-c", CORE_ENDS_LATE, servers.tokenizer_address, servers.worker_address]
    done = subprocess.run(command, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


GRPC_ENDS = """
import asyncio, gc, sys, threading
from tandem.client import AsyncClient, Client, forks

tokenizer, worker = sys.argv[1:]
with Client(tokenizer, [worker, "127.0.0.1:1"], timeout=30) as client:
    client.generate("Hi", seed=0)
    assert forks.grpc_runs()
gc.collect()  # as before a fork: a call that failed while it was cancelled may be held by its own traceback
assert not forks.grpc_runs(30), threading.enumerate()


async def main():
    async with AsyncClient(tokenizer, [worker, "127.0.0.1:1"], timeout=30) as client:
        await client.generate("Hi", seed=0)
        assert forks.grpc_runs()


asyncio.run(main())
gc.collect()  # as before a fork: a call that failed while it was cancelled may be held by its own traceback
assert not forks.grpc_runs(30), threading.enumerate()
"""


def test_closing_the_last_client_leaves_nothing_of_grpc_but_what_a_collection_ends(servers: ServersThread) -> None:
    command = [sys.executable, "-c", GRPC_ENDS, servers.tokenizer_address, servers.worker_address]
    done = subprocess.run(command, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""The terminal of `tandem serve`, `run` and `chat` goes away: nothing of them stays behind."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.client.byte_vocabulary import TEXT

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PATIENCE_SECONDS = 60


class Terminal:
    """A pseudo-terminal with a shell, or a command, that leads its session; what it shows, and every process in it."""

    def __init__(self, command: list[str], **environment: str) -> None:
        self.screen, inside = pty.openpty()
        self.shown = ""

        paths = os.pathsep.join([str(HERE / "fake_services"), str(ROOT)])
        self.leader = subprocess.Popen(
            command,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "PYTHONPATH": paths, "TERM": "dumb", "COLUMNS": "200", **environment},
            cwd=ROOT,
        )
        os.close(inside)
        self.processes: list[psutil.Process] = [psutil.Process(self.leader.pid)]

    def wait_for(self, words: str) -> None:
        while words not in self.shown:
            try:
                self.shown += os.read(self.screen, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"{words!r} not in {self.shown!r}") from None
        self.processes += self.processes[0].children(recursive=True)

    def close(self) -> None:
        """As when its window is closed."""
        os.close(self.screen)
        self.screen = -1

    def survivors(self) -> list[str]:
        """Those that do not end, after a generous time."""
        end = time.monotonic() + PATIENCE_SECONDS
        alive = self.processes
        while alive and time.monotonic() < end:
            self.leader.poll()
            _, alive = psutil.wait_procs(alive, timeout=0.1)
            alive = [process for process in alive if process.is_running() and process.status() != "zombie"]
        return [" ".join(process.cmdline()) for process in alive]

    def kill(self) -> None:
        for process in self.processes:
            if process.is_running():
                process.kill()
        self.leader.wait(PATIENCE_SECONDS)
        if self.screen >= 0:
            self.close()


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def make(*command: str, **environment: str) -> Terminal:
        made.append(Terminal(list(command), **environment))
        return made[-1]

    yield make
    for each in made:
        each.kill()


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(tmp_path)


TANDEM = (sys.executable, "-m", "tandem.client")
FREE_PORTS = ("--tokenizer-port", "0", "--worker-port", "0")


def serve(model: str) -> list[str]:
    return [*TANDEM, "serve", "--model", model, *FREE_PORTS]


def is_free(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, int(port)))
        except OSError:
            return False
    return True


def addresses(shown: str) -> list[str]:
    return [line.strip().partition("=")[2] for line in shown.splitlines() if line.startswith("TANDEM_")]


def test_a_closed_terminal_ends_serve_and_frees_its_ports(terminal: Callable[..., Terminal], model: str) -> None:
    window = terminal(*serve(model))
    window.wait_for("ready")
    assert len(window.processes) == 3
    assert len(addresses(window.shown)) == 2
    window.close()
    assert window.survivors() == []
    assert all(map(is_free, addresses(window.shown)))


def test_a_closed_terminal_ends_serve_under_a_shell(terminal: Callable[..., Terminal], model: str) -> None:
    window = terminal("/bin/sh", "-c", " ".join(serve(model)) + "; true")
    window.wait_for("ready")
    assert len(window.processes) == 4
    window.close()
    assert window.survivors() == []


def test_the_end_of_its_session_ends_serve(terminal: Callable[..., Terminal], model: str) -> None:
    """The shell is killed, so the kernel hangs the terminal up."""
    window = terminal("/bin/sh", "-c", " ".join(serve(model)) + "; true")
    window.wait_for("ready")
    window.leader.kill()
    assert window.survivors() == []


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (("run", "Hello", "--verbose"), {"FAKE_PAUSE": "9"}, TEXT[:9]),
        (("run", "Hello"), {"FAKE_PAUSE": "9"}, TEXT[:9]),
        (("run", "Hello", "--verbose"), {"FAKE_WORKER": "slow"}, "fake worker starts"),
        (("chat", "Hello", "--verbose"), {"FAKE_PAUSE": "9"}, TEXT[:9]),
        (("chat",), {}, "> "),
    ],
)
def test_a_closed_terminal_ends_what_was_started_for_an_answer(
    terminal: Callable[..., Terminal], model: str, arguments: tuple[str, ...], environment: dict[str, str], words: str
) -> None:
    window = terminal(*TANDEM, arguments[0], "--model", model, *arguments[1:], **environment)
    window.wait_for(words)
    assert len(window.processes) == 3
    window.close()
    assert window.survivors() == []


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_serve_ends_when_nobody_reads_what_it_says(model: str, number: signal.Signals) -> None:
    """Standard output and error are pipes whose reader has left."""
    paths = os.pathsep.join([str(HERE / "fake_services"), str(ROOT)])
    process = subprocess.Popen(
        serve(model),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        cwd=ROOT,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert any("ready" in line for line in process.stdout)
    children = psutil.Process(process.pid).children(recursive=True)
    process.stdout.close()
    process.stderr.close()
    process.send_signal(number)
    assert process.wait(PATIENCE_SECONDS) == 128 + number
    assert len(children) == 2
    assert not [child for child in children if child.is_running()]


def test_nohup_keeps_serve(terminal: Callable[..., Terminal], model: str) -> None:
    window = terminal("/bin/sh", "-c", "trap '' HUP; exec " + " ".join(serve(model)))
    window.wait_for("ready")
    window.leader.send_signal(signal.SIGHUP)
    window.leader.send_signal(signal.SIGTERM)
    window.wait_for("stopping")
    assert window.leader.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM, "the first signal was ignored"
    assert window.survivors() == []

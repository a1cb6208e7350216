"""`tandem run` and `tandem serve`: two child processes that end whenever, and however, their parent does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tandem.client import Client
from tests.client.byte_vocabulary import TEXT

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


class Command:
    """`tandem ...` with the fake services, its output as it comes, and every process that it started."""

    def __init__(self, arguments: list[str], **environment: str) -> None:
        paths = [str(HERE / "fake_services"), str(ROOT)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tandem.client", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200", **environment},
            cwd=ROOT,
        )
        self.seen: list[psutil.Process] = []
        self._condition = threading.Condition()
        self._texts = {"stdout": "", "stderr": ""}
        self._threads = [threading.Thread(target=self._read, args=(name,), daemon=True) for name in self._texts]
        for thread in self._threads:
            thread.start()

    @property
    def stdout(self) -> str:
        return self._texts["stdout"]

    @property
    def stderr(self) -> str:
        return self._texts["stderr"]

    def wait_for(self, words: str, stream: str = "stderr") -> None:
        """Returns once the words were written; remembers the children that exist by then."""
        with self._condition:
            found = self._condition.wait_for(lambda: words in self._texts[stream] or not self._alive(), 60)
        assert found, f"{words!r} not in {self._texts}"
        assert words in self._texts[stream], self._texts
        self.look()

    def look(self) -> None:
        self.seen += [child for child in self._children() if child not in self.seen]

    def end(self) -> int:
        """The exit code. Everything that was ever started must be gone by then."""
        code = self.process.wait(60)
        for thread in self._threads:
            thread.join(60)
        return code

    def survivors(self, patience: float = 0.0) -> list[psutil.Process]:
        _, alive = psutil.wait_procs(self.seen, timeout=patience)
        return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]

    def _children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _read(self, name: str) -> None:
        stream = getattr(self.process, name)
        while data := os.read(stream.fileno(), 65536):
            with self._condition:
                self._texts[name] += data.decode()
                self._condition.notify_all()
        with self._condition:
            self._condition.notify_all()


@pytest.fixture
def command() -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def start(*arguments: str, **environment: str) -> Command:
        started.append(Command(list(arguments), **environment))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        for process in each.seen:
            if process.is_running():
                process.kill()
        each.end()


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "a model, with spaces"
    folder.mkdir()
    return str(folder)


def test_run_streams_the_completion_and_leaves_nothing(command: Callable[..., Command], model: str) -> None:
    run = command("run", "Hello", "--model", model, "--verbose")
    run.wait_for("fake worker serves")
    assert run.end() == 0
    assert run.stdout == TEXT
    assert run.stderr.index("fake worker stops") < run.stderr.index("fake tokenizer stops")
    for words in ("prompt  6 tokens", "output  44 tokens", "first token  ", "tokens/s", "finish reason  eos"):
        assert words in run.stderr
    assert len(run.seen) == 2
    assert not run.survivors()
    assert '"tokenizer": "a-model-with-spaces=' in run.stderr


@pytest.mark.parametrize("arguments", [["--unknown"], ["--model", "nowhere"], ["Hello", "--top-k", "many"]])
def test_the_worker_that_run_begins_before_all_else_goes_where_it_is_not_needed(
    command: Callable[..., Command], arguments: list[str]
) -> None:
    run = command("run", *arguments)
    while not run.seen and run.process.poll() is None:
        run.look()
    assert [process.is_running() for process in run.seen] == [True]
    assert run.end() in (1, 2)
    assert not run.survivors()


def test_chat_starts_what_it_needs_and_leaves_nothing(command: Callable[..., Command], model: str) -> None:
    chat = command("chat", "Hello", "--model", model, "--verbose", "--stats")
    chat.wait_for("fake worker serves")
    assert chat.end() == 0
    assert chat.stdout == TEXT
    assert "finish reason  eos" in chat.stderr
    assert not chat.survivors()
    shown = command("chat", "Hello", "--model", model, "--verbose", "--show-prompt")
    shown.wait_for("fake tokenizer serves")
    assert shown.end() == 0
    assert "'H'" in shown.stdout
    assert "fake worker" not in shown.stderr
    assert not shown.survivors()


MOMENTS = {
    "the tokenizer starts": ({"FAKE_TOKENIZER": "slow"}, "fake tokenizer starts", "stderr"),
    "the worker starts": ({"FAKE_WORKER": "slow"}, "fake worker starts", "stderr"),
    "text streams": ({"FAKE_PAUSE": "9"}, TEXT[:9], "stdout"),
    "the services stop": ({"FAKE_WORKER": "stubborn"}, TEXT, "stdout"),
}


def own_lines(stderr: str) -> str:
    """What the command says itself, without what it passes on from the services."""
    return "\n".join(line for line in stderr.splitlines() if " | " not in line)


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        *((moment, signal.SIGINT) for moment in MOMENTS),
        ("text streams", signal.SIGTERM),
        ("text streams", signal.SIGHUP),
    ],
)
def test_a_signal_at_any_moment_leaves_no_process(
    command: Callable[..., Command], model: str, moment: str, number: signal.Signals
) -> None:
    environment, words, stream = MOMENTS[moment]
    run = command("run", "Hello", "--model", model, "--verbose", **environment)
    run.wait_for(words, stream)
    run.process.send_signal(number)
    assert run.end() == 128 + number
    assert run.seen
    assert not run.survivors()
    assert "Traceback" not in own_lines(run.stderr)


def test_an_interrupt_before_anything_has_started_ends_it(command: Callable[..., Command], model: str) -> None:
    run = command("run", "Hello", "--model", model, "--verbose", FAKE_TOKENIZER="slow")
    run.process.send_signal(signal.SIGINT)
    code = run.end()
    if code != 130:  # Python itself was still starting
        assert code == -signal.SIGINT or run.stderr.startswith(("Fatal Python error: init_", "Could not import runpy"))
    assert not run.survivors()


@pytest.mark.parametrize("moment", ["the tokenizer starts", "the worker starts", "text streams"])
def test_the_death_of_the_parent_ends_the_services(command: Callable[..., Command], model: str, moment: str) -> None:
    environment, words, stream = MOMENTS[moment]
    run = command("run", "Hello", "--model", model, "--verbose", **environment)
    run.wait_for(words, stream)
    run.process.kill()
    run.process.wait(60)
    assert run.seen
    assert not run.survivors(patience=60)


def test_a_service_that_does_not_stop_is_killed_with_its_children(command: Callable[..., Command], model: str) -> None:
    run = command("run", "Hello", "--model", model, "--verbose", FAKE_WORKER="stubborn child", FAKE_PAUSE="3")
    run.wait_for(TEXT[:3], "stdout")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    assert len(run.seen) == 3
    assert not run.survivors(patience=60)


def test_a_second_signal_does_not_wait(command: Callable[..., Command], model: str) -> None:
    ports = ["--tokenizer-port", "0", "--worker-port", "0"]
    serve = command("serve", "--model", model, *ports, "--drain", "3600", FAKE_WORKER="stubborn")
    serve.wait_for("ready\n", "stdout")
    serve.process.send_signal(signal.SIGINT)
    serve.wait_for("once more to kill")
    serve.process.send_signal(signal.SIGINT)
    assert serve.end() == 130
    assert not serve.survivors()


@pytest.mark.parametrize("service", ["tokenizer", "worker"])
def test_a_service_that_cannot_start_says_why_in_one_line(
    command: Callable[..., Command], model: str, service: str
) -> None:
    run = command("run", "Hello", "--model", model, **{f"FAKE_{service.upper()}": "fail"})
    assert run.end() == 1
    assert run.stdout == ""
    assert f"error: the {service} did not start: the checkpoint is upside down\n" in run.stderr
    assert not run.survivors()


@pytest.mark.parametrize("service", ["tokenizer", "worker"])
def test_a_service_that_dies_ends_the_run(command: Callable[..., Command], model: str, service: str) -> None:
    run = command("run", "Hello", "--model", model, "--verbose", FAKE_PAUSE="3")
    run.wait_for(TEXT[:3], "stdout")
    victim = next(process for process in run.seen if f"tandem.{service}" in process.cmdline())
    victim.kill()
    assert run.end() == 1
    assert f"error: the {service} has ended: " in run.stderr
    assert not run.survivors()


def test_serve_tells_its_addresses_and_serves_until_interrupted(command: Callable[..., Command], model: str) -> None:
    serve = command("serve", "--model", model, "--tokenizer-port", "0", "--worker-port", "0")
    serve.wait_for("ready\n", "stdout")
    addresses = dict(line.split("=") for line in serve.stdout.splitlines() if "=" in line)
    with Client(addresses["TANDEM_TOKENIZER_ADDRESS"], addresses["TANDEM_WORKER_ADDRESS"], timeout=30) as client:
        assert client.generate("Hi", seed=0).text == TEXT
    serve.process.send_signal(signal.SIGINT)
    assert serve.end() == 130
    assert not serve.survivors()
    assert "tokenizer | fake tokenizer serves" in serve.stderr
    assert "worker | fake worker serves" in serve.stderr


@pytest.mark.parametrize("service", ["tokenizer", "worker"])
def test_serve_stops_the_other_when_one_dies(command: Callable[..., Command], model: str, service: str) -> None:
    serve = command("serve", "--model", model, "--tokenizer-port", "0", "--worker-port", "0")
    serve.wait_for("ready\n", "stdout")
    next(process for process in serve.seen if f"tandem.{service}" in process.cmdline()).kill()
    assert serve.end() == 1
    assert f"error: the {service} has ended" in serve.stderr
    assert not serve.survivors()


def test_flags_and_environment_reach_the_services(command: Callable[..., Command], model: str) -> None:
    run = command(
        "run",
        "Hello",
        "--model",
        model,
        "--verbose",
        "--worker-flag=--threads=1",
        "--tokenizer-flag=--threads=2",
        TANDEM_WORKER_PORT="1",
        TANDEM_WORKER_ADDRESS_FILE="/nowhere/at/all",
    )
    assert run.end() == 0
    tokenizer, worker = sorted(line.strip() for line in run.stderr.splitlines() if " starts {" in line)
    assert '"threads": "2"' in tokenizer
    assert '"threads": "1"' in worker
    assert '"tokenizer-address-file": "' in worker
    assert '"port": "0"' in worker


def test_a_reader_that_never_reads_cannot_keep_an_interrupt_from_being_heard(
    command: Callable[..., Command], model: str, tmp_path: Path
) -> None:
    """Standard output is a pipe that is full from the first byte on."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    paths = os.pathsep.join([str(HERE / "fake_services"), str(ROOT)])
    process = subprocess.Popen(
        [sys.executable, "-m", "tandem.client", "run", "Hello", "--model", model, "--verbose"],
        stdout=writer,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths},
        cwd=ROOT,
        text=True,
    )
    os.close(writer)
    assert process.stderr is not None
    for line in process.stderr:
        if "fake worker serves" in line:
            break
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    process.stderr.read()
    assert process.wait(60) == 130
    os.close(reader)
    process.stderr.close()
    assert len(children) == 2
    assert not [child for child in children if child.is_running()]


def test_missing_folders_are_named(command: Callable[..., Command], tmp_path: Path) -> None:
    run = command("run", "Hello", "--model", str(tmp_path / "nothing"))
    assert run.end() == 1
    assert "no such folder" in run.stderr
    run = command("run", "Hello", "--model", str(tmp_path), "--tokenizer", str(tmp_path / "nothing"))
    assert run.end() == 1
    assert "no such file" in run.stderr

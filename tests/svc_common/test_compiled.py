"""A compiled library that is damaged, or that somebody else could have written, is never loaded, but made again."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import logging
import os
import resource
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.common import compiled
from tandem.common.machine import processor_fact

pytestmark = pytest.mark.skipif(not any(map(shutil.which, compiled._COMPILERS)), reason="no C compiler")

# Libraries are loaded by processes of their own: a damaged one would end this one.
PROGRAM = """
import logging, sys
from pathlib import Path
from tandem.common import compiled
from tandem.common.machine import processor_fact
logging.basicConfig(format="%(message)s", stream=sys.stderr)
compiled._COMPILE_SECONDS = float(sys.argv[2])
sources = compiled.CSources(Path(sys.argv[1]), "answer", ("answer.c",), {"answer": ([], compiled.ctypes.c_int)})
if sys.argv[3:] == ["beside"]:
    print(sources.compile_into(sources.folder, portable=True))
else:
    library = sources.load(logging.getLogger("test"), "nothing is answered")
    print(library.tandem_answer() if library else None)
"""


class Machine:
    """A folder with a C source, a cache, and processes that load the library."""

    def __init__(self, root: Path, repository: Path) -> None:
        self.sources, self.home, self.tools, self.temporary = (root / name for name in ("c", "home", "tools", "tmp"))
        for folder in (self.sources, self.home, self.tools, self.temporary):
            folder.mkdir(mode=0o755)
        self.cache = self.home / "tandem"
        self.log = ""
        self._repository = repository
        self.environment = {key: value for key, value in os.environ.items() if key != "CC"}
        self.environment |= {"XDG_CACHE_HOME": str(self.home), "TMPDIR": str(self.temporary)}
        self.write(42)

    def write(self, answer: int) -> None:
        (self.sources / "answer.c").write_text(f"int tandem_answer(void) {{ return {answer}; }}\n")

    def start(
        self, *more: str, seconds: float = 60, prepare: Callable[[], None] | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(self.sources), str(seconds), *more],
            cwd=self._repository,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=prepare,
        )

    def answer(self, seconds: float = 60, prepare: Callable[[], None] | None = None) -> str:
        """What the library answers; "None" where there is none."""
        process = self.start(seconds=seconds, prepare=prepare)
        out, self.log = process.communicate(timeout=120)
        assert process.returncode == 0, (process.returncode, self.log)
        return out.strip()

    def compile_beside(self) -> Path:
        out, errors = self.start("beside").communicate(timeout=120)
        assert out, errors
        return Path(out.strip())

    def kept(self) -> list[Path]:
        return sorted(self.cache.glob("*.so"))

    def compiler(self, script: str) -> Path:
        """A program to be named by CC; it counts its runs."""
        program = self.tools / "compiler"
        program.write_text(f"#!/bin/sh\necho run >> {self.tools}/runs\n{script}\n")
        program.chmod(0o755)
        return program

    @property
    def runs(self) -> int:
        file = self.tools / "runs"
        return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def machine(tmp_path: Path, repository: Path) -> Machine:
    return Machine(tmp_path, repository)


@pytest.fixture
def counting(machine: Machine) -> Machine:
    """One whose compiler counts its runs."""
    machine.environment["CC"] = str(machine.compiler('exec cc "$@"'))
    return machine


def test_a_library_is_made_once_and_again_when_its_source_changes(counting: Machine) -> None:
    assert [counting.answer(), counting.answer()] == ["42", "42"]
    (library,) = counting.kept()
    assert (counting.runs, counting.log) == (1, "")
    assert stat.S_IMODE(counting.cache.stat().st_mode) == 0o700
    assert os.uname().machine in library.name
    counting.write(43)
    assert counting.answer() == "43"
    assert counting.runs == 2
    assert [path.name for path in counting.cache.iterdir() if path.suffix != ".so"] == []


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 3)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("beside", [False, True], ids=["in the cache", "beside the sources"])
@pytest.mark.parametrize("damage", [truncated, emptied, flipped])
def test_a_damaged_library_is_not_loaded_but_made_again(
    damage: Callable[[Path], None], beside: bool, counting: Machine
) -> None:
    if beside:
        library = counting.compile_beside()
        assert counting.answer() == "42"
    else:
        assert counting.answer() == "42"
        (library,) = counting.kept()
    assert counting.runs == 1
    damage(library)
    assert counting.answer() == "42"
    assert f"{library} is not loaded: it is damaged" in counting.log
    assert counting.runs == 2
    assert counting.answer() == "42"
    assert counting.runs == 2
    assert beside or counting.log == ""


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_library_that_others_may_write_to_is_not_loaded(mode: int, counting: Machine) -> None:
    counting.answer()
    (library,) = counting.kept()
    library.chmod(mode)
    assert counting.answer() == "42"
    assert f"others may write to it (mode {mode:o})" in counting.log
    assert counting.runs == 2
    assert stat.S_IMODE(library.stat().st_mode) == 0o755
    assert counting.answer() == "42"
    assert (counting.runs, counting.log) == (2, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("beside", [False, True], ids=["in the cache", "beside the sources"])
def test_a_library_of_another_user_is_not_loaded(beside: bool, counting: Machine) -> None:
    if beside:
        library = counting.compile_beside()
    else:
        counting.answer()
        (library,) = counting.kept()
    os.chown(library, 12345, 12345)
    assert counting.answer() == "42"
    assert f"{library} is not loaded: it belongs to user 12345" in counting.log
    assert counting.runs == 2


def test_a_link_to_a_library_is_not_loaded(counting: Machine) -> None:
    counting.answer()
    (library,) = counting.kept()
    library.rename(counting.tools / "elsewhere.so")
    library.symlink_to(counting.tools / "elsewhere.so")
    assert counting.answer() == "42"
    assert "it is not a plain file" in counting.log


@pytest.mark.parametrize("kept", [False, True], ids=["empty", "with a library"])
def test_where_others_may_write_to_the_cache_the_library_is_made_in_a_private_place(
    kept: bool, counting: Machine
) -> None:
    if kept:
        counting.answer()
    counting.cache.mkdir(exist_ok=True)
    counting.cache.chmod(0o777)
    before = counting.runs
    assert counting.answer() == "42"
    assert f"compiled libraries cannot be kept in {counting.cache}: others may write to it (mode 777)" in counting.log
    assert counting.runs == before + 1
    assert len(counting.kept()) == kept
    assert list(counting.temporary.iterdir()) == []


@pytest.mark.parametrize("place", ["a file", "below a file"])
def test_without_a_cache_that_can_be_written_the_library_is_made_in_a_private_place(
    place: str, machine: Machine
) -> None:
    """A file in its place stands for a file system that is read-only, which root could write to all the same."""
    if place == "a file":
        machine.cache.write_text("")
    else:
        machine.environment["XDG_CACHE_HOME"] = str(machine.sources / "answer.c")
    assert machine.answer() == "42"
    assert "compiled libraries cannot be kept in" in machine.log
    assert list(machine.temporary.iterdir()) == []


def test_a_library_that_processes_need_at_once_is_compiled_once(machine: Machine) -> None:
    """The compiler goes on when all but one wait."""
    go = machine.tools / "go"
    machine.environment["CC"] = str(machine.compiler(f'while [ ! -e {go} ]; do sleep 0.01; done; exec cc "$@"'))
    processes = [machine.start() for _ in range(4)]
    watched = selectors.DefaultSelector()
    for process in processes:
        watched.register(process.stderr or -1, selectors.EVENT_READ)
    ready: list[str] = []
    while len(ready) < 3:
        ready += [said.fileobj.readline() for said, _ in watched.select()]  # type: ignore[union-attr]
    assert ready == ["another process compiles answer: waiting for it\n"] * 3
    go.touch()
    assert [process.communicate(timeout=120)[0].strip() for process in processes] == ["42"] * 4
    assert machine.runs == 1
    (library,) = machine.kept()
    assert list(machine.cache.iterdir()) == [library]
    assert machine.answer() == "42"
    assert (machine.runs, machine.log) == (1, "")


def test_nobody_waits_for_ever_for_a_process_that_stands_still(machine: Machine) -> None:
    first = machine.tools / "first"
    machine.environment["CC"] = str(machine.compiler(f'if mkdir {first}; then exec sleep 1000; fi; exec cc "$@"'))
    stands = machine.start(prepare=os.setsid)
    try:
        while not first.exists():
            assert stands.poll() is None, stands.communicate()
            time.sleep(0.01)
        assert machine.answer(seconds=0.25) == "42"
        assert "waiting for it" in machine.log
    finally:
        os.killpg(stands.pid, signal.SIGKILL)
        stands.communicate(timeout=120)


def test_a_full_disk_leaves_no_part_of_a_library(machine: Machine) -> None:
    """A limit of file sizes stands for the full disk."""
    assert machine.answer(prepare=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))) == "None"
    assert "nothing is answered" in machine.log
    assert list(machine.cache.iterdir()) == []
    assert machine.answer() == "42"


def test_a_compiler_that_hangs_is_ended_with_what_it_has_started(machine: Machine) -> None:
    child = machine.tools / "child"
    machine.environment["CC"] = str(machine.compiler(f"sleep 1000 & echo $! > {child}; wait"))
    assert machine.answer(seconds=1) == "None"
    assert "was not done after 1 seconds" in machine.log
    assert list(machine.cache.iterdir()) == []
    status = Path(f"/proc/{child.read_text().strip()}/stat")
    assert not status.exists() or ") Z " in status.read_text()


def test_a_cache_without_room_is_not_compiled_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    logger = logging.getLogger("test")
    assert compiled._writable_cache(logger) == tmp_path / "tandem"
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=3 << 20))
    assert compiled._writable_cache(logger) is None
    assert "only 3 MiB are free" in caplog.text


def test_whoever_ends_a_group_of_processes_ends_its_compiler_and_what_is_left_goes_later(machine: Machine) -> None:
    child = machine.tools / "child"
    hangs = machine.compiler(f"sleep 1000 & echo $! > {child}.new; mv {child}.new {child}; wait")
    machine.environment["CC"] = str(hangs)
    process = machine.start(prepare=os.setsid)
    while not child.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=120)
    status = Path(f"/proc/{child.read_text().strip()}/stat")
    while status.exists() and ") Z " not in status.read_text():
        time.sleep(0.01)

    (left,) = filter(Path.is_dir, machine.cache.iterdir())
    del machine.environment["CC"]
    assert machine.answer() == "42"
    assert left.exists(), "somebody may be compiling there"
    (library,) = machine.kept()
    library.unlink()
    os.utime(left, (0, 0))
    assert machine.answer() == "42"
    assert list(machine.cache.iterdir()) == machine.kept()


def test_what_nobody_has_used_for_long_goes_when_a_library_is_made(machine: Machine) -> None:
    assert machine.answer() == "42"
    (used,) = machine.kept()
    names = ("other.so", "fact-other.json", ".making-fact", "somebody's")
    for name in names:
        (machine.cache / name).touch()
        os.utime(machine.cache / name, (0, 0))
    os.utime(used, (0, 0))
    assert machine.answer() == "42"  # says that it is used
    machine.write(43)
    assert machine.answer() == "43"
    assert len(machine.kept()) == 2
    assert used.exists()
    assert [name for name in names if (machine.cache / name).exists()] == ["somebody's"]


def test_a_compiler_that_computes_for_ever_is_ended(machine: Machine) -> None:
    machine.environment["CC"] = str(machine.compiler("while :; do :; done"))
    assert machine.answer(seconds=1) == "None"
    assert "was not done after 1 seconds" in machine.log


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo first >&2; echo it is full of errors >&2; exit 1", "it is full of errors"),
        ("kill -9 $$", "ended with -9"),
    ],
)
def test_a_compiler_that_fails_is_named_with_its_last_words(script: str, said: str, machine: Machine) -> None:
    compiler = machine.environment["CC"] = str(machine.compiler(script))
    assert machine.answer() == "None"
    assert f"({compiler} failed: {said}): nothing is answered" in machine.log


def test_a_compiler_that_makes_nothing_is_survived(machine: Machine) -> None:
    machine.environment["CC"] = str(machine.compiler("exit 0"))
    assert machine.answer() == "None"
    assert "nothing is answered" in machine.log


def test_the_compilers_command_may_have_several_words(counting: Machine) -> None:
    program = counting.compiler('shift; exec cc "$@"')
    counting.environment["CC"] = f"{program} -first"
    assert counting.answer() == "42"
    assert counting.runs == 1
    counting.environment["CC"] = "'open"
    assert counting.answer() == "None"
    assert "CC='open: No closing quotation" in counting.log


def test_another_compiler_or_another_processor_has_a_library_of_its_own(machine: Machine) -> None:
    machine.answer()
    machine.environment["CC"] = "cc -O2"
    machine.answer()
    assert len(machine.kept()) == 2
    machine.environment["CC"] = "cc -march=native"
    machine.answer()
    (native,) = [path for path in machine.kept() if f"-{os.uname().machine}." in path.name]
    assert len(machine.kept()) == 3
    assert native.name.startswith("answer-")


def test_a_library_beside_its_sources_needs_no_compiler(machine: Machine) -> None:
    machine.compile_beside()
    machine.write(43)
    library = machine.compile_beside()
    # Python would prefer `answer.so` to `answer.py`, and find no module in it
    assert not library.name.partition(".")[0].isidentifier()
    machine.environment |= {"PATH": str(machine.tools), "CC": ""}
    assert (machine.answer(), machine.log) == ("43", "")
    assert not machine.cache.exists()
    machine.write(44)  # of which there is none
    assert machine.answer() == "None"
    assert "no C compiler" in machine.log


def test_a_library_beside_its_sources_may_be_as_open_as_they_are(counting: Machine) -> None:
    """As a umask of 2 leaves them: who may write the sources has no need to write the library."""
    library = counting.compile_beside()
    library.chmod(0o664)
    (counting.sources / "answer.c").chmod(0o664)
    counting.sources.chmod(0o775)
    assert (counting.answer(), counting.log, counting.runs) == ("42", "", 1)
    library.chmod(0o666)
    assert counting.answer() == "42"
    assert f"{library} is not loaded: others may write to it (mode 666)" in counting.log
    assert counting.runs == 2


def test_a_library_beside_its_sources_that_this_system_cannot_load_is_made_again(counting: Machine) -> None:
    library = counting.compile_beside()
    strange = b"not for this system"
    stem, _, content = library.stem.rpartition("-")
    other = library.with_name(f"{stem}-{hashlib.sha256(strange).hexdigest()[: len(content)]}.so")
    library.unlink()
    other.write_bytes(strange)
    assert counting.answer() == "42"
    assert f"{other} is not loaded: {other}: " in counting.log
    assert counting.runs == 2


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="-march is another flag elsewhere")
def test_a_library_for_others_is_for_the_oldest_processor_whatever_the_compilers_command_says(machine: Machine) -> None:
    machine.environment["CC"] = str(machine.compiler(f'echo "$@" >> {machine.tools}/words; exec cc "$@"'))
    machine.environment["CC"] += " -march=native"
    library = machine.compile_beside()
    words = (machine.tools / "words").read_text().split()
    assert [word for word in words if word.startswith("-march")] == ["-march=native", "-march=x86-64"]
    assert f"-{os.uname().machine}-" in library.name
    machine.environment |= {"PATH": str(machine.tools), "CC": ""}
    assert (machine.answer(), machine.log) == ("42", "")


def test_without_its_instructions_a_library_is_not_even_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    martian = compiled.CSources(tmp_path, "answer", ("answer.c",), {}, instructions=("martian",))
    assert martian.load(logging.getLogger("test"), "nothing is answered") is None
    assert caplog.records == []


def test_sources_of_one_name_in_several_folders_make_one_library(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "answer.c").write_text(f"int tandem_{name}(void) {{ return {len(name)}; }}\n")
    functions: dict[str, compiled.Signature] = {name: ([], ctypes.c_int) for name in ("first", "second")}
    sources = compiled.CSources(tmp_path, "both", ("first/answer.c", "second/answer.c"), functions)
    library = ctypes.CDLL(str(sources.compile_into(tmp_path)))
    assert (library.tandem_first(), library.tandem_second()) == (5, 6)


def test_a_header_that_is_included_by_another_makes_another_library(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "answer.c").write_text('#include "parts/first.h"\nint tandem_answer(void) { return ANSWER; }\n')
    (tmp_path / "parts/first.h").write_text('#include <stdint.h>\n#include "second.h"\n#include "second.h"\n')
    made = []
    for answer in (1, 2, 1):
        (tmp_path / "parts/second.h").write_text(f'#include "first.h"\n#define ANSWER {answer}\n#pragma once\n')
        sources = compiled.CSources(tmp_path, "answer", ("answer.c",), {"answer": ([], ctypes.c_int)})
        made.append(sources._stem(()))
    assert made[0] == made[2] != made[1]


@pytest.mark.parametrize(
    "module",
    ["tandem.common.field_counter", "tandem.tokenizer.native.library", "tandem.worker.model.cpu.native.library"],
)
def test_every_library_is_there_where_a_compiler_is(module: str) -> None:
    """Where it is not, the tests that need it are skipped: those of sources that do not compile, too."""
    sources: compiled.CSources = importlib.import_module(module).SOURCES
    if not sources.for_this_machine or not set(sources.instructions) <= set(processor_fact("flags").split()):
        pytest.skip("it is for other processors")
    assert sources.load(logging.getLogger("test"), "its tests are skipped") is not None

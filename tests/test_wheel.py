"""A wheel brings the C libraries along: they need no compiler, and compute the very bits of those that are compiled for
this processor."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tandem.common import compiled

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not any(map(shutil.which, compiled._COMPILERS)), reason="no C compiler"),
]

PROGRAM = Path(__file__).parent / "wheel_program.py"


@dataclass
class Installed:
    """The wheel in a folder, and processes that import it from there."""

    wheel: Path
    folder: Path
    model: Path
    log: str = field(default="")

    def libraries(self) -> list[Path]:
        return sorted(self.folder.rglob("*.so"))

    def compute(self) -> dict[str, object]:
        """What the program finds where there is no compiler, and no library beside the installed ones."""
        alone = {"PYTHONPATH": str(self.folder), "PATH": "/nowhere", "XDG_CACHE_HOME": str(self.folder / "cache")}
        process = program(self.model, self.folder, alone)
        out, self.log = process.communicate(timeout=300)
        assert process.returncode == 0, self.log
        found: dict[str, object] = json.loads(out)
        return found


def program(model: Path, folder: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", PROGRAM, model],
        cwd=folder,
        env={**{name: value for name, value in os.environ.items() if name != "CC"}, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def pip(*words: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, words)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def build(repository: Path, folder: Path, **environment: str) -> tuple[Path, str]:
    """The wheel, and what was said."""
    options = ["--no-deps", "--no-build-isolation", "--verbose", "--wheel-dir", folder]
    said = pip("wheel", *options, repository, **environment)
    (wheel,) = folder.glob("*.whl")
    return wheel, said


@pytest.fixture(scope="module")
def by_this_machine(repository: Path) -> subprocess.Popen[str]:
    """The same program with the sources, compiled for this very processor; it runs beside the build."""
    return program(repository / "models" / "demo", repository, {"CC": "cc -march=native"})


@pytest.fixture(scope="module")
def installed(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, by_this_machine: subprocess.Popen[str]
) -> Installed:
    # A warning ends the build: there is to be none.
    wheel, _ = build(
        repository, tmp_path_factory.mktemp("wheel"), TANDEM_WHEEL="compiled", CC="cc -Wall -Wextra -Werror"
    )
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--quiet", "--no-deps", "--no-compile", "--target", folder, wheel)
    return Installed(wheel, folder, repository / "models" / "demo")


def test_the_wheels_libraries_compute_the_bits_of_those_made_for_this_processor(
    installed: Installed, by_this_machine: subprocess.Popen[str], repository: Path
) -> None:
    assert installed.wheel.name.endswith(f"-py3-none-linux_{os.uname().machine}.whl")
    ours = installed.compute()
    assert "not loaded" not in installed.log
    assert {str(path) for path in installed.libraries()} >= set(filter(None, ours.pop("libraries")))
    out, errors = by_this_machine.communicate(timeout=300)
    theirs = json.loads(out)
    assert not any(name and str(installed.folder) in name for name in theirs.pop("libraries")), errors
    assert {"exceeded", "ids"} <= ours.keys()
    assert ours == theirs
    assert not (installed.folder / "cache").exists()


def test_every_library_that_a_module_declares_is_in_the_wheel(installed: Installed, repository: Path) -> None:
    """With its sources, for who has another kind of machine."""
    declared = [
        path for path in repository.glob("*/tandem/**/*.py") if "\n    return SOURCES.load(" in path.read_text()
    ]
    assert len(installed.libraries()) == len(declared) >= 3
    sources = list(repository.glob("*/tandem/**/*.[ch]"))
    assert len([*installed.folder.rglob("*.[ch]")]) == len(sources)


def test_the_demo_model_runs_from_the_wheel(installed: Installed, tmp_path: Path) -> None:
    """Away from the source tree, and without a name."""
    command = [sys.executable, "-P", "-m", "tandem.client", "run", "ROMEO:", "--max-tokens=4", "--verbose"]
    environment = {**os.environ, "PYTHONPATH": str(installed.folder)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "output  4 tokens" in done.stderr
    names = {path.name for path in (installed.folder / "tandem" / "demo").iterdir()}
    assert {"model.safetensors", "chat_template.jinja", "tokenizer.model"} <= names
    where = "from tandem.client.cli.services import find_model; print(find_model(None, None)[0])"
    found = subprocess.run(
        [sys.executable, "-P", "-c", where], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert found.stdout.strip() == str(installed.folder / "tandem" / "demo")


def test_a_library_that_was_altered_is_not_loaded(installed: Installed) -> None:
    (library,) = [path for path in installed.libraries() if path.name.startswith("encoders-")]
    data = bytearray(library.read_bytes())
    try:
        library.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        found = installed.compute()
    finally:
        library.write_bytes(data)
    assert f"{library} is not loaded: it is damaged" in installed.log
    assert "no C compiler" in installed.log
    assert "ids" not in found
    assert "exceeded" in found


def test_without_a_compiler_the_wheel_is_pure_and_that_is_said(repository: Path, tmp_path: Path) -> None:
    wheel, said = build(repository, tmp_path, CC="", PATH="/nowhere")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert "THE WHEEL IS PURE: no C compiler" in said


def test_a_wheel_that_must_be_compiled_is_not_made_without_a_compiler(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="TANDEM_WHEEL=compiled: no C compiler"):
        build(repository, tmp_path, TANDEM_WHEEL="compiled", CC="", PATH="/nowhere")

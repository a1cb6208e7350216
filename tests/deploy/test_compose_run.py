"""What `make compose-test` calls a failure, what it skips, and what it counts as data."""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def compose_test(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """deploy/compose_test.py on a machine where no engine answers, and where one can be started."""
    monkeypatch.syspath_prepend(str(repository / "deploy"))
    module = importlib.import_module("compose_test")
    monkeypatch.setattr(sys, "argv", ["compose_test.py", "--skip-ok"])
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)
    monkeypatch.setattr(module, "engine_answers", lambda _: False)
    monkeypatch.setattr(module, "local_engine", lambda _: contextlib.nullcontext({"DOCKER_HOST": "ours"}))
    monkeypatch.setattr(module, "scratch_folder", lambda: contextlib.nullcontext(tmp_path))
    monkeypatch.setattr(module, "local_base_image", lambda *_: contextlib.nullcontext("base"))
    monkeypatch.setattr(module, "local_prometheus_image", lambda *_: "prometheus")
    monkeypatch.setattr(module, "smoke_test", lambda *_: None)
    return module


@pytest.fixture
def engine(compose_test: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """deploy/local_engine.py, whose lock and temporary folders are below `tmp_path`."""
    module = sys.modules["local_engine"]
    monkeypatch.setattr(module, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    return module


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("what", ["local_engine", "local_base_image", "local_prometheus_image", "smoke_test"])
@pytest.mark.parametrize(
    "error", [RuntimeError("it broke"), subprocess.TimeoutExpired("mmdebstrap", 300), AssertionError("wrong")]
)
def test_what_breaks_or_takes_too_long_fails(
    compose_test: ModuleType, what: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compose_test, what, failing(error))
    assert compose_test.main() == 1


def without_root(monkeypatch: pytest.MonkeyPatch, engine: ModuleType) -> str:
    monkeypatch.setattr(engine.os, "geteuid", lambda: 1000)
    return "needs root"


def in_an_ordinary_container(monkeypatch: pytest.MonkeyPatch, engine: ModuleType) -> str:
    monkeypatch.setattr(engine, "missing_capabilities", lambda: ["CAP_NET_ADMIN"])
    return "CAP_NET_ADMIN"


def not_on_debian(monkeypatch: pytest.MonkeyPatch, engine: ModuleType) -> str:
    monkeypatch.setattr(engine.shutil, "which", lambda program: None)
    return "Debian"


def with_nothing_installed(monkeypatch: pytest.MonkeyPatch, engine: ModuleType) -> str:
    monkeypatch.setattr(engine.shutil, "which", lambda program: "/bin/apt-get" if program == "apt-get" else None)
    return "--install"


def with_a_full_disk(monkeypatch: pytest.MonkeyPatch, engine: ModuleType) -> str:
    monkeypatch.setattr(engine.shutil, "which", lambda program: f"/bin/{program}")
    monkeypatch.setattr(engine, "available_memory", lambda: engine.SCRATCH_BYTES)
    usage = engine.shutil.disk_usage("/")
    monkeypatch.setattr(engine.shutil, "disk_usage", lambda _: usage._replace(free=engine.SCRATCH_BYTES - 1))
    return "8.0 free"


@pytest.mark.parametrize(
    "where", [without_root, in_an_ordinary_container, not_on_debian, with_nothing_installed, with_a_full_disk]
)
def test_where_no_engine_is_to_be_had_it_is_skipped_loudly(
    compose_test: ModuleType,
    engine: ModuleType,
    where: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(engine.os, "geteuid", lambda: 0)
    monkeypatch.setattr(engine, "missing_capabilities", list)
    monkeypatch.setattr(compose_test, "local_engine", engine.local_engine)
    reason = where(monkeypatch, engine)
    assert compose_test.main() == 0
    assert "SKIPPED" in (told := capsys.readouterr().out) and reason in told
    monkeypatch.setattr(sys, "argv", ["compose_test.py"])
    assert compose_test.main() == 3


def test_what_a_killed_run_left_is_removed_before_the_next_starts(
    engine: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, others = tmp_path / f"{engine.SCRATCH}left", tmp_path / "others"
    for folder in (left / "data", others):
        folder.mkdir(parents=True)
    with_a_full_disk(monkeypatch, engine)
    monkeypatch.setattr(engine, "require_engine", lambda _: None)
    with pytest.raises(engine.EngineUnavailableError), engine.local_engine(False):
        pytest.fail("there is no room")
    assert others.exists() and not list(tmp_path.glob(f"{engine.SCRATCH}*"))


def test_packages_that_cannot_be_installed_fail(
    compose_test: ModuleType, engine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.os, "geteuid", lambda: 0)
    monkeypatch.setattr(engine, "missing_capabilities", list)
    monkeypatch.setattr(compose_test, "local_engine", engine.local_engine)
    with_nothing_installed(monkeypatch, engine)
    monkeypatch.setattr(engine, "run", failing(RuntimeError("apt-get: exit code 100")))
    monkeypatch.setattr(sys, "argv", ["compose_test.py", "--skip-ok", "--install"])
    assert compose_test.main() == 1


def test_an_engine_of_its_own_changes_nothing_but_where_base_images_come_from(
    compose_test: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, str] = {}
    monkeypatch.setattr(compose_test, "smoke_test", lambda environment, *_: seen.update(environment))
    assert compose_test.main() == 0
    assert seen == {"DOCKER_HOST": "ours", "BASE_IMAGE": "base", "PROMETHEUS_IMAGE": "prometheus"}
    own = compose_test.project_environment({})
    build = {"BASE_IMAGE", "TORCH_INDEX", "BUILD_PACKAGES", "PROMETHEUS_IMAGE", "GRAFANA_IMAGE"}
    assert not build & set(own)


def test_a_sdk_that_is_installed_meanwhile_is_found(
    compose_test: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp, sources = tmp_path / "stamp", tmp_path / "sources"
    sources.mkdir()
    (sources / "installed_meanwhile.py").touch()

    def install(_: float) -> None:
        (tmp_path / "editable.pth").write_text(f"{sources}\n")
        stamp.touch()

    monkeypatch.setattr(compose_test.time, "sleep", install)
    monkeypatch.setattr(compose_test.sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("installed_meanwhile")
    compose_test.await_sdk(stamp)
    importlib.import_module("installed_meanwhile")


@pytest.fixture
def asked(compose_test: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, ...]]]:
    """The docker commands of a stack that is started and taken down."""
    commands: list[tuple[str, ...]] = []

    def run(*command: str, **_: object) -> str:
        commands.append(command)
        return ""

    monkeypatch.setattr(compose_test, "run", run)
    return commands


def test_the_stack_is_built_and_started_by_the_command_of_the_readme(
    compose_test: ModuleType, repository: Path, asked: list[tuple[str, ...]]
) -> None:
    with compose_test.running(compose_test.Stack(compose_test.project_environment({}))):
        pass
    assert "docker compose up --build" in (repository / "README.md").read_text()
    building = [command for command in asked if "--build" in command or "build" in command]
    assert [command[:5] for command in building] == [("docker", "compose", "--progress=plain", "up", "--build")]
    assert not any("--build-arg" in part for part in building[0])


@pytest.mark.parametrize(
    ("values", "expected"), [([], False), (["NaN"], False), (["NaN", "+Inf"], False), (["NaN", "0"], True)]
)
def test_nan_is_no_data(compose_test: ModuleType, values: list[str], expected: bool) -> None:
    answer = {"result": [{"metric": {}, "value": [0.0, value]} for value in values]}
    assert compose_test.has_numbers(answer) is expected

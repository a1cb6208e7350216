"""What is not installed is named, with the command that installs it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.client.test_cli import TANDEM, environment


@pytest.mark.parametrize(("module", "extra"), [("sentencepiece", "tokenizer"), ("zmq", "worker"), ("torch", "worker")])
def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, module: str, extra: str) -> None:
    words = f"raise ModuleNotFoundError(\"No module named '{module}'\", name='{module}')"
    (tmp_path / f"{module}.py").write_text(words)
    command = [*TANDEM, "run", "Hello", "--max-tokens", "1"]
    changed = environment(None, PYTHONPATH=str(tmp_path))
    done = subprocess.run(command, env=changed, capture_output=True, encoding="utf-8", timeout=120)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last.endswith(f"did not start: {module} is not installed: pip install 'tandem-llm[{extra}]'")


def test_pulling_without_its_extra_says_so(tmp_path: Path) -> None:
    (tmp_path / "huggingface_hub.py").write_text("raise ImportError")
    command = [sys.executable, "-m", "tandem.client", "pull", "org/tiny"]
    changed = environment(None, PYTHONPATH=str(tmp_path))
    done = subprocess.run(command, env=changed, capture_output=True, encoding="utf-8", timeout=60)
    assert done.returncode == 2
    assert "pip install 'tandem-llm[pull]'" in done.stderr


def test_a_typer_that_reads_no_literals_is_not_asked_for(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    (typer,) = (found for each in project["dependencies"] if (found := Requirement(each)).name == "typer")
    assert "0.18.0" not in typer.specifier and "0.19.0" in typer.specifier

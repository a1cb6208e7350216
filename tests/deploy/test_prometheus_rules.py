"""Prometheus' own checks of its configuration, and the unit tests of the rules."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian: promtool or prometheus)")
    return found


def test_the_configuration_and_its_rules_are_valid(promtool: str, repository: Path) -> None:
    config = repository / "deploy" / "prometheus" / "prometheus.yml"
    done = subprocess.run([promtool, "check", "config", str(config)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rule files found" in done.stdout


@pytest.mark.parametrize("name", ["alerts_test.yml", "recording_test.yml"])
def test_rules_give_what_their_tests_say(promtool: str, repository: Path, name: str) -> None:
    file = repository / "tests" / "deploy" / name
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

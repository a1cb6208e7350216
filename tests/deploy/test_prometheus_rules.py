"""Prometheus' own checks of its configuration, and the unit tests of the rules."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tandem.worker.front.vllm_names import VLLM_NAMES


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


@pytest.mark.parametrize("name", ["alerts_test.yml", "alerts_of_hours_test.yml", "recording_test.yml"])
def test_rules_give_what_their_tests_say(promtool: str, repository: Path, name: str) -> None:
    file = repository / "tests" / "deploy" / name
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_its_paragraph(repository: Path) -> None:
    groups = yaml.safe_load((repository / "deploy" / "prometheus" / "rules" / "alerts.yml").read_text())["groups"]
    alerts = {rule["alert"]: rule["annotations"]["runbook"] for group in groups for rule in group["rules"]}
    titles = re.findall(r"^## (\w+)$", (repository / "docs" / "alerts.md").read_text(), re.MULTILINE)
    assert sorted(titles) == sorted(alerts)
    assert all(runbook == f"docs/alerts.md#{name.lower()}" for name, runbook in alerts.items())


def test_prometheus_and_the_worker_know_the_same_names_of_vllm(repository: Path) -> None:
    rules = (repository / "deploy" / "prometheus" / "rules" / "recording.yml").read_text()
    recorded = re.findall(r'record: "vllm:(\w+)", expr: tandem_(\w+)', rules)
    assert all(theirs == ours for theirs, ours in recorded)
    assert {re.sub("_(total|bucket|sum|count)$", "", theirs) for theirs, _ in recorded} == set(VLLM_NAMES)

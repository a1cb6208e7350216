"""What `make apiserver-test` applies, what it calls a failure, and what it skips."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.test_kubernetes import VERSIONS, manifests


@pytest.fixture
def apiserver_test(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(repository / "deploy"))
    return importlib.import_module("apiserver_test")


@pytest.fixture
def checks(apiserver_test: ModuleType) -> ModuleType:
    return sys.modules["apiserver_checks"]


def switches(values: dict[str, Any]) -> set[str]:
    return {name for name, part in values.items() if isinstance(part, dict) and "enabled" in part}


def test_every_folder_and_every_switch_of_the_chart_is_applied(apiserver_test: ModuleType, repository: Path) -> None:
    folders = {each.name for each in (repository / "deploy" / "kubernetes").iterdir() if each.is_dir()}
    assert {part for parts in apiserver_test.KUSTOMIZED for part in parts} == folders
    values = yaml.safe_load((repository / "deploy" / "helm" / "tandem" / "values.yaml").read_text())
    turned_on = {name for each in apiserver_test.VALUES.values() for name in switches(each)}
    assert turned_on == switches(values)


def test_a_missing_program_is_named_loudly(
    apiserver_test: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = ["--etcd", "no-such-etcd", "--kube-apiserver", "no-such-server"]
    monkeypatch.setattr(sys, "argv", ["apiserver_test.py", *absent])
    assert apiserver_test.main() == 3
    told = capsys.readouterr().err
    assert "SKIPPED" in told and "no-such-etcd" in told and "no-such-server" in told
    monkeypatch.setattr(sys, "argv", ["apiserver_test.py", *absent, "--skip-ok"])
    assert apiserver_test.main() == 0


SENT = {"a": {"b": "1", "c": [{"name": "x"}, {"name": "y"}]}}


@pytest.mark.parametrize(
    ("stored", "found"),
    [
        (SENT, []),
        ({"a": {"b": "1", "c": [{"name": "x", "by default": 1}, {"name": "y"}], "more": {}}}, []),
        ({"a": {"b": "2", "c": SENT["a"]["c"]}}, ["a.b"]),
        ({"a": {"c": SENT["a"]["c"]}}, ["a.b"]),
        ({"a": {"b": "1", "c": [{"name": "x"}]}}, ["a.c"]),
        ({"a": {"b": "1", "c": [{"name": "x"}, {"name": "z"}]}}, ["a.c[1].name"]),
        ({}, ["a"]),
    ],
)
def test_what_a_server_drops_or_changes_is_found(checks: ModuleType, stored: Any, found: list[str]) -> None:
    assert [told.partition(":")[0] for told in checks.difference(SENT, stored)] == found


def test_errors_and_warnings_are_findings_and_silence_is_not(checks: ModuleType, apiserver_test: ModuleType) -> None:
    answer = apiserver_test.Answer
    assert checks.complaints(answer(0, "applied", "")) == []
    assert checks.complaints(answer(0, "applied", "Warning: it would violate\n")) == ["it would violate"]
    assert checks.complaints(answer(1, "", "refused\n")) == ["refused"]
    assert checks.complaints(answer(1, "", "")) != []


def test_what_kubectl_prints_is_read_whole(checks: ModuleType) -> None:
    one, two, three = ({"kind": "A", "n": each} for each in range(3))
    text = json.dumps(one, indent=4) + "\n" + json.dumps({"kind": "List", "items": [two, three]})
    assert checks.objects_in(text) == [one, two, three]


def test_keda_is_told_of_an_autoscaler_that_is_valid(checks: ModuleType, repository: Path) -> None:
    (scaled,) = manifests(repository / "deploy" / "kubernetes" / "autoscaling")
    kubernetes_validate.validate(checks.hpa_of(scaled), VERSIONS[-1], strict=True)

"""The Helm chart has the same objects as the manifests with the same values. (`make fresh`: it is made of them.)"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

# What of deploy/kubernetes, and the chart's values that say the same.
SAME: dict[str, tuple[Sequence[str], dict[str, Any]]] = {
    "base": (["base"], {}),
    "gpu": (["gpu"], {"worker": {"image": "tandem-worker:dev-cuda", "gpus": 1, "cpu": "4", "memory": "24Gi"}}),
    "gpu-cards": (
        ["gpu-cards"],
        {"worker": {"image": "tandem-worker:dev-cuda", "gpus": 2, "cpu": "8", "memory": "48Gi"}},
    ),
    "door": (
        ["base", "http", "tls", "routes"],
        {"http": {"enabled": True}, "tls": {"enabled": True}, "routes": {"enabled": True}},
    ),
    "fleet": (
        ["base", "gateway", "model-fetch", "prometheus-operator", "autoscaling"],
        {
            "gateway": {"enabled": True},
            "model": {"source": "organisation/name"},
            "prometheusOperator": {"enabled": True},
            "autoscaling": {"enabled": True},
        },
    ),
    "image": (["base", "model-image"], {"model": {"image": "registry.example/tandem-model:dev"}}),
}
Objects = dict[tuple[str, str], Any]


def run(*command: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"there is no {command[0]} here")
    return subprocess.run([*map(str, command)], input=text, capture_output=True, text=True, timeout=60)


def chart(repository: Path, values: dict[str, Any], namespace: str = "tandem") -> subprocess.CompletedProcess[str]:
    folder = repository / "deploy" / "helm" / "tandem"
    return run("helm", "template", "tandem", folder, "--namespace", namespace, "--values", "-",
               text=yaml.safe_dump(values))  # fmt: skip


def comparable(tree: Any, configuration: dict[str, str]) -> Any:
    """Lists of named things in the order of their names, and what is taken out of the ConfigMap in its place."""
    if isinstance(tree, dict):
        key = tree.get("valueFrom", {}).get("configMapKeyRef", {}).get("key") if "valueFrom" in tree else None
        if key:
            return {"name": tree["name"], "value": configuration[key]}
        return {name: comparable(value, configuration) for name, value in tree.items()}
    if isinstance(tree, list):
        found = [comparable(each, configuration) for each in tree]
        named = all(isinstance(each, dict) and "name" in each for each in found)
        return sorted(found, key=lambda each: str(each["name"])) if named else found
    return tree


def objects(text: str) -> Objects:
    """All of them but the namespace and the configuration, which a chart does not need."""
    found = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text) if each}
    maps = [name for kind, name in found if kind == "ConfigMap" and "dashboard" not in name]
    configuration = {key: value for name in maps for key, value in found["ConfigMap", name]["data"].items()}
    left_out = {("Namespace", "tandem"), *(("ConfigMap", name) for name in maps)}
    return {key: comparable(each, configuration) for key, each in found.items() if key not in left_out}


@pytest.mark.parametrize("case", SAME)
def test_the_same_values_make_the_same_objects(case: str, repository: Path, tmp_path: Path) -> None:
    (resource, *components), values = SAME[case]
    place = os.path.relpath(repository / "deploy" / "kubernetes", tmp_path)
    own = {"resources": [f"{place}/{resource}"], "components": [f"{place}/{each}" for each in components]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(own))
    rendered, built = chart(repository, values), run("kubectl", "kustomize", tmp_path)
    assert (rendered.returncode, built.returncode) == (0, 0), rendered.stderr + built.stderr
    assert objects(rendered.stdout) == objects(built.stdout)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"worker": {"replica": 3}}, "replica"),
        ({"worker": {"gpus": "two"}}, "/worker/gpus"),
        ({"model": {"source": "a/b", "image": "c"}}, "model.source and model.image"),
        ({"routes": {"enabled": True}}, "http.enabled"),
    ],
)
def test_wrong_values_are_named(values: dict[str, Any], named: str, repository: Path) -> None:
    done = chart(repository, values)
    assert done.returncode != 0 and named in done.stderr


@pytest.mark.parametrize("case", ["door", "fleet"])
def test_all_is_in_the_namespace_of_the_release(case: str, repository: Path) -> None:
    text = chart(repository, SAME[case][1], "elsewhere").stdout
    every = [each for each in yaml.safe_load_all(text) if each]
    assert every and {each["metadata"]["namespace"] for each in every} == {"elsewhere"}
    assert not re.search(r"namespace[:=] ?tandem|\.tandem(\.svc|$)", text, re.MULTILINE)


def test_further_settings_reach_containers_and_pods(repository: Path) -> None:
    own = {"env": {"TANDEM_X": True, "B": 3, "BYTES": 2147483648, "NO": "1.50"}, "nodeSelector": {"disk": "fast"}}
    values = {name: dict(own) for name in ("tokenizer", "worker", "http", "gateway")} | {
        "imagePullSecrets": [{"name": "a"}]
    }
    values["http"]["enabled"] = values["gateway"]["enabled"] = True
    found = [
        each for each in yaml.safe_load_all(chart(repository, values).stdout) if each and each["kind"] == "Deployment"
    ]
    assert len(found) == 4
    for pod in (each["spec"]["template"]["spec"] for each in found):
        given = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        assert [given[name] for name in own["env"]] == ["true", "3", "2147483648", "1.50"]
        assert (pod["nodeSelector"], pod["imagePullSecrets"]) == ({"disk": "fast"}, [{"name": "a"}])


def test_a_variable_of_the_values_takes_the_place_of_the_chart_s_own(repository: Path) -> None:
    """A server-side apply, which is Helm's, refuses a list in which a name comes twice."""
    plain = {"tls": {"enabled": True}, "http": {"enabled": True}, "gateway": {"enabled": True}, "worker": {"gpus": 2}}
    for own, before in variables_of(chart(repository, plain).stdout).items():
        values = plain | {own: {**plain.get(own, {}), "env": dict.fromkeys(before, "mine")}}
        found = variables_of(chart(repository, values).stdout)[own]
        assert found == dict.fromkeys(before, "mine") and (found or own == "gateway")


def variables_of(text: str) -> dict[str, dict[str, Any]]:
    """By what it is, what each Deployment's container is given; no name twice."""
    found = {}
    for each in yaml.safe_load_all(text):
        if each and each["kind"] == "Deployment":
            variables = each["spec"]["template"]["spec"]["containers"][0].get("env") or []
            own = each["metadata"]["name"].removeprefix("tandem-")
            found[own] = {variable["name"]: variable.get("value") for variable in variables}
            assert len(found[own]) == len(variables)
    return found

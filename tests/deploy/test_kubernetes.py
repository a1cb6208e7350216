"""The manifests are valid, agree with each other, with the images and with the services, and are as locked down as the
compose stack."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tandem.common.settings import ServiceSettings, load_settings
from tests.deploy.stack_files import OWN_SERVICES, STOP_SECONDS, Dockerfile, exported_names
from tests.deploy.test_compose import PROTO_SERVICES, SETTINGS

OWN_RESOURCES = ("base", "gpu", "local")  # folders that kustomize builds
VERSIONS = ("1.27", kubernetes_validate.latest_version())  # probes by gRPC are stable from 1.27 on

Manifest = dict[str, Any]


def manifests(folder: Path) -> Iterator[Manifest]:
    """All resources of a folder."""
    for file in sorted(folder.glob("*.yaml")):
        if file.name != "kustomization.yaml":
            yield from yaml.safe_load_all(file.read_text())


@pytest.fixture(scope="module")
def folder(repository: Path) -> Path:
    return repository / "deploy" / "kubernetes"


@pytest.fixture(scope="module")
def base(folder: Path) -> dict[tuple[str, str], Manifest]:
    return {(each["kind"], each["metadata"]["name"]): each for each in manifests(folder / "base")}


@pytest.fixture(params=OWN_SERVICES)
def own(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def deployment(base: dict[tuple[str, str], Manifest], own: str) -> Manifest:
    return base["Deployment", f"tandem-{own}"]


@pytest.fixture
def pod(deployment: Manifest) -> Manifest:
    spec: Manifest = deployment["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def container(pod: Manifest, own: str) -> Manifest:
    (container,) = pod["containers"]
    assert container["name"] == own
    return dict(container)


@pytest.fixture
def environment(folder: Path, container: Manifest) -> dict[str, str]:
    """What the container's variables are, those from the configuration among them."""
    kustomization = yaml.safe_load((folder / "base" / "kustomization.yaml").read_text())
    (generated,) = kustomization["configMapGenerator"]
    literals = dict(literal.split("=", 1) for literal in generated["literals"])
    values = {}
    for variable in container["env"]:
        if "value" in variable:
            values[variable["name"]] = variable["value"]
        elif "resourceFieldRef" in variable["valueFrom"]:
            reference = variable["valueFrom"]["resourceFieldRef"]
            assert reference["containerName"] == container["name"]
            kind, _, resource = reference["resource"].partition(".")
            values[variable["name"]] = container["resources"][kind][resource]
        else:
            reference = variable["valueFrom"]["configMapKeyRef"]
            assert reference["name"] == generated["name"]
            values[variable["name"]] = literals[reference["key"]]
    return values


@pytest.fixture
def image(repository: Path, own: str) -> Dockerfile:
    return Dockerfile.read(repository / "deploy" / "docker" / f"{own}.Dockerfile")


@pytest.fixture
def settings(
    own: str, container: Manifest, environment: dict[str, str], image: Dockerfile, monkeypatch: pytest.MonkeyPatch
) -> ServiceSettings:
    """What the service reads in its pod."""
    for name, value in (image.environment | environment).items():
        monkeypatch.setenv(name, value)
    arguments = [part.replace("$(MODEL_NAME)", environment.get("MODEL_NAME", "")) for part in container.get("args", [])]
    return load_settings(SETTINGS[own], arguments)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_resource_is_valid(folder: Path, version: str) -> None:
    checked = 0
    for part in OWN_RESOURCES:
        for manifest in manifests(folder / part):
            if (part, manifest["kind"]) != ("gpu", "Deployment"):  # that one is a patch, and not whole
                kubernetes_validate.validate(manifest, version, strict=True)
                checked += 1
    assert checked >= 13


def test_no_list_or_map_is_sent_that_a_server_would_store_as_none(folder: Path) -> None:
    """A server-side apply would write the object again, each time."""
    sent = [each for part in folder.iterdir() if part.is_dir() for each in manifests(part)]
    assert len(sent) >= 40 and not [path for each in sent for path in empty(each, "")]


def empty(tree: Any, path: str) -> Iterator[str]:
    """Where lists are empty, and maps that say nothing by being there as an emptyDir does."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if value == {} and key not in ("emptyDir", "podSelector", "namespaceSelector", "selfSigned"):
                yield f"{path}.{key}"
            yield from empty(value, f"{path}.{key}")
    elif isinstance(tree, list):
        if not tree:
            yield path
        for each in tree:
            yield from empty(each, path)


def test_a_misspelt_field_would_be_found(base: dict[tuple[str, str], Manifest]) -> None:
    wrong = base["Service", "tandem-worker"] | {"spce": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("part", [*OWN_RESOURCES, "prometheus-operator", "autoscaling"])
def test_kustomizations_list_the_files_that_are_there(folder: Path, part: str) -> None:
    kustomization = yaml.safe_load((folder / part / "kustomization.yaml").read_text())
    listed = {
        *kustomization.get("resources", []),
        *(p["path"] for p in kustomization.get("patches", []) if "path" in p),
    }
    files = {file.name for file in (folder / part).glob("*.yaml")} - {"kustomization.yaml"}
    assert {name for name in listed if not name.startswith("..")} == files
    assert {name for name in listed if name.startswith("..")} <= {"../base"}


@pytest.mark.parametrize("part", OWN_RESOURCES)
def test_kustomize_builds_it(folder: Path, part: str) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl here, which has kustomize in it")
    built = subprocess.run(["kubectl", "kustomize", folder / part], capture_output=True, text=True, timeout=60)
    assert built.returncode == 0, built.stderr
    resources = list(yaml.safe_load_all(built.stdout))
    for manifest in resources:
        kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)
    workers = [
        each for each in resources if each["metadata"]["name"] == "tandem-worker" and each["kind"] == "Deployment"
    ]
    (container,) = workers[0]["spec"]["template"]["spec"]["containers"]
    assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (part == "gpu")
    assert {mount["name"] for mount in container["volumeMounts"]} >= {"model", "tmp"}


def test_variables_are_settings_and_the_service_accepts_them(
    own: str, environment: dict[str, str], settings: ServiceSettings
) -> None:
    kind, prefix = SETTINGS[own], SETTINGS[own].model_config.get("env_prefix", "")
    ours = [name for name in environment if name.startswith("TANDEM_")]
    assert len(ours) >= 2
    assert all(name.removeprefix(prefix).lower() in kind.model_fields for name in ours)
    assert settings.drain_propagation_seconds > 0, "endpoints and name servers are told late"


def test_ports_and_probes_are_those_of_the_service(
    base: dict[tuple[str, str], Manifest], own: str, container: Manifest, settings: ServiceSettings
) -> None:
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": settings.port, "metrics": settings.metrics_port}
    assert container["readinessProbe"]["grpc"] == {"port": settings.port, "service": PROTO_SERVICES[own]}
    assert container["livenessProbe"]["grpc"] == {"port": settings.port}, "liveness has the empty name"
    service = base["Service", f"tandem-{own}"]["spec"]
    assert [(port["port"], port["targetPort"]) for port in service["ports"]] == [(settings.port, "grpc")]


def test_selectors_select_the_pods_that_they_mean(
    base: dict[tuple[str, str], Manifest], folder: Path, own: str, deployment: Manifest
) -> None:
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels == {"app.kubernetes.io/name": f"tandem-{own}"}
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert base["Service", f"tandem-{own}"]["spec"]["selector"] == labels
    assert base["PodDisruptionBudget", f"tandem-{own}"]["spec"]["selector"]["matchLabels"] == labels
    (spread,) = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == labels
    monitors = {
        each["metadata"]["name"]: each["spec"]
        for each in manifests(folder / "prometheus-operator")
        if each["kind"] == "PodMonitor"
    }
    monitor = monitors[f"tandem-{own}"]
    assert monitor["selector"]["matchLabels"] == labels
    assert [endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]] == ["metrics"]
    assert labels[monitor["jobLabel"]] == f"tandem-{own}", "the job that alerts and dashboards ask for"


def test_the_operator_gets_all_rules_and_dashboards(folder: Path, repository: Path) -> None:
    found = {each["metadata"]["name"]: each for each in manifests(folder / "prometheus-operator")}
    names = {
        rule.get("alert") or rule["record"]
        for file in (repository / "deploy" / "prometheus" / "rules").glob("*.yml")
        for group in yaml.safe_load(file.read_text())["groups"]
        for rule in group["rules"]
    }
    groups = found["tandem"]["spec"]["groups"]
    assert {rule.get("alert") or rule["record"] for group in groups for rule in group["rules"]} == names
    boards = [each["data"] for each in found.values() if each["kind"] == "ConfigMap"]
    files = {file.name: file.read_text() for file in (repository / "deploy" / "grafana" / "dashboards").glob("*.json")}
    assert {name: text for data in boards for name, text in data.items()} == files


def test_scaling_asks_for_metrics_that_exist_and_scales_what_is_there(
    base: dict[tuple[str, str], Manifest], folder: Path
) -> None:
    (scaled,) = manifests(folder / "autoscaling")
    spec = scaled["spec"]
    assert base["Deployment", spec["scaleTargetRef"]["name"]]["spec"]["replicas"] <= spec["minReplicaCount"]
    (trigger,) = spec["triggers"]
    asked = set(re.findall(r"tandem_\w+", trigger["metadata"]["query"]))
    assert len(asked) == 3 and asked <= exported_names()
    assert trigger["metadata"]["ignoreNullValues"] == "false", "a Prometheus without series would scale down"


def test_the_name_of_the_workers_is_that_of_each_and_the_tokenizer_s_is_one(
    base: dict[tuple[str, str], Manifest],
) -> None:
    assert base["Service", "tandem-worker"]["spec"]["clusterIP"] == "None"
    assert "clusterIP" not in base["Service", "tandem-tokenizer"]["spec"]


def test_a_worker_that_never_gets_ready_keeps_no_node_from_being_drained(folder: Path) -> None:
    budgets = [each for part in folder.iterdir() if part.is_dir() for each in manifests(part) if is_budget(each)]
    assert len(budgets) == 4
    assert all(each["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow" for each in budgets)


def is_budget(manifest: Any) -> bool:
    return isinstance(manifest, dict) and manifest.get("kind") == "PodDisruptionBudget"


def test_a_stop_waits_as_long_as_running_requests_may_take(pod: Manifest, settings: ServiceSettings) -> None:
    needed = settings.drain_propagation_seconds + settings.drain_grace_seconds + STOP_SECONDS
    assert needed <= pod["terminationGracePeriodSeconds"] <= needed + 10


def test_both_serve_the_model_of_one_claim_under_one_name(
    folder: Path, own: str, pod: Manifest, container: Manifest, settings: ServiceSettings
) -> None:
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert (mounts["model"]["mountPath"], mounts["model"]["readOnly"]) == ("/model", True)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["model"]["persistentVolumeClaim"] == {"claimName": "tandem-model", "readOnly": True}
    claims = [each for each in manifests(folder / "local") if each["kind"] == "PersistentVolumeClaim"]
    assert [claim["metadata"]["name"] for claim in claims] == ["tandem-model"]
    if own == "tokenizer":
        assert {name: str(path) for name, path in settings.tokenizers().items()} == {"demo": "/model"}  # type: ignore[attr-defined]
    else:
        assert (settings.model, settings.model_name) == ("/model", "demo")  # type: ignore[attr-defined]
        assert settings.tokenizer_address == "tandem-tokenizer:50051"  # type: ignore[attr-defined]


def test_pods_meet_the_restricted_standard_that_the_namespace_enforces(
    base: dict[tuple[str, str], Manifest], pod: Manifest, container: Manifest, image: Dockerfile
) -> None:
    labels = base["Namespace", "tandem"]["metadata"]["labels"]
    assert {labels[f"pod-security.kubernetes.io/{mode}"] for mode in ("enforce", "warn")} == {"restricted"}
    user, group = image.last_stage.all("USER")[-1].split(":")
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": int(user),
        "runAsGroup": int(group),
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False and pod["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["cpu"]


def test_metrics_are_for_monitoring_alone_and_grpc_for_clients(base: dict[tuple[str, str], Manifest]) -> None:
    opened: list[tuple[int, str]] = []
    for (kind, name), policy in base.items():
        if kind == "NetworkPolicy":
            for rule in policy["spec"].get("ingress", []):
                opened += [(port["port"], name) for port in rule["ports"]]
    grpc, metrics = "tandem-grpc", "tandem-metrics"
    assert sorted(opened) == [(9401, metrics), (9402, metrics), (50051, grpc), (50052, grpc)]
    covered = base["NetworkPolicy", "tandem-metrics"]["spec"]["podSelector"]["matchExpressions"][0]["values"]
    assert covered == [f"tandem-{own}" for own in OWN_SERVICES]
    closed = base["NetworkPolicy", "tandem-tokenizer-outbound"]["spec"]
    assert closed["policyTypes"] == ["Egress"] and "egress" not in closed
    questions = base["NetworkPolicy", "tandem-worker-outbound"]["spec"]["egress"]
    assert {port["port"] for rule in questions for port in rule["ports"]} == {50051, 53}
    (names,) = [rule for rule in questions if {port["port"] for port in rule["ports"]} == {53}]
    assert {port["protocol"] for port in names["ports"]} == {"UDP", "TCP"}
    blocks = [peer["ipBlock"]["cidr"] for peer in names["to"] if "ipBlock" in peer]
    assert blocks == ["169.254.20.10/32"], "NodeLocal DNSCache runs in its node's network, so no label selects it"

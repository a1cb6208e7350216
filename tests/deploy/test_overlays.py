"""What the components and overlays of deploy/kubernetes make of the base is valid, and agrees with the services."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tandem.tokenizer.settings import TokenizerSettings
from tandem.worker.settings import WorkerSettings
from tests.deploy.stack_files import Dockerfile, compose
from tests.deploy.test_kubernetes import VERSIONS, Manifest, manifests

KINDS_OF_OTHERS = {
    "Certificate",
    "Gateway",
    "GRPCRoute",
    "HTTPRoute",
    "Issuer",
    "LeaderWorkerSet",
    "PodMonitor",
    "PrometheusRule",
    "ScaledObject",
}
Built = dict[tuple[str, str], Manifest]


@pytest.fixture(scope="module")
def folder(repository: Path) -> Path:
    return repository / "deploy" / "kubernetes"


@pytest.fixture
def build(folder: Path, tmp_path: Path) -> Callable[..., Built]:
    """What kustomize makes of a folder with components."""
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl here, which has kustomize in it")

    def built(resource: str, *components: str) -> Built:
        places = {name: os.path.relpath(folder / name, tmp_path) for name in (resource, *components)}
        own = {"resources": [places[resource]], "components": [places[each] for each in components]}
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(own))
        done = subprocess.run(["kubectl", "kustomize", tmp_path], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        found = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)}
        for (kind, _), manifest in found.items():
            if kind not in KINDS_OF_OTHERS:
                kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)
        return found

    return built


def pod_of(deployment: Manifest) -> Manifest:
    spec: Manifest = deployment["spec"]["template"]["spec"]
    return spec


def variables(container: Manifest) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_the_gateway_finds_workers_that_serve_its_contract_and_may_reach_them(build: Callable[..., Built]) -> None:
    built = build("base", "gateway")
    (worker,) = pod_of(built["Deployment", "tandem-worker"])["containers"]
    assert variables(worker)["TANDEM_WORKER_GATEWAY"] == "true"
    (gateway,) = pod_of(built["Deployment", "tandem-gateway"])["containers"]
    flags = dict(each.removeprefix("--").partition("=")[::2] for each in gateway["args"])
    labels = built["Deployment", "tandem-worker"]["spec"]["template"]["metadata"]["labels"]
    name, _, value = flags["selector"].partition("=")
    assert labels[name] == value
    assert flags["service-discovery-namespace"] == "tandem" == built["Role", "tandem-gateway"]["metadata"]["namespace"]
    assert int(flags["service-discovery-port"]) in [port["containerPort"] for port in worker["ports"]]
    ports = {port["name"]: port["containerPort"] for port in gateway["ports"]}
    assert ports == {"http": int(flags["port"]), "metrics": int(flags["prometheus-port"])}
    assert built["Role", "tandem-gateway"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]
    policy = built["NetworkPolicy", "tandem-gateway"]["spec"]
    assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == [8000, 9404]
    assert int(flags["service-discovery-port"]) in [port["port"] for port in policy["egress"][0]["ports"]]


def smg_flags(arguments: list[str]) -> argparse.Namespace:
    """As smg reads them, which ends where it does not know one."""
    router = pytest.importorskip("smg.router_args", reason="smg is not installed: pip install smg")
    parser = argparse.ArgumentParser()
    router.RouterArgs.add_cli_args(parser, use_router_prefix=False)
    return parser.parse_args(arguments)


def test_smg_knows_the_flags_that_it_is_started_with(repository: Path, folder: Path) -> None:
    (deployment,) = [each for each in manifests(folder / "gateway") if "spec" in each and each["kind"] == "Deployment"
                     and each["metadata"]["name"] == "tandem-gateway"]  # fmt: skip
    (container,) = pod_of(deployment)["containers"]
    assert smg_flags(container["args"]).service_discovery
    assert smg_flags(compose(repository)["services"]["gateway"]["command"].split()).worker_urls


def test_the_gateway_of_compose_is_that_of_the_cluster(repository: Path, folder: Path) -> None:
    service = compose(repository)["services"]["gateway"]
    image = Dockerfile.read(repository / "deploy" / "docker" / "gateway.Dockerfile")
    words = service["command"].split()
    flags = dict(zip(words[::2], words[1::2], strict=True))
    assert image.last_stage.all("EXPOSE") == [f"{flags['--port']} {flags['--prometheus-port']}"]
    assert service["healthcheck"]["test"] == ["CMD", *image.health_command]
    assert service["ports"] == [f"127.0.0.1:8080:{flags['--port']}"]
    assert flags["--worker-urls"] == "grpc://tandem-worker-1:50052"
    worker = compose(repository, WORKER_GATEWAY="true")["services"]["worker"]["environment"]
    assert worker["TANDEM_WORKER_GATEWAY"] == "true"


def test_tls_reaches_every_service_and_whoever_asks_it(build: Callable[..., Built]) -> None:
    built = build("base", "http", "tls")
    names = built["Certificate", "tandem"]["spec"]["dnsNames"]
    secret = built["Certificate", "tandem"]["spec"]["secretName"]
    asked = {"tokenizer": "", "worker": "TANDEM_WORKER_TOKENIZER_TLS_CA", "http": "TANDEM_HTTP_UPSTREAM_TLS_CA"}
    for own, authority in asked.items():
        pod = pod_of(built["Deployment", f"tandem-{own}"])
        (container,) = pod["containers"]
        (mount,) = [each for each in container["volumeMounts"] if each["name"] == "tls"]
        (volume,) = [each for each in pod["volumes"] if each["name"] == "tls"]
        assert volume["secret"]["secretName"] == secret and mount["readOnly"]
        found = variables(container)
        assert not authority or found[authority] == f"{mount['mountPath']}/ca.crt"
        if own != "http":
            assert found[f"TANDEM_{own.upper()}_TLS_CERTIFICATE"] == f"{mount['mountPath']}/tls.crt"
            assert found[f"TANDEM_{own.upper()}_TLS_KEY"] == f"{mount['mountPath']}/tls.key"
            assert {f"tandem-{own}", f"tandem-{own}.tandem.svc.cluster.local"} <= set(names)
        probes = (container["readinessProbe"], container["livenessProbe"])
        assert all("grpc" not in probe and probe["httpGet"]["port"] == "metrics" for probe in probes)


@pytest.mark.parametrize(("component", "kind"), [("model-fetch", "emptyDir"), ("model-image", "image")])
def test_a_model_that_is_fetched_takes_the_place_of_the_claim(
    build: Callable[..., Built], component: str, kind: str
) -> None:
    built = build("base", component)
    for own in ("tokenizer", "worker"):
        pod = pod_of(built["Deployment", f"tandem-{own}"])
        (model,) = [volume for volume in pod["volumes"] if volume["name"] == "model"]
        assert set(model) == {"name", kind}
        for fetch in pod.get("initContainers", []):
            further = ["--without-weights"] if own == "tokenizer" else []
            assert fetch["command"] == ["tandem", "pull", "$(MODEL_SOURCE)", "--to", "/model", *further]
            assert {"name": "model", "mountPath": "/model"} in fetch["volumeMounts"]
            assert fetch["securityContext"] == pod["containers"][0]["securityContext"]
        assert ("initContainers" in pod) == (component == "model-fetch")


def test_ranks_on_one_machine_have_a_card_each_and_room_to_exchange(build: Callable[..., Built]) -> None:
    pod = pod_of(build("gpu-cards")["Deployment", "tandem-worker"])
    (container,) = pod["containers"]
    assert variables(container)["TANDEM_WORKER_TENSOR_PARALLEL"] == container["resources"]["limits"]["nvidia.com/gpu"]
    assert variables(container)["TANDEM_WORKER_DEVICE"] == "cuda"
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert {"medium", "sizeLimit"} == set(next(v for v in pod["volumes"] if v["name"] == "shm")["emptyDir"])


def test_ranks_over_machines_meet_at_the_first_one(build: Callable[..., Built]) -> None:
    built = build("machines")
    assert ("Deployment", "tandem-worker") not in built
    spec = built["LeaderWorkerSet", "tandem-worker"]["spec"]
    template = spec["leaderWorkerTemplate"]
    # The service that others would share has the set's name, which is taken by one that leaves out who is not ready.
    assert ("Service", "tandem-worker") in built and spec["networkConfig"]["subdomainPolicy"] == "UniquePerReplica"
    leader, follower = template["leaderTemplate"], template["workerTemplate"]
    service = built["Service", "tandem-worker"]["spec"]["selector"]
    assert service.items() <= leader["metadata"]["labels"].items()
    assert not service.items() <= follower["metadata"]["labels"].items(), "only the first takes requests"
    (worker,), (rank,) = leader["spec"]["containers"], follower["spec"]["containers"]
    references = [each["valueFrom"]["configMapKeyRef"]["name"] for each in worker["env"] if "valueFrom" in each]
    assert references and all(("ConfigMap", name) in built for name in references), "with its hash"
    first, others = variables(worker), variables(rank)
    assert int(first["TANDEM_WORKER_TENSOR_PARALLEL"]) == template["size"] and first["LOCAL_WORLD_SIZE"] == "1"
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        assert first[name] == others[name]
    assert (others["RANK"], others["WORLD_SIZE"]) == ("$(LWS_WORKER_INDEX)", "$(LWS_GROUP_SIZE)")
    assert rank["command"] == ["python", "-m", "tandem.worker.engine.process.tensor_parallel"]
    assert rank["volumeMounts"] == worker["volumeMounts"], "the model lies under the same path"
    assert rank["resources"] == worker["resources"]
    settings = set(WorkerSettings.model_fields)
    ours = [name for name in first if name.startswith("TANDEM_WORKER_")]
    assert {name.removeprefix("TANDEM_WORKER_").lower() for name in ours} <= settings
    assert template["restartPolicy"] == "None", "an engine that starts again does not take the worker with it"


def test_routes_lead_to_services_and_ports_that_are_there(build: Callable[..., Built]) -> None:
    built = build("base", "http", "routes")
    routes = [each["spec"] for (kind, _), each in built.items() if kind.endswith("Route")]
    assert len(routes) == 2
    for backend in (backend for spec in routes for rule in spec["rules"] for backend in rule["backendRefs"]):
        service = built["Service", backend["name"]]["spec"]
        assert backend["port"] in [port["port"] for port in service["ports"]]
    (grpc,) = [spec for spec in routes if any("method" in match for match in spec["rules"][0]["matches"])]
    asked: dict[str, Any] = {
        rule["matches"][0]["method"]["service"]: rule["backendRefs"][0]["name"] for rule in grpc["rules"]
    }
    assert asked == {
        "tandem.tokenizer.v1.TokenizerService": "tandem-tokenizer",
        "tandem.inference.v1.InferenceService": "tandem-worker",
    }


def test_variables_of_components_are_settings(folder: Path) -> None:
    kinds = {"TANDEM_TOKENIZER_": TokenizerSettings, "TANDEM_WORKER_": WorkerSettings}
    seen = 0
    for part in ("gateway", "tls", "gpu-cards"):
        for manifest in manifests(folder / part):
            for container in manifest.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
                for name in (each["name"] for each in container.get("env", [])):
                    for prefix, kind in kinds.items():
                        if name.startswith(prefix):
                            assert name.removeprefix(prefix).lower() in kind.model_fields, name
                            seen += 1
    assert seen >= 7


def test_an_autoscaler_is_not_set_back_by_the_next_apply(build: Callable[..., Built]) -> None:
    built = build("base", "autoscaling")
    assert "replicas" not in built["Deployment", "tandem-worker"]["spec"]
    assert built["ScaledObject", "tandem-worker"]["spec"]["minReplicaCount"] >= 2


def test_what_components_add_lies_where_the_base_does(build: Callable[..., Built]) -> None:
    for components in (
        ("http", "gateway", "prometheus-operator", "autoscaling", "routes", "tls"),
        ("http", "model-fetch"),
    ):
        spaces = {key: each["metadata"].get("namespace") for key, each in build("base", *components).items()}
        del spaces["Namespace", "tandem"]
        assert set(spaces.values()) == {"tandem"}, spaces


def test_the_operator_scrapes_whatever_has_metrics(build: Callable[..., Built]) -> None:
    built = build("base", "http", "gateway", "prometheus-operator")
    pods = [each["spec"]["template"] for (kind, _), each in built.items() if kind == "Deployment"]
    monitors = [each["spec"] for (kind, _), each in built.items() if kind == "PodMonitor"]
    assert len(pods) == len(monitors) == 4
    for pod in pods:
        (monitor,) = [
            each for each in monitors if each["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        ]
        ports = [port["name"] for port in pod["spec"]["containers"][0]["ports"]]
        assert {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]} <= set(ports)


def test_pods_with_metrics_have_the_label_by_which_they_are_scraped_without_the_operator(
    build: Callable[..., Built], repository: Path
) -> None:
    assert "scrape the pods with the label\n  `app.kubernetes.io/part-of=tandem`" in (
        repository / "docs" / "deployment.md"
    ).read_text("utf-8")
    pods = [
        each["spec"]["template"] for (kind, _), each in build("base", "http", "gateway").items() if kind == "Deployment"
    ]
    assert len(pods) == 4
    assert {pod["metadata"]["labels"].get("app.kubernetes.io/part-of") for pod in pods} == {"tandem"}

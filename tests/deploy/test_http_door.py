"""The container of the HTTP door agrees with compose, Prometheus and the service."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tandem.common.settings import load_settings
from tandem.http.settings import HttpSettings
from tests.deploy.stack_files import STOP_SECONDS, Dockerfile, compose, seconds
from tests.deploy.test_kubernetes import manifests


@pytest.fixture
def service(repository: Path) -> dict[str, Any]:
    found: dict[str, Any] = compose(repository)["services"]["http"]
    return found


@pytest.fixture
def dockerfile(repository: Path) -> Dockerfile:
    return Dockerfile.read(repository / "deploy" / "docker" / "http.Dockerfile")


@pytest.fixture
def settings(service: dict[str, Any], dockerfile: Dockerfile, monkeypatch: pytest.MonkeyPatch) -> HttpSettings:
    """What it reads in its container."""
    for name, value in (dockerfile.environment | service["environment"]).items():
        monkeypatch.setenv(name, value)
    return load_settings(HttpSettings, [])


def test_every_variable_is_a_setting(service: dict[str, Any], dockerfile: Dockerfile) -> None:
    for name in [*service["environment"], *(name for name in dockerfile.environment if name.startswith("TANDEM_"))]:
        assert name.removeprefix("TANDEM_HTTP_").lower() in HttpSettings.model_fields, name


def test_ports_health_and_stop_are_those_of_the_service(
    service: dict[str, Any], dockerfile: Dockerfile, settings: HttpSettings
) -> None:
    assert (settings.host, settings.metrics_host, settings.log_format) == ("0.0.0.0", "0.0.0.0", "json")
    assert dockerfile.last_stage.all("EXPOSE") == [f"{settings.port} {settings.metrics_port}"]
    assert service["ports"] == [f"127.0.0.1:{settings.port}:{settings.port}"]
    assert service["healthcheck"]["test"] == ["CMD", *dockerfile.health_command]
    assert dockerfile.health_command == ["health", str(settings.metrics_port)]
    needed = settings.drain_grace_seconds + settings.drain_propagation_seconds + STOP_SECONDS
    assert seconds(service["stop_grace_period"]) >= needed
    assert dockerfile.last_stage.all("ENTRYPOINT") == ['["python", "-m", "tandem.http"]']
    assert importlib.util.find_spec("tandem.http.__main__") is not None


def test_it_asks_the_services_of_the_stack_and_is_scraped(repository: Path, settings: HttpSettings) -> None:
    environments = {
        own: Dockerfile.read(repository / "deploy" / "docker" / f"{own}.Dockerfile").environment
        for own in ("tokenizer", "worker")
    }
    assert settings.tokenizer_address == f"tokenizer:{environments['tokenizer']['TANDEM_TOKENIZER_PORT']}"
    assert settings.worker_address == (f"dns:///worker:{environments['worker']['TANDEM_WORKER_PORT']}",)
    config = yaml.safe_load((repository / "deploy" / "prometheus" / "prometheus.yml").read_text())
    (job,) = [job for job in config["scrape_configs"] if job["job_name"] == "tandem-http"]
    (discovery,) = job["dns_sd_configs"]
    assert (discovery["names"], discovery["port"]) == (["http"], settings.metrics_port)


def test_its_image_has_neither_torch_nor_a_tokenizer_library(repository: Path) -> None:
    listed = (repository / "deploy" / "docker" / "locks" / "http.txt").read_text()
    assert all(f"\n{name}==" in listed for name in ("starlette", "uvicorn", "grpcio"))
    assert "torch" not in listed and "sentencepiece" not in listed


@pytest.fixture
def cluster(repository: Path) -> dict[str, dict[str, Any]]:
    """The manifests of the component, by kind."""
    folder = repository / "deploy" / "kubernetes" / "http"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert (listed["kind"], listed["resources"]) == ("Component", ["http.yaml"])
    found = {each["kind"]: each for each in manifests(folder)}
    for manifest in found.values():
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    return found


def test_the_pods_of_a_cluster_are_as_those_of_the_services(
    cluster: dict[str, dict[str, Any]],
    repository: Path,
    dockerfile: Dockerfile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pod = cluster["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    for name, value in dockerfile.environment.items() | {(each["name"], each["value"]) for each in container["env"]}:
        monkeypatch.setenv(name, value)
    settings = load_settings(HttpSettings, [])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": settings.port, "metrics": settings.metrics_port}
    assert [(port["port"], port["targetPort"]) for port in cluster["Service"]["spec"]["ports"]] == [(8000, "http")]
    assert container["readinessProbe"]["httpGet"] == {"path": "/healthz?ready", "port": "metrics"}
    needed = settings.drain_propagation_seconds + settings.drain_grace_seconds + STOP_SECONDS
    assert needed <= pod["terminationGracePeriodSeconds"] <= needed + 10
    labels = cluster["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for place in ("Service", "PodDisruptionBudget", "Deployment"):
        selector = cluster[place]["spec"]["selector"]
        assert selector.get("matchLabels", selector).items() <= labels.items()
    policy = cluster["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert [rule["ports"][0]["port"] for rule in policy["ingress"]] == [settings.port, settings.metrics_port]
    base = {(each["kind"], each["metadata"]["name"]): each for each in manifests(repository / "deploy/kubernetes/base")}
    tokenizer = base["Deployment", "tandem-tokenizer"]["spec"]["template"]["spec"]
    assert pod["securityContext"] == tokenizer["securityContext"]
    assert container["securityContext"] == tokenizer["containers"][0]["securityContext"]
    for address in (settings.tokenizer_address, *settings.worker_address):
        name, _, port = address.removeprefix("dns:///").partition(":")
        assert [each["port"] for each in base["Service", name]["spec"]["ports"]] == [int(port)]

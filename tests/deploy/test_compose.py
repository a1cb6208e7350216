"""docker-compose.yml, the Dockerfiles and the Prometheus configuration agree with each other and with the services."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tandem.common.settings import ServiceSettings, load_settings
from tandem.inference.v1 import inference_pb2
from tandem.tokenizer.settings import TokenizerSettings
from tandem.tokenizer.v1 import tokenizer_pb2
from tandem.worker.settings import WorkerSettings
from tests.deploy.stack_files import OWN_SERVICES, STOP_SECONDS, Dockerfile, compose, exported_names, seconds

SETTINGS: dict[str, type[ServiceSettings]] = {"tokenizer": TokenizerSettings, "worker": WorkerSettings}
PROTO_SERVICES = {
    "tokenizer": tokenizer_pb2.DESCRIPTOR.services_by_name["TokenizerService"].full_name,
    "worker": inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name,
}


@pytest.fixture(scope="module")
def stack(repository: Path) -> dict[str, Any]:
    return compose(repository)


@pytest.fixture(params=OWN_SERVICES)
def own(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def dockerfile(repository: Path, own: str) -> Dockerfile:
    return Dockerfile.read(repository / "deploy" / "docker" / f"{own}.Dockerfile")


@pytest.fixture
def settings(
    stack: dict[str, Any], own: str, dockerfile: Dockerfile, monkeypatch: pytest.MonkeyPatch
) -> ServiceSettings:
    """What the service in the container reads from the image's and compose's environment and its command line."""
    environment = dockerfile.environment | stack["services"][own].get("environment", {})
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return load_settings(SETTINGS[own], stack["services"][own].get("command", []))


def test_every_variable_of_image_and_compose_is_a_setting(
    stack: dict[str, Any], own: str, dockerfile: Dockerfile
) -> None:
    kind, prefix = SETTINGS[own], SETTINGS[own].model_config.get("env_prefix", "")
    names = [*dockerfile.environment, *stack["services"][own].get("environment", {})]
    ours = [name for name in names if name.startswith("TANDEM_")]
    assert len(ours) >= 5
    for name in ours:
        assert name.startswith(prefix), name
        assert name.removeprefix(prefix).lower() in kind.model_fields, name


def test_containers_listen_on_all_interfaces_on_the_ports_that_everybody_means(
    stack: dict[str, Any], own: str, dockerfile: Dockerfile, settings: ServiceSettings
) -> None:
    assert (settings.host, settings.metrics_host, settings.log_format) == ("0.0.0.0", "0.0.0.0", "json")
    assert dockerfile.last_stage.all("EXPOSE") == [f"{settings.port} {settings.metrics_port}"]
    health = stack["services"][own]["healthcheck"]["test"]
    assert health == ["CMD", *dockerfile.health_command]
    assert health[1:] == ["health", str(settings.metrics_port)]
    assert stack["services"][own]["ports"] == [f"127.0.0.1:{settings.port}:{settings.port}"]


def test_a_stop_waits_longer_than_running_requests_may_take(
    stack: dict[str, Any], own: str, settings: ServiceSettings
) -> None:
    grace = seconds(stack["services"][own]["stop_grace_period"])
    assert grace >= settings.drain_grace_seconds + settings.drain_propagation_seconds + STOP_SECONDS


def test_the_worker_asks_the_tokenizer_for_the_model_that_both_serve(
    repository: Path, stack: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, tokenizer = stack["services"]["worker"], stack["services"]["tokenizer"]
    environment = Dockerfile.read(repository / "deploy" / "docker" / "tokenizer.Dockerfile").environment
    assert (
        worker["environment"]["TANDEM_WORKER_TOKENIZER_ADDRESS"] == f"tokenizer:{environment['TANDEM_TOKENIZER_PORT']}"
    )
    assert worker["depends_on"]["tokenizer"]["condition"] == "service_healthy"
    assert set(worker["networks"]) & set(tokenizer["networks"])
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    served = load_settings(TokenizerSettings, tokenizer["command"]).tokenizers()
    assert {name: str(path) for name, path in served.items()} == {
        worker["environment"]["TANDEM_WORKER_MODEL_NAME"]: worker["environment"]["TANDEM_WORKER_MODEL"]
    }
    for service in (worker, tokenizer):
        (mount,) = service["volumes"]
        assert (mount["target"], mount["read_only"]) == ("/model", True)
        assert (repository / mount["source"] / "config.json").is_file()


def test_another_model_is_mounted_and_named_by_variables_alone(repository: Path) -> None:
    stack = compose(repository, MODEL_DIR="/models/large", MODEL_NAME="large")
    assert {stack["services"][own]["volumes"][0]["source"] for own in OWN_SERVICES} == {"/models/large"}
    assert stack["services"]["tokenizer"]["command"] == ["--tokenizer", "large=/model"]
    assert stack["services"]["worker"]["environment"]["TANDEM_WORKER_MODEL_NAME"] == "large"


def test_every_service_is_hardened_and_limited(stack: dict[str, Any]) -> None:
    assert set(stack["services"]) == {*OWN_SERVICES, "http", "gateway", "prometheus", "grafana"}
    for name, service in stack["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["restart"] == "unless-stopped", name
        assert not {"privileged", "user", "cap_add", "network_mode", "pid"} & set(service), name
        limits = service["deploy"]["resources"]["limits"]
        assert limits["memory"], name
        assert limits["pids"] > 0, name
        assert service["healthcheck"]["test"][0] == "CMD", name
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:"), name


def test_metrics_ports_are_scraped_and_never_published(repository: Path, stack: dict[str, Any]) -> None:
    config = yaml.safe_load((repository / "deploy" / "prometheus" / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    prometheus_networks = set(stack["services"]["prometheus"]["networks"])
    for own in OWN_SERVICES:
        environment = Dockerfile.read(repository / "deploy" / "docker" / f"{own}.Dockerfile").environment
        port = int(environment[f"TANDEM_{own.upper()}_METRICS_PORT"])
        (discovery,) = jobs[f"tandem-{own}"]["dns_sd_configs"]
        assert (discovery["names"], discovery["type"], discovery["port"]) == ([own], "A", port)
        assert prometheus_networks & set(stack["services"][own]["networks"])
        assert not any(published.endswith(f":{port}") for published in stack["services"][own]["ports"])


def test_rules_speak_of_metrics_that_exist(repository: Path) -> None:
    known, used = exported_names(), set()
    for file in sorted((repository / "deploy" / "prometheus" / "rules").glob("*.yml")):
        for group in yaml.safe_load(file.read_text())["groups"]:
            for rule in group["rules"]:
                used |= set(re.findall(r"\btandem_\w+", rule["expr"]))
    assert len(used) > 20
    processes = {f"tandem_engine_process_{name}" for name in ("resident_memory_bytes", "start_time_seconds")}
    assert used <= known | processes


def test_vllm_names_stand_for_the_series_of_the_same_stem(repository: Path) -> None:
    rules = yaml.safe_load((repository / "deploy" / "prometheus" / "rules" / "recording.yml").read_text())
    aliases = {
        rule["record"]: rule["expr"] for group in rules["groups"] for rule in group["rules"] if "vllm" in rule["record"]
    }
    assert len(aliases) > 20
    for name, expression in aliases.items():
        assert expression == name.replace("vllm:", "tandem_")


def test_images_run_as_a_numbered_user_and_start_the_service(
    repository: Path, own: str, dockerfile: Dockerfile
) -> None:
    last = dockerfile.last_stage
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", last.all("USER")[-1])
    (module,) = re.findall(r'\["python", "-m", "([\w.]+)"\]', last.all("ENTRYPOINT")[-1])
    assert importlib.util.find_spec(f"{module}.__main__") is not None
    assert dockerfile.all("ARG")[0] == "BASE=python:3.12-slim-bookworm"
    assert {stage.split()[0] for stage in dockerfile.all("FROM")} == {"${BASE}"}
    assert "syntax=" not in (repository / "deploy" / "docker" / f"{own}.Dockerfile").read_text()


def test_the_package_is_compiled_once_for_all_images(repository: Path) -> None:
    """The engine does the same steps of two images once."""
    stages = []
    for own in OWN_SERVICES:
        instructions = Dockerfile.read(repository / "deploy" / "docker" / f"{own}.Dockerfile").instructions
        _, second, *_ = (place for place, (word, _) in enumerate(instructions) if word == "FROM")
        stages.append(instructions[:second])
    assert stages[0] == stages[1]


@pytest.fixture
def lock(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", repository / "deploy" / "docker" / "lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_locks_hold_what_each_image_needs_and_no_more(repository: Path, lock: ModuleType) -> None:
    constraints = (repository / "constraints.txt").read_text()
    for image, requirements in lock.wanted().items():
        text = (repository / "deploy" / "docker" / "locks" / f"{image}.txt").read_text()
        assert lock.complaints(image, requirements, text, constraints) == []
        assert not {"torch", "tandem-llm"} & set(lock.pins(text))
        assert ("safetensors" in lock.pins(text)) == (image == "worker")


def test_what_a_lock_lacks_is_named(lock: ModuleType) -> None:
    stale = "# by lock.py\na==1.0 \\\n    --hash=sha256:00\nb==1.0\n"
    found = lock.complaints("worker", ["a>=1", "b>=2", "c", "torch"], stale, "a==1.1")
    assert [each.split(": ", 1)[1].split()[0] for each in found] == ["b>=2", "c", "a==1.1", "b==1.0"]


def test_an_unknown_extra_is_refused(lock: ModuleType) -> None:
    with pytest.raises(SystemExit, match="tokenizer"):
        lock.requirements_of({"name": "x", "dependencies": [], "optional-dependencies": {"tokenizer": []}}, "tokeniser")


def test_images_install_by_hash_and_torch_alone_by_version(repository: Path) -> None:
    for file in (repository / "deploy" / "docker").glob("*.Dockerfile"):
        runs = " && ".join(Dockerfile.read(file).all("RUN"))
        for command in (part for part in runs.split("&&") if " pip " in part and " install " in part):
            by_hash = "--require-hashes" in command and "--only-binary :all:" in command
            torch = "-c constraints.txt torch" in command and "worker" in file.name
            assert by_hash or torch or "--no-index --no-deps" in command, (file.name, command)


def test_the_build_context_holds_all_that_the_wheel_is_made_of(repository: Path) -> None:
    allowed = {line[1:] for line in (repository / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    files = [
        "pyproject.toml",
        "hatch_build.py",
        "constraints.txt",  # of torch
        project["project"]["readme"],
        *project["project"]["license-files"],
    ]
    for needed in [*files, *(package.split("/")[0] for package in packages), "deploy/docker/locks"]:
        assert needed in allowed, needed
        assert (repository / needed).exists(), needed

"""What the tests read of the deployment, as compose sees it: compose file, Dockerfiles, Prometheus configuration."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

from tandem.client.metrics import metrics_in
from tandem.common.metrics import ServiceMetrics
from tandem.http.metrics import HttpMetrics
from tandem.tokenizer.rpc.metrics import TokenizerMetrics
from tandem.worker.front.metrics import WorkerMetrics

STOP_SECONDS = 32  # what a service may need beyond propagation and grace (docs/operations.md)
OWN_SERVICES = ("tokenizer", "worker")


def interpolated(text: str, environment: Mapping[str, str]) -> str:
    """Compose's `${NAME}`, `${NAME-default}` and `${NAME:-default}`."""

    def value(match: re.Match[str]) -> str:
        name, operator, default = match[1], match[2], match[3] or ""
        given = environment.get(name)
        return default if given is None or (operator == ":-" and not given) else given

    return re.sub(r"\$\{(\w+)(?:(:?-)([^}]*))?\}", value, text)


def compose(repository: Path, **environment: str) -> dict[str, Any]:
    text = (repository / "docker-compose.yml").read_text()
    parsed: dict[str, Any] = yaml.safe_load(interpolated(text, environment))
    return parsed


def seconds(duration: str) -> float:
    """A compose duration such as 1m30s."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    parts = re.findall(r"([\d.]+)([hms])", duration)
    assert "".join(number + unit for number, unit in parts) == duration, duration
    return sum(float(number) * units[unit] for number, unit in parts)


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """The instructions of a Dockerfile, continued lines joined."""

    instructions: tuple[tuple[str, str], ...]

    @staticmethod
    def read(path: Path) -> Dockerfile:
        lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
        joined = re.sub(r"\\\n", " ", "\n".join(lines))
        pairs = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
        return Dockerfile(tuple((word, " ".join(rest.split())) for word, rest in pairs))

    def all(self, word: str) -> list[str]:
        return [rest for found, rest in self.instructions if found == word]

    @property
    def last_stage(self) -> Dockerfile:
        starts = [index for index, (word, _) in enumerate(self.instructions) if word == "FROM"]
        return Dockerfile(self.instructions[starts[-1] :])

    @property
    def environment(self) -> dict[str, str]:
        pairs = [pair.split("=", 1) for line in self.last_stage.all("ENV") for pair in shlex.split(line)]
        return dict(pairs)

    @property
    def health_command(self) -> list[str]:
        command: list[str] = json.loads(self.last_stage.all("HEALTHCHECK")[-1].split("CMD", 1)[1])
        return command


def exported_names() -> set[str]:
    """Every series name that a freshly started tokenizer, worker or HTTP door can show."""
    worker, tokenizer = ServiceMetrics("tandem-worker"), ServiceMetrics("tandem-tokenizer")
    WorkerMetrics(worker.registry, "demo")
    door = HttpMetrics().registry
    metrics_in(door)
    registries: list[CollectorRegistry] = [worker.registry, tokenizer.registry, TokenizerMetrics().registry, door]
    names = set()
    for registry in registries:
        for metric in registry.collect():
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(metric.type, [""])
            names |= {metric.name + suffix for suffix in suffixes}
    return names

"""A real Prometheus with our rules. It finds services as it does in containers: what is gone is no target any more."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.alerts.rules import short_rules
from tests.conftest import REPOSITORY
from tests.integration.smg_process import free_port

RULES = REPOSITORY / "deploy" / "prometheus" / "rules"
INTERVAL = "2s"  # of scrapes and evaluations
START_SECONDS = 60


@dataclass
class Prometheus:
    """One that runs."""

    folder: Path
    port: int

    def find(self, targets: Mapping[str, list[str]]) -> None:
        """Tells it where metrics are, by job."""
        for job, addresses in targets.items():
            file = self.folder / f"{job}.json"
            new = file.with_suffix(".new")
            new.write_text(json.dumps([{"targets": addresses}]))
            new.rename(file)

    async def ask(self, path: str) -> Any:
        """The data of an answer of its interface."""

        def fetch() -> Any:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}", timeout=30) as response:
                return json.load(response)["data"]

        return await asyncio.to_thread(fetch)

    async def firing(self) -> set[str]:
        """The alerts that fire now."""
        alerts = (await self.ask("alerts"))["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    async def sees(self, targets: int) -> bool:
        """Whether so many targets answer, and what fired before they did is over."""
        up = (await self.ask("query?query=sum(up)"))["result"]
        return bool(up) and int(up[0]["value"][1]) == targets and not await self.firing()

    async def broken(self) -> list[str]:
        """The rules that could not be evaluated."""
        groups = (await self.ask("rules"))["groups"]
        return [f"{rule['name']}: {rule['lastError']}" for group in groups for rule in group["rules"]
                if rule["health"] == "err"]  # fmt: skip


def _short_files(folder: Path) -> list[str]:
    """The files with our rules, shortened."""
    files = []
    for file in sorted(RULES.glob("*.yml")):
        (folder / file.name).write_text(yaml.safe_dump(short_rules(file)))
        files.append(str(folder / file.name))
    return files


@asynccontextmanager
async def running_prometheus(program: str, folder: Path, targets: Mapping[str, list[str]]) -> AsyncIterator[Prometheus]:
    """One with the shortened rules, until its end."""
    files = _short_files(folder)
    config = {
        "global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": files,
        "scrape_configs": [
            {"job_name": job, "file_sd_configs": [{"files": [str(folder / f"{job}.json")]}]} for job in targets
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    prometheus = Prometheus(folder, free_port())
    prometheus.find(targets)
    flags = (f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}")
    flags += ("--scrape.discovery-reload-interval=500ms",)
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(program, *flags, f"--web.listen-address=127.0.0.1:{prometheus.port}"), stdout=log, stderr=log
        )
    try:
        async with asyncio.timeout(START_SECONDS):
            while True:
                if process.returncode is not None:
                    raise RuntimeError((folder / "prometheus.log").read_text()[-2000:])
                try:
                    if await prometheus.sees(sum(map(len, targets.values()))):
                        break
                except OSError:  # it does not listen yet
                    pass
                await asyncio.sleep(0.1)
        yield prometheus
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()

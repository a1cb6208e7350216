"""Grafana's dashboards: written by their script, found where Grafana looks, and about metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.stack_files import compose, exported_names


@pytest.fixture(scope="module")
def boards(repository: Path) -> dict[str, dict[str, Any]]:
    files = sorted((repository / "deploy" / "grafana" / "dashboards").glob("*.json"))
    return {file.name: json.loads(file.read_text()) for file in files}


def test_the_files_are_what_the_script_writes(repository: Path) -> None:
    script = repository / "deploy" / "dashboards.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_panels_ask_for_metrics_that_exist(boards: dict[str, dict[str, Any]]) -> None:
    text = json.dumps(list(boards.values()))
    used = set(re.findall(r"\b(?:tandem|process)_(?!perc)\w+", text))
    process = {"cpu_seconds_total", "resident_memory_bytes", "open_fds", "start_time_seconds"}
    assert len(used) > 50
    processes = {f"{prefix}process_{name}" for prefix in ("", "tandem_engine_") for name in process}
    assert used <= exported_names() | processes


def test_every_metric_that_an_operator_should_see_has_a_panel(boards: dict[str, dict[str, Any]]) -> None:
    text = json.dumps(list(boards.values()))
    ours = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported_names() if name.startswith("tandem_")}
    unseen = {name for name in ours if name not in text}
    for_others = {  # that vLLM's dashboard, autoscalers and endpoint pickers ask for
        "tandem_cache_config_info",
        "tandem_kv_cache_tokens",
        "tandem_max_running_requests",
        "tandem_request_max_num_generation_tokens",
        "tandem_request_time_per_output_token_seconds",
    }
    assert unseen <= {"tandem_build_info", "tandem_engine_overlap_wasted_tokens_total"} | for_others


def test_panels_have_numbers_help_and_a_place_of_their_own(boards: dict[str, dict[str, Any]]) -> None:
    assert len({board["uid"] for board in boards.values()}) == len(boards) >= 3
    for name, board in boards.items():
        numbers = [panel["id"] for panel in board["panels"]]
        assert len(set(numbers)) == len(numbers), name
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            place = panel["gridPos"]
            cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
            assert place["x"] + place["w"] <= 24, (name, panel["title"])
            assert not taken & cells, (name, panel["title"])
            taken |= cells
            if panel["type"] != "row":
                assert panel["description"], (name, panel["title"])
                assert panel["type"] == "alertlist" or panel["targets"], (name, panel["title"])
        assert [link["tags"] for link in board["links"]] == [["tandem"]], f"{name} leads to the others"
        lines = {line["name"]: line["expr"] for line in board["annotations"]["list"]}
        assert {"Restarts", "Deploys"} <= set(lines), name


def test_latency_hits_and_failures_are_seen_by_worker_and_times_whole(
    boards: dict[str, dict[str, Any]],
) -> None:
    panels = [panel for panel in boards["serving.json"]["panels"] if panel.get("targets")]
    by_instance = " ".join(t["expr"] for panel in panels for t in panel["targets"] if "by (instance" in t["expr"])
    for metric in ("time_to_first_token_seconds", "inter_token_latency_seconds", "prefix_cache_hits", "grpc_server"):
        assert f"tandem_{metric}" in by_instance, metric
    heatmaps = [panel["targets"][0] for panel in panels if panel["type"] == "heatmap"]
    assert len(heatmaps) >= 3 and {each["format"] for each in heatmaps} == {"heatmap"}
    assert any(panel["type"] == "alertlist" for panel in boards["serving.json"]["panels"])


def test_grafana_finds_its_dashboards_and_its_source(repository: Path, boards: dict[str, dict[str, Any]]) -> None:
    stack = compose(repository)["services"]
    mounts = {mount["target"]: repository / mount["source"] for mount in stack["grafana"]["volumes"]}
    provisioning = mounts["/etc/grafana/provisioning"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "tandem.yml").read_text())["providers"]
    found = mounts[provider["options"]["path"]]
    assert {file.name for file in found.iterdir()} == set(boards)
    home = Path(stack["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (mounts[str(home.parent)] / home.name).is_file()
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    port = stack["prometheus"]["ports"][0].rsplit(":", 1)[1]
    assert source["url"] == f"http://prometheus:{port}"
    scraped = yaml.safe_load((repository / "deploy" / "prometheus" / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == scraped["global"]["scrape_interval"]
    assert set(stack["grafana"]["networks"]) & set(stack["prometheus"]["networks"])

"""docs/operations.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tandem.common.metrics import ServiceMetrics
from tandem.common.settings import ServiceSettings


@pytest.fixture
def page(repository: Path) -> str:
    return (repository / "docs" / "operations.md").read_text()


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the tables below a heading."""
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_table_of_settings_is_complete_and_its_defaults_are_true(page: str) -> None:
    table = {row[0].strip("` "): row[1].strip("`| ") for row in rows(page, "Settings")}
    assert list(table) == list(ServiceSettings.model_fields)
    words = {True: "yes", False: "no", None: "none"}
    for name, field in ServiceSettings.model_fields.items():
        default = field.default
        told = (
            words[default]
            if default is None or isinstance(default, bool)
            else f"{default:g}"
            if isinstance(default, float)
            else str(default)
        )
        assert table[name] == told, name


def test_the_table_of_metrics_is_complete_and_its_labels_are_true(page: str) -> None:
    table = {row[0].strip("` "): row for row in rows(page, "Metrics")}
    metrics = ServiceMetrics("tandem-probe")
    metrics.method("s", "m").handled("OK", 0.1)
    families = {
        family.name + ("_total" if family.type == "counter" else ""): family for family in metrics.registry.collect()
    }
    own = {name: family for name, family in families.items() if name.startswith("tandem_")}
    assert {name for name in table if name.startswith("tandem_")} == set(own)
    for name, family in own.items():
        assert table[name][1] == family.type
        labels = {label for each in family.samples for label in each.labels} - {"le"}
        assert set(re.findall(r"`(\w+)`", table[name][2])) == labels, name

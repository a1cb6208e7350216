"""docs/worker.md says what the worker's settings are."""

from __future__ import annotations

import re
from pathlib import Path

from tandem.common.settings import ServiceSettings
from tandem.worker.settings import WorkerSettings


def test_the_table_of_settings_is_complete_and_its_defaults_are_true(repository: Path) -> None:
    section = (repository / "docs" / "worker.md").read_text().split("\n## Settings\n")[1].split("\n## ")[0]
    table: dict[str, str] = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            names, told = (cell.strip() for cell in line.split("|")[1:3])
            table.update(dict.fromkeys(re.findall(r"`(\w+)`", names), told))
    assert set(table) == WorkerSettings.model_fields.keys() - ServiceSettings.model_fields.keys()
    for name, told in table.items():
        default = WorkerSettings.model_fields[name].get_default()
        if told in ("", "required") or told.startswith("the "):  # words stand for what the worker finds out itself
            assert not default or WorkerSettings.model_fields[name].is_required(), name
        else:
            assert told.replace(",", "") == (f"{default:g}" if type(default) is float else str(default).lower()), name

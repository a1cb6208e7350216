"""The table of docs/sampling.md is what the worker checks, and the presets are the SDK's."""

from __future__ import annotations

import math
from pathlib import Path

from tandem.client.sampling import PRESETS, STRATEGIES
from worker_svc.sampling_rules import LISTS, NUMBERS

PAGE = (Path(__file__).parents[2] / "docs" / "sampling.md").read_text()


def table(first_cell: str) -> dict[str, list[str]]:
    """The rows of the table with this header, by their first cell."""
    lines = PAGE[PAGE.index(f"| {first_cell} |") :].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in rows}


def test_ranges_and_defaults_are_those_of_the_code() -> None:
    rows = table("parameter")
    assert set(rows) == {*NUMBERS, *LISTS, "temperature_last", "seed"}
    for path, bounds in NUMBERS.items():
        if bounds.high == math.inf:
            expected = f"{'>=' if bounds.low_allowed else '>'} {bounds.low:g}"
        else:
            expected = f"{bounds.low:g} to {bounds.high:.10g}"
        assert rows[path][0] == expected, path
        default = "the context" if path == "dry.window" else f"{bounds.default:g}"
        assert rows[path][1] == default, path
    for path, (most, most_ids) in LISTS.items():
        expected = f"{most} of 1 to {most_ids} ids" if most_ids else f"{most} ids"
        assert rows[path][0] == expected, path


def test_presets_and_strategies_are_those_of_the_sdk() -> None:
    columns = ("temperature", "top_k", "top_p", "repetition_penalty")
    found = {
        name: {column: float(cell) for column, cell in zip(columns, cells, strict=True) if cell}
        for name, cells in table("preset").items()
    }
    assert found == PRESETS
    assert set(table("strategy")) == set(STRATEGIES)

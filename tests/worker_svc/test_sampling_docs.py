"""The tables of docs/sampling.md: every parameter of the contract, and the presets of the SDK."""

from __future__ import annotations

from pathlib import Path

from tandem.client.sampling import PRESETS, STRATEGIES
from tandem.worker.engine.sampler.filters import CHAIN
from tandem.worker.engine.sampler.waits import WAITS
from tandem.worker.front.sampling_rules import LIMITS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "sampling.md").read_text()


def table(first_cell: str) -> dict[str, list[str]]:
    """The rows of the table with this header, by their first cell."""
    lines = PAGE[PAGE.index(f"| {first_cell} |") :].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in rows}


def test_the_table_has_a_row_for_every_parameter_and_no_other() -> None:
    # That its ranges and defaults are those of the contract, `protos/generate.py --check` sees.
    assert set(table("parameter")) == set(LIMITS)


def test_what_the_host_waits_for_on_a_gpu_is_told() -> None:
    told = (DOCS / "gpu.md").read_text().split("- **What the host waits for**")[1].split("\n\n")[0]
    assert all(name in told for name in WAITS)
    # A filter that the kernels do not have is one of them.
    assert {each.parameter for each in CHAIN} - {"top_n_sigma", "top_k", "top_p", "min_p"} <= WAITS.keys()


def test_presets_and_strategies_are_those_of_the_sdk() -> None:
    columns = ("temperature", "top_k", "top_p", "repetition_penalty")
    found = {
        name: {column: float(cell) for column, cell in zip(columns, cells, strict=True) if cell}
        for name, cells in table("preset").items()
    }
    assert found == PRESETS
    assert set(table("strategy")) == set(STRATEGIES)

"""A run drawn as a PNG: how its times are distributed, and what went on when. A second run is drawn beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tandem.client.bench.report import TIMES, Run

_DISTRIBUTIONS = ("ttft", "gap", "e2e")


def draw(runs: Mapping[str, Run], path: Path) -> None:
    """Writes the picture of runs by name. Raises ImportError where matplotlib is not installed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    axes = figure.subplots(2, 2).flat
    for name, axis in zip(_DISTRIBUTIONS, axes, strict=False):
        for label, run in runs.items():
            values = run.times(name)
            axis.plot(values, [(number + 1) / len(values) for number in range(len(values))], label=label)
            if name in run.slo:
                axis.axvline(run.slo[name], color="grey", linestyle=":")
        axis.set(title=TIMES[name], xlabel="seconds", ylabel="share of them", ylim=(0, 1.02))
        axis.set_xlim(left=0)
    axis = axes[-1]
    for label, run in runs.items():
        moments = sorted([(each.due, 1) for each in run.records] + [(each.end, -1) for each in run.records])
        level, levels = 0, []
        for _, change in moments:
            level += change
            levels.append(level)
        axis.step([moment for moment, _ in moments], levels, where="post", label=label)
    axis.set(title="requests under way", xlabel="seconds since the beginning", ylim=(0, None))
    for axis in axes:
        axis.grid(alpha=0.3)
        if len(runs) > 1:
            axis.legend()
    figure.savefig(path, dpi=120, format="png")

"""A dashboard as a picture, drawn by matplotlib of what Prometheus answers: for the docs, and without a Grafana."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Curves = Callable[[str], list[dict[str, Any]]]  # what a query has over time, as Prometheus tells it
_INCHES = 0.62  # of a cell of Grafana's grid, across; it is 0.3 high
_HEIGHT = 0.3
_SECONDS = ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"))
_BYTES = ((1 << 30, 1 << 20, "MiB"), (1 << 40, 1 << 30, "GiB"))


def words(value: float, unit: str) -> str:
    """A number as a person reads it."""
    if math.isnan(value):
        return "-"
    if unit == "s":
        for below, times, name in _SECONDS:
            if 0 < abs(value) < below:
                return f"{value * times:.3g} {name}"
        return f"{value:.3g} s"
    if unit in ("bytes", "Bps"):
        for below, divisor, name in _BYTES:
            if abs(value) < below:
                return f"{value / divisor:.3g} {name}{'/s' if unit == 'Bps' else ''}"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    return f"{value:.4g}{' /s' if unit == 'reqps' else ''}"


def legend_of(pattern: str, labels: dict[str, str]) -> str:
    """What Grafana writes beside a curve."""
    if pattern == "__auto":
        return ", ".join(value for name, value in labels.items() if name != "__name__")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), pattern)


def numbers(curve: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Its moments and values."""
    values = curve["values"]
    return [float(moment) for moment, _ in values], [float(value) for _, value in values]


def draw_heatmap(axes: Axes, panel: dict[str, Any], curves: list[dict[str, Any]]) -> None:
    """Each bucket's gain over time, which is what it has over the next smaller one."""
    bounds = sorted(curves, key=lambda curve: float(curve["metric"]["le"]))
    moments = sorted({moment for curve in bounds for moment in numbers(curve)[0]})
    rows, before = [], dict.fromkeys(moments, 0.0)
    for curve in bounds:
        now = dict(zip(*numbers(curve), strict=True))
        rows.append([max(0.0, now.get(moment, 0.0) - before[moment]) for moment in moments])
        before = {moment: now.get(moment, 0.0) for moment in moments}
    if rows and moments:
        axes.pcolormesh([moment - moments[0] for moment in moments], range(len(rows)), rows, cmap="YlOrRd")
        shown = range(0, len(bounds), 3)
        unit = panel["fieldConfig"]["defaults"].get("unit", "none")
        axes.set_yticks(shown, [words(float(bounds[number]["metric"]["le"]), unit) for number in shown])


def draw_curves(axes: Axes, panel: dict[str, Any], ask: Curves) -> None:
    """Lines, or parts of a whole."""
    defaults = panel["fieldConfig"]["defaults"]
    stacked = defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal"
    found = [(legend_of(t["legendFormat"], curve["metric"]), *numbers(curve))
             for t in panel["targets"] for curve in ask(t["expr"])]  # fmt: skip
    start = min((moments[0] for _, moments, _ in found), default=0.0)
    floor: dict[float, float] = {}
    for label, moments, values in found:
        if stacked:
            lower = [floor.get(moment, 0.0) for moment in moments]
            values = [low + (0.0 if math.isnan(value) else value) for low, value in zip(lower, values, strict=True)]
            axes.fill_between([moment - start for moment in moments], lower, values, alpha=0.3)
            floor.update(zip(moments, values, strict=True))
        axes.plot([moment - start for moment in moments], values, label=label, linewidth=1)
    for step in defaults.get("thresholds", {}).get("steps", ()):
        top = max((value for _, _, values in found for value in values if math.isfinite(value)), default=0.0)
        if step["value"] is not None and step["value"] <= 2 * top:
            axes.axhline(step["value"], color=step["color"], linestyle="--", linewidth=0.8)
    axes.set_ylim(0, defaults.get("max"))
    unit = defaults.get("unit", "none")
    axes.yaxis.set_major_formatter(lambda value, _: words(value, unit))
    if 0 < len(found) <= 6 and any(label for label, _, _ in found):
        axes.legend(fontsize=5, loc="best", frameon=False)


def draw(board: dict[str, Any], ask: Curves, path: Path) -> None:
    """Writes the picture of a dashboard."""
    panels = [panel for panel in board["panels"] if panel["type"] != "alertlist"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = Figure(figsize=(24 * _INCHES, height * _HEIGHT))
    for panel in panels:
        place = panel["gridPos"]
        left, top = place["x"] / 24, 1 - place["y"] / height
        if panel["type"] == "row":
            figure.text(left + 0.005, top - 0.7 / height, panel["title"], fontsize=9, weight="bold")
            continue
        box = (left + 0.032, top - (place["h"] - 1.4) / height, place["w"] / 24 - 0.042, (place["h"] - 2.6) / height)
        axes = figure.add_axes(box)
        axes.set_title(panel["title"], fontsize=7, loc="left")
        axes.tick_params(labelsize=5)
        if panel["type"] == "stat":
            axes.set_axis_off()
            latest = [numbers(curve)[1][-1] for target in panel["targets"] for curve in ask(target["expr"])]
            unit = panel["fieldConfig"]["defaults"].get("unit", "none")
            axes.text(0.0, 0.3, ", ".join(words(value, unit) for value in latest) or "-", fontsize=14)
        elif panel["type"] == "heatmap":
            draw_heatmap(axes, panel, ask(panel["targets"][0]["expr"]))
        else:
            draw_curves(axes, panel, ask)
            axes.grid(alpha=0.25)
    figure.savefig(path, dpi=72, format="png")

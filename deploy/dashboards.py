"""Writes Grafana's dashboards (deploy/grafana/dashboards/*.json) from dashboards.yml.

    python deploy/dashboards.py            write them
    python deploy/dashboards.py --check    exit code 1 if what is written differs

`$model`, `$instance` and `$tokenizer` are the dashboards' variables. A rate is taken over `$__rate_interval`, which
Grafana makes four scrapes long at least. deploy/compose_test.py runs every query against a real Prometheus.
"""

from __future__ import annotations

import argparse
import itertools
import re
import string
import sys
from pathlib import Path
from typing import Any

import yaml
from grafana_foundation_sdk.builders import dashboard, heatmap, stat, timeseries
from grafana_foundation_sdk.builders.common import (
    GraphThresholdsStyleConfig,
    ReduceDataOptions,
    StackingConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

FOLDER = Path(__file__).resolve().parent / "grafana" / "dashboards"
RULES = Path(__file__).parent / "prometheus" / "rules"
OPERATOR = Path(__file__).parent / "kubernetes" / "prometheus-operator"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
COLUMNS = 24  # of Grafana's grid

_MACRO = re.compile(r"\b(rate|mean)\(([\w:]+)(\{[^}]*\})?(?: by ([\w, ]+))?\)")


def promql(query: str, matchers: str) -> str:
    """Spells out what dashboards.yml abbreviates."""

    def rate(metric: str, selector: str, by: str) -> str:
        return f"sum{f' by ({by}) ' if by else ''}(rate({metric}{selector}[$__rate_interval]))"

    def spelled_out(macro: re.Match[str]) -> str:
        kind, metric, selector, by = macro[1], macro[2], macro[3] or "{}", macro[4]
        if kind == "rate":
            return rate(metric, selector, by)
        return f"{rate(f'{metric}_sum', selector, by)} / {rate(f'{metric}_count', selector, by)}"

    return _MACRO.sub(spelled_out, query).replace("{}", f"{{{matchers}}}").replace("{+", f"{{{matchers},")


def series_of(panel: dict[str, Any]) -> dict[str, str]:
    """The abbreviated queries of a panel by their legends."""
    if "histogram" in panel:
        metric, selector = re.fullmatch(r"(\w+)(.*)", panel["histogram"]).groups()
        by = panel.get("by", "")
        observed = f"rate({metric}_bucket{selector} by {f'{by}, le' if by else 'le'})"
        if panel.get("heatmap"):
            return {"{{le}}": observed}
        legend = f"{{{{{by}}}}} " if by else ""
        return {f"{legend}p{q * 100:g}": f"histogram_quantile({q}, {observed})" for q in panel["quantiles"]}
    if isinstance(panel["series"], dict):
        return panel["series"]
    labels = next((macro[4].split(", ") for macro in _MACRO.finditer(panel["series"]) if macro[4]), [])
    return {" ".join(f"{{{{{label}}}}}" for label in labels): panel["series"]}


def thresholds(panel: dict[str, Any]) -> dashboard.ThresholdsConfig | None:
    """From where on a value is wrong."""
    steps = [Threshold(panel[color], color) for color in ("orange", "red") if color in panel]
    if not steps:
        return None
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps([Threshold(None, "green"), *steps])


def alert_list(panel: dict[str, Any]) -> dashboard.Panel:
    """The rules of Prometheus that fire, and those that are about to."""
    options = {
        "viewMode": "list", "groupMode": "default", "groupBy": [], "maxItems": 20, "sortOrder": 1,
        "alertName": "Tandem", "alertInstanceLabelFilter": "", "dashboardAlerts": False, "datasource": "Prometheus",
        "stateFilter": {"firing": True, "pending": True, "noData": False, "normal": False, "error": True},
    }  # fmt: skip
    return dashboard.Panel().type("alertlist").options(options).title(panel["title"]).description(panel["help"])


Panel = stat.Panel | timeseries.Panel | heatmap.Panel | dashboard.Panel


def drawn(panel: dict[str, Any], matchers: str) -> Panel:
    """The panel, as Grafana's builders have it."""
    if panel.get("alerts"):
        return alert_list(panel)
    builder: stat.Panel | timeseries.Panel | heatmap.Panel
    levels = thresholds(panel)
    if panel.get("stat"):
        builder = stat.Panel().reduce_options(ReduceDataOptions().calcs(["lastNotNull"])).no_value("-")
        if levels is not None:
            builder.thresholds(levels)
    elif panel.get("heatmap"):
        builder = heatmap.Panel().calculate(False)
    else:
        legend = VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
        builder = timeseries.Panel().min(0).show_points(VisibilityMode.NEVER).legend(legend.show_legend(True))
        builder.tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        builder.fill_opacity(30 if panel.get("stacked") else 0)
        if panel.get("stacked"):
            builder.stacking(StackingConfig().mode(StackingMode.NORMAL))
        if "ceiling" in panel:
            builder.max(panel["ceiling"])
        if levels is not None:
            style = GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
            builder.thresholds(levels).thresholds_style(style)
    builder.title(panel["title"]).description(panel["help"]).unit(panel.get("unit", "none")).datasource(SOURCE)
    for name, (legend, query) in zip(string.ascii_uppercase, series_of(panel).items(), strict=False):
        target = Dataquery().expr(promql(query, matchers)).ref_id(name).datasource(SOURCE)
        if panel.get("heatmap"):
            target.format(PromQueryFormat.HEATMAP)
        builder.with_target(target.legend_format(legend or "__auto"))
    return builder


def widths(panels: int) -> list[int]:
    """Of a row's panels: up to four beside each other, in lines as even as can be, that leave no gap."""
    lines = -(-panels // 4)
    counts = [panels // lines + (line < panels % lines) for line in range(lines)]
    return [COLUMNS // count for count in counts for _ in range(count)]


def variable(name: str, query: str) -> dashboard.QueryVariable:
    """Some or all values of a label, as they are when the dashboard is opened or its time changes."""
    return (
        dashboard.QueryVariable(name)
        .datasource(SOURCE)
        .query(query)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )


def build(name: str, board: dict[str, Any], annotations: dict[str, dict[str, str]]) -> str:
    """A dashboard as JSON."""
    others = dashboard.DashboardLink("Tandem").type(DashboardLinkType.DASHBOARDS).tags(["tandem"])
    builder = (
        dashboard.Dashboard(board["title"])
        .uid(f"tandem-{name}")
        .tags(["tandem"])
        .editable()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("10s")
        .time("now-30m", "now")
        .link(others.keep_time(True).as_dropdown(False))
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
    )
    for title, line in annotations.items():
        query = dashboard.AnnotationQuery().name(title).datasource(SOURCE).enable(True)
        builder.annotation(query.icon_color(line["color"]).expr(line["expr"]))
    for label, query in board["variables"].items():
        builder.with_variable(variable(label, query))
    numbers = itertools.count(1)
    for row, panels in board["rows"].items():
        builder.with_row(dashboard.Row(row).id(next(numbers)))
        for panel, width in zip(panels, widths(len(panels)), strict=True):
            width, height = (4, 4) if panel.get("stat") else (width, 8)
            height = 5 if panel.get("alerts") else height
            builder.with_panel(drawn(panel, board["matchers"]).id(next(numbers)).span(width).height(height))
    return JSONEncoder(sort_keys=True, indent=1).encode(builder.build()) + "\n"


def operator_files(boards: dict[Path, str]) -> dict[str, str]:
    """The rules and dashboards as the Prometheus operator and Grafana's sidecar want them, in a cluster."""
    groups = [group for path in sorted(RULES.glob("*.yml")) for group in yaml.safe_load(path.read_text())["groups"]]
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "tandem", "namespace": "tandem"},
        "spec": {"groups": groups},
    }
    maps = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": f"tandem-dashboard-{path.stem}",
                "namespace": "tandem",
                "labels": {"grafana_dashboard": "1"},
            },
            "data": {path.name: text},
        }
        for path, text in boards.items()
    ]
    head = "# Made by deploy/dashboards.py.\n"
    return {
        "rules.yaml": head + yaml.safe_dump(rule, sort_keys=False, width=120),
        "dashboards.yaml": head + yaml.safe_dump_all(maps, sort_keys=False, width=1 << 20),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is stale")
    options = parser.parse_args()
    boards = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text())
    annotations = boards.pop("annotations")
    built = {FOLDER / f"{name}.json": build(name, board, annotations) for name, board in boards.items()}
    built |= {OPERATOR / name: text for name, text in operator_files(built).items()}
    if options.check:
        stale = [path.name for path, text in built.items() if not path.is_file() or path.read_text() != text]
        stale += [path.name for path in FOLDER.glob("*.json") if path not in built]
        if stale:
            print(f"stale dashboards: {', '.join(stale)}; run python deploy/dashboards.py", file=sys.stderr)
        return bool(stale)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in built.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

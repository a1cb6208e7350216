"""The rules of deploy/prometheus with windows that a test can wait for. Nothing else of them is changed."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import yaml

_UNITS = {"s": 1, "m": 60, "h": 3600}
# A range, an offset, or an age that is compared with a number of seconds.
_DURATION = re.compile(r"(?<=\[)(\d+)([smh])(?=\])|(?<=offset )(\d+)([smh])\b")
_AGE = re.compile(r"(?<=_start_time_seconds > )(\d+)")


def shortened(seconds: float) -> float:
    """The square root: what lasts longer still does, 30 s become 5.5 s, and six hours 147 s."""
    return math.sqrt(seconds)


def _duration(number: str, unit: str) -> str:
    return f"{round(1000 * shortened(int(number) * _UNITS[unit]))}ms"


def short_expression(expression: str) -> str:
    """The same expression with shorter windows, offsets and ages."""
    expression = _DURATION.sub(lambda found: _duration(*(part for part in found.groups() if part)), expression)
    return _AGE.sub(lambda found: f"{shortened(int(found[1])):.0f}", expression)


def short_rules(file: Path) -> dict[str, Any]:
    """The rules of a file, shortened."""
    rules: dict[str, Any] = yaml.safe_load(file.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["expr"] = short_expression(rule["expr"])
            if "for" in rule:
                rule["for"] = _duration(rule["for"][:-1], rule["for"][-1])
    return rules


def alert_names(file: Path) -> set[str]:
    """The alerts of a file."""
    groups = yaml.safe_load(file.read_text())["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}

"""Shortened rules are the same rules, and every alert has a cause that provokes it."""

from __future__ import annotations

import re
from itertools import pairwise

from tests.alerts.causes import CAUSES
from tests.alerts.prometheus import RULES
from tests.alerts.rules import alert_names, short_expression, short_rules, shortened


def test_every_alert_has_a_cause_and_every_cause_an_alert() -> None:
    names = alert_names(RULES / "alerts.yml")
    assert set().union(*(cause.fires for cause in CAUSES)) == names
    assert set().union(*(cause.also for cause in CAUSES)) <= names
    assert all(cause.fires and not cause.fires & cause.also for cause in CAUSES)


def test_windows_are_shortened_in_their_order_and_nothing_else_is_touched() -> None:
    long = [30, 60, 120, 180, 300, 600, 900, 1800, 3600, 21600, 25200]
    assert all(shorter < longer for shorter, longer in pairwise(map(shortened, long)))
    assert short_expression("a:b:rate5m > 14.4 and increase(x_total[15m]) > 2") == (
        "a:b:rate5m > 14.4 and increase(x_total[30000ms]) > 2"
    )
    assert short_expression("x > 1.25 * (x offset 6h) + 268435456 and time() - p_start_time_seconds > 25200") == (
        "x > 1.25 * (x offset 146969ms) + 268435456 and time() - p_start_time_seconds > 159"
    )


def test_every_window_of_the_rules_is_shortened() -> None:
    for file in RULES.glob("*.yml"):
        for group in short_rules(file)["groups"]:
            for rule in group["rules"]:
                assert rule.get("for", "0ms").endswith("ms"), rule
                assert not re.search(r"\[\d+[smh]\]|offset \d+[smh]\b|start_time_seconds > \d{4}", rule["expr"]), rule

"""What holds for every test of this tree."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import HealthCheck, settings

from tests.conftest import exhaustive_tests


def test_no_property_is_judged_by_a_clock(repository: Path) -> None:
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check
    clocked = re.compile(r"settings\([^)]*deadline\s*=|import .*\bHealthCheck,|suppress_health_check\s*=")
    files = sorted({*(repository / "tests").rglob("*.py")} - {Path(__file__), repository / "tests" / "conftest.py"})
    assert [str(file) for file in files if clocked.search(file.read_text())] == []


def test_what_the_suite_leaves_out_is_there(repository: Path) -> None:
    for name in exhaustive_tests():
        file, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}(" in (repository / file).read_text(), name

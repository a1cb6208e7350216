"""What holds for every test of this tree."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import HealthCheck, settings

from tests.exhaustive import LeftOut, exhaustive_tests


def test_no_property_is_judged_by_a_clock(repository: Path) -> None:
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check
    clocked = re.compile(r"settings\([^)]*deadline\s*=|import .*\bHealthCheck,|suppress_health_check\s*=")
    files = sorted({*(repository / "tests").rglob("*.py")} - {Path(__file__), repository / "tests" / "conftest.py"})
    assert [str(file) for file in files if clocked.search(file.read_text())] == []


def test_what_the_suite_leaves_out_is_there(repository: Path) -> None:
    for left in exhaustive_tests():
        file, _, test = left.beginning.partition("::")
        assert f"def {test.partition('[')[0]}(" in (repository / file).read_text(), left.beginning


def test_of_a_long_row_of_cases_the_suite_has_its_share() -> None:
    left = LeftOut("tests/a.py::test_it[", 4)
    cases = [f"tests/a.py::test_it[{size}-{kind}]" for size in range(100) for kind in ("one", "other")]
    stay = [case for case in cases if not left.leaves_out(case)]
    assert 30 <= len(stay) <= 70
    for kind in ("one", "other"):  # cases that come by turns are not left out by turns
        assert sum(kind in case for case in stay) >= 12
    assert not left.leaves_out("tests/b.py::test_it[3-one]")
    assert all(LeftOut("tests/a.py::test_it[", 0).leaves_out(case) for case in cases)

"""More cases of what others of a test show: `make exhaustive` runs them, the suite leaves them out. Single tests of the
same kind stand in exhaustive.txt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], *ordinary: Any) -> list[Any]:
    """Parameters of a test, of which the suite has the ordinary ones alone; a tuple is several parameters."""
    cases = list(cases)
    assert set(ordinary) <= set(cases)

    def left_out(case: Any) -> Any:
        return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.exhaustive)

    return [case if case in ordinary else left_out(case) for case in cases]

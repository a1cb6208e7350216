"""More cases of what others of a test show: `make exhaustive` runs them, the suite leaves them out. Single tests of the
same kind stand in exhaustive.txt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import pytest

LIST = Path(__file__).with_suffix(".txt")


class LeftOut(NamedTuple):
    """Tests that the suite leaves out: those that begin so, but one in `share` of them, or all where that is 0."""

    beginning: str
    share: int

    def leaves_out(self, name: str) -> bool:
        """Whether this test is one of them: which one stays is drawn of its name, so always the same one."""
        return name.startswith(self.beginning) and (not self.share or crc32(name.encode()) % self.share != 0)


def exhaustive_tests() -> tuple[LeftOut, ...]:
    """What the suite leaves out by exhaustive.txt."""
    lines = [line for line in LIST.read_text().splitlines() if not line.startswith("#")]
    shares = [re.match(r"but 1 in (\d+): ", line) for line in lines]
    return tuple(
        LeftOut(line[share.end() :], int(share[1])) if share else LeftOut(line, 0)
        for line, share in zip(lines, shares, strict=True)
    )


def some(cases: Iterable[Any], *ordinary: Any) -> list[Any]:
    """Parameters of a test, of which the suite has the ordinary ones alone; a tuple is several parameters."""
    cases = list(cases)
    assert set(ordinary) <= set(cases)

    def left_out(case: Any) -> Any:
        return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.exhaustive)

    return [case if case in ordinary else left_out(case) for case in cases]

"""Lists how compilations end."""

from __future__ import annotations

import enum
from typing import NamedTuple


class CompileOutcome(enum.IntEnum):
    """How a compilation ended. Travels as a number; the names are a metric's label."""

    COMPILED = 0
    REFUSED = 1  # the guide is wrong
    OVER_BUDGET = 2
    CRASHED = 3
    ABANDONED = 4  # its caller has left, or the engine has
    UNAVAILABLE = 5  # no guide can be served
    EXHAUSTED = 6  # the guides in use take too much memory


class CompileResult(NamedTuple):
    """Carries the result of one compilation."""

    serial: int
    outcome: CompileOutcome
    error: str  # in words for the caller; empty if there is none

"""When those who were turned away should come back: not all in the same moment."""

from __future__ import annotations

import random

_WIDTH = 0.5  # of the advice, on top of it


def spread(seconds: float) -> float:
    """`seconds`, or up to half as many more."""
    return seconds * random.uniform(1.0, 1.0 + _WIDTH)  # noqa: S311 - nothing secret

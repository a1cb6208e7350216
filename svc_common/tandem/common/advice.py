"""Spreads the times at which refused clients retry, so that they do not all come back in the same moment."""

from __future__ import annotations

import random

_WIDTH = 0.5  # of the advice, on top of it


def spread(seconds: float) -> float:
    """Returns `seconds`, or up to half as many more."""
    return seconds * random.uniform(1.0, 1.0 + _WIDTH)  # noqa: S311 - nothing secret

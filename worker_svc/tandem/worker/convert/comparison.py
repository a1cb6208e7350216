"""Compares what a reader makes of written fields with the model that they were written for."""

from __future__ import annotations

import math
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from typing import Any


def difference(one: Any, other: Any, path: str = "") -> str:
    """Returns the first field in which two configurations differ and what the first one has there, "experts.normalized
    False"; empty where there is none. Numbers may differ as float32 does from what it stands for."""
    if is_dataclass(one) and type(one) is type(other):
        for field in fields_of(one):
            own = f"{path}.{field.name}" if path else field.name
            if found := difference(getattr(one, field.name), getattr(other, field.name), own):
                return found
        return ""
    return "" if _same(one, other) else f"{path} {one}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return all(map(_same, one, other))
    return bool(one == other)

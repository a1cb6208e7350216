"""Lengths of prompts and answers, drawn from a distribution.

128                always 128
64-512             uniform, both ends included
normal:256,50      mean and standard deviation
lognormal:256,0.8  median and sigma: many short ones, a few very long ones, as people write
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from typing import Literal

_FORMS = re.compile(
    r"(?P<low>\d+)(-(?P<high>\d+))?|(?P<kind>normal|lognormal):(?P<centre>\d+(\.\d+)?),(?P<spread>\d+(\.\d+)?)"
)
ALLOWED = "a number, LOW-HIGH, normal:MEAN,DEVIATION or lognormal:MEDIAN,SIGMA; at least 1"


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of whole numbers from 1."""

    kind: Literal["uniform", "normal", "lognormal"]
    first: float  # the lowest, the mean or the median
    second: float  # the highest, the standard deviation or sigma

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """Reads one of the forms above; raises ValueError with what is allowed."""
        found = _FORMS.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is not {ALLOWED}")
        if found["kind"]:
            kind: Literal["normal", "lognormal"] = "normal" if found["kind"] == "normal" else "lognormal"
            lengths = cls(kind, float(found["centre"]), float(found["spread"]))
        else:
            lengths = cls("uniform", int(found["low"]), int(found["high"] or found["low"]))
        if lengths.first < 1 or (lengths.kind == "uniform" and lengths.second < lengths.first):
            raise ValueError(f"{text!r} is not {ALLOWED}")
        return lengths

    def draw(self, chance: random.Random) -> int:
        """Returns a length."""
        if self.kind == "uniform":
            return chance.randint(int(self.first), int(self.second))
        if self.kind == "normal":
            return max(1, round(chance.gauss(self.first, self.second)))
        return max(1, round(math.exp(chance.gauss(math.log(self.first), self.second))))

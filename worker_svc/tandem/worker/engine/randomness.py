"""Counter-based random numbers: a draw is a pure function of (seed, position, stage), and there is no state anywhere.

So a request draws the same numbers alone or in a crowd, before and after a preemption, on this worker or the next one.
The mixing function is the finalizer of SplitMix64 (Steele, Lea, Flood 2014), applied to the seed and then to the sum
of that and the position times the golden-ratio increment. Each stage that draws has a number of its own, which turns
the seed's key into another one.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)


class Stage(enum.IntEnum):
    """Who draws."""

    TOKEN = 0
    XTC = 1  # whether the most probable tokens are excluded


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniform(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64], stage: Stage = Stage.TOKEN
) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1), multiples of 2^-52, for each pair of `seeds` and `positions` (same shape)."""
    with np.errstate(over="ignore"):
        keys = _mix(seeds + _INCREMENT)
        if stage:
            keys = _mix(keys ^ np.uint64(stage))
        bits = _mix(keys + (positions + np.uint64(1)) * _INCREMENT)
    return (bits >> np.uint64(12)).astype(np.float64) * 2.0**-52

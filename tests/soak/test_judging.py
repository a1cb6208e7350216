"""The soak fails on a leak, and not on caches that fill."""

from __future__ import annotations

import math
from random import Random
from xml.etree import ElementTree

import pytest

from tests.soak.drawing import drawing
from tests.soak.judging import Sample, complaints, growth, slope


def series(leak: float = 0.0, noise: float = 20.0, cache: float = 300.0) -> list[Sample]:
    """2,400 requests: a cache that fills exponentially, noise, and `leak` MB per 1,000 requests."""
    random, samples = Random(1), []
    for number in range(100):
        requests = 24 * number
        megabytes = 370 + cache * (1 - math.exp(-requests / 200)) + leak * requests / 1000 + random.uniform(0, noise)
        samples.append(Sample(float(number), requests, {"engine": megabytes}, {"engine": 30}, {"engine": 4}))
    return samples


# Measured on two cores: the engine under plain requests of all lengths, by oneDNN's own sizes of its caches.
UNBOUNDED = [396, 711, 925, 1062, 1164, 1224, 1268, 1300, 1311]


def test_a_leak_is_found_and_a_cache_that_fills_is_not() -> None:
    steady, leaking = series(), series(leak=50)
    assert complaints(steady, steady[10], steady[-1]) == []
    (complaint,) = complaints(leaking, leaking[10], leaking[-1])
    assert complaint.startswith("engine: memory grows by ")
    assert growth(leaking, "engine") == pytest.approx(50, abs=10)


def test_an_engine_whose_caches_are_not_bounded_is_found() -> None:
    samples = [Sample(0.0, 200 * at, {"engine": float(value)}) for at, value in enumerate(UNBOUNDED)]
    assert growth(samples, "engine") > 100


def test_one_jump_moves_the_slope_little() -> None:
    points = [(float(x), 100.0 + (500.0 if x == 17 else 0.0)) for x in range(40)]
    assert slope(points) == 0.0


@pytest.mark.parametrize("what", ["descriptors", "threads", "pages"])
def test_what_does_not_return_is_named(what: str) -> None:
    samples = series()
    end = Sample(200.0, 2400, {"engine": 600.0}, {"engine": 30}, {"engine": 4})
    if what == "pages":
        end.pages = 3
    else:
        getattr(end, what)["engine"] += 100
    (complaint,) = complaints(samples, samples[10], end)
    assert what in complaint


def test_the_drawing_is_an_svg_with_a_curve_for_each_process() -> None:
    image = drawing([0.0, 1.0, 2.0], {"memory, MB": {"engine": [1.0, 2.0, math.nan], "<front>": [1.0, 1.0, 1.0]}})
    root = ElementTree.fromstring(image)
    assert len([each for each in root.iter() if each.tag.endswith("polyline")]) == 2

"""The histogram of gaps against prometheus_client's own, by its own text."""

from __future__ import annotations

import random
from collections import Counter

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from tandem.worker.front.token_gaps import TokenGaps

BUCKETS = (0.001, 0.0025, 1.0, 10.0)


def lines(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_it_shows_what_a_histogram_shows() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    gaps = TokenGaps("gap_seconds", "Gaps", BUCKETS, {"model_name": "m"}, ours)
    histogram = Histogram("gap_seconds", "Gaps", ["model_name"], buckets=BUCKETS, registry=theirs).labels("m")
    assert lines(ours) == lines(theirs)
    draw = random.Random(0)
    for count in (0, 1, 5, 200):
        seconds = [draw.choice([*BUCKETS, 0.0, 20.0, 0.5]) for _ in range(count)]
        gaps.observe(Counter(seconds))
        for each in seconds:
            histogram.observe(each)
    assert [line for line in lines(ours) if "_sum" not in line] == [
        line for line in lines(theirs) if "_sum" not in line
    ]

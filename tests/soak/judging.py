"""Whether a service keeps what it takes: slopes of memory, and what does not return once nothing runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

MEGABYTES_PER_THOUSAND = 20.0  # the limit of a slope: what a leak of 20 KB a request makes
SPARE_DESCRIPTORS = 16  # connections and pipes that come and go
SPARE_THREADS = 8  # pools that grow when they are first needed


@dataclass(slots=True)
class Sample:
    """One look at all processes of the services: name of the process -> number."""

    seconds: float
    requests: int  # that have ended until then
    megabytes: dict[str, float] = field(default_factory=dict)  # resident, without pages of files
    descriptors: dict[str, int] = field(default_factory=dict)
    threads: dict[str, int] = field(default_factory=dict)
    pages: int = 0  # that running requests refer to


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between all pairs of points (Theil, Sen): a single jump, up or down, moves it little.

    0 where fewer than three points have different x.
    """
    between = [
        (y - before) / (x - earlier)
        for place, (x, y) in enumerate(points)
        for earlier, before in points[:place]
        if x != earlier
    ]
    return statistics.median(between) if len(between) >= 3 else 0.0


def growth(samples: Sequence[Sample], process: str) -> float:
    """Megabytes per 1,000 requests over the second half: caches fill and allocators settle in the first."""
    half = samples[-1].requests / 2
    points = [
        (sample.requests / 1000, sample.megabytes[process])
        for sample in samples
        if sample.requests >= half and process in sample.megabytes
    ]
    return slope(points)


def complaints(
    samples: Sequence[Sample], idle: Sample, end: Sample, limit: float = MEGABYTES_PER_THOUSAND
) -> list[str]:
    """What is wrong. `idle` was taken after a first bit of all traffic and `end` after all of it; nothing ran then."""
    found = []
    for process in sorted(end.megabytes):
        rate = growth(samples, process)
        if rate > limit:
            found.append(f"{process}: memory grows by {rate:.1f} MB per 1,000 requests; allowed are {limit:g}")
        for what, before, after, spare in (
            ("descriptors", idle.descriptors, end.descriptors, SPARE_DESCRIPTORS),
            ("threads", idle.threads, end.threads, SPARE_THREADS),
        ):
            more = after[process] - before.get(process, after[process])
            if more > spare:
                found.append(
                    f"{process}: {after[process]} {what} at the end, {more} more than after the first requests"
                )
    if end.pages:
        found.append(f"{end.pages} pages are still in use although nothing runs")
    found += [f"{process}: is gone" for process in sorted(set(idle.megabytes) - set(end.megabytes))]
    return found

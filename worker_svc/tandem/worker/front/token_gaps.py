"""The histogram of gaps between tokens: one observation a token, so it is counted by the step and not by the token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class TokenGaps(Collector):
    """A Prometheus histogram of seconds that takes many observations at once; for one thread that observes."""

    def __init__(
        self, name: str, text: str, buckets: Sequence[float], labels: dict[str, str], registry: CollectorRegistry
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._bounds = list(buckets)
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, gaps: Mapping[float, int]) -> None:
        """Counts gaps in seconds, each so many times: most streams have their tokens from the same steps."""
        for gap, count in gaps.items():
            self._counts[bisect_left(self._bounds, gap)] += count
            self._sum += gap * count

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Yields the histogram."""
        family = HistogramMetricFamily(self._name, self._text, labels=list(self._labels))
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        family.add_metric(list(self._labels.values()), buckets, self._sum)
        yield family

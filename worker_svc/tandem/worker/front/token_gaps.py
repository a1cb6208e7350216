"""The histogram of gaps between tokens: one observation a token, so it is counted by the step and not by the token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
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
        self._bounds = np.array(buckets)
        self._counts = np.zeros(len(buckets) + 1, np.int64)
        self._sum = 0.0
        registry.register(self)

    def observe(self, gaps: Sequence[float]) -> None:
        """Counts gaps in seconds."""
        if gaps:
            each = np.asarray(gaps)
            places = np.searchsorted(self._bounds, each)
            self._counts += np.bincount(places, minlength=len(self._counts))
            self._sum += float(each.sum())

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Yields the histogram."""
        family = HistogramMetricFamily(self._name, self._text, labels=list(self._labels))
        names = [*map(floatToGoString, self._bounds.tolist()), "+Inf"]
        buckets = list(zip(names, np.cumsum(self._counts).tolist(), strict=True))
        family.add_metric(list(self._labels.values()), buckets, self._sum)
        yield family

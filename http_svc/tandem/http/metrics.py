"""What the door counts. The SDK's own metrics (`tandem_client_*`) are in the same registry."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from tandem.common.method_metrics import HANDLING_BUCKETS
from tandem.common.metrics import ServerMetrics


class HttpMetrics(ServerMetrics):
    """
    | metric                          | type      | meaning                                                       |
    |---------------------------------|-----------|---------------------------------------------------------------|
    | tandem_http_requests_total      | counter   | requests that ended, by route and status; 499: the caller left |
    | tandem_http_in_flight           | gauge     | requests that run now, by route                                |
    | tandem_http_request_seconds     | histogram | from the headers' arrival to the last byte given to the system |
    | tandem_http_tokens_total        | counter   | tokens of requests that ended well: prompt, cached, completion |
    """

    def __init__(self) -> None:
        super().__init__("tandem-http")
        self.requests = Counter(
            "tandem_http_requests_total", "Requests that ended.", ("route", "status"), registry=self.registry
        )
        self.in_flight = Gauge("tandem_http_in_flight", "Requests that run now.", ("route",), registry=self.registry)
        self.seconds = Histogram(
            "tandem_http_request_seconds",
            "Time from the arrival of a request's headers to the end of its answer.",
            ("route",),
            buckets=HANDLING_BUCKETS,
            registry=self.registry,
        )
        self.tokens = Counter(
            "tandem_http_tokens_total", "Tokens of requests that came to their end.", ("kind",), registry=self.registry
        )

"""Prometheus metrics of the SDK, in a registry that the caller gives."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class ClientMetrics:
    """The metrics of a client: time to first token as the caller sees it, and its parts."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self.requests = Counter(
            "tandem_client_requests",
            "Generations by method (generate, stream) and outcome: ok, cancelled by the caller, or the gRPC code.",
            ["method", "outcome"],
            registry=registry,
        )
        self.failovers = Counter(
            "tandem_client_failovers",
            "Times that another server took over in the middle of an answer.",
            ["service"],
            registry=registry,
        )
        self.workers = Gauge(
            "tandem_client_workers",
            "Known workers by health: serving, not serving, unknown (a single address is not checked).",
            ["health"],
            registry=registry,
        )
        self.probes = Counter(
            "tandem_client_probes",
            "Workers that were asked for their load before a choice, by outcome: answered, late (the choice did not "
            "wait for it), failed.",
            ["outcome"],
            registry=registry,
        )
        self.time_to_first_token = Histogram(
            "tandem_client_time_to_first_token_seconds",
            "Seconds from the call until the first output arrived.",
            registry=registry,
            buckets=_SECONDS,
        )
        self._hops = Histogram(
            "tandem_client_hop_seconds",
            "Seconds of each part of the time to first token: encode (text to ids), first_token (queue and prefill), "
            "first_text (first id to its text).",
            ["hop"],
            registry=registry,
            buckets=_SECONDS,
        )
        self.encode = self._hops.labels("encode")
        self.first_token = self._hops.labels("first_token")
        self.first_text = self._hops.labels("first_text")


_by_registry: WeakKeyDictionary[CollectorRegistry, ClientMetrics] = WeakKeyDictionary()


def metrics_in(registry: CollectorRegistry | None) -> ClientMetrics:
    """Returns the metrics of a registry, which all clients that name it share. With None they are counted but not
    exported."""
    if registry is None:
        return ClientMetrics(None)
    if registry not in _by_registry:
        _by_registry[registry] = ClientMetrics(registry)
    return _by_registry[registry]

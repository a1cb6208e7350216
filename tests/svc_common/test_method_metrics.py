"""What is counted by plain numbers is what prometheus_client's own counters and histograms show of the same calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.openmetrics.exposition import generate_latest

from tandem.common.method_metrics import HANDLING_BUCKETS
from tandem.common.metrics import ServiceMetrics

LABELS = ("grpc_service", "grpc_method")
SECONDS = st.sampled_from([0.0, *HANDLING_BUCKETS, 1e6]) | st.floats(0, 4000)
Call = tuple[str, str, float, dict[str, str] | None]
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["A", "B"]),
        st.sampled_from(["OK", "INTERNAL", "CANCELLED"]),
        SECONDS,
        st.none() | st.sampled_from([{"trace_id": "1" * 32}, {"trace_id": "2" * 32}]),
    ),
    max_size=30,
)


def lines(registry: CollectorRegistry) -> set[str]:
    """What a scrape shows of calls, without the time that stands behind an exemplar."""
    shown = generate_latest(registry).decode().splitlines()
    kept = [line for line in shown if "grpc_server_" in line and "too_many" not in line and "_created" not in line]
    return {line.rpartition(" ")[0] if "# {" in line else line for line in kept}


@given(CALLS)
def test_a_scrape_shows_what_prometheus_client_would(calls: list[Call]) -> None:
    ours = ServiceMetrics("tandem-probe")
    registry = CollectorRegistry()
    handled = Counter(
        "tandem_grpc_server_handled_total",
        "RPCs that ended, by status code.",
        (*LABELS, "grpc_code"),
        registry=registry,
    )
    seconds = Histogram(
        "tandem_grpc_server_handling_seconds",
        "Time from the arrival of an RPC's request to its status.",
        LABELS,
        buckets=HANDLING_BUCKETS,
        registry=registry,
    )
    running = Gauge("tandem_grpc_server_in_flight", "RPCs that run now.", LABELS, registry=registry)
    for name, code, took, exemplar in calls:
        ours.method("s", name).in_flight += len(code)
        running.labels("s", name).inc(len(code))
        ours.method("s", name).handled(code, took, exemplar)
        handled.labels("s", name, code).inc()
        seconds.labels("s", name).observe(took, exemplar)
    assert lines(ours.registry) == lines(registry)


def test_calls_of_unknown_methods_are_counted_without_their_names() -> None:
    metrics = ServiceMetrics("tandem-probe")
    name, unknown = "tandem_grpc_server_handled_total", {"grpc_service": "unknown", "grpc_method": "unknown"}
    labels = {**unknown, "grpc_code": "UNIMPLEMENTED"}
    assert metrics.registry.get_sample_value(name, labels) is None
    metrics.unknown_method()
    metrics.unknown_method()
    assert metrics.registry.get_sample_value(name, labels) == 2


def test_a_scraper_may_ask_for_one_metric_by_its_name() -> None:
    metrics = ServiceMetrics("tandem-probe")
    metrics.method("s", "m").handled("OK", 0.1)
    shown = generate_latest(metrics.registry.restricted_registry(["tandem_grpc_server_handled_total"]))  # type: ignore[arg-type]
    assert b"tandem_grpc_server_handled_total{" in shown and b"handling_seconds" not in shown

"""Ids that come with a request."""

from __future__ import annotations

import pytest

pytest.importorskip("opentelemetry", reason="needs OpenTelemetry, of the extra otel")
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tandem.common.rpc_ids import trace_id_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    "traceparent",
    [
        f"00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-00",
        f"00-{'0' * 31}1-{'0' * 15}1-ff",
        f"cc-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01-what-comes-later",
        f"00-{TRACE}-{SPAN}-01-what-comes-later",
        f"00-{TRACE}-{SPAN}-01-",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{'0' * 32}-{'0' * 16}-00",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"0-{TRACE}-{SPAN}-01",
        "",
        "-",
    ],
)
def test_a_traceparent_is_read_as_opentelemetry_reads_it(traceparent: str) -> None:
    found = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    span = trace.get_current_span(found).get_span_context()
    assert trace_id_of(traceparent) == (f"{span.trace_id:032x}" if span.is_valid else "")

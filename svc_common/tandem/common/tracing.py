"""Spans of requests, exported by OTLP: of the numbers that a request's log line has too.

A request's span has its phases in it (the worker's queue, prefill and decode), one behind the other. Its parent is the
caller's W3C `traceparent`, whose decision to sample counts; without one, `share` of the requests are sampled.
Histograms of latency keep the trace of a sampled request as an exemplar. Where no endpoint is set, nothing of
OpenTelemetry is imported.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

logger = logging.getLogger("tandem.common.tracing")

_EXPORT_SECONDS = 2.0  # for the last spans; the exporter itself goes on for 10 s, twice where it was sending others
_PHASES = ("queue", "prefill", "decode")
_NAMES = {  # of the facts, in OpenTelemetry's conventions
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "tokenizer": "tandem.tokenizer",
    "tokens": "tandem.tokens",
    "streams": "tandem.streams",
}


_exemplar: ContextVar[dict[str, str] | None] = ContextVar("exemplar", default=None)


def exemplar() -> dict[str, str] | None:
    """Returns the trace of the request that this task serves, as histograms keep it; None where it is not sampled."""
    return _exemplar.get()


class RequestSpan:
    """The span of one request, from its beginning to `end_call` or `end_route`."""

    def __init__(self, traces: RequestTraces, span: Span, began: int) -> None:
        self._traces, self._span, self._began = traces, span, began
        found = span.get_span_context()
        self.trace_id = f"{found.trace_id:032x}" if found.trace_flags.sampled else ""  # empty: it is not sampled
        # For the services that are asked on its behalf.
        self.traceparent = f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags):02x}"

    def end_call(self, path: str, code: str, seconds: float, facts: Mapping[str, object]) -> None:
        """Ends the span of a request to /package.Service/Method."""
        service, _, method = path.removeprefix("/").rpartition("/")
        told: dict[str, str | int] = {"rpc.system.name": "grpc", "rpc.service": service, "rpc.method": method}
        told["rpc.response.status_code"] = code
        self._end(told, "" if code == "OK" else code, seconds, facts)

    def end_route(self, method: str, route: str, status: int, seconds: float, facts: Mapping[str, object]) -> None:
        """Ends the span of a request over HTTP."""
        told: dict[str, str | int] = {"http.request.method": method, "http.route": route}
        told["http.response.status_code"] = status
        self._end(told, str(status) if status >= 500 else "", seconds, facts)

    def _end(self, told: dict[str, str | int], error: str, seconds: float, facts: Mapping[str, object]) -> None:
        span = self._span
        if span.is_recording():
            span.set_attributes(told)
            for name, convention in _NAMES.items():
                if isinstance(value := facts.get(name), (str, int, float)):
                    span.set_attribute(convention, value)
            if isinstance(finished := facts.get("finished"), str):
                span.set_attribute("gen_ai.response.finish_reasons", [finished])
            if error:
                span.set_attribute("error.type", error)
                self._traces.fail(span, error)
            self._traces.add_phases(span, self._began, facts)
        span.end(self._began + round(seconds * 1e9))


class RequestTraces:
    """Exports the spans of one service."""

    def __init__(self, service: str, endpoint: str, share: float) -> None:
        """`endpoint` is OTLP's over gRPC, such as http://collector:4317; https for TLS."""
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider: TracerProvider = TracerProvider(
            resource=Resource.create({"service.name": service}),
            sampler=ParentBased(TraceIdRatioBased(share)),
            shutdown_on_exit=False,  # it would wait for a collector that does not answer; `close` has done it
        )
        self._endpoint = endpoint
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https:"))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tandem")
        self._extract = TraceContextTextMapPropagator().extract
        self._within, self._server = trace.set_span_in_context, trace.SpanKind.SERVER
        self._error = trace.StatusCode.ERROR

    def begin(self, name: str, traceparent: str) -> RequestSpan:
        """Begins the span of a request; `traceparent` is its caller's, or empty."""
        began = time.time_ns()
        parent = self._extract({"traceparent": traceparent})
        return RequestSpan(self, self._tracer.start_span(name, parent, kind=self._server, start_time=began), began)

    def fail(self, span: Span, why: str) -> None:
        """Marks a span as one of an error."""
        span.set_status(self._error, why)

    def add_phases(self, span: Span, at: int, facts: Mapping[str, object]) -> None:
        """Adds the spans of the phases that `facts` tell, the first of which begins with the request."""
        inside = self._within(span)
        for phase in _PHASES:
            if isinstance(took := facts.get(f"{phase}_seconds"), float):
                child = self._tracer.start_span(phase, inside, start_time=at)
                at += round(took * 1e9)
                child.end(at)

    def close(self) -> None:
        """Exports what is left, unless the collector does not answer in time."""
        closing = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        closing.start()
        closing.join(_EXPORT_SECONDS)
        if closing.is_alive():
            logger.warning("%s does not answer: the last spans are not exported", self._endpoint)


_traces: RequestTraces | None = None


def start_tracing(service: str, endpoint: str | None, share: float) -> None:
    """Begins to export; without an endpoint nothing is done."""
    global _traces
    if endpoint:
        _traces = RequestTraces(service, endpoint, share)


def stop_tracing() -> None:
    """Exports what is left, and ends."""
    global _traces
    if _traces is not None:
        _traces.close()
    _traces = None


def is_tracing() -> bool:
    """Tells whether spans are made of requests."""
    return _traces is not None


def begin_request(name: str, traceparent: str) -> RequestSpan | None:
    """Begins the span of the request that this task serves from here on; None where nobody traces."""
    if _traces is None:
        return None
    span = _traces.begin(name, traceparent)
    _exemplar.set({"trace_id": span.trace_id} if span.trace_id else None)
    return span

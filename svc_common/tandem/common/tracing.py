"""Spans of requests, exported by OTLP: each when it has ended, of the numbers that its log line has too.

A request's span has its phases in it (the worker's queue, prefill and decode), one behind the other. Its parent is the
caller's W3C `traceparent`, whose decision to sample counts; without one, `share` of the requests are sampled. Where no
endpoint is set, nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_PHASES = ("queue", "prefill", "decode")
_NAMES = {  # of the facts, in OpenTelemetry's conventions
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "tokenizer": "tandem.tokenizer",
    "tokens": "tandem.tokens",
    "streams": "tandem.streams",
}


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
            resource=Resource.create({"service.name": service}), sampler=ParentBased(TraceIdRatioBased(share))
        )
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https:"))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tandem")
        self._extract = TraceContextTextMapPropagator().extract
        self._within, self._server = trace.set_span_in_context, trace.SpanKind.SERVER
        self._error = trace.StatusCode.ERROR

    def add(self, path: str, code: str, seconds: float, traceparent: str, facts: Mapping[str, object]) -> None:
        """Adds the spans of a request to /package.Service/Method that ends now."""
        end = time.time_ns()
        begin = end - round(seconds * 1e9)
        span = self._tracer.start_span(
            path.removeprefix("/"), self._extract({"traceparent": traceparent}), kind=self._server, start_time=begin
        )
        if span.is_recording():
            service, _, method = path.removeprefix("/").rpartition("/")
            span.set_attributes(
                {
                    "rpc.system.name": "grpc",
                    "rpc.service": service,
                    "rpc.method": method,
                    "rpc.response.status_code": code,
                }
            )
            for name, convention in _NAMES.items():
                if isinstance(value := facts.get(name), (str, int, float)):
                    span.set_attribute(convention, value)
            if isinstance(finished := facts.get("finished"), str):
                span.set_attribute("gen_ai.response.finish_reasons", [finished])
            if code != "OK":
                span.set_status(self._error, code)
            inside, at = self._within(span), begin
            for phase in _PHASES:
                if isinstance(took := facts.get(f"{phase}_seconds"), float):
                    child = self._tracer.start_span(phase, inside, start_time=at)
                    at += round(took * 1e9)
                    child.end(at)
        span.end(end)

    def close(self) -> None:
        """Exports what is left."""
        self._provider.shutdown()


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


def trace_request(path: str, code: str, seconds: float, traceparent: str, facts: Mapping[str, object]) -> None:
    """Adds the spans of a request that ends now, if they are wanted."""
    if _traces is not None:
        _traces.add(path, code, seconds, traceparent, facts)

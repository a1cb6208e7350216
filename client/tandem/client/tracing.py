"""Spans for OpenTelemetry: answers, with encode and detokenize in them, and DecodeStream calls; services add theirs.

The client gets a tracer from its caller, so that nothing of OpenTelemetry is imported where nobody traces. Spans have
the attributes of its conventions for generative AI, and no text.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tandem.client.errors import StatusError
from tandem.client.types import GenerationResult

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_TRACEPARENT = "traceparent"


class StreamTrace:
    """The span of a DecodeStream call that many answers share: a trace of its own, with a link to each of theirs."""

    def __init__(self, tracer: Tracer) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._span = tracer.start_span("decode stream", Context(), kind=trace.SpanKind.CLIENT)
        self._extract = TraceContextTextMapPropagator().extract
        self._context_of = trace.get_current_span
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(self._span))
        self.metadata = tuple(carrier.items())

    def link(self, answer: Mapping[str, str]) -> None:
        """Links the span to that of an answer, which its metadata tells."""
        self._span.add_link(self._context_of(self._extract(answer)).get_span_context())

    def end(self) -> None:
        """Ends the span."""
        self._span.end()


class AnswerTrace:
    """The span of one answer, from its beginning to `end`. Its parent is the caller's `traceparent` where one was
    given, or else the span that is current."""

    def __init__(self, tracer: Tracer, model: str, given: Mapping[str, str]) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._began = time.time_ns()
        parent = TraceContextTextMapPropagator().extract(given) if _TRACEPARENT in given else None
        attributes = {"gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "tandem"}
        if model:
            attributes["gen_ai.request.model"] = model
        self._span = tracer.start_span(
            "generate", parent, kind=trace.SpanKind.CLIENT, attributes=attributes, start_time=self._began
        )
        self._within = trace.set_span_in_context(self._span)
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, self._within)
        self.metadata: Mapping[str, str] = {**given, **carrier}

    def encoded(self, seconds: float) -> None:
        """Adds the span of the prompt's encoding, which began with the answer."""
        span = self._tracer.start_span("encode", self._within, start_time=self._began)
        span.end(self._began + round(seconds * 1e9))

    def end(self, result: GenerationResult | None, error: BaseException | None) -> None:
        """Ends the span with what came of it."""
        now, span = time.time_ns(), self._span
        if result is not None:
            span.set_attribute("gen_ai.response.model", result.model)
            span.set_attribute("gen_ai.response.finish_reasons", [each.finish_reason.value for each in result.outputs])
            span.set_attribute("gen_ai.usage.input_tokens", result.usage.prompt_tokens)
            span.set_attribute("gen_ai.usage.output_tokens", result.usage.completion_tokens)
            if result.time_to_first_token is not None:
                span.set_attribute("gen_ai.response.time_to_first_chunk", result.time_to_first_token)
            if (seconds := result.timings.decode_seconds) is not None:
                inner = self._tracer.start_span("detokenize", self._within, start_time=now - round(seconds * 1e9))
                inner.end(now)
        elif error is not None:
            from opentelemetry.trace import StatusCode

            kind = error.code.name if isinstance(error, StatusError) else type(error).__name__
            span.set_attribute("error.type", kind)
            span.set_status(StatusCode.ERROR, kind)
        span.end(now)

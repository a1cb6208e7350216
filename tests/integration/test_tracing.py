"""One trace over SDK, tokenizer service and worker, as a collector receives it by OTLP."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

pytest.importorskip("opentelemetry.exporter", reason="needs OpenTelemetry, of the extra otel")
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from tandem.client import AsyncClient, NotFoundError
from tests.integration.worker_process import running_worker, service_process


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what is exported to it, by the service that says so."""

    def __init__(self) -> None:
        self.spans: dict[str, Span] = {}

    async def Export(  # noqa: N802
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: object
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.update(
                    {f"{span.name.rpartition('/')[2]} {span.trace_id.hex()}": span for span in scope.spans}
                )
        return trace_service_pb2.ExportTraceServiceResponse()


@asynccontextmanager
async def collecting() -> AsyncIterator[tuple[Collector, str]]:
    collector, server = Collector(), grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield collector, f"http://127.0.0.1:{port}"
    await server.stop(None)


def attributes(span: Span) -> dict[str, object]:
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in span.attributes}


@pytest.mark.slow
async def test_an_answer_is_one_trace_with_the_phases_in_it_and_no_text(repository: Path, tmp_path: Path):
    demo = str(repository / "models" / "demo")
    async with collecting() as (collector, endpoint):
        flags = (f"--otlp-endpoint={endpoint}", "--trace-share=0")  # the caller's decision counts
        async with (
            service_process("tandem.tokenizer", tmp_path, "--tokenizer", demo, *flags) as (tokenizer, _),
            running_worker(tmp_path, "--model", demo, "--engine=thread", *flags) as worker,
        ):
            provider = TracerProvider()
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, insecure=True)))
            async with AsyncClient(tokenizer, worker.address, tracer=provider.get_tracer("test")) as client:
                result = await client.generate("ROMEO:", max_tokens=5)
                with pytest.raises(NotFoundError):
                    await client.generate("ROMEO:", model="nobody")
            async with AsyncClient(tokenizer, worker.address) as client:
                await client.generate("ROMEO:", max_tokens=5)  # in no trace, and not sampled
            # In a thread: the collector answers on this event loop.
            await asyncio.to_thread(provider.shutdown)
        # Both services have ended, and exported what they had.
        spans = collector.spans.values()

    roots = {span.trace_id: span for span in spans if not span.parent_span_id}
    assert len(roots) == 2 and {span.name for span in roots.values()} == {"generate"}
    assert {span.trace_id for span in spans} == set(roots)
    [good] = [root for root in roots.values() if "error.type" not in attributes(root)]
    [bad] = [root for root in roots.values() if "error.type" in attributes(root)]
    inside = {span.name.rpartition("/")[2]: span for span in spans if span.trace_id == good.trace_id}
    assert set(inside) == {"generate", "encode", "Encode", "Generate", "queue", "prefill", "decode", "detokenize"}
    for name in ("encode", "Encode", "Generate", "detokenize"):
        assert inside[name].parent_span_id == good.span_id
    for name in ("queue", "prefill", "decode"):
        assert inside[name].parent_span_id == inside["Generate"].span_id
    for span in inside.values():
        assert span.start_time_unix_nano <= span.end_time_unix_nano
    assert inside["queue"].end_time_unix_nano == inside["prefill"].start_time_unix_nano
    assert inside["prefill"].end_time_unix_nano == inside["decode"].start_time_unix_nano
    for span in (good, inside["Generate"]):
        told = attributes(span)
        assert told["gen_ai.usage.input_tokens"] == result.usage.prompt_tokens
        assert told["gen_ai.usage.output_tokens"] == result.usage.completion_tokens
    assert attributes(inside["Encode"])["tandem.tokens"] == result.usage.prompt_tokens
    assert attributes(bad)["error.type"] == "NOT_FOUND" and bad.status.code == 2
    assert all(
        b"ROMEO" not in span.SerializeToString() and result.text.encode() not in span.SerializeToString()
        for span in spans
    )


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported():
    program = (
        "import sys, tandem.client, tandem.worker.front.server, tandem.tokenizer.rpc.server\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"

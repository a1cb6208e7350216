"""One trace over SDK, tokenizer service and worker, as a collector receives it by OTLP."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

pytest.importorskip("opentelemetry.exporter", reason="needs OpenTelemetry, of the extra otel")
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from tandem.client import AsyncClient, NotFoundError
from tandem.common import tracing
from tests.integration.worker_process import service_process, threaded_worker


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


@asynccontextmanager
async def serving(repository: Path, folder: Path) -> AsyncIterator[tuple[Collector, str, str, str]]:
    """A collector, its endpoint, and the addresses of both services; these end, and export what they have, first."""
    demo = str(repository / "models" / "demo")
    async with collecting() as (collector, endpoint):
        flags = (f"--otlp-endpoint={endpoint}", "--trace-share=0")  # the caller's decision counts
        async with (
            service_process("tandem.tokenizer", folder, "--tokenizer", demo, *flags) as (tokenizer, _),
            threaded_worker(folder, "--model", demo, *flags) as worker,
        ):
            yield collector, endpoint, tokenizer, worker.address


def attributes(span: Span) -> dict[str, object]:
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in span.attributes}


@pytest.mark.slow
async def test_an_answer_is_one_trace_with_the_phases_in_it_and_no_text(repository: Path, tmp_path: Path):
    async with serving(repository, tmp_path) as (collector, endpoint, tokenizer, worker):
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, insecure=True)))
        async with AsyncClient(tokenizer, worker, tracer=provider.get_tracer("test")) as client:
            result = await client.generate("ROMEO:", max_tokens=5)
            with pytest.raises(NotFoundError):
                await client.generate("ROMEO:", model="nobody")
        async with AsyncClient(tokenizer, worker) as client:
            await client.generate("ROMEO:", max_tokens=5)  # in no trace, and not sampled
        # In a thread: the collector answers on this event loop.
        await asyncio.to_thread(provider.shutdown)
    spans = collector.spans.values()

    roots = {span.trace_id: span for span in spans if not span.parent_span_id}
    assert sorted(span.name for span in roots.values()) == ["decode stream", "generate", "generate"]
    assert {span.trace_id for span in spans} == set(roots)
    [stream] = [root for root in roots.values() if root.name == "decode stream"]
    [good] = [root for root in roots.values() if root is not stream and "error.type" not in attributes(root)]
    [bad] = [root for root in roots.values() if "error.type" in attributes(root)]
    [served] = [span for span in spans if span.parent_span_id == stream.span_id]
    assert served.name == "tandem.tokenizer.v1.TokenizerService/DecodeStream"
    assert [(link.trace_id, link.span_id) for link in stream.links] == [(good.trace_id, good.span_id)]
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


@pytest.mark.slow
async def test_the_doors_trace_goes_on_in_both_services_and_histograms_name_it(repository: Path, tmp_path: Path):
    async with serving(repository, tmp_path) as (collector, endpoint, tokenizer, worker):
        upstream = (f"--tokenizer-address={tokenizer}", f"--worker-address={worker}")
        async with service_process("tandem.http", tmp_path, *upstream, f"--otlp-endpoint={endpoint}") as (door, _):
            url, body = f"http://{door}/v1/completions", {"model": "demo", "prompt": "ROMEO:", "max_tokens": 5}
            async with httpx.AsyncClient(timeout=120) as client:
                assert (await client.post(url, json=body)).status_code == 200
                assert (await client.get(f"http://{door}/health")).status_code == 200
            seen = {
                name: await asyncio.to_thread(exemplars, tmp_path / f"tandem.{name}.json")
                for name in ("http", "worker")
            }
    spans = collector.spans.values()
    [root] = [span for span in spans if not span.parent_span_id]
    assert root.name == "POST /v1/completions" and attributes(root)["http.response.status_code"] == 200
    below = {span.name.rpartition("/")[2]: span for span in spans if span is not root}
    assert set(below) == {"Encode", "Generate", "queue", "prefill", "decode"}
    assert {span.trace_id for span in spans} == {root.trace_id}
    assert below["Generate"].parent_span_id == below["Encode"].parent_span_id == root.span_id
    trace = {root.trace_id.hex()}
    assert seen["http"] == {"tandem_http_request_seconds": trace}
    assert seen["worker"] == {
        f"tandem_{name}_seconds": trace
        for name in (
            *("grpc_server_handling", "time_to_first_token", "e2e_request_latency"),
            *(f"request_{phase}_time" for phase in ("queue", "prefill", "decode")),
        )
    }


def exemplars(address_file: Path) -> dict[str, set[str]]:
    """The traces that each histogram of a service names, to a scraper that asks for them."""
    url = f"http://{json.loads(address_file.read_text())['metrics']}/metrics"
    page = httpx.get(url, headers={"accept": "application/openmetrics-text; version=1.0.0"}).text
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.exemplar is not None:
                found.setdefault(family.name, set()).add(sample.exemplar.labels["trace_id"])
    return found


def test_a_collector_that_does_not_answer_does_not_hold_a_stop_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(tracing, "_EXPORT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracing.start_tracing("tandem-probe", f"http://127.0.0.1:{silent.getsockname()[1]}", 1.0)
        span = tracing.begin_request("tandem.Probe/Ask", "")
        assert span is not None
        span.end_call("/tandem.Probe/Ask", "OK", 0.001, {})
        tracing.stop_tracing()
        assert "does not answer: the last spans are not exported" in caplog.text


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported():
    program = (
        "import sys, tandem.client, tandem.worker.front.server, tandem.tokenizer.rpc.server\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"

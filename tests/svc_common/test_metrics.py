"""Metrics are per service, well formed, and served on a port of their own."""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from tandem.common import metrics_endpoint
from tandem.common.errors import StartError
from tandem.common.loop_lag import watch_event_loop
from tandem.common.metrics import ServerMetrics, ServiceMetrics
from tandem.common.metrics_endpoint import MetricsEndpoint


@pytest.fixture
def state() -> dict[str, object]:
    return {"ready": True, "words": "serving"}


@pytest.fixture
def metrics() -> ServiceMetrics:
    return ServiceMetrics("tandem-probe")


@pytest.fixture
def address(metrics: ServiceMetrics, state: dict[str, object]) -> Iterator[str]:
    endpoint = MetricsEndpoint(metrics.registry, "127.0.0.1", 0, lambda: (bool(state["ready"]), str(state["words"])))
    yield endpoint.start()
    endpoint.stop()
    endpoint.stop()


def get(address: str, path: str, **headers: str) -> tuple[int, str, str]:
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.headers["Content-Type"], response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def test_two_services_in_one_process_do_not_share_anything() -> None:
    one, two = ServiceMetrics("one"), ServiceMetrics("two")
    one.method("s", "m").handled("OK", 0.1)
    name, labels = "tandem_grpc_server_handled_total", {"grpc_service": "s", "grpc_method": "m", "grpc_code": "OK"}
    assert one.registry.get_sample_value(name, labels) == 1
    assert two.registry.get_sample_value(name, labels) is None


def test_both_text_formats_parse_and_hold_the_documented_metrics(address: str, metrics: ServiceMetrics) -> None:
    metrics.method("s", "m").handled("OK", 0.1)
    status, kind, plain = get(address, "/metrics")
    assert status == 200 and kind.startswith("text/plain")
    names = {family.name for family in parse_prometheus(plain)}
    documented = [
        line.split("|")[1].strip()
        for kind in (ServerMetrics, ServiceMetrics)
        for line in (kind.__doc__ or "").splitlines()
        if "tandem_" in line
    ]
    assert len(documented) == 7
    assert {name.removesuffix("_total") for name in documented} <= names | {n.removesuffix("_total") for n in names}
    assert {"process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds"} <= names
    status, kind, opened = get(address, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert status == 200 and "openmetrics" in kind
    assert {family.name for family in parse_openmetrics(opened)} >= {"tandem_build_info", "tandem_ready"}


def test_build_information_names_the_versions(metrics: ServiceMetrics) -> None:
    build = next(family for family in metrics.registry.collect() if family.name == "tandem_build_info")
    labels = build.samples[0].labels
    assert labels["service"] == "tandem-probe"
    assert all(labels[name] for name in ("version", "python", "grpc", "protobuf"))


def test_healthz_tells_life_by_default_and_readiness_when_asked(address: str, state: dict[str, object]) -> None:
    assert get(address, "/healthz")[::2] == (200, "serving\n")
    assert get(address, "/healthz?ready")[0] == 200
    state.update(ready=False, words="draining")
    assert get(address, "/healthz")[::2] == (200, "draining\n")
    assert get(address, "/healthz?ready")[::2] == (503, "draining\n")


def test_other_pages_and_methods_are_refused(address: str) -> None:
    assert get(address, "/")[0] == 404
    assert get(address, "/metrics/../etc/passwd")[0] == 404
    request = urllib.request.Request(f"http://{address}/metrics", data=b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=30)
    assert caught.value.code == 405


def test_clients_that_say_nothing_or_nonsense_do_not_disturb_the_others(address: str) -> None:
    host, _, port = address.rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(20)]
    for i, connection in enumerate(silent):
        connection.sendall(
            (b"", b"GET /met", b"\x16\x03\x01\x00 noise\r\n\r\n", b"GET / HTTP/1.1\r\nA: " + b"x" * 70_000)[i % 4]
        )
    assert get(address, "/metrics")[0] == 200
    for connection in silent:
        connection.close()
    assert get(address, "/healthz")[0] == 200


def test_a_scrape_without_a_descriptor_waits_without_a_load(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    paused = threading.Event()
    monkeypatch.setattr(metrics_endpoint, "sleep", lambda seconds: paused.set())
    host, _, port = address.rpartition(":")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as scraper, socket.socket() as lowest:
        next_one = lowest.fileno()
        lowest.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_one, hard))
        try:
            scraper.connect((host, int(port)))
            assert paused.wait(60)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        scraper.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert scraper.recv(100).startswith(b"HTTP/1.0 200")


def test_a_port_in_use_is_a_start_error_and_a_stopped_endpoint_frees_its_port(metrics: ServiceMetrics) -> None:
    first = MetricsEndpoint(metrics.registry, "127.0.0.1", 0, lambda: (True, ""))
    port = int(first.start().rpartition(":")[2])
    second = MetricsEndpoint(metrics.registry, "127.0.0.1", port, lambda: (True, ""))
    with pytest.raises(StartError, match="Address already in use"):
        second.start()
    first.stop()
    assert second.start() == f"127.0.0.1:{port}"
    second.stop()


def test_an_ipv6_address_is_written_in_brackets(metrics: ServiceMetrics) -> None:
    endpoint = MetricsEndpoint(metrics.registry, "::1", 0, lambda: (True, "serving"))
    try:
        address = endpoint.start()
    except StartError:
        pytest.skip("this machine has no IPv6 loopback")
    try:
        assert address.startswith("[::1]:")
        assert get(address, "/healthz")[0] == 200
    finally:
        endpoint.stop()


async def test_a_blocked_event_loop_shows_in_the_lag(metrics: ServiceMetrics) -> None:
    observed = asyncio.Event()

    class Lag:
        worst = 0.0

        def observe(self, seconds: float) -> None:
            self.worst = max(self.worst, seconds)
            observed.set()

    lag = Lag()
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(watch_event_loop(lag))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    end = loop.time() + 0.5

    def block() -> None:
        while loop.time() < end:
            pass

    loop.call_soon(block)
    await observed.wait()
    task.cancel()
    assert lag.worst >= 0.2

"""A service as a process: it starts with one line, stops on one signal, leaves on two, and says why it cannot start."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.svc_common.certificates import Authority
from tests.svc_common.probe_client import ask, health_of, next_status, open_call, outcome, watch
from tests.svc_common.probe_process import probe_process, serving_process
from tests.svc_common.probe_service import NAME

STOP_SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("number", STOP_SIGNALS)
async def test_one_signal_ends_an_idle_service_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    async with serving_process(tmp_path) as probe:
        async with grpc.aio.insecure_channel(probe.address) as channel:
            assert (await ask(channel, "UnaryUnary", "hello")).words == ["hello"]
        probe.signal(number)
        code, lines = await probe.end()
    assert code == 0
    assert "tandem-probe has stopped" in lines[-1]
    assert not (tmp_path / "address.json").exists()


async def test_a_second_instance_that_fails_leaves_the_firsts_address_file(tmp_path: Path) -> None:
    async with serving_process(tmp_path) as first:
        port = first.address.rpartition(":")[2]
        async with probe_process("--port", port, "--address-file", str(tmp_path / "address.json")) as second:
            assert (await second.end())[0] == 1
        assert json.loads((tmp_path / "address.json").read_text())["pid"] == first.process.pid


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_an_address_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "address.json").mkdir()
    async with probe_process("--address-file", str(tmp_path / "address.json")) as probe:
        code, lines = await probe.end()
    assert code == 1
    assert any("cannot write the address file" in line for line in lines)
    assert names_in(tmp_path) == ["address.json"]


@pytest.mark.parametrize("format", ["json", "human"])
async def test_what_grpcs_core_writes_is_a_line_like_ours(format: str, tmp_path: Path) -> None:
    certificate, key = Authority("ours").sign("server", "localhost").write(tmp_path, "server")
    tls = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    async with serving_process(tmp_path, *tls, "--log-format", format) as probe:
        host, _, port = probe.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b'GET / HTTP/1.0\r\nx: "quoted"\r\n\r\n')  # no TLS
        await writer.drain()
        written = await probe.line("Handshake failed")
        writer.close()
        probe.signal(signal.SIGTERM)
        assert (await probe.end())[0] == 0
    if format == "human":
        assert re.fullmatch(r"[\d:.]{12} \w+ +grpc\.core: Handshake failed .*\(source=\w+\.cc:\d+\)\n", written)
        return
    line = json.loads(written)
    assert (line["logger"], line["service"], line["ts"][-1]) == ("grpc.core", "tandem-probe", "Z")
    assert re.fullmatch(r"\w+\.cc:\d+", line["source"]) and line["message"].startswith("Handshake failed")


def test_last_words_of_python_are_written_where_they_were() -> None:
    program = (
        "import ctypes; from tandem.common.core_lines import take_core_lines\n"
        "take_core_lines('json', 'error', 'tandem-probe'); ctypes.pythonapi.Py_FatalError(b'last words')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "last words" in done.stderr


@pytest.mark.parametrize("number", STOP_SIGNALS)
async def test_a_signal_lets_the_running_stream_finish(number: signal.Signals, tmp_path: Path) -> None:
    async with serving_process(tmp_path) as probe, grpc.aio.insecure_channel(probe.address) as channel:
        readiness = watch(channel, NAME)
        assert await next_status(readiness) == "SERVING"
        call = open_call(channel, "UnaryStream", ["one", "wait", "two"], timeout=None)
        assert (await call.read()).value == "one"
        probe.signal(number)
        assert await next_status(readiness) == "NOT_SERVING"
        await probe.line("waiting up to")
        assert (await ask(channel, "UnaryUnary", "new")).code is grpc.StatusCode.UNAVAILABLE
        assert await health_of(channel, "") == "SERVING"
        assert (await ask(channel, "Reachable", "release")).code is grpc.StatusCode.OK
        rest = await outcome(call)
        assert (rest.code, rest.words) == (grpc.StatusCode.OK, ["wait", "two"])
        assert await next_status(readiness) == ""
        assert (await probe.end())[0] == 0


async def test_what_outlives_the_grace_is_cut_and_the_exit_is_still_clean(tmp_path: Path) -> None:
    async with (
        serving_process(tmp_path, "--drain-grace-seconds", "0.1") as probe,
        grpc.aio.insecure_channel(probe.address) as channel,
    ):
        call = open_call(channel, "UnaryStream", ["one", "wait"], timeout=None)
        assert (await call.read()).value == "one"
        probe.signal(signal.SIGTERM)
        assert (await outcome(call)).code is grpc.StatusCode.UNAVAILABLE
        assert (await probe.end())[0] == 0


@pytest.mark.parametrize("second", STOP_SIGNALS)
async def test_a_second_signal_leaves_now(second: signal.Signals, tmp_path: Path) -> None:
    async with (
        serving_process(tmp_path, "--drain-grace-seconds", "3600") as probe,
        grpc.aio.insecure_channel(probe.address) as channel,
    ):
        call = open_call(channel, "UnaryStream", ["one", "wait"], timeout=None)
        assert (await call.read()).value == "one"
        probe.signal(signal.SIGTERM)
        await probe.line("waiting up to")
        probe.signal(second)
        code, lines = await probe.end()
        assert code == 128 + second
        assert f"second signal ({second.name}): leaving now" in lines
        assert (await outcome(call)).code is grpc.StatusCode.UNAVAILABLE


async def test_a_second_signal_leaves_even_when_the_event_loop_is_stuck(tmp_path: Path) -> None:
    async with serving_process(tmp_path, "--block-loop") as probe:
        await probe.line("blocked for ever")
        probe.signal(signal.SIGTERM)
        probe.signal(signal.SIGINT)
        assert (await probe.end())[0] in (128 + signal.SIGTERM, 128 + signal.SIGINT)


async def test_a_signal_during_the_start_ends_it() -> None:
    async with probe_process("--hang-start") as probe:
        address = (await probe.line("health answers on")).split()[-1]
        async with grpc.aio.insecure_channel(address) as channel:
            assert await health_of(channel, NAME) == "NOT_SERVING"
        probe.signal(signal.SIGTERM)
        assert (await probe.end())[0] == 0


@pytest.mark.slow
async def test_tasks_that_never_end_cannot_keep_the_process(tmp_path: Path) -> None:
    async with serving_process(tmp_path, "--immortal-task") as probe:
        probe.signal(signal.SIGTERM)
        code, lines = await probe.end()
    assert code == 0
    assert "tasks or threads do not end: leaving without them" in lines


async def test_the_service_may_ask_for_the_end_with_a_code_of_its_own() -> None:
    async with probe_process("--stop-code", "3") as probe:
        code, lines = await probe.end()
    assert code == 3
    assert any("stopping: told to" in line for line in lines)


async def test_a_child_leaves_when_its_parents_pipe_ends_and_leaves_ctrl_c_to_the_parent(tmp_path: Path) -> None:
    async with serving_process(tmp_path, "--exit-when-stdin-closes", stdin=asyncio.subprocess.PIPE) as probe:
        probe.signal(signal.SIGINT)
        async with grpc.aio.insecure_channel(probe.address) as channel:
            assert (await ask(channel, "UnaryUnary", "alive")).words == ["alive"]
        assert probe.process.stdin is not None
        probe.process.stdin.close()
        assert (await probe.end())[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--fail-start", "no checkpoint\nat /nowhere"), "tandem-probe cannot start: no checkpoint at /nowhere"),
        (("--host", "203.0.113.1"), "cannot serve gRPC on 203.0.113.1:0: Cannot assign requested address"),
        (("--host", "nonexistent.invalid"), "cannot serve gRPC on nonexistent.invalid:0"),
        (("--metrics-host", "203.0.113.1"), "cannot serve metrics on 203.0.113.1:0"),
        (("--address-file", "/nonexistent/file"), "cannot write the address file /nonexistent/file"),
        (("--auth-token-file", "/nonexistent/file"), "auth_token_file /nonexistent/file: No such file or directory"),
        (("--tls-certificate", "/nonexistent/c", "--tls-key", "/nonexistent/k"), "/nonexistent/c: No such file"),
    ],
)
async def test_a_start_that_fails_says_why_in_one_line(arguments: tuple[str, ...], words: str) -> None:
    async with probe_process(*arguments) as probe:
        code, lines = await probe.end()
    assert code == 1
    assert len([line for line in lines if words in line]) == 1
    assert not any("Traceback" in line for line in lines)
    assert not any(line.startswith(("E0", "E1")) for line in lines), "gRPC's core writes nothing of its own"


@pytest.mark.parametrize("flag", ["--port", "--metrics-port"])
async def test_a_port_in_use_is_one_line(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with probe_process(flag, str(port)) as probe:
            code, lines = await probe.end()
    assert code == 1
    assert len([line for line in lines if f"127.0.0.1:{port}: Address already in use" in line]) == 1


async def test_a_start_that_panics_is_reported_with_its_traceback() -> None:
    async with probe_process("--fail-start", "panic") as probe:
        code, lines = await probe.end()
    assert code == 1
    assert any("unexpected PanicException" in line for line in lines)
    assert any("Traceback" in line for line in lines)


async def test_in_json_every_line_is_an_object(tmp_path: Path) -> None:
    async with serving_process(tmp_path, "--log-format", "json") as probe:
        async with grpc.aio.insecure_channel(probe.address) as channel:
            await ask(channel, "UnaryUnary", "crash", metadata=[("x-request-id", "abc")])
        probe.signal(signal.SIGTERM)
        _, lines = await probe.end()
    objects = [json.loads(line) for line in lines]
    crash = next(each for each in objects if each["level"] == "error")
    assert (crash["request_id"], crash["service"], crash["logger"]) == ("abc", "tandem-probe", "tandem.common.rpc")
    assert "RuntimeError" in crash["exception"]


async def test_metrics_are_served_until_the_end(tmp_path: Path) -> None:
    async with serving_process(tmp_path) as probe, grpc.aio.insecure_channel(probe.address) as channel:
        call = open_call(channel, "UnaryStream", ["one", "wait"], timeout=None)
        await call.read()
        probe.signal(signal.SIGTERM)
        await probe.line("waiting up to")

        def page(path: str) -> str:
            with urllib.request.urlopen(f"http://{probe.metrics}{path}", timeout=30) as response:
                return str(response.read().decode())

        text = await asyncio.to_thread(page, "/metrics")
        assert "tandem_ready 0.0" in text
        assert "_created" not in text
        assert f'tandem_grpc_server_in_flight{{grpc_method="UnaryStream",grpc_service="{NAME}"}} 1.0' in text
        assert await asyncio.to_thread(page, "/healthz") == "draining\n"
        await ask(channel, "Reachable", "release")
        assert (await probe.end())[0] == 0


async def test_without_a_metrics_port_the_address_file_says_null(tmp_path: Path) -> None:
    async with serving_process(tmp_path, "--no-metrics-enabled") as probe:
        assert probe.metrics is None
        probe.signal(signal.SIGTERM)
        await probe.end()


async def test_reflection_is_there_when_asked_for_and_only_then(tmp_path: Path) -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async with serving_process(tmp_path) as probe, grpc.aio.insecure_channel(probe.address) as channel:
        # Not as a stream: one that is refused while it still sends ends with INTERNAL at times.
        method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary(method)(b"")
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    async with serving_process(tmp_path, "--reflection") as probe:
        async with grpc.aio.insecure_channel(probe.address) as channel:
            call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
                iter([reflection_pb2.ServerReflectionRequest(list_services="")])
            )
            answers = [each async for each in call]
        assert NAME in [service.name for service in answers[0].list_services_response.service]
        probe.signal(signal.SIGTERM)
        assert (await probe.end())[0] == 0

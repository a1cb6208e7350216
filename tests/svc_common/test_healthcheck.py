"""The container's health check says what the server says, by its exit code."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tandem.common.healthcheck import main
from tandem.common.run_service import RunningService, run_in_loop
from tandem.common.settings import ServiceSettings
from tests.svc_common.probe_service import NAME, ProbeService


async def check(*arguments: str) -> int:
    return await asyncio.to_thread(main, arguments)


async def test_exit_codes_follow_readiness_and_liveness(
    probe: ProbeService, capsys: pytest.CaptureFixture[str]
) -> None:
    assert probe.lifecycle is not None
    assert await check(probe.address, NAME) == 0
    probe.lifecycle.set_ready(False)
    assert await check(probe.address, NAME) == 1
    assert await check(probe.address) == 0
    assert await check(probe.address, "nobody.v1.Service") == 1
    assert "NOT_FOUND: unknown service" in capsys.readouterr().err


async def test_the_images_own_check_follows_readiness_by_the_metrics_port(repository: Path) -> None:
    service = ProbeService()
    running = RunningService(service, ServiceSettings())

    async def ready(port: str) -> int:
        process = await asyncio.create_subprocess_exec(
            "bash", str(repository / "deploy" / "docker" / "health"), port, stderr=asyncio.subprocess.DEVNULL
        )
        return await process.wait()

    await running.bind()
    assert running.metrics_address is not None
    port = running.metrics_address.rpartition(":")[2]
    assert await ready(port) == 1, "it is starting"
    await running.start()
    assert await ready(port) == 0
    assert service.lifecycle is not None
    service.lifecycle.set_ready(False)
    assert await ready(port) == 1
    await running.stop()
    assert await ready(port) == 1, "nobody listens"


async def test_nobody_there_is_a_failure() -> None:
    assert await check("127.0.0.1:1", "--timeout", "5") == 1


async def test_it_speaks_mutual_tls_and_needs_no_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cryptography", reason="certificates for the tests are made with it")
    from tests.svc_common.certificates import Authority

    authority = Authority("ours")
    ca, tokens = tmp_path / "ca.pem", tmp_path / "tokens"
    ca.write_bytes(authority.certificate)
    tokens.write_text("token-0123456789")
    certificate, key = authority.sign("server").write(tmp_path, "server")
    settings = ServiceSettings(tls_certificate=certificate, tls_key=key, tls_client_ca=ca, auth_token_file=tokens)
    own = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    async with run_in_loop(ProbeService(), settings) as address:
        assert await check(address, NAME, "--tls-ca", str(ca), *own) == 0
        assert await check(address, NAME, "--tls-ca", str(ca)) == 1
        assert await check(address, NAME) == 1
        assert await check(address, NAME, "--tls-ca", "/nonexistent") == 1
    assert "/nonexistent: No such file" in capsys.readouterr().err

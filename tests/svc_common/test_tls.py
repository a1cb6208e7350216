"""TLS and mutual TLS let in whom they should, and follow certificates that are rotated."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tandem.common.errors import StartError
from tandem.common.run_service import run_in_loop
from tandem.common.settings import ServiceSettings
from tests.svc_common.probe_client import ask
from tests.svc_common.probe_service import ProbeService

pytest.importorskip("cryptography", reason="certificates for the tests are made with it")

from tests.svc_common.certificates import Authority, Signed


@pytest.fixture(scope="module")
def ours() -> Authority:
    return Authority("ours")


@pytest.fixture(scope="module")
def theirs() -> Authority:
    return Authority("theirs")


@asynccontextmanager
async def secure(address: str, authority: Authority, client: Signed | None = None) -> AsyncIterator[grpc.aio.Channel]:
    credentials = grpc.ssl_channel_credentials(
        authority.certificate, client.key if client else None, client.certificate if client else None
    )
    # Its own pool: another channel's connection to the same address must not be reused.
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(address, credentials, options) as channel:
        yield channel


def settings(folder: Path, signed: Signed, client_ca: Authority | None = None) -> ServiceSettings:
    certificate, key = signed.write(folder, "server")
    ca = folder / "ca.pem"
    if client_ca is not None:
        ca.write_bytes(client_ca.certificate)
    return ServiceSettings(
        tls_certificate=certificate, tls_key=key, tls_client_ca=ca if client_ca is not None else None
    )


async def test_a_client_that_trusts_our_authority_gets_in_and_others_do_not(
    ours: Authority, theirs: Authority, tmp_path: Path
) -> None:
    async with run_in_loop(ProbeService(), settings(tmp_path, ours.sign("server"))) as address:
        async with secure(address, ours) as channel:
            assert (await ask(channel, "UnaryUnary", "hello")).words == ["hello"]
        async with secure(address, theirs) as channel:
            assert (await ask(channel, "UnaryUnary", "hello")).code is grpc.StatusCode.UNAVAILABLE
        async with grpc.aio.insecure_channel(address) as channel:
            assert (await ask(channel, "UnaryUnary", "hello")).code is grpc.StatusCode.UNAVAILABLE


async def test_mutual_tls_asks_for_a_certificate_of_the_right_authority(
    ours: Authority, theirs: Authority, tmp_path: Path
) -> None:
    async with run_in_loop(ProbeService(), settings(tmp_path, ours.sign("server"), ours)) as address:
        async with secure(address, ours, ours.sign("client")) as channel:
            assert (await ask(channel, "UnaryUnary", "hello")).words == ["hello"]
        for client in (None, theirs.sign("client")):
            async with secure(address, ours, client) as channel:
                assert (await ask(channel, "UnaryUnary", "hello")).code is grpc.StatusCode.UNAVAILABLE


async def test_new_connections_get_the_new_certificate_and_half_a_rotation_changes_nothing(
    ours: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def shown(address: str) -> bytes:
        host, _, port = address.rpartition(":")
        return ssl.get_server_certificate((host, int(port))).encode()

    import asyncio

    first, second = ours.sign("first"), ours.sign("second")
    async with run_in_loop(ProbeService(), settings(tmp_path, first)) as address:
        assert (await asyncio.to_thread(shown, address)).strip() == first.certificate.strip()
        (tmp_path / "server.pem").write_bytes(second.certificate)
        assert (await asyncio.to_thread(shown, address)).strip() == first.certificate.strip()
        assert "stays in use" in caplog.text
        (tmp_path / "server.key").write_bytes(second.key)
        assert (await asyncio.to_thread(shown, address)).strip() == second.certificate.strip()
        (tmp_path / "server.key").unlink()
        assert (await asyncio.to_thread(shown, address)).strip() == second.certificate.strip()


@pytest.mark.parametrize("broken", ["certificate", "key", "mismatch", "client_ca"])
async def test_files_that_are_no_good_end_the_start_and_are_named(broken: str, ours: Authority, tmp_path: Path) -> None:
    chosen = settings(tmp_path, ours.sign("server"), ours)
    assert chosen.tls_certificate and chosen.tls_key and chosen.tls_client_ca
    match broken:
        case "certificate":
            chosen.tls_certificate.write_text("no PEM")
        case "key":
            chosen.tls_key.write_bytes(b"\xff")
        case "mismatch":
            chosen.tls_key.write_bytes(ours.sign("other").key)
        case "client_ca":
            chosen.tls_client_ca.write_text("")
    named = chosen.tls_client_ca if broken == "client_ca" else chosen.tls_key
    with pytest.raises(StartError, match=str(named)):
        async with run_in_loop(ProbeService(), chosen):
            pass

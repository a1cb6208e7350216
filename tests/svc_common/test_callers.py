"""Operators' methods are for operators, where there is a list of them."""

from __future__ import annotations

from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from google.rpc import error_details_pb2

from tandem.common.bearer_tokens import BearerTokens
from tandem.common.callers import caller_var
from tandem.common.errors import StartError
from tandem.common.run_service import run_in_loop
from tandem.common.settings import ServiceSettings
from tests.svc_common.probe_client import ask, health_of
from tests.svc_common.probe_service import ADMIN, NAME, ProbeService

CALLER, OPERATOR, NOBODY = "caller-token-0123456789", "operator-token-0123456789", "nobody-token-0123456789"
OK, UNAUTHENTICATED = grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED
PERMISSION_DENIED = grpc.StatusCode.PERMISSION_DENIED


class OperatedService(ProbeService):
    operator_methods = (f"/{ADMIN}/UnaryUnary",)

    def __init__(self, operators: Path | None) -> None:
        super().__init__()
        self.operators = None if operators is None else BearerTokens(operators, "admin_token_file")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    for name, token in (("callers", CALLER), ("operators", OPERATOR)):
        (tmp_path / name).write_text(f"{token}\n")
    return {name: tmp_path / name for name in ("callers", "operators")}


@pytest.mark.parametrize(
    ("lists", "token", "operate", "call"),
    [
        ((), "", OK, OK),
        (("callers",), "", UNAUTHENTICATED, UNAUTHENTICATED),
        (("callers",), CALLER, OK, OK),
        (("operators",), "", UNAUTHENTICATED, OK),
        (("operators",), NOBODY, UNAUTHENTICATED, OK),
        (("operators",), OPERATOR, OK, OK),
        (("callers", "operators"), "", UNAUTHENTICATED, UNAUTHENTICATED),
        (("callers", "operators"), NOBODY, UNAUTHENTICATED, UNAUTHENTICATED),
        (("callers", "operators"), CALLER, PERMISSION_DENIED, OK),
        (("callers", "operators"), OPERATOR, OK, OK),
    ],
)
async def test_who_may_operate_and_who_may_call(
    files: dict[str, Path], lists: tuple[str, ...], token: str, operate: grpc.StatusCode, call: grpc.StatusCode
) -> None:
    service = OperatedService(files["operators"] if "operators" in lists else None)
    settings = ServiceSettings(auth_token_file=files["callers"] if "callers" in lists else None)
    metadata = [("authorization", f"Bearer {token}")] if token else []
    async with run_in_loop(service, settings) as address, grpc.aio.insecure_channel(address) as channel:
        operated = await ask(channel, "UnaryUnary", "x", service=ADMIN, metadata=metadata)
        assert operated.code is operate
        if operate is PERMISSION_DENIED:
            assert operated.detail(error_details_pb2.ErrorInfo).reason == "OPERATORS_ONLY"
        for method in ("UnaryStream", "StreamStream"):
            assert (await ask(channel, method, "x", service=ADMIN, metadata=metadata)).code is call
        assert (await ask(channel, "UnaryUnary", "x", metadata=metadata)).code is call
        assert await health_of(channel, NAME) == "SERVING"


async def test_a_missing_list_of_operators_ends_the_start_and_names_its_setting(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"admin_token_file .*No such file"):
        async with run_in_loop(OperatedService(tmp_path / "none"), ServiceSettings()):
            pass


class NamingService(ProbeService):
    """Answers with who calls."""

    async def unary_unary(self, request: StringValue, context: object) -> StringValue:
        return StringValue(value=caller_var.get())


async def who(channel: grpc.aio.Channel, token: str = "") -> str:
    metadata = [("authorization", f"Bearer {token}")] if token else []
    return (await ask(channel, "UnaryUnary", "x", metadata=metadata)).words[0]


async def test_a_caller_is_its_token_or_else_its_address_on_any_connection(files: dict[str, Path]) -> None:
    files["callers"].write_text(f"team-a: {CALLER}\n{NOBODY}\n")
    own = [("grpc.use_local_subchannel_pool", 1)]
    async with run_in_loop(NamingService(), ServiceSettings(auth_token_file=files["callers"])) as address:
        names = []
        for token in (CALLER, CALLER, NOBODY):
            async with grpc.aio.insecure_channel(address, own) as channel:
                names.append(await who(channel, token))
        assert names[:2] == ["token:team-a"] * 2
        assert names[2].startswith("token:") and NOBODY not in names[2]
    async with run_in_loop(NamingService(), ServiceSettings()) as address:
        names = []
        for _ in range(2):
            async with grpc.aio.insecure_channel(address, own) as channel:
                names.append(await who(channel, CALLER))
        assert names == ["address:ipv4:127.0.0.1"] * 2


async def test_under_mutual_tls_a_caller_is_what_its_certificate_says(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="certificates for the tests are made with it")
    from tests.svc_common.certificates import Authority

    authority = Authority("ours")
    certificate, key = authority.sign("server").write(tmp_path, "server")
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    settings = ServiceSettings(tls_certificate=certificate, tls_key=key, tls_client_ca=tmp_path / "ca.pem")
    names = []
    async with run_in_loop(NamingService(), settings) as address:
        for name in ("one", "one", "two"):
            client = authority.sign(name)  # another key each time
            credentials = grpc.ssl_channel_credentials(authority.certificate, client.key, client.certificate)
            own = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.secure_channel(address, credentials, own) as channel:
                names.append(await who(channel))
    assert names[0] == names[1]
    assert all(name.startswith("certificate:") for name in names)


async def test_with_tls_alone_a_caller_is_its_address(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="certificates for the tests are made with it")
    from tests.svc_common.certificates import Authority

    authority = Authority("ours")
    certificate, key = authority.sign("server").write(tmp_path, "server")
    async with run_in_loop(NamingService(), ServiceSettings(tls_certificate=certificate, tls_key=key)) as address:
        credentials = grpc.ssl_channel_credentials(authority.certificate)
        async with grpc.aio.secure_channel(address, credentials) as channel:
            assert await who(channel) == "address:ipv4:127.0.0.1"

"""Operators' methods are for operators, where there is a list of them."""

from __future__ import annotations

from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2

from svc_common.errors import StartError
from svc_common.lifecycle import serving
from svc_common.settings import ServiceSettings
from svc_common.tokens import BearerTokens
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
    async with serving(service, settings) as address, grpc.aio.insecure_channel(address) as channel:
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
        async with serving(OperatedService(tmp_path / "none"), ServiceSettings()):
            pass

"""A real tokenizer service on loopback, in the test's event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tandem.common.run_service import run_in_loop
from tandem.tokenizer.rpc.server import TokenizerService
from tandem.tokenizer.settings import TokenizerSettings
from tandem.tokenizer.v1 import tokenizer_pb2_grpc

StartService = Callable[..., Awaitable[Any]]


@pytest.fixture
async def start_service(shared_data: Path) -> AsyncIterator[StartService]:
    """Starts a service with the small and the Llama 3 tokenizer, or with `tokenizer=` others, and any further setting.

    Answers an object with `stub`, `service`, `channel` and `address`.
    """
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Any:
            settings.setdefault("tokenizer", (f"small={shared_data}/models/stories260K/meta",))
            settings.setdefault("metrics_enabled", False)
            chosen = TokenizerSettings(**settings)
            service = TokenizerService(chosen)
            address = await stack.enter_async_context(run_in_loop(service, chosen))
            options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
            stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
            return SimpleNamespace(stub=stub, service=service, channel=channel, address=address)

        yield start


class Refusal:
    """The status of a call that failed, with its details opened."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code = error.code()
        self.message = error.details() or ""
        self.violations: dict[str, str] = {}
        self.reason = ""
        self.retry_after: float | None = None
        self.status = status = rpc_status.from_call(error)
        for detail in status.details if status is not None else ():
            for kind in (error_details_pb2.BadRequest, error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo):
                if not detail.Is(kind.DESCRIPTOR):
                    continue
                opened = kind()
                detail.Unpack(opened)
                if isinstance(opened, error_details_pb2.BadRequest):
                    self.violations = {each.field: each.description for each in opened.field_violations}
                elif isinstance(opened, error_details_pb2.ErrorInfo):
                    self.reason = opened.reason
                else:
                    self.retry_after = opened.retry_delay.ToTimedelta().total_seconds()


@pytest.fixture
def refusal() -> Callable[[Awaitable[Any]], Awaitable[Refusal]]:
    """Awaits a call that must fail, and answers how it did."""

    async def expect(call: Awaitable[Any]) -> Refusal:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        return Refusal(caught.value)

    return expect

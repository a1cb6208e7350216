"""Calls of the probe service, and what came of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import StringValue
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from tests.svc_common.probe_service import NAME

Metadata = Sequence[tuple[str, str]]
Detail = TypeVar("Detail", bound=Message)


@dataclass
class Outcome:
    """Everything that a client learns of an RPC."""

    code: grpc.StatusCode
    words: list[str] = field(default_factory=list)
    message: str = ""
    trailers: dict[str, str | bytes] = field(default_factory=dict)

    @property
    def status(self) -> Any:
        """The google.rpc.Status among the trailers."""
        return status_pb2.Status.FromString(self.trailers["grpc-status-details-bin"])

    def detail(self, kind: type[Detail]) -> Detail:
        """The only detail of a kind."""
        packed = [each for each in self.status.details if each.Is(kind.DESCRIPTOR)]
        assert len(packed) == 1, f"{len(packed)} details of {kind.__name__}"
        message = kind()
        packed[0].Unpack(message)
        return message


def open_call(
    channel: grpc.aio.Channel,
    kind: str,
    words: Sequence[str] = (),
    *,
    service: str = NAME,
    timeout: float | None = 20.0,
    metadata: Metadata = (),
    raw: bytes | None = None,
) -> Any:
    """Begins an RPC. `raw` is sent in place of a well-formed message."""

    def serialize(message: StringValue) -> bytes:
        return message.SerializeToString() if raw is None else raw

    async def requests() -> AsyncIterator[StringValue]:
        for word in words:
            yield StringValue(value=word)

    streams_in = kind.startswith("Stream")
    make = {
        "StreamUnary": channel.stream_unary,
        "StreamStream": channel.stream_stream,
        "UnaryStream": channel.unary_stream,
        "Writes": channel.unary_stream,
    }.get(kind, channel.unary_unary)
    method: Any = make(f"/{service}/{kind}", serialize, StringValue.FromString)
    request = requests() if streams_in else StringValue(value=",".join(words))
    return method(request, timeout=timeout, metadata=tuple(metadata))


async def outcome(call: Any) -> Outcome:
    """Reads an RPC to its end."""
    words: list[str] = []
    try:
        if hasattr(call, "read"):
            while (message := await call.read()) is not grpc.aio.EOF:
                words.append(message.value)
        else:
            words.append((await call).value)
    except grpc.aio.AioRpcError:
        pass
    trailers = dict(await call.trailing_metadata() or ())
    return Outcome(await call.code(), words, await call.details() or "", trailers)


async def ask(channel: grpc.aio.Channel, kind: str, *words: str, **options: Any) -> Outcome:
    """One whole RPC."""
    return await outcome(open_call(channel, kind, words, **options))


async def health_of(channel: grpc.aio.Channel, name: str) -> str:
    """SERVING, NOT_SERVING or SERVICE_UNKNOWN."""
    response = await health_pb2_grpc.HealthStub(channel).Check(
        health_pb2.HealthCheckRequest(service=name), timeout=60, wait_for_ready=True
    )
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


def watch(channel: grpc.aio.Channel, name: str) -> Any:
    """A Watch stream."""
    return health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=name), wait_for_ready=True)


async def next_status(stream: Any) -> str:
    """The next status that a Watch pushes; "" at its end."""
    response = await stream.read()
    if response is grpc.aio.EOF:
        return ""
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """The value of one sample, 0 when there is none yet."""
    return registry.get_sample_value(name, labels) or 0.0


def handled(registry: CollectorRegistry, method: str, code: str, service: str = NAME) -> float:
    """How many RPCs of a method ended with a code."""
    return sample(
        registry,
        "tandem_grpc_server_handled_total",
        grpc_service=service,
        grpc_method=method,
        grpc_code=code,
    )

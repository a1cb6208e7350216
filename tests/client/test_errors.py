"""Every status becomes its exception, with everything that the details carry."""

from __future__ import annotations

import asyncio
import copy
import pickle

import grpc
import grpc.aio
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from tandem.client import (
    AsyncClient,
    CancelledError,
    ConnectionSettings,
    DeadlineExceededError,
    FailoverSettings,
    FieldViolation,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    Segment,
    StatusError,
    TandemError,
    UnavailableError,
    UnimplementedError,
    errors,
)
from tandem.client.deadline import Deadline
from tandem.client.rpc import CallContext, unary
from tandem.tokenizer.v1 import tokenizer_pb2
from tests.client.counting_worker import CountingWorker

CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
RETRYABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED}


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_its_own_exception(code: grpc.StatusCode) -> None:
    error = errors.from_status(code, "words", (), service="worker", request_id="r")
    assert type(error) is not StatusError
    assert isinstance(error, StatusError) and isinstance(error, TandemError)
    assert type(error).__name__ == "".join(part.title() for part in code.name.split("_")) + "Error"
    assert (error.code, error.message, error.service, error.request_id) == (code, "words", "worker", "r")
    assert (error.reason, error.violations, error.retry_after) == ("", (), None)
    assert error.retryable is (code in RETRYABLE)
    assert str(error) == f"worker: {code.name}: words"


@pytest.mark.parametrize("code", CODES)
async def test_every_code_arrives_over_the_wire(
    client: AsyncClient, worker: CountingWorker, code: grpc.StatusCode
) -> None:
    client._failover = FailoverSettings(attempts=0)
    worker.fail = (code, "words")
    with pytest.raises(errors.BY_CODE[code]) as caught:
        await client.generate("Hi", request_id="r")
    assert caught.value.service == "worker"
    assert caught.value.request_id == "r"
    if code is not grpc.StatusCode.CANCELLED:  # grpc.aio tells nothing else of a call that the server cancelled
        assert (caught.value.message, caught.value.reason) == ("words", "TEST")


@pytest.mark.parametrize(
    ("debug", "expected"),
    [
        # What a call has whose connection goes between two of its messages: the library's words, not the server's.
        ('Failed "execute_batch": (<grpc._cython.cygrpc.SendMessageOperation object at 0x7f>,)', UnavailableError),
        ("UNKNOWN:Error received from peer {grpc_status:13}", errors.InternalError),
        (None, errors.InternalError),
    ],
    ids=["unsent", "from the server", "no words"],
)
def test_a_message_that_could_not_be_sent_means_a_lost_connection(debug: str | None, expected: type[StatusError]):
    nothing = grpc.aio.Metadata()
    failure = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, "words", debug)
    assert type(errors.from_rpc_error(failure, service="tokenizer")) is expected


def _trailing(*details: object, code: int = 3) -> tuple[tuple[str, bytes], ...]:
    status = status_pb2.Status(code=code, message="words")
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return (("grpc-status-details-bin", status.SerializeToString()),)


def test_rich_details_become_attributes() -> None:
    bad = error_details_pb2.BadRequest()
    bad.field_violations.add(field="sampling.top_p", description="must be 0 to 1")
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(1500)
    trailing = _trailing(
        bad,
        error_details_pb2.ErrorInfo(reason="FULL", domain="tandem", metadata={"fields": "n, best_of"}),
        retry,
        error_details_pb2.RequestInfo(request_id="theirs"),
        error_details_pb2.Help(),
    )
    error = errors.from_status(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "words", trailing, service="worker", request_id="ours"
    )
    assert error.violations == (FieldViolation("sampling.top_p", "must be 0 to 1"),)
    assert (error.reason, error.retry_after, error.request_id) == ("FULL", 1.5, "theirs")
    assert error.metadata == {"fields": "n, best_of"}
    assert isinstance(error, ResourceExhaustedError) and error.retryable
    unimplemented = errors.from_status(grpc.StatusCode.UNIMPLEMENTED, "words", trailing, service="worker")
    assert isinstance(unimplemented, UnimplementedError)
    assert unimplemented.fields == ("n", "best_of")


def test_pushback_metadata_says_when_to_retry() -> None:
    pushback = (("grpc-retry-pushback-ms", "250"),)
    error = errors.from_status(grpc.StatusCode.RESOURCE_EXHAUSTED, "", pushback, service="worker")
    assert error.retry_after == 0.25
    assert error.message == "resource exhausted"


@pytest.mark.parametrize("broken", [b"", b"\xff\xff\xff", b"\x1a\x05abc"])
def test_broken_details_do_not_hide_the_status(broken: bytes) -> None:
    trailing = (("grpc-status-details-bin", broken), ("x-request-id", "from the server"))
    error = errors.from_status(grpc.StatusCode.NOT_FOUND, "words", trailing, service="tokenizer")
    assert isinstance(error, NotFoundError)
    assert error.request_id == "from the server"


def test_a_broken_detail_inside_a_good_status_does_not_hide_the_others() -> None:
    status = status_pb2.Status(code=3, message="words")
    packed = any_pb2.Any()
    packed.Pack(error_details_pb2.ErrorInfo(reason="GOOD", domain="tandem"))
    status.details.append(packed)
    status.details.add(type_url="type.googleapis.com/google.rpc.BadRequest", value=b"\xff\xff")
    trailing = (("grpc-status-details-bin", status.SerializeToString()),)
    assert errors.from_status(grpc.StatusCode.ABORTED, "", trailing, service="worker").reason == "GOOD"


def test_exceptions_survive_pickling_and_copying() -> None:
    error = DeadlineExceededError("words", service="worker", reason="R", request_id="r", retry_after=1.5)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is DeadlineExceededError
        assert again.__dict__ == error.__dict__
        assert str(again) == str(error)
    error.prompt_index = 3
    assert pickle.loads(pickle.dumps(error)).prompt_index == copy.copy(error).prompt_index == 3
    assert isinstance(error, TimeoutError)


def test_a_cancelled_call_is_not_asyncios_cancellation() -> None:
    assert not issubclass(CancelledError, asyncio.CancelledError)


async def test_violations_of_the_tokenizer_arrive(client: AsyncClient) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await client.encode([Segment("ok"), Segment("a <|control|>", "reject")])
    assert caught.value.service == "tokenizer"
    assert [violation.field for violation in caught.value.violations] == ["input.segments[1].text"]


async def test_an_unknown_tokenizer_is_not_found(client: AsyncClient) -> None:
    with pytest.raises(NotFoundError) as caught:
        await client.get_tokenizer("other", request_id="r")
    assert (caught.value.reason, caught.value.request_id) == ("NOT_FOUND", "r")


async def test_an_unserved_method_names_its_fields(client: AsyncClient) -> None:
    await client.list_tokenizers()
    assert client._text_service is not None
    context = CallContext(deadline=Deadline.after(5), closed=lambda: False)
    with pytest.raises(UnimplementedError) as caught:
        await unary(
            client._text_service.stub.EncodeChat, tokenizer_pb2.EncodeChatRequest(), context, service="tokenizer"
        )
    assert caught.value.fields == ("tools", "template_arguments")


async def test_a_message_over_the_limit_is_refused_by_name(client: AsyncClient) -> None:
    with pytest.raises(ResourceExhaustedError) as caught:
        await client.encode("x" * 5_000_000)
    assert not caught.value.retryable, "the same message would be too large again"


class Garbling(grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation, details, request):
        details.metadata.add("x-text", "é")  # gRPC carries ASCII alone
        return await continuation(details, request)


async def test_a_call_that_grpc_refuses_to_send_is_an_error_of_this_package(tokenizer_address: str) -> None:
    settings = ConnectionSettings(interceptors=[Garbling()])
    async with AsyncClient(tokenizer_address, connection=settings) as client:
        with pytest.raises(InternalError, match="gRPC refuses") as caught:
            await client.encode("Hi", request_id="r")
    assert (caught.value.service, caught.value.request_id) == ("tokenizer", "r")


async def test_a_name_that_does_not_resolve_is_unavailable() -> None:
    async with AsyncClient("no.such.host.invalid:1", timeout=60) as client:
        with pytest.raises(UnavailableError):
            await client.encode("Hi")

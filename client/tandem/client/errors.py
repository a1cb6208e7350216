"""The exceptions of the SDK.

TandemError
├── ClientClosedError            the client was closed before or during the call
├── ConfigurationError           the client was built without what this call needs, or with settings that cannot work
├── ResultNotReadyError          `.result` was read before the stream ended
└── StatusError                  a call ended with a gRPC status other than OK; one subclass for each code
    ├── CancelledError           the caller or the server cancelled the call
    ├── UnknownError             the server gave a status that says nothing more
    ├── InvalidArgumentError     .violations names every wrong field; also raised before anything is sent
    ├── DeadlineExceededError    the call's timeout was over; also a TimeoutError
    ├── NotFoundError            no tokenizer or model of that name is served
    ├── AlreadyExistsError       a request with that request_id is running
    ├── PermissionDeniedError    the credentials do not allow the call
    ├── UnauthenticatedError     credentials are missing or not valid
    ├── ResourceExhaustedError   .retry_after says when to try again; without it the request itself is too large
    ├── FailedPreconditionError  the server is not in the state that the call needs
    │   └── QuarantinedError     engines died on this request; it is not computed again
    ├── AbortedError             the call lost against a concurrent one; may be retried
    ├── OutOfRangeError          the operation went past the valid range
    ├── UnimplementedError       .fields names what the server does not support
    ├── InternalError            a defect of the server
    ├── UnavailableError         the server cannot be reached, drains or restarts; may be retried
    └── DataLossError            data was lost or damaged
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

_DETAILS_KEY = "grpc-status-details-bin"
_PUSHBACK_KEY = "grpc-retry-pushback-ms"
_REQUEST_ID_KEY = "x-request-id"


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """A field of a request with a value that is not allowed."""

    field: str  # path, for example "sampling.temperature" or "input.segments[2].text"
    description: str  # what is allowed


class TandemError(Exception):
    """The base class of all errors that this package raises."""

    prompt_index: int | None = None  # in a batch: which of its prompts this is about


class ClientClosedError(TandemError):
    """The client was closed before or during the call."""


class ConfigurationError(TandemError):
    """The client lacks something that this call needs (an address), or has settings that cannot work (unreadable
    certificates)."""


class ResultNotReadyError(TandemError):
    """The result of a stream was read before the stream ended."""


class StatusError(TandemError):
    """A call ended with a gRPC status other than OK.

    `service` says where it came from: "tokenizer", "worker", or "client" when nothing was sent. `reason` is a constant
    in capitals that programs can compare ("" when the server gave none). `retry_after` is in seconds.
    """

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        service: str = "client",
        reason: str = "",
        request_id: str = "",
        retry_after: float | None = None,
        violations: Sequence[FieldViolation] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.service = service
        self.reason = reason
        self.request_id = request_id
        self.retry_after = retry_after
        self.violations = tuple(violations)
        self.metadata = dict(metadata or {})

    @property
    def retryable(self) -> bool:
        """True when the same request may succeed later, or at another server."""
        return False

    def __str__(self) -> str:
        return f"{self.service}: {self.code.name}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, {k: v for k, v in self.__dict__.items() if k != "message"}))


def _rebuild(cls: type[StatusError], message: str, fields: dict[str, Any]) -> StatusError:
    index = fields.pop("prompt_index", None)
    error = cls(message, **fields)
    if index is not None:
        error.prompt_index = index
    return error


class CancelledError(StatusError):
    """The caller or the server cancelled the call. It is not asyncio.CancelledError, which ends the task itself."""

    code = grpc.StatusCode.CANCELLED


class UnknownError(StatusError):
    """The server gave a status that says nothing more."""

    code = grpc.StatusCode.UNKNOWN


class InvalidArgumentError(StatusError):
    """Fields of the request have values that are not allowed; `violations` names each of them."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class DeadlineExceededError(StatusError, TimeoutError):
    """The call took longer than its `timeout` allows."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class NotFoundError(StatusError):
    """No tokenizer or model of that name is served."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExistsError(StatusError):
    """A request with that request_id is running."""

    code = grpc.StatusCode.ALREADY_EXISTS


class PermissionDeniedError(StatusError):
    """The credentials do not allow this call."""

    code = grpc.StatusCode.PERMISSION_DENIED


class UnauthenticatedError(StatusError):
    """Credentials are missing or not valid."""

    code = grpc.StatusCode.UNAUTHENTICATED


class ResourceExhaustedError(StatusError):
    """A queue is full (then `retry_after` is set), or the input is over a size limit (then it is None)."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED

    @property
    def retryable(self) -> bool:
        return self.retry_after is not None


class FailedPreconditionError(StatusError):
    """The server is not in the state that the call needs, for example it uses another tokenizer."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class QuarantinedError(FailedPreconditionError):
    """Engines died when they began to compute this request. It is not sent to other workers and not computed again."""


class AbortedError(StatusError):
    """The call lost against a concurrent one."""

    code = grpc.StatusCode.ABORTED

    @property
    def retryable(self) -> bool:
        return True


class OutOfRangeError(StatusError):
    """The operation went past the valid range."""

    code = grpc.StatusCode.OUT_OF_RANGE


class UnimplementedError(StatusError):
    """The server does not support this method or one of these fields."""

    code = grpc.StatusCode.UNIMPLEMENTED

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that this server does not support; empty when it is the method."""
        return tuple(name.strip() for name in self.metadata.get("fields", "").split(",") if name.strip())


class InternalError(StatusError):
    """The server has a defect, or a stream broke the contract."""

    code = grpc.StatusCode.INTERNAL


class UnavailableError(StatusError):
    """The server cannot be reached, drains, or lost its engine. It is safe to send the request again."""

    code = grpc.StatusCode.UNAVAILABLE

    @property
    def retryable(self) -> bool:
        return True


class DataLossError(StatusError):
    """Data was lost or damaged."""

    code = grpc.StatusCode.DATA_LOSS


BY_CODE: Mapping[grpc.StatusCode, type[StatusError]] = {
    cls.code: cls
    for cls in (
        CancelledError,
        UnknownError,
        InvalidArgumentError,
        DeadlineExceededError,
        NotFoundError,
        AlreadyExistsError,
        PermissionDeniedError,
        UnauthenticatedError,
        ResourceExhaustedError,
        FailedPreconditionError,
        AbortedError,
        OutOfRangeError,
        UnimplementedError,
        InternalError,
        UnavailableError,
        DataLossError,
    )
}


_QUARANTINED = "REQUEST_QUARANTINED"


class RpcFailure(Protocol):
    """The shape of a failed call's error, which `grpc.aio.AioRpcError` has."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...
    def debug_error_string(self) -> str | None: ...
    def trailing_metadata(self) -> Any: ...


_UNSENT = 'Failed "execute_batch"'
# gRPC's words for a stream that was reset, or ended without a status: what proxies do when the server behind them goes.
_REMOVED = "Stream removed"
_NO_STATUS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}


_TOO_LATE = "Deadline Exceeded"  # gRPC's words, at times in others
_NO_METHOD = "method not found"  # gRPC's words
_SWAPPED = {
    "tokenizer": "there is no tokenizer service at this address: is it a worker's?",
    "worker": "there is no worker at this address: is it a tokenizer service's?",
}


def from_rpc_error(error: RpcFailure, *, service: str, request_id: str = "") -> StatusError:
    """Returns the exception for a failed call, with the rich details of its status."""
    code, message, reason = error.code(), error.details() or "", ""
    # grpc.aio says INTERNAL of its own when a message cannot be sent because the connection has just gone, and never
    # asks for the call's real status.
    if code is grpc.StatusCode.INTERNAL and _UNSENT in (error.debug_error_string() or ""):
        code, message = grpc.StatusCode.UNAVAILABLE, "the connection was lost"
    if code in _NO_STATUS and message.startswith(_REMOVED):
        # With a reason of its own: a proxy that resets each such stream is not waited for as one that restarts.
        code, reason = grpc.StatusCode.UNAVAILABLE, "STREAM_RESET"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and _TOO_LATE in message:
        message = f"the deadline passed while waiting for the {service}"
    if code is grpc.StatusCode.UNIMPLEMENTED and message.casefold().startswith(_NO_METHOD) and service in _SWAPPED:
        message = _SWAPPED[service]
    status = from_status(code, message, error.trailing_metadata() or (), service=service, request_id=request_id)
    status.reason = status.reason or reason
    return status


def from_status(
    code: grpc.StatusCode,
    message: str,
    trailing_metadata: Iterable[tuple[str, str | bytes]],
    *,
    service: str,
    request_id: str = "",
) -> StatusError:
    """Returns the exception for a status and its trailing metadata. Details that cannot be parsed are ignored; the
    status still counts."""
    reason, retry_after = "", None
    violations: list[FieldViolation] = []
    metadata: dict[str, str] = {}
    for key, value in trailing_metadata:
        if key == _DETAILS_KEY and isinstance(value, bytes):
            for detail in _details(value):
                if isinstance(detail, error_details_pb2.BadRequest):
                    violations.extend(FieldViolation(v.field, v.description) for v in detail.field_violations)
                elif isinstance(detail, error_details_pb2.ErrorInfo):
                    reason = detail.reason
                    metadata.update(detail.metadata)
                elif isinstance(detail, error_details_pb2.RetryInfo):
                    retry_after = detail.retry_delay.seconds + detail.retry_delay.nanos / 1e9
                elif detail.request_id:
                    request_id = detail.request_id
        elif key == _PUSHBACK_KEY and retry_after is None and isinstance(value, str) and value.isdigit():
            retry_after = int(value) / 1000
        elif key == _REQUEST_ID_KEY and isinstance(value, str):
            request_id = value
    kind = QuarantinedError if reason == _QUARANTINED else BY_CODE.get(code, UnknownError)
    return kind(
        message or code.name.lower().replace("_", " "),
        service=service,
        reason=reason,
        request_id=request_id,
        retry_after=retry_after,
        violations=violations,
        metadata=metadata,
    )


_DETAIL_KINDS = (
    error_details_pb2.BadRequest,
    error_details_pb2.ErrorInfo,
    error_details_pb2.RetryInfo,
    error_details_pb2.RequestInfo,
)


def _details(
    serialized: bytes,
) -> Iterable[
    error_details_pb2.BadRequest
    | error_details_pb2.ErrorInfo
    | error_details_pb2.RetryInfo
    | error_details_pb2.RequestInfo
]:
    try:
        status = status_pb2.Status.FromString(serialized)
        for packed in status.details:
            for kind in _DETAIL_KINDS:
                if packed.Is(kind.DESCRIPTOR):
                    detail = kind()
                    packed.Unpack(detail)
                    yield detail
    except DecodeError:  # a proxy may send anything; a broken detail must not hide the status
        return


def invalid_argument(violations: Sequence[FieldViolation], *, request_id: str = "") -> InvalidArgumentError:
    """Returns the error for arguments that were found wrong before anything was sent."""
    words = "; ".join(f"{v.field} {v.description}" for v in violations)
    return InvalidArgumentError(
        words, service="client", reason="INVALID_FIELDS", request_id=request_id, violations=violations
    )


def deadline_exceeded(waiting_for: str, *, service: str, request_id: str = "") -> DeadlineExceededError:
    """Returns the error for a timeout that ran out between two calls."""
    return DeadlineExceededError(f"the deadline passed while {waiting_for}", service=service, request_id=request_id)

"""The exception that handlers raise: it carries a gRPC status, a reason for programs and a message for people.

| status              | made by                | typical use                                          |
|---------------------|------------------------|------------------------------------------------------|
| INVALID_ARGUMENT    | `invalid_argument`     | a field is wrong whatever the state of the server    |
| NOT_FOUND           | `not_found`            | an unknown model or tokenizer                        |
| ALREADY_EXISTS      | `already_exists`       | a request id that is in use                          |
| FAILED_PRECONDITION | `failed_precondition`  | client and server disagree about what is served      |
| RESOURCE_EXHAUSTED  | `resource_exhausted`   | a full queue; says when to come back                 |
| UNAVAILABLE         | `unavailable`          | draining, starting, a dead engine: another may serve |
| UNIMPLEMENTED       | `unimplemented`        | a field that this version does not serve             |
| INTERNAL            | `internal`             | our fault                                            |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc

_NAMED_IN_MESSAGE = 8  # violations spelled out in the message; the details carry more


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field that is wrong: `field` is its path, e.g. `sampling.temperature` or `input.segments[2].text`."""

    field: str
    description: str


class ServiceError(Exception):
    """Ends an RPC with a status and `google.rpc` details. Raise it anywhere below a handler.

    `reason` is UPPER_SNAKE for `google.rpc.ErrorInfo`, whose domain is `tandem`, and `metadata` goes with it;
    `violations` become `google.rpc.BadRequest`; `retry_after` (seconds) becomes `google.rpc.RetryInfo` and the trailing
    metadata `grpc-retry-pushback-ms`, which gRPC's own retry policies obey.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        reason: str,
        violations: Sequence[FieldViolation] = (),
        retry_after: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        assert code is not grpc.StatusCode.OK, "an error cannot be OK"
        self.code = code
        self.message = message
        self.reason = reason
        self.violations = tuple(violations)
        self.retry_after = retry_after
        self.metadata = dict(metadata or {})

    def __str__(self) -> str:
        return f"{self.code.name} {self.reason}: {self.message}"


class StartError(Exception):
    """Ends the start of a service with one clear line and exit code 1."""


def invalid_argument(violations: Sequence[FieldViolation]) -> ServiceError:
    """Makes the error of a request that is wrong in the named fields, on any server and at any time."""
    assert violations, "an invalid argument names at least one field"
    named = [f"{violation.field}: {violation.description}" for violation in violations[:_NAMED_IN_MESSAGE]]
    if len(violations) > len(named):
        named.append(f"and {len(violations) - len(named)} more")
    return ServiceError(
        grpc.StatusCode.INVALID_ARGUMENT, "; ".join(named), reason="INVALID_ARGUMENT", violations=violations
    )


def not_found(what: str, name: str, known: Sequence[str]) -> ServiceError:
    """Makes the error of an unknown name; `what` is a word such as "model", `known` the served names."""
    here = ", ".join(repr(each) for each in known) if known else "none"
    return ServiceError(
        grpc.StatusCode.NOT_FOUND,
        f"unknown {what} {name!r}; served here: {here}",
        reason=f"{what.upper().replace(' ', '_')}_NOT_FOUND",
        metadata={what: name},
    )


def unimplemented(fields: Sequence[str]) -> ServiceError:
    """Makes the error of fields that this version does not serve yet; none is silently ignored."""
    assert fields, "an unimplemented request names at least one field"
    return ServiceError(
        grpc.StatusCode.UNIMPLEMENTED,
        f"not served by this version: {', '.join(fields)}",
        reason="FIELD_NOT_SERVED",
        metadata={"fields": ",".join(fields)},
    )


def resource_exhausted(message: str, *, reason: str, retry_after: float | None) -> ServiceError:
    """Makes the error of a limit of this server that is reached; the client may retry after `retry_after` seconds."""
    return ServiceError(grpc.StatusCode.RESOURCE_EXHAUSTED, message, reason=reason, retry_after=retry_after)


def unavailable(
    message: str, *, reason: str, retry_after: float | None = None, metadata: Mapping[str, str] | None = None
) -> ServiceError:
    """Makes the error of a server that cannot serve now; another one may at once."""
    code = grpc.StatusCode.UNAVAILABLE
    return ServiceError(code, message, reason=reason, retry_after=retry_after, metadata=metadata)


def draining() -> ServiceError:
    """Makes the error of a server that is about to stop; another one may serve at once."""
    return unavailable("this server is draining and takes no new work", reason="DRAINING")


def failed_precondition(message: str, *, reason: str) -> ServiceError:
    """Makes the error of a request that is well formed, but does not fit what is served here."""
    return ServiceError(grpc.StatusCode.FAILED_PRECONDITION, message, reason=reason)


def already_exists(message: str, *, reason: str) -> ServiceError:
    """Makes the error of an identity that is in use already."""
    return ServiceError(grpc.StatusCode.ALREADY_EXISTS, message, reason=reason)


def internal(message: str, *, reason: str) -> ServiceError:
    """Makes the error of a known fault of the server. Any other exception becomes INTERNAL by itself."""
    return ServiceError(grpc.StatusCode.INTERNAL, message, reason=reason)

"""Errors in OpenAI's words, and what each gRPC status of our services becomes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc
import msgspec

from tandem.client import ClientClosedError, FieldViolation, ResourceExhaustedError, StatusError, TandemError
from tandem.client.sampling import LIMITS

INVALID = "invalid_request_error"
SERVER = "server_error"


@dataclass(frozen=True, slots=True)
class Kind:
    """How a status is told. Without `tells`, its words are for the log alone."""

    status: int
    type: str
    code: str | None = None
    tells: bool = True
    retry_seconds: float | None = None  # told where the service gives no advice


_INTERNAL = Kind(500, SERVER, "internal_error", tells=False)
_BUSY = Kind(429, "rate_limit_error", "rate_limit_exceeded", retry_seconds=1.0)
_TOO_LARGE = Kind(413, INVALID, "request_too_large")
_UNAVAILABLE = Kind(503, SERVER, "service_unavailable", retry_seconds=2.0)

# The mapping. What the door's own credentials and configuration are to blame for is no fault of the caller.
BY_STATUS: Mapping[grpc.StatusCode, Kind] = {
    grpc.StatusCode.INVALID_ARGUMENT: Kind(400, INVALID),
    grpc.StatusCode.UNIMPLEMENTED: Kind(400, INVALID, "not_served"),
    grpc.StatusCode.NOT_FOUND: Kind(404, INVALID, "model_not_found"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: _BUSY,  # without advice when to come back: _TOO_LARGE
    grpc.StatusCode.UNAVAILABLE: _UNAVAILABLE,
    grpc.StatusCode.ABORTED: _UNAVAILABLE,
    grpc.StatusCode.CANCELLED: _UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: Kind(504, SERVER, "timeout"),
    grpc.StatusCode.FAILED_PRECONDITION: _INTERNAL,
    grpc.StatusCode.ALREADY_EXISTS: _INTERNAL,
    grpc.StatusCode.UNAUTHENTICATED: _INTERNAL,
    grpc.StatusCode.PERMISSION_DENIED: _INTERNAL,
    grpc.StatusCode.OUT_OF_RANGE: _INTERNAL,
    grpc.StatusCode.INTERNAL: _INTERNAL,
    grpc.StatusCode.DATA_LOSS: _INTERNAL,
    grpc.StatusCode.UNKNOWN: _INTERNAL,
}
# FAILED_PRECONDITION that the request brought about.
BY_REASON: Mapping[str, Kind] = {
    "NO_CHAT_TEMPLATE": Kind(400, INVALID, "no_chat_template"),
    "NO_TOKEN_LEFT": Kind(400, INVALID, "no_token_left"),
    "VOCABULARY_UNKNOWN": Kind(400, INVALID, "not_served"),
    "REQUEST_QUARANTINED": Kind(400, INVALID, "request_quarantined"),
}

# Violations name the fields of our contract; these are the parameters that they came from.
_PARAMS = {
    **{f"sampling.{limit.path}": name for name, limit in LIMITS.items()},
    "prompt_ids": "prompt",
    "input.ids": "ids",
    "template_arguments": "chat_template_kwargs",
    "cache.salt": "cache_salt",
    "speculation.max_draft_tokens": "draft_tokens",
    "speculation.prompt_lookup_ngram": "prompt_lookup",
    "stopping.stop_strings": "stop",
}
_GROUPS = ("sampling.", "stopping.", "output.", "cache.", "speculation.")


class ApiError(Exception):
    """Ends a request; `dialects.py` tells it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        allow: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.allow = allow  # methods

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Those that an answer with this error has besides."""
        headers = []
        if self.retry_after is not None:
            headers.append((b"retry-after", str(max(1, math.ceil(self.retry_after))).encode()))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.allow:
            headers.append((b"allow", self.allow.encode()))
        return headers


def wrong(param: str, what: str, code: str | None = None) -> ApiError:
    """A parameter that is not as it must be; `what` goes on after its name."""
    return ApiError(400, f"{param} {what}", param=param, code=code)


def unavailable(message: str, code: str) -> ApiError:
    """Not now; another one, or this one later."""
    return ApiError(503, message, type=SERVER, code=code, retry_after=_UNAVAILABLE.retry_seconds)


def shutting_down() -> ApiError:
    """The end of a request that this server does not wait for any longer."""
    return unavailable("the server is shutting down", "shutting_down")


def internal(request_id: str) -> ApiError:
    """A fault of ours; its words are in the log."""
    kind = _INTERNAL
    return ApiError(kind.status, f"internal error; the log tells more of request {request_id}", type=kind.type,
                    code=kind.code)  # fmt: skip


def from_tandem(error: TandemError, request_id: str, names: Mapping[str, str] = {}) -> ApiError:
    """What a caller hears of an error of the SDK; `names` are parameters as this caller wrote them."""
    if isinstance(error, ClientClosedError):
        return shutting_down()
    if not isinstance(error, StatusError):
        return internal(request_id)
    kind = kind_of(error)
    if not kind.tells:
        return internal(request_id)
    retry_after = error.retry_after if error.retry_after is not None else kind.retry_seconds
    if error.violations:
        params = [_param(violation.field, names, error.prompt_index) for violation in error.violations]
        code = "context_length_exceeded" if _is_too_long(error.violations[0]) else kind.code
        return ApiError(
            kind.status, _words(params, error.violations), type=kind.type, param=params[0], code=code,
            retry_after=retry_after,
        )  # fmt: skip
    param = "model" if kind.status == 404 else None
    return ApiError(kind.status, error.message, type=kind.type, param=param, code=kind.code, retry_after=retry_after)


def kind_of(error: StatusError) -> Kind:
    """The row of the mapping."""
    if isinstance(error, ResourceExhaustedError) and not error.retryable:
        return _TOO_LARGE
    return BY_REASON.get(error.reason) or BY_STATUS.get(error.code, _INTERNAL)


def from_decoding(error: msgspec.MsgspecError, within: str = "") -> ApiError:
    """A body that is no JSON, or whose fields have other types; `within`: the parameter that was decoded by itself."""
    if not isinstance(error, msgspec.ValidationError):
        return ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json")
    words, _, where = str(error).partition(" - at ")
    place = f"{within}{where.partition('$')[2].rstrip('`')}".lstrip(".")
    unknown = "Object contains unknown field `"
    missing = "Object missing required field `"
    for beginning, what in ((unknown, "is not a parameter that is served here"), (missing, "is required")):
        if words.startswith(beginning):
            name = words.removeprefix(beginning).rstrip("`")
            return wrong(f"{place}.{name}" if place else name, what, "unknown_parameter" if beginning is unknown else
                         "missing_required_parameter")  # fmt: skip
    if not place:
        return ApiError(400, f"the body is wrong: {words}")
    if words.startswith("Expected `null`"):  # a field that is known by its name, and not served
        return wrong(place, "is not a parameter that is served here", "unknown_parameter")
    return ApiError(400, f"{place}: {words}", param=place, code="invalid_type")


def _is_too_long(violation: FieldViolation) -> bool:
    """Whether a prompt has more ids than the context takes; what ids must be is told of an empty one."""
    return violation.field == "prompt_ids" and not violation.description.startswith("must ")


def _param(field: str, names: Mapping[str, str], prompt: int | None) -> str:
    """The parameter; `names` may have elements of lists too. `prompt`: which one of several."""
    place = field
    while "[" in place:
        if place in names:
            return names[place] + field[len(place) :]
        place = place[: max(place.rfind("["), place.rfind("."))]
    name, bracket, rest = field.partition("[")
    found = _PARAMS.get(name)
    if found is None:
        group = next((group for group in _GROUPS if name.startswith(group)), "")
        found = name.removeprefix(group)
    found = names.get(found.partition(".")[0], found) if prompt is None or found != "prompt" else f"prompt[{prompt}]"
    return f"{found}{bracket}{rest}"


def _words(params: Sequence[str], violations: Sequence[FieldViolation]) -> str:
    return "; ".join(f"{param} {each.description}" for param, each in zip(params, violations, strict=True))

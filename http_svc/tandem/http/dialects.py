"""How each interface tells an error, alone and within a stream, and how its streams end."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from tandem.http.errors import ApiError

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Dialect:
    """One interface."""

    body: Callable[[ApiError, str], bytes]  # of an answer that is this error, of the request with this id
    event: bytes  # around a body that ends a stream
    end: bytes  # of a stream that went well


def _openai(error: ApiError, request_id: str) -> bytes:
    told = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return _encode({"error": told})


# Anthropic's names of what a status means.
_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


_TOO_LONG = re.compile(r"has (\d+) ids; .* takes at most (\d+)")


def _anthropic(error: ApiError, request_id: str) -> bytes:
    message = error.message
    if error.code == "context_length_exceeded" and (counts := _TOO_LONG.search(message)):
        # Anthropic's words, by which clients know that they have to shorten the conversation.
        message = f"prompt is too long: {counts[1]} tokens > {counts[2]} maximum ({message})"
    told = {"type": _TYPES.get(error.status, "invalid_request_error"), "message": message}
    return _encode({"type": "error", "error": told, "request_id": request_id})


OPENAI = Dialect(_openai, b"data: %b\n\n", b"data: [DONE]\n\n")
RESPONSES = Dialect(_openai, b"data: %b\n\n", b"")
ANTHROPIC = Dialect(_anthropic, b"event: error\ndata: %b\n\n", b"")


def dialect_of(route: str) -> Dialect:
    """The interface that a route belongs to."""
    if route.startswith("/v1/messages"):
        return ANTHROPIC
    return RESPONSES if route == "/v1/responses" else OPENAI

"""Decides by bearer token who may call what, and identifies callers.

| method        | without token files | with `auth_token_file` | with `admin_token_file`                        |
|---------------|---------------------|------------------------|------------------------------------------------|
| health        | everybody           | everybody              | everybody                                      |
| for operators | everybody           | who has a token        | operators; others with a token are told so     |
| all others    | everybody           | who has a token        | as without it; an operator's token counts too  |

A caller is known by the first of these that there is:

    token:NAME           its bearer token's name in the file, or else the beginning of the token's SHA-256
    certificate:NAMES    what its certificate says, under mutual TLS: alternative names, or else the common name
    address:HOST         where it calls from, without the port: all callers behind one proxy are one
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from contextvars import ContextVar
from typing import Any

import grpc
import grpc.aio

from tandem.common.bearer_tokens import BearerTokens
from tandem.common.errors import ServiceError
from tandem.common.health import SERVICE_NAME as HEALTH

Metadata = Sequence[tuple[str, str | bytes]]

_OPEN = f"/{HEALTH}/"  # probes come from the platform, which has no token
_LONGEST = 256  # characters of a caller

caller_var: ContextVar[str] = ContextVar("caller", default="")  # of the RPC that is being handled


class Callers:
    """Identifies and admits the callers of one server."""

    def __init__(
        self, tokens: BearerTokens | None, operators: BearerTokens | None, operator_methods: Collection[str]
    ) -> None:
        """Takes the token files; `operator_methods` are full names, `/package.Service/Method`."""
        self._tokens, self._operators = tokens, operators
        self._operator_methods = frozenset(operator_methods)
        self.have_tokens = tokens is not None or operators is not None  # otherwise everybody may call everything

    def load(self) -> None:
        """Reads the files for the first time. Raises StartError."""
        for tokens in (self._tokens, self._operators):
            if tokens is not None:
                tokens.load()

    def refusal(self, method: str, metadata: Metadata) -> ServiceError | None:
        """Returns None for a caller who may call the method, else the error that it gets."""
        if method.startswith(_OPEN):
            return None
        as_caller = None if self._tokens is None else self._tokens.refusal(metadata)
        if self._operators is None:
            return as_caller
        if method in self._operator_methods:
            return operator_refusal(self._operators, metadata, known=self._tokens is not None and as_caller is None)
        return None if self._operators.refusal(metadata) is None else as_caller

    def identify(self, context: grpc.aio.ServicerContext[Any, Any], metadata: Metadata) -> str:
        """Returns the caller's identity, at most 256 characters; `metadata` came with the call."""
        caller = self._identity(context, metadata)
        # Certificates may have many names.
        return caller if len(caller) <= _LONGEST else f"digest:{hashlib.sha256(caller.encode()).hexdigest()}"

    def _identity(self, context: grpc.aio.ServicerContext[Any, Any], metadata: Metadata) -> str:
        for tokens in (self._tokens, self._operators):
            if tokens is not None and (name := tokens.name(metadata)) is not None:
                return f"token:{name}"
        if names := context.peer_identities():
            return f"certificate:{','.join(name.decode(errors='replace') for name in names)}"
        return f"address:{_host(context.peer())}"


def operator_refusal(operators: BearerTokens | None, metadata: Metadata, *, known: bool) -> ServiceError | None:
    """Returns None for who may do what operators do, else its error. `known`: it has a token of a caller."""
    refusal = None if operators is None else operators.refusal(metadata)
    if refusal is None or not known:
        return refusal
    return ServiceError(grpc.StatusCode.PERMISSION_DENIED, "this is for operators", reason="OPERATORS_ONLY")


def _host(peer: str) -> str:
    """Returns the host of `ipv4:HOST:PORT` or `ipv6:[HOST]:PORT`; others, as `unix:PATH`, stay as they are."""
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer

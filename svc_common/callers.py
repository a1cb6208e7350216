"""Who may call what, by bearer token.

| method        | without token files | with `auth_token_file` | with `admin_token_file`                        |
|---------------|---------------------|------------------------|------------------------------------------------|
| health        | everybody           | everybody              | everybody                                      |
| for operators | everybody           | who has a token        | operators; others with a token are told so     |
| all others    | everybody           | who has a token        | as without it; an operator's token counts too  |
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import grpc

from svc_common.errors import ServiceError
from svc_common.health import SERVICE_NAME as HEALTH
from svc_common.tokens import BearerTokens

Metadata = Sequence[tuple[str, str | bytes]]

_OPEN = f"/{HEALTH}/"  # probes come from the platform, which has no token


class Callers:
    """The callers of one server."""

    def __init__(
        self, tokens: BearerTokens | None, operators: BearerTokens | None, operator_methods: Collection[str]
    ) -> None:
        """`operator_methods`: full names, `/package.Service/Method`."""
        self._tokens, self._operators = tokens, operators
        self._operator_methods = frozenset(operator_methods)

    @property
    def have_tokens(self) -> bool:
        """Whether anybody needs a token."""
        return self._tokens is not None or self._operators is not None

    def load(self) -> None:
        """Reads the files for the first time. Raises StartError."""
        for tokens in (self._tokens, self._operators):
            if tokens is not None:
                tokens.load()

    def refusal(self, method: str, metadata: Metadata) -> ServiceError | None:
        """None for a caller who may, else what to tell it."""
        if method.startswith(_OPEN):
            return None
        as_caller = None if self._tokens is None else self._tokens.refusal(metadata)
        if self._operators is None:
            return as_caller
        as_operator = self._operators.refusal(metadata)
        if as_operator is None:
            return None
        if method not in self._operator_methods:
            return as_caller
        if self._tokens is not None and as_caller is None:
            return ServiceError(
                grpc.StatusCode.PERMISSION_DENIED, "this method is for operators", reason="OPERATORS_ONLY"
            )
        return as_operator

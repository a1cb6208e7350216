"""One request as the door knows it, from its headers to its line in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.types import Scope

from tandem.client import TandemError, Usage
from tandem.common.open_calls import RunningRpc
from tandem.common.tracing import RequestSpan
from tandem.http.dialects import Dialect, dialect_of
from tandem.http.errors import ApiError, from_tandem

logger = logging.getLogger("tandem.http")


@dataclass(slots=True)
class Call:
    """What the border knows about a request, and what its handler tells about it."""

    route: str
    request_id: str
    caller: str = ""
    trace: dict[str, str] = field(default_factory=dict)  # metadata that goes on to both services
    began: float = field(default_factory=time.monotonic)
    status: int = 0  # 0: nothing is answered yet
    answered: bool = False  # to the last byte
    model: str = ""
    stream: bool = False
    usage: Usage | None = None
    doubt: str = ""  # what the caller is told besides where the template refuses its messages
    names: dict[str, str] = field(default_factory=dict)  # parameters that the caller calls otherwise
    running: RunningRpc | None = None
    span: RequestSpan | None = None
    failed: Callable[[ApiError], bytes] | None = None  # how its stream tells an error, if not as its interface does

    @property
    def options(self) -> dict[str, Any]:
        """Keywords of every call of the SDK that is made for it."""
        return {"request_id": self.request_id, "metadata": self.trace}

    @property
    def dialect(self) -> Dialect:
        """How it is answered."""
        return dialect_of(self.route)

    @property
    def cut(self) -> bool:
        """Whether the server ended it, because it stops."""
        return self.running is not None and self.running.cut


def put_call(scope: Scope, call: Call) -> None:
    """For the handlers behind the border."""
    scope.setdefault("state", {})["call"] = call


def call_of(request: Request) -> Call:
    """The call that a request is."""
    call = request.scope["state"]["call"]
    assert isinstance(call, Call)
    return call


async def body_of(request: Request) -> bytes:
    """The whole body, which nobody else keeps."""
    body = (await request.receive())["body"]
    assert isinstance(body, bytes)
    return body


def told_of(error: TandemError, call: Call) -> ApiError:
    """What the caller hears of an error of the SDK; what it does not hear is in the log."""
    told = from_tandem(error, call.request_id, call.names)
    if call.doubt and told.status == 400 and "TemplateError" in told.message:
        told.message += f"; {call.doubt}"
    if told.status == 500:
        logger.error("request failed: %s", error)
    return told

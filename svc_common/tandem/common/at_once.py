"""Answers calls of one method without its handler, from bytes to bytes.

Between a request and its answer nothing else runs on the event loop. So nobody could ask what runs, who calls or which
request this is, and what the guard keeps for that is left out: most of what it costs. What is seen from outside is the
same: metrics, the line in the log, the request id, the refusal of a server that drains.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from tandem.common.callers import Metadata
from tandem.common.errors import ServiceError
from tandem.common.method_metrics import MethodMetrics
from tandem.common.request_log import level_of, note
from tandem.common.request_log import logger as request_logger
from tandem.common.rpc_ids import REQUEST_ID, adopt_ids, ids_in
from tandem.common.tracing import is_tracing

if TYPE_CHECKING:
    import grpc.aio

    Context = grpc.aio.ServicerContext[Any, Any]

logger = logging.getLogger("tandem.common.rpc")


class AtOnce(Protocol):
    """Answers what a method is asked most, in a few microseconds."""

    def answer(self, request: bytes) -> bytes | None:
        """Returns the answer that the handler would give; None where the handler has to."""
        ...

    def facts(self) -> dict[str, object]:
        """Returns what the log's line tells of the request that was answered last."""
        ...


class AnsweredAtOnce:
    """Keeps the books of the calls that `answers` answers."""

    def __init__(
        self,
        path: str,
        answers: AtOnce,
        metrics: MethodMetrics,
        refusal: Callable[[], ServiceError | None] | None,
        identify: Callable[[Context, Metadata], str],
    ) -> None:
        """Takes what `GuardedMethod` does."""
        self._path = path
        self._name = path.rpartition("/")[2]
        self._answers = answers
        self._metrics = metrics
        self._refusal = refusal
        self._identify = identify

    def answer(self, request: bytes, context: Context) -> bytes | None:
        """Returns the answer to a request; None where the guard has to see to it, with nothing done."""
        refusal = self._refusal
        if is_tracing() or (refusal is not None and refusal() is not None):
            return None
        begin = time.perf_counter()
        try:
            answer = self._answers.answer(request)
        except Exception:
            logger.exception("a request of %s could not be answered at once: its handler is called", self._path)
            return None
        if answer is None:
            return None
        metadata = tuple(context.invocation_metadata() or ())
        request_id, traceparent = ids_in(metadata)
        context.set_trailing_metadata(((REQUEST_ID, request_id),))
        seconds = time.perf_counter() - begin
        self._metrics.handled("OK", seconds)
        level = level_of("OK", seconds, refusal is not None)
        if request_logger.isEnabledFor(level):
            adopt_ids(request_id, traceparent)
            caller = self._identify(context, metadata)
            note(self._name, "OK", seconds, caller, context.peer, self._answers.facts(), level)
        return answer

"""The text hop: one DecodeStream call for one answer, opened again when the tokenizer goes away.

Ids in, whole characters out, one response a request. Replay: when the call ends UNAVAILABLE, a new one gets all ids so
far in one message and its text, which begins with what was already given, goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc.aio

from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.v1 import tokenizer_pb2_grpc

from .errors import InternalError, StatusError, UnavailableError, from_rpc_error
from .metrics import ClientMetrics
from .rpc import CallContext
from .settings import FailoverSettings

# Servers bound the ids of one message.
MESSAGE_IDS = 16_384

Call = grpc.aio.StreamStreamCall[pb.DecodeStreamRequest, pb.DecodeStreamResponse]


class TextDecoder:
    """Text of a growing id list. One `feed` at a time; `close` cancels the call."""

    def __init__(
        self,
        stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub,
        opening: pb.DecodeStreamOpen,
        context: CallContext,
        failover: FailoverSettings,
        metrics: ClientMetrics,
    ) -> None:
        self._stub = stub
        self._opening = opening
        self._context = context
        self._failover = failover
        self._metrics = metrics
        self._call: Call | None = None
        self._fed: list[int] = []
        self._given: list[str] = []
        self._attempts = 0

    async def feed(self, ids: Sequence[int], *, end: bool = False) -> pb.DecodeStreamResponse:
        """The response for these further ids; its `text` is only what is new. Raises StatusError."""
        self._fed.extend(ids)
        replay = self._call is None
        while True:
            try:
                response = await self._send(self._fed if replay else ids, opening=replay, end=end)
            except UnavailableError:
                self.close()
                self._attempts += 1
                if self._attempts > self._failover.attempts:
                    raise
                self._metrics.failovers.labels("tokenizer").inc()
                await self._context.sleep(self._failover.backoff(self._attempts), "tokenizer")
                replay = True
                continue
            if replay and self._given:
                response.text = self._new_text(response.text)
            if response.text:
                self._given.append(response.text)
            return response

    def close(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None

    async def _send(self, ids: Sequence[int], *, opening: bool, end: bool) -> pb.DecodeStreamResponse:
        """One response for any number of ids, in as many messages as it takes."""
        texts = []
        for start in range(0, len(ids) or 1, MESSAGE_IDS):
            part = ids[start : start + MESSAGE_IDS]
            last = start + MESSAGE_IDS >= len(ids)
            request = pb.DecodeStreamRequest(
                open=self._opening if opening and not start else None, ids=part, end=end and last
            )
            response = await self._exchange(request)
            texts.append(response.text)
            if response.done:
                break
        response.text = "".join(texts)
        return response

    async def _exchange(self, request: pb.DecodeStreamRequest) -> pb.DecodeStreamResponse:
        with self._context.errors("tokenizer"):
            if self._call is None:
                self._call = self._stub.DecodeStream(
                    timeout=self._context.timeout("tokenizer"), metadata=self._context.metadata()
                )
            call = self._call
            try:
                await call.write(request)
            except asyncio.InvalidStateError:
                raise await self._ended(call) from None
            response = await call.read()
            if isinstance(response, pb.DecodeStreamResponse):
                return response
            raise await self._ended(call)

    async def _ended(self, call: Call) -> StatusError:
        """The error of a call that ended before it answered."""
        code = await call.code()
        if code is grpc.StatusCode.OK:
            return InternalError(
                "the tokenizer ended the stream before its end was sent",
                service="tokenizer",
                reason="STREAM_INCOMPLETE",
                request_id=self._context.request_id,
            )
        error = grpc.aio.AioRpcError(
            code, await call.initial_metadata(), await call.trailing_metadata(), details=await call.details()
        )
        return from_rpc_error(error, service="tokenizer", request_id=self._context.request_id)

    def _new_text(self, replayed: str) -> str:
        given = "".join(self._given)
        if not replayed.startswith(given):
            raise InternalError(
                "the tokenizer that took over decodes the same ids to another text",
                service="tokenizer",
                reason="TOKENIZER_CHANGED",
                request_id=self._context.request_id,
            )
        return replayed[len(given) :]

"""The worker hop: token ids in, token ids out, over as many workers as it takes.

Failover. What a worker produces is a pure function of (prompt, parameters, seed, position). So when its stream ends
UNAVAILABLE, the same request goes to another worker with the effective parameters and the seed that the first one
reported, and with the ids so far as `resumed_output_ids`; the caller sees one uninterrupted sequence of deltas.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator

from tandem.inference.v1 import inference_pb2 as pb

from .affinity import prefix_key
from .errors import (
    CancelledError,
    InternalError,
    ResourceExhaustedError,
    StatusError,
    TandemError,
    UnavailableError,
)
from .metrics import ClientMetrics
from .plan import GenerationPlan
from .rpc import CallContext
from .settings import FailoverSettings
from .types import ModelInfo
from .workers import Worker, WorkerPool

ABORT_SECONDS = 1.0


class TokenStream:
    """One generation. `output_ids` are all ids received so far, `finished` is set after the last of `deltas()`."""

    def __init__(
        self,
        pool: WorkerPool,
        plan: GenerationPlan,
        prompt_ids: list[int],
        fingerprint: str,
        context: CallContext,
        failover: FailoverSettings,
        metrics: ClientMetrics,
    ) -> None:
        self.output_ids: list[int] = []
        self.accepted: pb.Accepted | None = None  # the first one
        self.finished: pb.Finished | None = None
        self.failovers = 0
        self.worker: Worker | None = None  # the one that runs it now, or did last
        self.first_delta_at: float | None = None
        self._pool = pool
        self._request = plan.request(prompt_ids, "")
        self._fingerprint = fingerprint
        self._routing_key = plan.routing_key or prefix_key(plan.cache_salt, prompt_ids)
        self._context = context
        self._failover = failover
        self._metrics = metrics
        self._model: ModelInfo | None = None

    async def deltas(self) -> AsyncGenerator[pb.Delta, None]:
        """All deltas up to `finished`. Raises StatusError; closing the iterator cancels the RPC."""
        tried: set[Worker] = set()
        error: TandemError | None = None
        for attempt in range(self._failover.attempts + 1):
            if attempt:
                await self._prepare_attempt(attempt, tried, error)
            worker = await self._pick(tried)
            if worker is None:
                error = error or UnavailableError(
                    f"no worker is serving: {self._pool.states()}",
                    service="worker",
                    reason="NO_WORKER",
                    request_id=self._context.request_id,
                )
                continue
            if self.worker is not None:
                self.failovers += 1
                self._metrics.failovers.labels("worker").inc()
            self.worker = worker
            try:
                async with contextlib.aclosing(self._run(worker)) as deltas:
                    async for delta in deltas:
                        yield delta
                return
            except (UnavailableError, CancelledError) as lost:
                begun = bool(self.output_ids) and not self._ended_before_it_was_told()
                if begun and self._request.sampling.mirostat.version:
                    raise  # its state was lost with the worker: no other one can go on as if nothing had happened
                error = lost
                worker.forget_model()
            except ResourceExhaustedError as full:
                # An answer that has begun waits for room. One that has not goes elsewhere, or back to the caller, who
                # knows best how long to wait.
                begun = self.accepted is not None
                if not full.retryable or (not begun and await self._nobody_else({*tried, worker})):
                    raise
                error = full
            tried.add(worker)
            if self._ended_before_it_was_told():
                return
        assert error is not None
        raise error

    async def abort(self) -> None:
        """Asks the worker to end the request, so that it reports usage; the deltas then end with `finished`.

        Best effort: behind a load balancer the call may reach another worker.
        """
        if self.worker is None or self.accepted is None or self.finished is not None:
            return
        request = pb.AbortRequest(request_ids=[self._request.request_id])
        with contextlib.suppress(StatusError), self._context.errors("worker"):
            await self.worker.inference.Abort(
                request, timeout=self._context.deadline.cap(ABORT_SECONDS), metadata=self._context.metadata()
            )

    async def _run(self, worker: Worker) -> AsyncGenerator[pb.Delta, None]:
        """The deltas of one worker. Sets `accepted` and `finished`."""
        request = self._request
        model = await worker.model(self._context.timeout("worker"))
        self._model = self._model or model
        # A worker refuses a fingerprint when it does not know its own, so only one that advertises it gets one.
        known = self._fingerprint if model is not None and model.tokenizer_fingerprint else ""
        request.expected_tokenizer_fingerprint = known
        call = worker.inference.Generate(
            request, timeout=self._context.timeout("worker"), metadata=self._context.metadata(self._routing_key)
        )
        worker.running += 1
        try:
            with self._context.errors("worker"):
                async for response in call:
                    event = response.WhichOneof("event")
                    if event == "delta":
                        if self.first_delta_at is None:
                            self.first_delta_at = time.monotonic()
                        self.output_ids.extend(response.delta.ids)
                        yield response.delta
                    elif event == "accepted":
                        self.accepted = self.accepted or response.accepted
                    elif event == "finished":
                        self.finished = response.finished
            if self.finished is None:
                raise InternalError(
                    "the worker ended the stream without saying why generation ended",
                    service="worker",
                    reason="STREAM_INCOMPLETE",
                    request_id=self._context.request_id,
                )
        finally:
            worker.running -= 1
            call.cancel()

    async def _prepare_attempt(self, attempt: int, tried: set[Worker], error: TandemError | None) -> None:
        """Makes the request that asks for the rest, and waits where nobody new is left to ask."""
        request = self._request
        request.request_id = (
            f"{self._context.request_id[:120]}-r{attempt}"  # the old one may still be running somewhere
        )
        if self.accepted is not None:
            request.sampling.CopyFrom(self.accepted.sampling)
            request.stopping.max_tokens = self.accepted.max_tokens
            del request.resumed_output_ids[:]
            request.resumed_output_ids.extend(self.output_ids)
        if await self._nobody_else(tried):
            wait = self._failover.backoff(attempt)
            if isinstance(error, StatusError) and error.retry_after is not None:
                wait = max(wait, error.retry_after)
            if tried:
                await self._context.sleep(wait, "worker")
            else:
                await self._pool.wait_for_change(self._context.deadline.cap(wait))
                self._context.timeout("worker")
            tried.clear()

    async def _nobody_else(self, tried: set[Worker]) -> bool:
        return await self._pool.pick(self._routing_key, tried) is None

    async def _pick(self, tried: set[Worker]) -> Worker | None:
        """A worker that was not tried; once output exists, one that serves the same model."""
        while True:
            worker = await self._pool.pick(self._routing_key, tried)
            if worker is None or self._model is None or not self.output_ids:
                return worker
            model = await worker.model(self._context.timeout("worker"))
            if model is None or model.answers_like(self._model):
                return worker
            tried.add(worker)

    def _ended_before_it_was_told(self) -> bool:
        """Whether the worker was lost between the last token and `finished`; then there is nothing left to ask for."""
        if self.accepted is None or not self.output_ids:
            return False
        stopping = self._request.stopping
        last, reason = self.output_ids[-1], None
        if len(self.output_ids) >= self.accepted.max_tokens:
            reason = pb.FINISH_REASON_MAX_TOKENS
        elif stopping.include_stop and len(self.output_ids) >= stopping.min_tokens:
            if last in stopping.stop_token_ids:
                reason = pb.FINISH_REASON_STOP_TOKEN
            elif not stopping.ignore_eos and self._model is not None and last in self._model.eos_ids:
                reason = pb.FINISH_REASON_EOS
        if reason is None:
            return False
        self.finished = pb.Finished(reason=reason)
        if reason != pb.FINISH_REASON_MAX_TOKENS:
            self.finished.matched_stop_token = last
        return True

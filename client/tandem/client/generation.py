"""The generation at workers: token ids in, token ids out, over as many workers as it takes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial

from tandem.client.affinity import NO_PAGES, Pages, prefix_key
from tandem.client.delta_calls import ReceiveIds
from tandem.client.discovery import LOOKUP_SECONDS
from tandem.client.errors import (
    CancelledError,
    DeadlineExceededError,
    InternalError,
    ResourceExhaustedError,
    StatusError,
    UnavailableError,
)
from tandem.client.metrics import ClientMetrics
from tandem.client.patience import Patience, restarts
from tandem.client.plan import GenerationPlan
from tandem.client.rpc import CallContext
from tandem.client.settings import FailoverSettings
from tandem.client.types import ModelInfo
from tandem.client.worker import Worker
from tandem.client.workers import WorkerPool
from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import limits_of, stateful

ABORT_SECONDS = 1.0
_SAMPLING_LIMITS = limits_of(pb.SamplingParams.DESCRIPTOR)
_SUSPICIONS_KEY = "x-suspicions"  # metadata: so that a request that ends engines does not reach all of them


class TokenStream:
    """One generation. `outputs` are all ids received so far, by index; `finished` has an entry for each output that is
    complete, and all of them after `run`."""

    def __init__(
        self,
        pool: WorkerPool,
        plan: GenerationPlan,
        prompt_ids: list[int],
        fingerprint: str,
        context: CallContext,
        failover: FailoverSettings,
        metrics: ClientMetrics,
        *,
        receive: Callable[[pb.Delta], None],
        receive_ids: ReceiveIds,
        end: Callable[[int], None],
    ) -> None:
        """`receive` is called with all deltas, or `receive_ids` where they are ids alone, and `end` with the index of
        each output that is complete."""
        self._receive, self._receive_ids, self._end = receive, receive_ids, end
        self.outputs: list[list[int]] = [[] for _ in range(plan.n)]
        self.accepted: pb.Accepted | None = None  # the first one
        self._early: list[pb.Delta] = []  # that came before it
        self.finished: dict[int, pb.Finished] = {}
        self.prompt = pb.PromptLogprobs()  # its parts, joined
        self.failovers = 0
        self.worker: Worker | None = None  # the one that runs it now, or did last
        self.first_delta_at: float | None = None
        self._pool = pool
        self._request = plan.request(prompt_ids, "")
        # Mirostat's draws depend on earlier ones, so another worker has to make those too.
        self._resumable = not plan.several and not stateful(self._request.sampling, _SAMPLING_LIMITS)
        self._fingerprint = fingerprint
        self._routing_key = plan.routing_key or prefix_key(plan.cache_salt, prompt_ids)
        # A key that the caller chose stays with one worker.
        self._share = None if plan.routing_key else pool.memory.share_of(self._routing_key)
        self._pages = NO_PAGES if plan.routing_key else Pages.of(plan.cache_salt, prompt_ids)
        self._context = context
        self._failover = failover
        self._metrics = metrics
        self._model: ModelInfo | None = None
        self._others = False  # a worker that serves another one was passed over when one was chosen last
        self._suspicions = ""  # engines in a row that died in its first step, as the last of them told
        self._sent = 0  # how often it was asked for again
        self._running = False  # where it was asked for last

    async def run(self) -> None:
        """Generates all outputs to their ends. Raises StatusError; cancelling the task cancels the RPC."""
        patience = Patience(self._failover)
        tried: set[Worker] = set()
        error: StatusError | None = None
        while True:
            if error is not None and await self._no_other_worker(tried):
                await self._pause(patience, error, tried)
            worker = await self._pick(tried)
            if worker is None:
                what = "no worker serves the model of this answer any more" if self._others else "no worker is serving"
                error = UnavailableError(
                    f"{what}: {self._pool.states()}",
                    service="worker",
                    reason="NO_WORKER",
                    request_id=self._context.request_id,
                )
                patience.failed(error, may_wait=self._pool.reached)
                continue
            if self.worker is not None:
                self._ask_for_the_rest()
            self.worker = worker
            known = self._progress
            self._running = False
            try:
                await self._run(worker)
                return
            except (UnavailableError, CancelledError) as lost:
                error = lost
                self._suspicions = lost.metadata.get("suspicions", self._suspicions)
                worker.forget_model()
                worker.failures.add(time.monotonic())
                # Who is lost after he has begun with it may be lost because of it.
                may_wait = restarts(lost, reached=self._pool.reached and not self._running)
            except ResourceExhaustedError as full:
                # An answer that has begun waits for room. One that has not goes elsewhere, or back to the caller, who
                # knows best how long to wait.
                begun = self.accepted is not None
                if not full.retryable or (not begun and await self._no_other_worker({*tried, worker})):
                    raise
                error = full
                may_wait = True
            except DeadlineExceededError:
                if error is None or self._progress > known:
                    raise
                raise self._context.too_late(error, "worker") from None
            tried.add(worker)
            if self._ended_without_report():
                self._end(0)
                return
            if self._progress > known:
                patience.progressed()
            patience.failed(error, may_wait=may_wait)

    async def abort(self) -> None:
        """Asks the worker to end the request, so that it reports usage; each output then ends with its `finished`.

        Best effort: behind a load balancer the call may reach another worker.
        """
        if self.worker is None or self.accepted is None or len(self.finished) == len(self.outputs):
            return
        request = pb.AbortRequest(request_ids=[self._request.request_id])
        with contextlib.suppress(StatusError), self._context.errors("worker"):
            await self.worker.inference.Abort(
                request, timeout=self._context.deadline.cap(ABORT_SECONDS), metadata=self._context.metadata()
            )

    async def _run(self, worker: Worker) -> None:
        """Takes what one worker generates. Sets `accepted` and `finished`."""
        request = self._request
        known = [0 if self._resumable else len(ids) for ids in self.outputs]  # is said again
        came = [0] * len(known)
        self._early.clear()
        with worker.occupied():
            self._pool.memory.remember(self._pages, worker.address)
            model = await worker.model(self._context.timeout("worker"))
            self._model = self._model or model
            # A worker refuses a fingerprint when it does not know its own, so only one that advertises it gets one.
            served = self._fingerprint if model is not None and model.tokenizer_fingerprint else ""
            request.expected_tokenizer_fingerprint = served
            metadata = self._context.metadata(self._routing_key)
            if self._suspicions:
                metadata = (*metadata, (_SUSPICIONS_KEY, self._suspicions))
            timeout = self._context.timeout("worker")
            receive, receive_ids = partial(self._take, known, came), partial(self._take_ids, known, came)
            place = worker.share(request.request_id, len(known), receive, receive_ids, self._context)
            if place is not None:
                metadata = (*metadata, *place.metadata)
            call = worker.inference.Generate(request, timeout=timeout, metadata=metadata)
            try:
                with self._context.errors("worker"):
                    async for response in call:
                        worker.reached = True
                        event = response.WhichOneof("event")
                        if event == "delta":
                            self._take(known, came, response.delta)
                        elif event == "prompt_logprobs":
                            self.prompt.MergeFrom(response.prompt_logprobs)
                        elif event == "accepted":
                            self._running = True
                            worker.told_load(response.accepted)
                            if self.accepted is None:
                                self.accepted = response.accepted
                                for delta in self._early:
                                    self._take(known, came, delta)
                            else:
                                self.failovers += 1
                                self._metrics.failovers.labels("worker").inc()
                        elif event == "finished" and response.finished.index not in self.finished:
                            if place is not None:
                                await place.until(partial(_all_came, came, response.finished))
                            self.finished[response.finished.index] = response.finished
                            self._end(response.finished.index)
                if len(self.finished) < len(self.outputs):
                    raise InternalError(
                        "the worker ended the stream without saying why generation ended",
                        service="worker",
                        reason="STREAM_INCOMPLETE",
                        request_id=self._context.request_id,
                    )
            finally:
                call.cancel()
                del call  # see rpc._Errors
                if place is not None:
                    place.close()

    def _take(self, known: list[int], came: list[int], delta: pb.Delta) -> None:
        """Takes a delta of this worker, from either call: `came` counts its ids, `known` are those said again."""
        if self.accepted is None:  # the other call has overtaken it; without its seed nobody could go on with these ids
            self._early.append(delta)
            return
        came[delta.index] += len(delta.ids)
        delta = without(delta, known)
        if delta.ids:
            self._keep(delta.index, delta.ids)
            self._receive(delta)

    def _take_ids(self, known: list[int], came: list[int], index: int, ids: list[int]) -> None:
        """Takes ids of which nothing else is told, as `_take` a delta."""
        if self.accepted is None:
            self._early.append(pb.Delta(index=index, ids=ids))
            return
        came[index] += len(ids)
        if known[index]:
            dropped = min(known[index], len(ids))
            known[index] -= dropped
            ids = ids[dropped:]
        if ids:
            self._keep(index, ids)
            self._receive_ids(index, ids)

    def _keep(self, index: int, ids: Sequence[int]) -> None:
        self._suspicions = ""
        if self.first_delta_at is None:
            self.first_delta_at = time.monotonic()
        self.outputs[index].extend(ids)

    @property
    def _progress(self) -> int:
        return sum(map(len, self.outputs)) + len(self.finished)

    def _ask_for_the_rest(self) -> None:
        """Changes the request to what is still to be generated."""
        request = self._request
        self._sent += 1
        # The old one may still be running somewhere.
        request.request_id = f"{self._context.request_id[:116]}-r{self._sent}"
        if len(self.prompt.ids) == len(request.prompt_ids):
            request.output.prompt_logprobs = False  # is told
        else:
            self.prompt.Clear()
        if self.accepted is not None:
            request.sampling.CopyFrom(self.accepted.sampling)
            stopping = request.stopping
            stopping.max_tokens = self.accepted.max_tokens
            if stopping.min_tokens > stopping.max_tokens:  # more than fit into the context
                stopping.min_tokens = stopping.max_tokens
            if self._resumable:
                del request.resumed_output_ids[:]
                request.resumed_output_ids.extend(self.outputs[0])

    async def _pause(self, patience: Patience, error: StatusError, tried: set[Worker]) -> None:
        """Waits before workers are asked again, or until there is one."""
        if tried:
            await self._context.sleep(patience, error, "worker")
        else:
            seconds = patience.pause(error, self._context.deadline.left)
            await self._pool.wait_for_change(self._context.deadline.cap(seconds))
            self._context.in_time(error, "worker")
        tried.clear()

    async def _no_other_worker(self, tried: set[Worker]) -> bool:
        return await self._choose(tried) is None

    async def _choose(self, tried: set[Worker]) -> Worker | None:
        within = self._context.deadline.cap(LOOKUP_SECONDS)
        return await self._pool.pick(self._routing_key, tried, within, pages=self._pages, share=self._share)

    async def _pick(self, tried: set[Worker]) -> Worker | None:
        """Returns a worker that was not tried; once output exists, one that serves the same model."""
        self._others = False
        while True:
            worker = await self._choose(tried)
            if worker is None or self._model is None or not any(self.outputs):
                return worker
            model = await worker.model(self._context.timeout("worker"))
            if model is None or (model.answers_like(self._model) and model.serves(self._request.model)):
                return worker
            self._others = True
            tried.add(worker)

    def _ended_without_report(self) -> bool:
        """Returns True when the worker was lost between the last token and `finished`; then there is nothing left to
        generate. Of an end that the last id does not tell, another worker is asked."""
        ids = self.outputs[0]
        if self.accepted is None or not ids or not self._resumable:
            return False
        stopping = self._request.stopping
        last, reason = ids[-1], None
        if stopping.include_stop and len(ids) >= stopping.min_tokens:
            if last in stopping.stop_token_ids:
                reason = pb.FINISH_REASON_STOP_TOKEN
            elif not stopping.ignore_eos and self._model is not None and last in self._model.eos_ids:
                reason = pb.FINISH_REASON_EOS
        otherwise = self._request.HasField("guided") or (stopping.include_stop and len(stopping.stop_sequences))
        if reason is None and not otherwise and len(ids) >= self.accepted.max_tokens:
            reason = pb.FINISH_REASON_MAX_TOKENS
        if reason is None:
            return False
        self.finished[0] = pb.Finished(reason=reason)
        if reason != pb.FINISH_REASON_MAX_TOKENS:
            self.finished[0].matched_stop_token = last
        return True


def _all_came(came: list[int], finished: pb.Finished) -> bool:
    return came[finished.index] >= finished.usage.completion_tokens


def without(delta: pb.Delta, known: list[int]) -> pb.Delta:
    """Returns the delta without the first `known[index]` ids of its output, and counts them down. Arrays are parallel
    to ids."""
    dropped = min(known[delta.index], len(delta.ids))
    if dropped:
        known[delta.index] -= dropped
        row = len(delta.vocabulary_logprobs) // len(delta.ids)
        delta.vocabulary_logprobs = delta.vocabulary_logprobs[dropped * row :]
        for values in (delta.ids, delta.logprobs, delta.ranks, delta.top_logprobs):
            del values[:dropped]
    return delta

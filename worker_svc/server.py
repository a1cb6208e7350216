"""The worker's front: checks requests, lets them in, and streams what the engine makes of them."""

from __future__ import annotations

import logging
import secrets
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc

from svc_common.errors import FieldViolation, StartError, already_exists, internal, invalid_argument, not_found
from svc_common.lifecycle import Lifecycle
from svc_common.metrics import ServiceMetrics
from tandem.inference.v1 import admin_pb2_grpc, inference_pb2_grpc
from tandem.inference.v1 import inference_pb2 as pb
from worker_svc.admin import AdminServicer
from worker_svc.admission import Admission
from worker_svc.engine.handle import EngineHandle, EngineStartError, ProcessEngine, ThreadEngine
from worker_svc.engine.messages import Ended, EngineInfo, Step, Submit
from worker_svc.engine.request import FinishReason
from worker_svc.metrics import WorkerMetrics
from worker_svc.sampling_rules import effective_sampling
from worker_svc.settings import WorkerSettings
from worker_svc.streams import OutputStream
from worker_svc.supervisor import EngineSupervisor
from worker_svc.tokenizer_check import check_tokenizer
from worker_svc.validation import validate

logger = logging.getLogger("worker_svc")

MAX_ABORT_IDS = 4096

_REASONS = {
    FinishReason.MAX_TOKENS: pb.FINISH_REASON_MAX_TOKENS,
    FinishReason.STOP_TOKEN: pb.FINISH_REASON_STOP_TOKEN,
    FinishReason.EOS: pb.FINISH_REASON_EOS,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
}


@dataclass(slots=True, eq=False)
class _Running:
    """A request between admission and its end."""

    request_id: str
    stream: OutputStream
    prompt_tokens: int
    received_at: float
    sent_tokens: int = 0


class WorkerService:
    """`Service` of svc_common: the engine, the data plane and the control plane."""

    name = "tandem.inference.v1.InferenceService"
    reachable_while_draining = (f"/{name}/Abort",)

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.metrics = ServiceMetrics("tandem-worker")
        self.model_name = settings.model_name or settings.model.rstrip("/").rsplit("/", 1)[-1]
        self.worker_metrics = WorkerMetrics(self.metrics.registry, self.model_name)
        self.supervisor = EngineSupervisor(self._make_engine, self, self._progress)
        self.fingerprint = settings.tokenizer_fingerprint
        self.lifecycle: Lifecycle | None = None
        self.started_at = time.time()
        self.admission = Admission(
            max_requests=settings.max_running_requests + settings.max_waiting_requests,
            max_tokens=settings.max_waiting_tokens,
        )
        self._running: dict[str, _Running] = {}
        self._by_stream: dict[OutputStream, _Running] = {}

    def _make_engine(self) -> EngineHandle:
        config = self.settings.engine_config()
        if self.settings.engine == "thread":
            return ThreadEngine(config)
        return ProcessEngine(config, log_format=self.settings.log_format, log_level=self.settings.log_level)

    def _progress(self, done: int, total: int) -> None:
        logger.info("loading %s: %d %% of %.1f MB", self.model_name, 100 * done // max(1, total), total / 1e6)

    # ------------------------------------------------------------------------------------------------ Service

    async def start(self, lifecycle: Lifecycle) -> None:
        """Starts the engine; raises StartError."""
        self.lifecycle = lifecycle
        try:
            info = await self.supervisor.start()
        except EngineStartError as error:
            raise StartError(str(error)) from error
        if not info.row_invariant:
            logger.warning("on this machine a row's result depends on its company: answers may differ in last digits")
        if self.settings.tokenizer_address:
            self.fingerprint = await check_tokenizer(self.settings, info)
        logger.info(
            "serving %s: %s, %.1f M parameters, %s on %s (%s), cache of %d tokens",
            self.model_name,
            info.architecture,
            info.parameters / 1e6,
            info.dtype,
            info.device,
            info.device_name,
            info.kv_cache_tokens,
        )

    def register(self, server: grpc.aio.Server) -> None:
        """Adds both services."""
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(InferenceServicer(self), server)
        admin_pb2_grpc.add_WorkerAdminServiceServicer_to_server(AdminServicer(self), server)

    async def stop(self) -> None:
        """Ends the engine."""
        await self.supervisor.stop()

    # ------------------------------------------------------------------------------------------------ Observer

    def engine_up(self, info: EngineInfo) -> None:
        """An engine is ready."""
        self.worker_metrics.engine_started()
        if self.supervisor.restarts:
            self.worker_metrics.engine_restarts.inc()
        if self.lifecycle is not None:
            self.lifecycle.set_ready(True)

    def engine_down(self, why: str) -> None:
        """The engine is gone: not ready until the next one is."""
        self.worker_metrics.engine_ended()
        if self.lifecycle is not None:
            self.lifecycle.set_ready(False)

    def engine_lost(self, why: str) -> None:
        """Only the operator can help."""
        if self.lifecycle is not None:
            self.lifecycle.request_stop(exit_code=1, why=why)

    def engine_step(self, step: Step) -> None:
        """Keeps the metrics."""
        self.worker_metrics.step(step)

    def request_ended(self, stream: OutputStream, ended: Ended) -> None:
        """Keeps the metrics."""
        running = self._by_stream.get(stream)
        if running is not None:
            output = running.sent_tokens + stream.pending
            seconds = time.monotonic() - running.received_at
            self.worker_metrics.finished(ended, running.prompt_tokens, output, seconds)

    # ------------------------------------------------------------------------------------------------ requests

    def serves(self, model: str) -> None:
        """Raises NOT_FOUND unless `model` is empty or the one that is served."""
        if model and model != self.model_name:
            raise not_found("model", model, [self.model_name])

    def open(self, request: pb.GenerateRequest) -> tuple[_Running, Submit]:
        """Checks a request, lets it in and hands it to the engine; raises ServiceError."""
        received_at = time.monotonic()
        self.serves(request.model)
        info = self.supervisor.require_info()
        submit, delivery = validate(
            request,
            info,
            handle=self.supervisor.next_handle,
            seed=secrets.randbits(64),
            fingerprint=self.fingerprint,
        )
        request_id = request.request_id or uuid.uuid4().hex
        if request_id in self._running:
            raise already_exists(f"a request with request_id {request_id!r} is running", reason="REQUEST_EXISTS")
        prompt_tokens = len(request.prompt_ids)
        admitted_tokens = prompt_tokens + len(request.resumed_output_ids)
        try:
            self.admission.enter(admitted_tokens)
        except Exception:
            self.worker_metrics.refused.inc()
            raise
        stream = OutputStream(submit.handle, delivery)
        running = _Running(request_id, stream, prompt_tokens, received_at)
        try:
            self.supervisor.submit(submit, stream)
        except BaseException:
            self.admission.leave(admitted_tokens, received_at)
            raise
        self._running[request_id] = running
        self._by_stream[stream] = running
        return running, submit

    def close(self, running: _Running, admitted_tokens: int) -> None:
        """The reader has left or has everything."""
        del self._running[running.request_id], self._by_stream[running.stream]
        self.admission.leave(admitted_tokens, time.monotonic())
        if not running.stream.over:
            self.worker_metrics.wasted_tokens.inc(running.stream.pending)
        self.supervisor.abandon(running.stream)

    def abort(self, request_ids: list[str]) -> list[str]:
        """Ends requests; returns those that were there."""
        found = [request_id for request_id in dict.fromkeys(request_ids) if request_id in self._running]
        for request_id in found:
            self.supervisor.abort(self._running[request_id].stream)
        return found


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """The data plane."""

    def __init__(self, worker: WorkerService) -> None:
        self._worker = worker

    async def Generate(  # noqa: N802
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext[pb.GenerateRequest, pb.GenerateResponse]
    ) -> AsyncIterator[pb.GenerateResponse]:
        """See inference.proto."""
        worker = self._worker
        running, submit = worker.open(request)
        info = worker.supervisor.require_info()
        stream = running.stream
        admitted_tokens = running.prompt_tokens + len(request.resumed_output_ids)
        try:
            yield pb.GenerateResponse(
                accepted=pb.Accepted(
                    request_id=running.request_id,
                    model=worker.model_name,
                    prompt_tokens=running.prompt_tokens,
                    max_tokens=submit.max_tokens,
                    sampling=effective_sampling(submit.sampling),
                )
            )
            while True:
                await stream.ready()
                ids, logprobs = stream.take()
                if ids:
                    if not running.sent_tokens:
                        worker.worker_metrics.first_token(time.monotonic() - running.received_at)
                    running.sent_tokens += len(ids)
                    delta = pb.Delta(ids=ids, logprobs=logprobs if submit.logprobs else None)
                    yield pb.GenerateResponse(delta=delta)
                # More may have come while the reader was slow; the end is said when all of it is sent.
                if stream.ended is not None and not stream.pending:
                    yield pb.GenerateResponse(finished=_finished(running, stream.ended, info))
                    return
        finally:
            worker.close(running, admitted_tokens)

    async def Abort(  # noqa: N802
        self, request: pb.AbortRequest, context: grpc.aio.ServicerContext[pb.AbortRequest, pb.AbortResponse]
    ) -> pb.AbortResponse:
        """See inference.proto."""
        count = len(request.request_ids)
        if not 1 <= count <= MAX_ABORT_IDS:
            violation = FieldViolation("request_ids", f"must have 1 to {MAX_ABORT_IDS} ids, not {count}")
            raise invalid_argument([violation])
        return pb.AbortResponse(aborted_ids=self._worker.abort(list(request.request_ids)))


def _finished(running: _Running, ended: Ended, info: EngineInfo) -> pb.Finished:
    reason = FinishReason(ended.reason)
    if reason is FinishReason.ERROR:
        raise internal(ended.detail, reason="MODEL_ERROR")
    return pb.Finished(
        reason=_REASONS[reason],
        matched_stop_token=ended.matched_token,
        usage=pb.Usage(
            prompt_tokens=running.prompt_tokens,
            cached_prompt_tokens=ended.cached_prompt_tokens,
            completion_tokens=running.sent_tokens,
            forward_passes=ended.forward_passes,
            preemptions=ended.preemptions,
            peak_pages=ended.peak_pages,
            peak_kv_bytes=ended.peak_pages * info.page_size * info.kv_bytes_per_token,
        ),
        timings=pb.Timings(
            queue_seconds=ended.queue_seconds,
            prefill_seconds=ended.prefill_seconds,
            decode_seconds=ended.decode_seconds,
            total_seconds=ended.total_seconds,
        ),
    )

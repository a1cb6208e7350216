"""The worker's front: checks requests, lets them in, and streams what the engine makes of them."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import grpc
import numpy as np

from tandem.common.bearer_tokens import BearerTokens
from tandem.common.callers import Metadata, caller_var, operator_refusal
from tandem.common.errors import (
    FieldViolation,
    ServiceError,
    StartError,
    already_exists,
    draining,
    failed_precondition,
    invalid_argument,
    not_found,
    resource_exhausted,
    unavailable,
)
from tandem.common.interruption import done_unless
from tandem.common.metrics import ServiceMetrics
from tandem.common.run_service import Lifecycle
from tandem.common.turns import Turns
from tandem.inference.v1 import admin_pb2_grpc, inference_pb2_grpc
from tandem.inference.v1 import inference_pb2 as pb
from tandem.worker.engine.account import FinishReason
from tandem.worker.engine.ends import Failure
from tandem.worker.engine.guides.outcome import CompileOutcome
from tandem.worker.engine.process.child import EngineChild
from tandem.worker.engine.process.handle import EngineDeath, EngineHandle, EngineStartError, ProcessEngine, ThreadEngine
from tandem.worker.engine.process.messages import Ended, EngineInfo, Pages, Step, Submit, Vocabulary
from tandem.worker.engine.request import RequestStatistics
from tandem.worker.front.admin import OPERATOR_METHODS, admin_servicer
from tandem.worker.front.admission import Admission
from tandem.worker.front.gateway.page_feed import PageFeed
from tandem.worker.front.generation_rules import samples_of
from tandem.worker.front.inference_servicer import InferenceServicer
from tandem.worker.front.limits import request_limits
from tandem.worker.front.metrics import WorkerMetrics
from tandem.worker.front.quarantine import Probation, Quarantine
from tandem.worker.front.running import Running, request_digest
from tandem.worker.front.streams import OutputStream
from tandem.worker.front.supervisor import EngineSupervisor
from tandem.worker.front.tokenizer_check import TokenizerCheck, read_peer_files
from tandem.worker.front.validation import MOST_WHOLE, validate
from tandem.worker.front.watchdog import Silence
from tandem.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from tandem.worker.front.load_reports import LoadReports

logger = logging.getLogger("tandem.worker")

_LARGE = 32 << 10  # bytes of a request that is checked when its turn has come
_STALL_SECONDS = {"cpu": 30.0, "cuda": 60.0}
# A step of a large model on a busy processor takes minutes; on a GPU a step is short, and a host that waits for a GPU
# that is gone uses its processor.
_COMPUTING_COUNTS = {"cpu": 0.1, "cuda": 1.0}


class WorkerService:
    """Implements `Service` of tandem.common: the engine, the data plane and the control plane."""

    name = "tandem.inference.v1.InferenceService"

    def __init__(self, settings: WorkerSettings, child: EngineChild | None = None) -> None:
        """`child`: the process of the first engine, if it runs already."""
        self.settings = settings
        self._child = child
        self.limits = request_limits()
        file = settings.admin_token_file
        self.operators = None if file is None else BearerTokens(file, "admin_token_file")
        self.metrics = ServiceMetrics("tandem-worker")
        self.model_name = settings.served_name
        self.adapters = frozenset(settings.adapters())
        self.worker_metrics = WorkerMetrics(
            self.metrics.registry,
            self.model_name,
            engine_pid=lambda: self.supervisor.engine_pid,
            vllm_names=settings.vllm_metric_names,
        )
        self.supervisor = EngineSupervisor(self._make_engine, self, self._progress, silence=self._silence)
        self.worker_metrics.step_age.set_function(lambda: self.supervisor.step_age)
        self.quarantine = Quarantine()
        self._probation = Probation()
        self.fingerprint = settings.tokenizer_fingerprint
        self.lifecycle: Lifecycle | None = None
        self.started_at = time.time()
        self.admission = Admission(
            max_requests=settings.max_waiting_requests,  # and those that run, which an engine tells
            max_tokens=settings.max_waiting_tokens,
        )
        self.worker_metrics.callers.set_function(lambda: self.admission.callers)
        self._running: dict[str, Running] = {}
        self._by_stream: dict[OutputStream, Running] = {}
        self._turns = Turns()
        self._suspected: dict[int, Running] = {}  # without a token so far; by their first number
        self.vocabulary: Vocabulary | None = None
        self.names: tuple[str, ...] = ()  # of proto services besides `name` that take work
        # StreamDeltas is no work either: the requests whose deltas it has are.
        self.reachable_while_draining: tuple[str, ...] = (f"/{self.name}/Abort", f"/{self.name}/StreamDeltas")
        self.operator_methods: tuple[str, ...] = OPERATOR_METHODS
        self._loads: LoadReports | None = None  # for balancers
        if settings.load_reports:
            from tandem.worker.front.load_reports import LoadReports  # of an optional package

            self._loads = LoadReports(settings.max_running_requests)
        self._feed: PageFeed | None = None  # of cached pages, for gateways
        if settings.gateway:
            from tandem.worker.front.gateway import servicer as gateway  # of an optional package

            self.names = (gateway.NAME,)
            self.reachable_while_draining += gateway.REACHABLE_WHILE_DRAINING
            self.operator_methods += gateway.OPERATOR_METHODS
            self.limits |= gateway.request_limits()
            self._feed = PageFeed(self.supervisor.watch_pages, always=settings.page_events)
            self.worker_metrics.page_subscribers.set_function(lambda: self._feed.subscribers if self._feed else 0)

    def _make_engine(self) -> EngineHandle:
        config = self.settings.engine_config()
        if self.settings.engine == "thread":
            return ThreadEngine(config)
        child, self._child = self._child, None
        return ProcessEngine(
            config, log_format=self.settings.log_format, log_level=self.settings.log_level, child=child
        )

    def _silence(self, info: EngineInfo | None) -> Silence | None:
        """Limits how long an engine may be silent; without information, in its start, as long as it computes."""
        if self.settings.engine == "thread":  # for debugging, and nothing ends a thread
            return None
        if info is None:
            # What ranks on other machines do is not seen from here; they wait for each other by limits of their own.
            elsewhere = self.settings.tensor_parallel > 1 and "MASTER_ADDR" in os.environ
            return None if elsewhere else Silence(self.settings.engine_stall_seconds or _STALL_SECONDS["cuda"], 0.0)
        kind = info.device.partition(":")[0]
        return Silence(self.settings.engine_stall_seconds or _STALL_SECONDS[kind], _COMPUTING_COUNTS[kind])

    def _progress(self, done: int, total: int) -> None:
        logger.info("loading %s: %d %% of %.1f MB", self.model_name, 100 * done // max(1, total), total / 1e6)

    # --- Service

    async def start(self, lifecycle: Lifecycle) -> None:
        """Starts the engine; raises StartError."""
        self.lifecycle = lifecycle
        lifecycle.on_change(self._lifecycle_changed)
        asks_tokenizer = bool(self.settings.tokenizer_address or self.settings.tokenizer_address_file)
        if asks_tokenizer:
            read_peer_files(self.settings)  # a wrong one is told before a model is loaded for minutes
        check = TokenizerCheck(self.settings) if asks_tokenizer else None
        try:
            info = await self.supervisor.start()
            if not info.row_invariant:
                logger.warning(
                    "on this machine a row's bits depend on the batch: the same request may get other tokens"
                )
            if check is not None:
                self.fingerprint, self.vocabulary = await check.against(info)
                self.supervisor.send_vocabulary(self.vocabulary)
        except EngineStartError as error:
            raise StartError(str(error)) from error
        finally:
            if check is not None:
                await check.stop()
        if self._feed is not None:
            self._feed.start()
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
        servicer = InferenceServicer(self)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server)
        admin_pb2_grpc.add_WorkerAdminServiceServicer_to_server(admin_servicer(self), server)
        if self._feed is not None:
            from tandem.worker.front.gateway.servicer import add_gateway

            add_gateway(server, self, servicer.Generate, self._feed)

        if self._loads is not None:
            from tandem.worker.front.load_reports import add_load_stream

            add_load_stream(server, partial(self._loads.report, self.admission, self.supervisor))

    async def stop(self) -> None:
        """Ends the engine."""
        if self._child is not None:  # the start has failed before it had a use
            self._child.kill()
            self._child.close()
            self._child = None
        await self.supervisor.stop()

    # --- Observer

    def engine_up(self, info: EngineInfo) -> None:
        """Called when an engine is ready."""
        self.worker_metrics.engine_started(info)
        self.admission.max_requests = info.max_running_requests + self.settings.max_waiting_requests
        if self.supervisor.restarts:
            self.worker_metrics.engine_restarts.inc()
        if self.vocabulary is not None:
            self.supervisor.send_vocabulary(self.vocabulary)
        if self.lifecycle is not None:
            self.lifecycle.set_ready(True)

    def engine_down(self, why: str) -> None:
        """Called when the engine is gone: the worker is not ready until the next one is."""
        self.worker_metrics.engine_ended()
        if self._feed is not None:
            self._feed.lose()
        if self.lifecycle is not None:
            self.lifecycle.set_ready(False)

    def engine_stalled(self) -> None:
        """Called when the engine was silent for too long."""
        self.worker_metrics.engine_stalls.inc()

    def start_failed(self) -> None:
        """Called when an engine that was to replace another one did not start."""
        self.worker_metrics.failed_starts.inc()

    def lost_with(self, streams: Sequence[OutputStream], death: EngineDeath) -> dict[OutputStream, ServiceError]:
        """Counts the suspicions of the requests that were in their first step; returns the errors of their streams."""
        first_steps = set(death.suspects)
        suspects = {
            running.request_id: running
            for stream in streams
            if stream.number in first_steps and not (running := self._by_stream[stream]).begun
        }
        for running in suspects.values():
            running.key = running.key or request_digest(running.request)
        alone = len({running.key for running in suspects.values()}) == 1
        errors: dict[OutputStream, ServiceError] = {}
        for running in suspects.values():
            error = self._suspect(running, alone=alone, crashed=death.crashed)
            errors.update((stream, error) for stream in running.streams)
        return errors

    def _suspect(self, running: Running, *, alone: bool, crashed: bool) -> ServiceError:
        count = running.suspicions + 1
        held = self.quarantine.suspect(running.key, running.suspicions, alone=alone, crashed=crashed)
        logger.error(
            "the engine ended in the first step of request %s, %s; count %d: %s",
            running.request_id,
            "the only one" if alone else "one of several",
            count,
            "it is quarantined" if held else "it may be sent again",
        )
        if held:
            self.worker_metrics.quarantined.inc()
            return _quarantined(count)
        return unavailable(
            "the engine ended in the first step of this request and is being restarted",
            reason="ENGINE_DIED",
            retry_after=self.supervisor.retry_after,
            metadata={"suspicions": str(count)},
        )

    def engine_lost(self, why: str) -> None:
        """Asks for the end of the process, since only the operator can help."""
        if self.lifecycle is not None:
            self.lifecycle.request_stop(exit_code=1, why=why)

    def engine_step(self, step: Step) -> None:
        """Updates the metrics, and clears suspected requests that have a token."""
        self.worker_metrics.step(step)
        if self._suspected:
            for number in np.frombuffer(step.numbers, dtype=np.uint64).tolist():
                running = self._suspected.pop(number, None)
                if running is not None:
                    running.suspicions = 0
                    self.quarantine.clear(running.key)
                    self._probation.leave(running)

    def token_gaps(self, seconds: Mapping[float, int]) -> None:
        """Updates the metrics."""
        self.worker_metrics.gaps(seconds)

    def request_ended(self, stream: OutputStream, ended: Ended) -> None:
        """Updates the metrics."""
        running = self._by_stream.get(stream)
        if running is not None:
            output = stream.sent + stream.pending
            seconds = time.monotonic() - running.received_at
            if ended.reason == Failure.GUIDE:
                # Why, its caller is told; it may quote the guide.
                logger.warning("request %s ended: its guide reached a limit", running.request_id)
            self.worker_metrics.finished(ended, running.prompt_tokens, output, seconds, running.exemplar)
            if all(each.over for each in running.streams):
                # Its reader may be slow, and others wait for the turn.
                self._suspected.pop(running.streams[0].number, None)
                self._probation.leave(running)
                self.worker_metrics.all_finished(max(each.sent + each.pending for each in running.streams))

    # --- draining

    @property
    def refusing(self) -> bool:
        """Tells whether new requests are refused now."""
        return self.lifecycle is not None and self.lifecycle.started and not self.lifecycle.accepting

    def _lifecycle_changed(self) -> None:
        """Ends requests without a token when a drain begins to refuse: they would wait for a turn that does not come,
        and lose nothing but a place in this queue."""
        if not self.refusing:
            return
        away = [running for running in self._running.values() if running.submitted and not running.begun]
        away = [running for running in away if not any(stream.over for stream in running.streams)]
        for running in away:
            self.supervisor.abort(running.streams)
            for stream in running.streams:
                stream.fail(draining())
        if away:
            logger.info("draining: ended %d requests without a token", len(away))
            self.worker_metrics.sent_away.inc(len(away))

    # --- gateways

    def pages_changed(self, pages: Pages) -> None:
        """Tells gateways of cached pages."""
        if self._feed is not None:
            self._feed.apply(pages)

    @property
    def pending_prompt_tokens(self) -> int:
        """Counts the prompt tokens of requests without a token."""
        return sum(running.prompt_tokens for running in self._running.values() if not running.begun)

    # --- requests

    def serves(self, model: str) -> None:
        """Raises NOT_FOUND unless `model` is empty, or the one that is served or an adapter beside it."""
        if model and model != self.model_name and model not in self.adapters:
            raise not_found("model", model, [self.model_name, *sorted(self.adapters)])

    async def open(self, request: pb.GenerateRequest, told: int = 0) -> tuple[Running, Submit]:
        """Checks a request, admits it and hands it to the engine; raises ServiceError. `told` is how often its sender
        says that an engine died in its first step."""
        received_at = time.monotonic()
        caller = caller_var.get()
        self.serves(request.model)
        info = self.supervisor.require_info()
        check = partial(
            validate,
            request,
            info,
            number=self.supervisor.take_numbers(samples_of(request)),
            seed=secrets.randbits(64),
            fingerprint=self.fingerprint,
            caller=caller,
            cache_per_caller=self.settings.cache_per_caller,
        )
        submit, delivery = await self._turns.run(check) if request.ByteSize() > _LARGE else check()
        request_id = request.request_id or uuid.uuid4().hex
        if request_id in self._running:
            raise already_exists(f"a request with request_id {request_id!r} is running", reason="REQUEST_EXISTS")
        key, suspicions = self._suspicions(request, told)
        prompt_tokens = len(request.prompt_ids)
        admitted_tokens = prompt_tokens + len(request.resumed_output_ids)
        if request.output.vocabulary_logprobs:
            self._check_whole()
        try:
            self.admission.enter(admitted_tokens, submit.samples, caller)
        except ServiceError:
            self.worker_metrics.refused.inc()
            if self.admission.has_others(caller):
                self.worker_metrics.refused_by_share.inc()
            raise
        self.worker_metrics.admitted(request.model)
        wake = asyncio.Event()
        numbers = range(submit.number, submit.number + submit.samples)
        streams = [OutputStream(number, delivery, wake=wake) for number in numbers]
        running = Running(
            request_id, streams, prompt_tokens, admitted_tokens, received_at, caller, request, key, suspicions
        )
        self._running[request_id] = running
        self._by_stream.update((stream, running) for stream in streams)
        try:
            if submit.guide is None and not suspicions:
                self._submit(running, submit)
            elif not await done_unless(running.aborted.wait(), self._prepare(running, submit)):
                self._end_aborted(running)
            elif running.aborted.is_set():  # in the same turn
                self.supervisor.abort(streams)
        except BaseException:
            self.close(running)
            raise
        return running, submit

    async def _prepare(self, running: Running, submit: Submit) -> None:
        """Submits a request once its guide is compiled and, if it is suspected, its turn has come."""
        if submit.guide is not None:
            await self._compile(submit, running.request_id, running.caller)
        if running.suspicions:
            await self._probation.enter(running)
            self._suspected[submit.number] = running
        self._submit(running, submit)

    def _submit(self, running: Running, submit: Submit) -> None:
        if self.refusing:
            raise draining()
        self.supervisor.submit(submit, running.streams)
        running.submitted = True

    def _end_aborted(self, running: Running) -> None:
        """Ends a request that the engine has never seen."""
        for stream in running.streams:
            cancelled = Ended(stream.number, FinishReason.CANCELLED, None, None, 0, RequestStatistics(), "")
            stream.end(cancelled)
            self.request_ended(stream, cancelled)

    def _check_whole(self) -> None:
        """Refuses one more request that is told the logprobs of the whole vocabulary, where there are enough."""
        if sum(running.request.output.vocabulary_logprobs for running in self._running.values()) >= MOST_WHOLE:
            raise resource_exhausted(
                f"{MOST_WHOLE} requests with output.vocabulary_logprobs run, which is the limit",
                reason="QUEUE_FULL",
                retry_after=self.admission.retry_after(time.monotonic()),
            )

    def _suspicions(self, request: pb.GenerateRequest, told: int) -> tuple[bytes, int]:
        """Returns the digest of the request, where one is needed, and how often it was suspected; raises
        FAILED_PRECONDITION for one that is quarantined."""
        if not told and not self.quarantine:
            return b"", 0
        key = request_digest(request)
        count = max(told, self.quarantine.count(key))
        if self.quarantine.holds(key):
            self.worker_metrics.quarantined.inc()
            raise _quarantined(count)
        return key, count

    async def _compile(self, submit: Submit, request_id: str, caller: str) -> None:
        """Has the engine compile the guide. Raises INVALID_ARGUMENT for a guide that is wrong, FAILED_PRECONDITION
        where none can be served, and RESOURCE_EXHAUSTED where there is no memory for another one."""
        assert submit.guide is not None
        kind, _ = submit.guide
        began = time.monotonic()
        outcome, error = CompileOutcome.ABANDONED, ""
        try:
            reply = await self.supervisor.compile(submit.guide, submit.resumed_answer, caller)
            outcome, error = CompileOutcome(reply.outcome), reply.error
        finally:
            self.worker_metrics.guide_compiled(outcome, time.monotonic() - began)
        if outcome in (CompileOutcome.OVER_BUDGET, CompileOutcome.CRASHED):
            logger.warning("request %s: refused its guide (%s): %s", request_id, kind, error)
        if outcome is CompileOutcome.UNAVAILABLE:
            raise failed_precondition(
                f"guided decoding is not available: {error} (start the worker with tokenizer_address)",
                reason="VOCABULARY_UNKNOWN",
            )
        if outcome is CompileOutcome.EXHAUSTED:
            after = self.admission.retry_after(time.monotonic())
            raise resource_exhausted(error, reason="GUIDES_MEMORY", retry_after=after)
        if error:
            raise invalid_argument([FieldViolation(f"guided.{kind}", error)])

    def close(self, running: Running) -> None:
        """Releases a request whose reader has left or has everything."""
        del self._running[running.request_id]
        self._suspected.pop(running.streams[0].number, None)
        self._probation.leave(running)
        for stream in running.streams:
            del self._by_stream[stream]
            if not stream.over:
                self.worker_metrics.wasted_tokens.inc(stream.pending)
        self.admission.leave(running.admitted_tokens, time.monotonic(), len(running.streams), running.caller)
        self.supervisor.abandon(running.streams)
        if self._loads is not None:
            self._loads.ended(failed=any(stream.error is not None for stream in running.streams))

    def load_trailers(self) -> tuple[tuple[str, bytes], ...]:
        """Returns what balancers read behind an answer."""
        return () if self._loads is None else self._loads.trailers(self.admission, self.supervisor)

    def operator_refusal(self, metadata: Metadata) -> ServiceError | None:
        """Returns why a caller that was let in may not do what operators do."""
        return operator_refusal(self.operators, metadata, known=self.settings.auth_token_file is not None)

    def abort(self, request_ids: list[str], metadata: Metadata) -> list[str]:
        """Ends requests; returns those that were there. Where tokens are asked for, others' are not, but for an
        operator."""
        everybodys = (
            self.settings.auth_token_file is None
            if self.operators is None
            else (self.operators.refusal(metadata) is None)
        )
        caller = caller_var.get()
        running = (self._running.get(request_id) for request_id in dict.fromkeys(request_ids))
        found = [each for each in running if each is not None and (everybodys or each.caller == caller)]
        for each in found:
            if each.submitted:
                self.supervisor.abort(each.streams)
            else:
                each.aborted.set()
        return [each.request_id for each in found]


def _quarantined(count: int) -> ServiceError:
    times = "the engine ended" if count == 1 else f"{count} engines ended"
    return failed_precondition(
        f"{times} in the first step of this request: it is not computed again", reason="REQUEST_QUARANTINED"
    )

"""Answers Generate, StreamDeltas and Abort: what comes of a request's outputs becomes messages."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from typing import Protocol

import grpc

from tandem.common.by_name import fields_of
from tandem.common.callers import Metadata, caller_var
from tandem.common.contract import limit_violations
from tandem.common.errors import FieldViolation, failed_precondition, internal, invalid_argument
from tandem.common.request_log import tell
from tandem.inference.v1 import inference_pb2 as pb
from tandem.inference.v1 import inference_pb2_grpc
from tandem.limits.fields import limits_of
from tandem.worker.engine.ends import Failure
from tandem.worker.engine.process.messages import EngineInfo, Submit, TopTokens
from tandem.worker.front.admission import Admission
from tandem.worker.front.generation_rules import DEFAULT_LENGTH_PENALTY, returns_best
from tandem.worker.front.metrics import WorkerMetrics
from tandem.worker.front.quarantine import SUSPICIONS_KEY, told_suspicions
from tandem.worker.front.request_facts import facts
from tandem.worker.front.running import Running
from tandem.worker.front.sampling_rules import effective_sampling
from tandem.worker.front.shared_deltas import DeltaCalls, request_number
from tandem.worker.front.streams import OutputStream, Tokens, best_outputs, next_due
from tandem.worker.front.supervisor import EngineSupervisor
from tandem.worker.front.validation import wants_logprobs

PROMPT_PART_TOKENS = 1024  # of a message
_PROMPT_PART_OTHERS = 8192  # other tokens in it, at most
_ABORT_LIMITS = limits_of(pb.AbortRequest.DESCRIPTOR)
_STREAM_DELTAS_LIMITS = limits_of(pb.StreamDeltasRequest.DESCRIPTOR)
_DELTAS_KEY = "x-deltas-key"  # metadata: of the StreamDeltas call that may carry the deltas
_NUMBER_KEY = "x-deltas-number"  # metadata: what its messages name the request by


class Worker(Protocol):
    """What this needs; `WorkerService` has it."""

    supervisor: EngineSupervisor
    admission: Admission
    worker_metrics: WorkerMetrics
    model_name: str

    async def open(self, request: pb.GenerateRequest, told: int = 0) -> tuple[Running, Submit]:
        """Checks and admits a request; raises ServiceError."""
        ...

    def close(self, running: Running) -> None:
        """Releases a request."""
        ...

    def abort(self, request_ids: list[str], metadata: Metadata) -> list[str]:
        """Ends requests; returns those that were there."""
        ...

    def load_trailers(self) -> tuple[tuple[str, bytes], ...]:
        """Returns what balancers read behind an answer."""
        ...


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Implements the data plane."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._delta_calls = DeltaCalls(worker.worker_metrics.shared_deltas)

    async def Generate(  # noqa: N802
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext[pb.GenerateRequest, pb.GenerateResponse]
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Implements Generate of inference.proto."""
        worker = self._worker
        metadata = dict(context.invocation_metadata() or ())
        running, submit = await worker.open(request, told_suspicions(metadata.get(SUSPICIONS_KEY)))
        wants = wants_logprobs(request.output)
        try:
            info = worker.supervisor.require_info()
            yield pb.GenerateResponse(
                accepted=pb.Accepted(
                    request_id=running.request_id,
                    model=request.model or worker.model_name,
                    prompt_tokens=running.prompt_tokens,
                    max_tokens=submit.max_tokens,
                    sampling=effective_sampling(submit.sampling, request.sampling),
                    running_requests=min(worker.admission.requests, info.max_running_requests),
                    waiting_requests=max(0, worker.admission.requests - info.max_running_requests),
                )
            )
            begun = False
            async for index, stream in _in_turn(running, request):
                if not begun:
                    begun = True
                    if request.output.echo or request.output.prompt_logprobs:
                        for part in prompt_parts(request, running.streams[0]):
                            yield pb.GenerateResponse(prompt_logprobs=part)
                    elif _may_share(request, running):
                        self._share(running, metadata, with_logprobs=wants)
                if stream.carrier is None and (tokens := stream.take()).ids:
                    response = pb.GenerateResponse()  # filled in place: a part that is made first is copied
                    self._fill(running, wants, index, response.delta, stream, tokens)
                    yield response
                # More may have come while the reader was slow; the end is said when all of it is sent.
                if stream.ended is not None and not stream.pending:
                    stream.told = True
                    yield pb.GenerateResponse(finished=_finished(running, index, stream, info, wants))
        finally:
            for stream in running.streams:
                if stream.carrier is not None:
                    stream.carrier.leave(stream)
            worker.close(running)
            if trailers := worker.load_trailers():
                context.set_trailing_metadata((*(context.trailing_metadata() or ()), *trailers))
            tell(
                **facts(running.request_id, request.model or worker.model_name, running.prompt_tokens, running.streams)
            )

    def _share(self, running: Running, metadata: Mapping[str, str | bytes], *, with_logprobs: bool) -> None:
        """Has the call that a request names, if there is one, send its deltas."""
        call = self._delta_calls.find(running.caller, str(metadata.get(_DELTAS_KEY, "")))
        if call is None:
            return
        number = None if with_logprobs else request_number(str(metadata.get(_NUMBER_KEY, "")))
        for index, stream in enumerate(running.streams):
            if number is None:
                call.carry(stream, running.request_id, partial(self._fill, running, with_logprobs, index))
            else:
                call.carry_ids(stream, number + index, partial(self._first_token, running))

    def _fill(
        self,
        running: Running,
        with_logprobs: bool,
        index: int,
        delta: pb.Delta,
        stream: OutputStream,
        tokens: Tokens,
    ) -> None:
        if stream.sent == len(tokens):
            self._first_token(running)
        delta.index = index
        delta.ids.extend(tokens.ids)
        if with_logprobs:
            delta.logprobs.extend(tokens.logprobs)
            delta.ranks.extend(tokens.ranks)
            delta.top_logprobs.extend(map(_top_logprobs, tokens.others))
            delta.vocabulary_logprobs = b"".join(tokens.whole)

    def _first_token(self, running: Running) -> None:
        self._worker.worker_metrics.first_token(time.monotonic() - running.received_at, running.exemplar)

    async def StreamDeltas(  # noqa: N802
        self,
        request: pb.StreamDeltasRequest,
        context: grpc.aio.ServicerContext[pb.StreamDeltasRequest, pb.StreamDeltasResponse],
    ) -> AsyncIterator[pb.StreamDeltasResponse]:
        """Implements StreamDeltas of inference.proto."""
        if violations := list(limit_violations(request, _STREAM_DELTAS_LIMITS)):
            raise invalid_argument(violations)
        with self._delta_calls.opened(caller_var.get(), request.key) as call:
            async for message in call.messages():
                yield message

    async def Abort(  # noqa: N802
        self, request: pb.AbortRequest, context: grpc.aio.ServicerContext[pb.AbortRequest, pb.AbortResponse]
    ) -> pb.AbortResponse:
        """Implements Abort of inference.proto."""
        if violations := list(limit_violations(request, _ABORT_LIMITS)):
            raise invalid_argument(violations)
        metadata = tuple(context.invocation_metadata() or ())
        return pb.AbortResponse(aborted_ids=self._worker.abort(list(request.request_ids), metadata))


async def _in_turn(running: Running, request: pb.GenerateRequest) -> AsyncIterator[tuple[int, OutputStream]]:
    """Yields each output that has something to send, with its index, until all have sent everything. When more samples
    are made than returned, nothing is sent before all have ended, because only then the best are known."""
    streams = running.streams
    if returns_best(request):
        penalty = request.length_penalty if request.HasField("length_penalty") else DEFAULT_LENGTH_PENALTY
        streams = await best_outputs(streams, max(1, request.n), penalty)
        running.left_out_tokens = sum(each.pending for each in running.streams) - sum(each.pending for each in streams)
    indices = {stream: index for index, stream in enumerate(streams)}
    while streams:
        for stream in await next_due(streams):
            yield indices[stream], stream
        streams = [stream for stream in streams if not stream.told]


def _may_share(request: pb.GenerateRequest, running: Running) -> bool:
    """Tells whether the deltas of a request are plain enough for a message with those of others."""
    return running.streams[0].delivery.is_plain and not returns_best(request)


def _top_logprobs(tokens: TopTokens) -> pb.TopLogprobs:
    ids, logprobs, ranks = tokens
    return pb.TopLogprobs(ids=ids, logprobs=logprobs, ranks=ranks)


def prompt_parts(request: pb.GenerateRequest, stream: OutputStream) -> Iterator[pb.PromptLogprobs]:
    """Returns the prompt, with the logprobs of its tokens where they were asked for; as far as these are known, if the
    request was ended before."""
    wanted = request.output.prompt_logprobs
    scored = stream.prompt
    ids = request.prompt_ids[: 1 + len(scored.logprobs)] if wanted else request.prompt_ids
    most = max((len(each) for each, _, _ in scored.others), default=0)
    with_others = wanted and (request.output.top_logprobs > 0 or bool(request.output.logprob_ids))
    nothing = [pb.TopLogprobs()] * with_others
    size = min(PROMPT_PART_TOKENS, max(1, _PROMPT_PART_OTHERS // max(1, most)))
    for start in range(0, len(ids), size):
        # Nothing is known of the first token; the others' lists begin behind it.
        first, part = not start, slice(max(0, start - 1), start + size - 1)
        yield pb.PromptLogprobs(
            ids=ids[start : start + size],
            logprobs=[*[math.nan] * first, *scored.logprobs[part]] if wanted else None,
            ranks=[*[0] * first, *scored.ranks[part]] if wanted else None,
            top_logprobs=[*nothing[: int(first)], *map(_top_logprobs, scored.others[part])],
        )


def _finished(running: Running, index: int, stream: OutputStream, info: EngineInfo, with_logprobs: bool) -> pb.Finished:
    ended = stream.ended
    assert ended is not None
    match ended.reason:
        case Failure.ERROR:
            raise internal(ended.detail, reason="MODEL_ERROR")
        case Failure.GUIDE:
            raise invalid_argument([FieldViolation("guided", f"cannot go on: {ended.detail}")])
        case Failure.IMPOSSIBLE:
            raise failed_precondition(ended.detail, reason="NO_TOKEN_LEFT")
    counted = ended.statistics
    counted.prompt_tokens, counted.completion_tokens = running.prompt_tokens, stream.sent
    counted.left_out_tokens = 0 if index else running.left_out_tokens
    counted.peak_kv_bytes = counted.peak_pages * info.page_size * info.kv_bytes_per_token
    return pb.Finished(
        index=index,
        total_logprob=stream.total_logprob if with_logprobs else None,
        reason=pb.FinishReason.ValueType(ended.reason),
        matched_stop_token=ended.matched_token,
        matched_stop_sequence=ended.matched_sequence,
        usage=pb.Usage(**fields_of(pb.Usage, counted)),
        timings=pb.Timings(**fields_of(pb.Timings, counted)),
    )

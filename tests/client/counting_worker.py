"""A small real worker whose model counts through a script, with switches for what is hard to make happen on purpose: it
stops in the middle, waits, refuses, or goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2 import HealthCheckResponse

from tandem.inference.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc
from tests.client.byte_vocabulary import EOS, VOCABULARY
from tests.client.refusals import refuse


def _finished(index: int, reason, tokens: int, **matched) -> inference_pb2.GenerateResponse:
    usage = inference_pb2.Usage(completion_tokens=tokens, forward_passes=tokens + 1, peak_pages=index)
    finished = inference_pb2.Finished(index=index, reason=reason, usage=usage, **matched)
    return inference_pb2.GenerateResponse(finished=finished)


@dataclass
class Seen:
    """One Generate call as the worker saw it."""

    request: inference_pb2.GenerateRequest
    metadata: dict[str, str]
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # either way
    sent: int = 0


class CountingWorker(inference_pb2_grpc.InferenceServiceServicer, admin_pb2_grpc.WorkerAdminServiceServicer):
    """Its model: the token at output position p is script[(p + seed) % len(script)]. So, as with the real one, an
    answer is a pure function of the prompt, the seed and the position."""

    def __init__(
        self, script: Sequence[int], *, name: str = "counting", fingerprint: str = "", context: int = 4096
    ) -> None:
        self.script = list(script)
        self.name = name
        self.fingerprint = fingerprint
        self.context = context
        self.delta_tokens = 1
        self.seen: list[Seen] = []
        self.running: dict[str, asyncio.Event] = {}
        self.pause_at: int | None = None  # waits for `go` before the token of this position
        self.go = asyncio.Event()
        self.paused = asyncio.Event()
        self.lose_at: int | None = None  # ends UNAVAILABLE before the token of this position
        self.lose_after: int | None = None  # the same, after so many tokens of each call
        self.lose_reason = "ENGINE_DIED"
        self.lose_before_finished = False
        self.full_calls = 0  # refuse so many with RESOURCE_EXHAUSTED
        self.retry_after: float | None = 0.01
        self.fail: tuple[grpc.StatusCode, str] | None = None
        self.refusals: list[str] = []  # reasons, each for one call that is refused with UNAVAILABLE
        self.incomplete = False
        self.heeds_abort = True
        self.drawn_seed = 12345
        self.get_model_calls = 0
        self.abort_calls = 0
        self.held = 0  # requests of others, which it tells beside its own
        self.load_calls = 0
        self.load_asked = asyncio.Event()
        self.load_fail: grpc.StatusCode | None = None
        self.tell_load = asyncio.Event()  # GetLoad waits for it
        self.tell_load.set()
        self.health = health_aio.HealthServicer()

    async def set_serving(self, serving: bool) -> None:
        status = HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
        await self.health.set("tandem.inference.v1.InferenceService", status)

    async def Generate(self, request, context):  # noqa: N802
        metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}
        seen = Seen(request, metadata)
        self.seen.append(seen)
        try:
            async for response in self._generate(request, context, seen):
                yield response
            seen.finished.set()
        except (asyncio.CancelledError, GeneratorExit):  # the latter when it was cancelled while a message was sent
            seen.cancelled.set()
            raise
        finally:
            self.running.pop(request.request_id, None)
            seen.ended.set()

    async def _several(self, request, context, seen, seed: int, max_tokens: int):
        """Output i is the answer to the seed plus i; a token of each in turn."""
        assert not request.resumed_output_ids
        open_outputs = set(range(request.n))
        for position in range(max_tokens):
            if self.lose_at == position:
                await refuse(context, grpc.StatusCode.UNAVAILABLE, "the worker is lost", reason=self.lose_reason)
            for index in sorted(open_outputs):
                token = self.token(position, seed + index)
                if token == EOS:
                    open_outputs.remove(index)
                    yield _finished(index, inference_pb2.FINISH_REASON_EOS, position, matched_stop_token=EOS)
                else:
                    delta = inference_pb2.Delta(index=index, ids=[token], logprobs=[-0.5 * position])
                    yield inference_pb2.GenerateResponse(delta=delta)
                    await asyncio.sleep(0)
        for index in open_outputs:
            yield _finished(index, inference_pb2.FINISH_REASON_MAX_TOKENS, max_tokens)

    async def _generate(self, request, context, seen) -> AsyncIterator[inference_pb2.GenerateResponse]:
        if self.full_calls:
            self.full_calls -= 1
            await refuse(
                context,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "the queue is full",
                reason="QUEUE_FULL",
                retry_after=self.retry_after,
            )
        if self.refusals:
            reason = self.refusals.pop(0)
            await refuse(context, grpc.StatusCode.UNAVAILABLE, "not now", reason=reason, retry_after=self.retry_after)
        if self.fail is not None:
            await refuse(context, *self.fail, reason="TEST")
        expected = request.expected_tokenizer_fingerprint
        if expected and expected != self.fingerprint:
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "another tokenizer", reason="TOKENIZER_MISMATCH")
        if request.request_id in self.running:
            await refuse(context, grpc.StatusCode.ALREADY_EXISTS, "running", reason="REQUEST_ID_IN_USE")
        aborted = self.running[request.request_id] = asyncio.Event()
        sampling, stopping = request.sampling, request.stopping
        seed = sampling.seed if sampling.HasField("seed") else self.drawn_seed
        room = self.context - len(request.prompt_ids)
        max_tokens = min(stopping.max_tokens, room) if stopping.HasField("max_tokens") else room
        effective = inference_pb2.SamplingParams()
        effective.CopyFrom(sampling)
        effective.seed = seed
        yield inference_pb2.GenerateResponse(
            accepted=inference_pb2.Accepted(
                request_id=request.request_id,
                model=self.name,
                prompt_tokens=len(request.prompt_ids),
                max_tokens=max_tokens,
                sampling=effective,
                running_requests=self.held + len(self.running),
            )
        )
        if request.n > 1:
            async for response in self._several(request, context, seen, seed, max_tokens):
                yield response
            return
        position = len(request.resumed_output_ids)
        assert [self.token(p, seed) for p in range(position)] == list(request.resumed_output_ids)
        reason, matched, pending = inference_pb2.FINISH_REASON_MAX_TOKENS, None, []
        while position < max_tokens:
            if self.pause_at == position:
                if pending:
                    yield self.delta(request, pending, seen)
                    pending = []
                self.paused.set()
                waits = [asyncio.create_task(self.go.wait()), asyncio.create_task(aborted.wait())]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
            if aborted.is_set():
                if not self.heeds_abort:
                    await self.go.wait()
                reason = inference_pb2.FINISH_REASON_CANCELLED
                break
            if self.lose_at == position or self.lose_after == seen.sent + len(pending):
                if pending:
                    yield self.delta(request, pending, seen)
                await refuse(context, grpc.StatusCode.UNAVAILABLE, "the worker is lost", reason=self.lose_reason)
            token = self.token(position, seed)
            if position >= stopping.min_tokens:
                if token == EOS and not stopping.ignore_eos:
                    reason, matched = inference_pb2.FINISH_REASON_EOS, token
                elif token in stopping.stop_token_ids:
                    reason, matched = inference_pb2.FINISH_REASON_STOP_TOKEN, token
            if matched is None or stopping.include_stop:
                pending.append(token)
                position += 1
            if pending and (len(pending) >= self.delta_tokens or matched is not None):
                yield self.delta(request, pending, seen)
                pending = []
                await asyncio.sleep(0)
            if matched is not None:
                break
        if pending:
            yield self.delta(request, pending, seen)
        if self.lose_before_finished:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, "the worker is lost", reason=self.lose_reason)
        if self.incomplete:
            return
        yield inference_pb2.GenerateResponse(
            finished=inference_pb2.Finished(
                reason=reason,
                matched_stop_token=matched,
                usage=inference_pb2.Usage(
                    prompt_tokens=len(request.prompt_ids),
                    cached_prompt_tokens=1,
                    completion_tokens=seen.sent,
                    forward_passes=position,
                ),
                timings=inference_pb2.Timings(
                    queue_seconds=0.001, prefill_seconds=0.002, decode_seconds=0.003, total_seconds=0.006
                ),
            )
        )

    def token(self, position: int, seed: int) -> int:
        return self.script[(position + seed) % len(self.script)]

    def delta(self, request, ids: list[int], seen: Seen) -> inference_pb2.GenerateResponse:
        first = len(request.resumed_output_ids) + seen.sent
        seen.sent += len(ids)
        logprobs = [-0.5 * (first + i) for i in range(len(ids))] if request.output.logprobs else []
        return inference_pb2.GenerateResponse(delta=inference_pb2.Delta(ids=ids, logprobs=logprobs))

    async def Abort(self, request, context):  # noqa: N802
        self.abort_calls += 1
        found = [name for name in request.request_ids if name in self.running]
        for name in found:
            self.running[name].set()
        return inference_pb2.AbortResponse(aborted_ids=found)

    async def GetModel(self, request, context):  # noqa: N802
        self.get_model_calls += 1
        return admin_pb2.GetModelResponse(
            name=self.name,
            architecture="counting",
            vocabulary_size=VOCABULARY,
            context_length=self.context,
            eos_ids=[EOS],
            tokenizer_fingerprint=self.fingerprint,
        )

    async def GetServer(self, request, context):  # noqa: N802
        return admin_pb2.GetServerResponse(version="0", state=admin_pb2.SERVER_STATE_SERVING, device="cpu")

    async def GetLoad(self, request, context):  # noqa: N802
        self.load_calls += 1
        self.load_asked.set()
        await self.tell_load.wait()
        if self.load_fail is not None:
            await refuse(context, self.load_fail, "no load is told", reason="TEST")
        return admin_pb2.GetLoadResponse(
            running_requests=len(self.running), held_requests=self.held + len(self.running)
        )

    async def ClearPrefixCache(self, request, context):  # noqa: N802
        return admin_pb2.ClearPrefixCacheResponse()

    async def SetDraining(self, request, context):  # noqa: N802
        state = admin_pb2.SERVER_STATE_DRAINING if request.draining else admin_pb2.SERVER_STATE_SERVING
        return admin_pb2.SetDrainingResponse(state=state)

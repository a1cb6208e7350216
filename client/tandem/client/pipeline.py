"""Runs an answer: encodes the prompt, then generates and decodes side by side."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tandem.client.account import FinishReason, Usage
from tandem.client.decoding import TextDecoder
from tandem.client.errors import StatusError, TandemError
from tandem.client.generation import TokenStream
from tandem.client.metrics import ClientMetrics
from tandem.client.outputs import GrowingOutput, top_logprobs
from tandem.client.plan import GenerationPlan
from tandem.client.prompts import checked_encode_input, ids_of
from tandem.client.rpc import CallContext
from tandem.client.sampling import from_message
from tandem.client.settings import FailoverSettings
from tandem.client.texts import TextService
from tandem.client.tracing import AnswerTrace
from tandem.client.types import Chunk, Conversation, Encoding, GenerationResult, Output, PromptLogprobs, Timings
from tandem.client.workers import WorkerPool
from tandem.inference.v1 import inference_pb2 as pb
from tandem.tokenizer.v1 import tokenizer_pb2

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

# How many last prompt ids the tokenizer gets to see: enough to tell whether the answer begins a text.
CONTEXT_IDS = 16
# How long a matched stop string waits for the worker's own account (usage and timings) before the RPC is cancelled.
ACCOUNT_SECONDS = 1.0


class _Changes:
    """Wakes those who wait for the next change. An asyncio.Event, cleared before each wait, costs twice as much, and a
    reader waits for each token."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def next(self) -> asyncio.Future[None]:
        """Returns what is done at the next change."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def wake(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():  # else its task was cancelled
                    waiter.set_result(None)


class _Taker(NamedTuple):
    """A reader who gets chunks where they arrive."""

    receive: Callable[[Chunk], bool]
    over: asyncio.Future[bool]  # done where it gets no more: False because it takes no more, True at the answer's end


class Pipeline:
    """One answer from prompt to result. It starts at once, on the running event loop."""

    def __init__(
        self,
        plan: GenerationPlan,
        *,
        encoding: Encoding | None,  # of the prompt, where somebody made it already
        texts: TextService | None,
        pool: WorkerPool,
        context: CallContext,
        failover: FailoverSettings,
        metrics: ClientMetrics,
        deliver_chunks: bool,
        tracer: Tracer | None = None,
    ) -> None:
        self.plan = plan
        self._trace = None if tracer is None else AnswerTrace(tracer, plan.model, context.extra)
        if self._trace is not None:
            context = dataclasses.replace(context, extra=self._trace.metadata)
        self.result: GenerationResult | None = None
        self.error: BaseException | None = None
        self._encoding = encoding
        self._texts = texts
        self._pool = pool
        self._context = context
        self._failover = failover
        self._metrics = metrics
        # Nobody reads pieces and no stop string has to be watched for: the text is made once, at the end.
        self._deliver_chunks = deliver_chunks
        self._decode_at_end = not deliver_chunks and not plan.stop_strings

        self._started_at = time.monotonic()
        self._encode_seconds: float | None = None
        self._first_output_at: float | None = None
        self._prompt_ids: list[int] = []
        self._vocabulary: Sequence[bytes] | None = None  # where pieces are told
        self._tokens: TokenStream | None = None
        self._outputs = [GrowingOutput(index, plan, self._published) for index in range(plan.n)]
        self._output_came = _Changes()
        self._taker: _Taker | None = None
        self._task = asyncio.create_task(self._run())

    # --- the reader's side

    @property
    def text(self) -> str:
        """The text of the first output so far."""
        return self._outputs[0].text

    @property
    def output_ids(self) -> list[int]:
        """The ids of the first output so far whose text is complete."""
        return self._outputs[0].output_ids

    @property
    def prompt_ids(self) -> list[int]:
        """The ids of the prompt, once it is encoded."""
        return self._prompt_ids

    @property
    def done(self) -> bool:
        return self.result is not None or self.error is not None

    async def next_chunk(self) -> Chunk | None:
        """Returns what is new since the last chunk, or None at the end. Raises the error that ended the answer early,
        after everything that came before it."""
        while True:
            for output in self._outputs:
                chunk = output.take()
                if chunk is not None:
                    return chunk
            if self.error is not None:
                raise self.error
            if self.result is not None:
                return None
            await self._output_came.next()

    async def pass_on(self, receive: Callable[[Chunk], bool]) -> bool:
        """See AsyncStream."""
        if not self._hand_over(self._outputs, receive):
            return False
        while not self.done:
            over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._taker = _Taker(receive, over)
            try:
                if not await over:
                    return False
            finally:
                self._taker = None
        if self.error is not None:
            raise self.error
        return True

    def _hand_over(self, outputs: Sequence[GrowingOutput], receive: Callable[[Chunk], bool]) -> bool:
        """Hands over what is new; returns False where `receive` takes no more."""
        for output in outputs:
            chunk = output.take()
            if chunk is not None and not receive(chunk):
                return False
        return True

    async def finish(self) -> GenerationResult:
        """Waits for the end and returns the result. Raises the error that ended the answer early."""
        while not self.done:
            await self._output_came.next()
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def cancel(self, error: TandemError) -> None:
        """Cancels the RPCs; readers get `error`. Does nothing when the answer is complete."""
        if not self.done:
            self._end(error=error)
            self._task.cancel()

    async def closed(self) -> None:
        """Waits until no call of this answer is open any more."""
        await asyncio.wait([self._task])

    # --- the making

    async def _run(self) -> None:
        try:
            await self._generate()
        except asyncio.CancelledError as error:
            self._end(error=error)  # without effect after `cancel`; otherwise the event loop itself shuts down
        except Exception as error:
            if isinstance(error, StatusError) and error.code.name == "FAILED_PRECONDITION":
                self._forget_fingerprints()
            self._end(error=error)

    async def _generate(self) -> None:
        fingerprint = await self._encode()
        if fingerprint and self._texts is not None:
            self._texts.serves(self.plan.tokenizer, fingerprint)
        if texts := self.plan.breaker_texts:
            assert self._texts is not None, "asked for by text"
            self.plan = self.plan.with_breakers(await self._texts.breakers(self.plan.tokenizer, texts, self._context))
        if self.plan.pieces:
            assert self._texts is not None, "checked by the client"
            self._vocabulary = await self._texts.pieces(self.plan.tokenizer, self._context)
            for output in self._outputs:
                output.vocabulary = self._vocabulary
        if self.plan.echo:
            text = await self._prompt_text()
            for output in self._outputs:
                output.begin(text)
            self._came(self._outputs)
        tokens = self._tokens = TokenStream(
            self._pool,
            self.plan,
            self._prompt_ids,
            fingerprint,
            self._context,
            self._failover,
            self._metrics,
            receive=lambda delta: self._outputs[delta.index].receive(delta),
            receive_ids=lambda index, ids: self._outputs[index].receive_ids(ids),
            end=lambda index: self._outputs[index].end(),
        )
        submitted_at = time.monotonic()
        pump = asyncio.create_task(tokens.run())
        pump.add_done_callback(lambda _: self._wake_outputs())
        decoders: list[TextDecoder] = []
        decoding: list[asyncio.Task[None]] = []
        try:
            if self.plan.detokenize:
                decoders = [self._decoder() for _ in self._outputs]
                decoding = [
                    asyncio.create_task(output.decode(decoder, pump, at_end=self._decode_at_end))
                    for output, decoder in zip(self._outputs, decoders, strict=True)
                ]
                await asyncio.gather(*decoding)
            else:
                await asyncio.shield(pump)
            if not pump.done():  # stop strings matched in all outputs, or all the text is there
                if any(output.matched_stop is not None for output in self._outputs):
                    await tokens.abort()
                await asyncio.wait([pump], timeout=ACCOUNT_SECONDS)
        finally:
            for decoder in decoders:
                decoder.close()
            for task in (pump, *decoding):
                task.cancel()
            await asyncio.wait([pump, *decoding])
        if tokens.first_delta_at is not None:
            self._metrics.first_token.observe(tokens.first_delta_at - submitted_at)
        self._end(result=self._result(tokens))

    def _decoder(self) -> TextDecoder:
        assert self._texts is not None
        opening = self.plan.decode_open(self._prompt_ids[-CONTEXT_IDS:])
        return TextDecoder(self._texts.decode_calls, opening, self._context, self._failover, self._metrics)

    async def _encode(self) -> str:
        """Sets the prompt's ids, and returns the fingerprint of their tokenizer ("" where unknown)."""
        plan = self.plan
        prompt = self._encoding or plan.prompt
        ids = ids_of(prompt)
        if ids is None:
            assert self._texts is not None
            encoding: Encoding
            if isinstance(prompt, Conversation):
                encoding, guide = await self._texts.encode_chat(plan.chat_request(prompt), self._context)
                if guide is not None:
                    self.plan = plan.guided_by(guide)
            else:
                message = checked_encode_input(
                    prompt,  # type: ignore[arg-type]  # not ids, so text
                    plan.special_tokens,
                    add_special=plan.add_special,
                    truncate_to=None,
                    field="prompt",
                )
                encoding = await self._texts.encode(plan.tokenizer, message, self._context)
            self._encode_seconds = time.monotonic() - self._started_at
            self._metrics.encode.observe(self._encode_seconds)
            if self._trace is not None:
                self._trace.encoded(self._encode_seconds)
            self._prompt_ids = encoding.ids
            return encoding.fingerprint
        self._prompt_ids = list(ids)
        if isinstance(prompt, Encoding):
            return prompt.fingerprint
        if self._texts is not None and plan.detokenize:
            return await self._texts.fingerprint(plan.tokenizer, self._context)
        return ""

    async def _prompt_text(self) -> str:
        if isinstance(self.plan.prompt, str):
            return self.plan.prompt
        assert self._texts is not None
        options = tokenizer_pb2.DecodeOptions(remove_special=True)
        return (await self._texts.decode(self.plan.tokenizer, self._prompt_ids, options, self._context)).text

    def _wake_outputs(self) -> None:
        for output in self._outputs:
            output.wake()

    def _published(self, output: GrowingOutput, text: str) -> None:
        if self._first_output_at is None and (text or any(output.ids_out for output in self._outputs)):
            self._first_output_at = time.monotonic()
        self._came((output,))

    def _came(self, outputs: Sequence[GrowingOutput]) -> None:
        """Tells the reader that there is more of these outputs."""
        taker = self._taker
        if taker is None:
            self._output_came.wake()
        elif not taker.over.done():
            try:
                if not self._hand_over(outputs, taker.receive):
                    taker.over.set_result(False)
            except Exception as error:  # of the reader: it ends nobody else who gets something of the same message
                taker.over.set_exception(error)

    def _end(self, *, result: GenerationResult | None = None, error: BaseException | None = None) -> None:
        if self.done:
            return
        self.result, self.error = result, error
        self._output_came.wake()
        if self._taker is not None and not self._taker.over.done():
            self._taker.over.set_result(True)
        if result is not None:
            outcome = "ok"
        else:
            outcome = error.code.name.lower() if isinstance(error, StatusError) else "cancelled"
        if self._trace is not None:
            self._trace.end(result, error)
        self._metrics.requests.labels("stream" if self._deliver_chunks else "generate", outcome).inc()

    def _result(self, tokens: TokenStream) -> GenerationResult:
        now = time.monotonic()
        accepted = tokens.accepted or pb.Accepted()
        # Absent where a stop string matched and the worker did not answer.
        finished = tokens.finished.get(0, pb.Finished())
        first = tokens.first_delta_at if self._decode_at_end else self._first_output_at
        decode = next((each.decode_seconds for each in self._outputs if each.decode_seconds is not None), None)
        if first is not None:
            self._metrics.time_to_first_token.observe(first - self._started_at)
        if decode is not None and not self._decode_at_end:
            self._metrics.first_text.observe(decode)
        ended = tokens.finished
        outputs = [_output(each, ended.get(each.index, pb.Finished()), self.plan) for each in self._outputs]
        return GenerationResult(
            text=outputs[0].text,
            output_ids=outputs[0].output_ids,
            logprobs=outputs[0].logprobs,
            ranks=outputs[0].ranks,
            top_logprobs=outputs[0].top_logprobs,
            prompt_logprobs=_prompt_logprobs(tokens.prompt, self.plan, self._vocabulary),
            finish_reason=outputs[0].finish_reason,
            matched_stop=outputs[0].matched_stop,
            matched_stop_token=outputs[0].matched_stop_token,
            matched_stop_sequence=outputs[0].matched_stop_sequence,
            outputs=outputs,
            content=outputs[0].content,
            reasoning=outputs[0].reasoning,
            tool_calls=outputs[0].tool_calls,
            broken_calls=outputs[0].broken_calls,
            reasoning_tokens=outputs[0].reasoning_tokens,
            pieces=outputs[0].pieces,
            vocabulary_logprobs=outputs[0].vocabulary_logprobs,
            prompt_ids=self._prompt_ids,
            usage=_usage(len(self._prompt_ids), self._outputs, list(tokens.finished.values())),
            timings=Timings(
                total_seconds=now - self._started_at,
                encode_seconds=self._encode_seconds,
                time_to_first_token=None if first is None else first - self._started_at,
                decode_seconds=decode,
                **_worker_timings(finished),
            ),
            seed=accepted.sampling.seed if accepted.sampling.HasField("seed") else None,
            sampling=from_message(accepted.sampling),
            max_tokens=accepted.max_tokens or None,
            model=accepted.model,
            request_id=self.plan.request_id,
            worker=tokens.worker.address if tokens.worker else "",
            failovers=tokens.failovers,
        )

    def _forget_fingerprints(self) -> None:
        if self._texts is not None:
            self._texts.forget_fingerprints()
        if self._tokens is not None and self._tokens.worker is not None:
            self._tokens.worker.forget_model()


def _prompt_logprobs(
    message: pb.PromptLogprobs, plan: GenerationPlan, vocabulary: Sequence[bytes] | None
) -> PromptLogprobs | None:
    if not plan.prompt_logprobs:
        return None
    others = [top_logprobs(each, vocabulary) for each in message.top_logprobs] if plan.with_top_logprobs else None
    return PromptLogprobs(logprobs=[None, *message.logprobs[1:]], ranks=list(message.ranks), top_logprobs=others)


def _output(output: GrowingOutput, finished: pb.Finished, plan: GenerationPlan) -> Output:
    stopped = output.matched_stop is not None
    matched_token = finished.matched_stop_token if finished.HasField("matched_stop_token") else None
    matched_sequence = finished.matched_stop_sequence if finished.HasField("matched_stop_sequence") else None
    answer = output.answer
    return Output(
        content=answer.content if plan.parses else output.text,
        reasoning=answer.reasoning,
        tool_calls=answer.tool_calls,
        broken_calls=answer.broken_calls,
        reasoning_tokens=answer.reasoning_tokens,
        response_format=plan.response_format,
        index=output.index,
        text=output.text,
        output_ids=output.output_ids,
        logprobs=output.logprobs,
        ranks=output.ranks,
        top_logprobs=output.top_logprobs,
        pieces=output.pieces,
        vocabulary_logprobs=output.vocabulary_logprobs,
        finish_reason=FinishReason.STOP_STRING if stopped else _reason(finished),
        matched_stop=output.matched_stop,
        matched_stop_token=None if stopped else matched_token,
        matched_stop_sequence=None if stopped else matched_sequence,
    )


def _reason(finished: pb.Finished) -> FinishReason:
    return FinishReason[pb.FinishReason.Name(finished.reason).removeprefix("FINISH_REASON_")]


def _worker_timings(finished: pb.Finished) -> dict[str, float]:
    if not finished.HasField("timings"):
        return {}
    names = pb.Timings.DESCRIPTOR.fields_by_name
    return {f"worker_{name}": getattr(finished.timings, name) for name in names}


def _usage(prompt_tokens: int, outputs: Sequence[GrowingOutput], finished: Sequence[pb.Finished]) -> Usage:
    """Returns the usage of all outputs together: peaks are the largest, cached prompt tokens the fewest, and all else
    is the sum. A value that not every worker reported is None."""
    told = [one.usage for one in finished if one.HasField("usage")]
    produced = sum(output.produced for output in outputs) + sum(usage.left_out_tokens for usage in told)
    total = {"prompt_tokens": prompt_tokens, "completion_tokens": produced}
    if told and len(told) == len(outputs):
        for name in pb.Usage.DESCRIPTOR.fields_by_name.keys() - total.keys():
            of_all = max if name.startswith("peak_") else min if name == "cached_prompt_tokens" else sum
            total[name] = of_all(getattr(usage, name) for usage in told)
    return Usage(**total)

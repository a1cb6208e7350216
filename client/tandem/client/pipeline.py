"""Text in, text out: encode, then generation and decoding side by side, as deltas come.

Two tasks an answer. The pump moves ids from the worker into a list. The decoder takes all that piled up, sends it to
the tokenizer in one message, and publishes the text of the answer; while it waits, ids pile up. So a near tokenizer
sees each delta at once and a far one sees larger deltas, with no setting for it. Published text and ids wait, merged,
until the reader comes; they are bounded by max_tokens, so a slow reader never holds up the worker's pages.
"""

from __future__ import annotations

import asyncio
import time

from tandem.inference.v1 import inference_pb2 as pb

from .conversations import chat_request
from .decoding import TextDecoder
from .errors import StatusError, TandemError
from .generation import TokenStream
from .metrics import ClientMetrics
from .plan import GenerationPlan
from .prompts import checked_encode_input, ids_of
from .rpc import CallContext
from .sampling import from_message
from .settings import FailoverSettings
from .texts import TextService
from .types import Chunk, Conversation, Encoding, FinishReason, GenerationResult, Timings, Usage
from .workers import WorkerPool

# How many last prompt ids the tokenizer gets to see: enough to tell whether the answer begins a text.
CONTEXT_IDS = 16
# How long a matched stop string waits for the worker's own account (usage and timings) before the RPC is cancelled.
ACCOUNT_SECONDS = 1.0

_REASONS = {
    pb.FINISH_REASON_MAX_TOKENS: FinishReason.MAX_TOKENS,
    pb.FINISH_REASON_STOP_TOKEN: FinishReason.STOP_TOKEN,
    pb.FINISH_REASON_EOS: FinishReason.EOS,
    pb.FINISH_REASON_STOP_SEQUENCE: FinishReason.STOP_SEQUENCE,
    pb.FINISH_REASON_GRAMMAR_END: FinishReason.GRAMMAR_END,
    pb.FINISH_REASON_CANCELLED: FinishReason.CANCELLED,
}


class Pipeline:
    """One answer from prompt to result. Starts at once, on the running event loop."""

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
    ) -> None:
        self.plan = plan
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
        self._first_text_at: float | None = None
        self._prompt_ids: list[int] = []
        self._tokens: TokenStream | None = None
        self._received: list[int] = []  # ids from the worker, in order
        self._logprobs: list[float] = []  # parallel to _received
        self._texts_out: list[str] = []  # published pieces of text
        self._ids_out = 0  # how many of _received are published
        self._texts_read = 0  # how many of the published pieces and ids the reader has
        self._ids_read = 0
        self._ids_came = asyncio.Event()
        self._output_came = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    # --- the reader's side

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._texts_out)

    @property
    def output_ids(self) -> list[int]:
        """All ids so far whose text is complete."""
        return self._received[: self._ids_out]

    @property
    def done(self) -> bool:
        return self.result is not None or self.error is not None

    async def next_chunk(self) -> Chunk | None:
        """What is new since the last chunk; None at the end. What ended it early is raised after all that came."""
        while self._texts_read == len(self._texts_out) and self._ids_read == self._ids_out:
            if self.error is not None:
                raise self.error
            if self.result is not None:
                return None
            self._output_came.clear()
            await self._output_came.wait()
        new = slice(self._ids_read, self._ids_out)
        chunk = Chunk(
            text="".join(self._texts_out[self._texts_read :]),
            ids=self._received[new],
            logprobs=self._logprobs[new] if self.plan.logprobs else None,
        )
        self._texts_read, self._ids_read = len(self._texts_out), self._ids_out
        return chunk

    async def finish(self) -> GenerationResult:
        """Waits for the end; the result, or what ended it early."""
        while not self.done:
            self._output_came.clear()
            await self._output_came.wait()
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def cancel(self, error: TandemError) -> None:
        """Cancels the RPCs; readers get `error`. Nothing happens when the answer is complete."""
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
        tokens = self._tokens = TokenStream(
            self._pool, self.plan, self._prompt_ids, fingerprint, self._context, self._failover, self._metrics
        )
        submitted_at = time.monotonic()
        pump = asyncio.create_task(self._pump(tokens))
        pump.add_done_callback(lambda _: self._ids_came.set())
        decoder: TextDecoder | None = None
        matched_stop: str | None = None
        try:
            if self.plan.detokenize:
                assert self._texts is not None
                decoder = TextDecoder(
                    self._texts.stub,
                    self.plan.decode_open(self._prompt_ids[-CONTEXT_IDS:]),
                    self._context,
                    self._failover,
                    self._metrics,
                )
                matched_stop = await self._decode(decoder, pump)
            else:
                await asyncio.shield(pump)
            if matched_stop is not None and not pump.done():
                await tokens.abort()
                await asyncio.wait([pump], timeout=ACCOUNT_SECONDS)
        finally:
            if decoder is not None:
                decoder.close()
            pump.cancel()
            await asyncio.wait([pump])
        if tokens.first_delta_at is not None:
            self._metrics.first_token.observe(tokens.first_delta_at - submitted_at)
        self._end(result=self._result(tokens, matched_stop))

    async def _encode(self) -> str:
        """Fills the prompt's ids; the fingerprint of the tokenizer they are of ("" where unknown)."""
        plan = self.plan
        prompt = self._encoding or plan.prompt
        ids = ids_of(prompt)
        if ids is None:
            assert self._texts is not None
            encoding: Encoding
            if isinstance(prompt, Conversation):
                encoding = await self._texts.encode_chat(chat_request(prompt, plan.tokenizer), self._context)
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
            self._prompt_ids = encoding.ids
            return encoding.fingerprint
        self._prompt_ids = list(ids)
        if isinstance(prompt, Encoding):
            return prompt.fingerprint
        if self._texts is not None and plan.detokenize:
            return await self._texts.fingerprint(plan.tokenizer, self._context)
        return ""

    async def _pump(self, tokens: TokenStream) -> None:
        """Worker -> `_received`."""
        async for delta in tokens.deltas():
            self._received.extend(delta.ids)
            if self.plan.logprobs:
                self._logprobs.extend(delta.logprobs)
                assert len(self._logprobs) == len(self._received), "delta arrays are parallel"
            if not self.plan.detokenize:
                self._publish("", len(self._received))
            self._ids_came.set()

    async def _decode(self, decoder: TextDecoder, pump: asyncio.Task[None]) -> str | None:
        """`_received` -> text; the stop string that matched, if one did."""
        fed = 0
        while True:
            if self._decode_at_end:
                await asyncio.wait([pump])
            elif fed == len(self._received) and not pump.done():
                self._ids_came.clear()
                await self._ids_came.wait()
            end = pump.done() and not pump.cancelled() and pump.exception() is None
            new = self._received[fed:]
            if not new and not end:
                if pump.done():
                    pump.result()  # raises what ended the worker's stream, after all text before it was given
                continue
            fed += len(new)
            response = await decoder.feed(new, end=end)
            if response.HasField("matched_stop"):
                trimmed = 0 if self.plan.stopping.include_stop else response.trim_ids
                self._publish(response.text, response.ids_consumed - trimmed)
                return response.matched_stop
            # A held byte belongs to one id, so no more ids than held bytes can still be trimmed.
            self._publish(response.text, fed if response.done else fed - response.held_bytes)
            if response.done:
                return None

    def _publish(self, text: str, id_count: int) -> None:
        """Hands out new text, and the ids up to `id_count` that it is made of."""
        now = time.monotonic()
        if text and self._first_text_at is None:
            self._first_text_at = now
        if text:
            self._texts_out.append(text)
        self._ids_out = max(self._ids_out, id_count)
        if self._first_output_at is None and (self._texts_out or self._ids_out):
            self._first_output_at = now
        self._output_came.set()

    def _end(self, *, result: GenerationResult | None = None, error: BaseException | None = None) -> None:
        if self.done:
            return
        self.result, self.error = result, error
        self._output_came.set()
        if result is not None:
            outcome = "ok"
        else:
            outcome = error.code.name.lower() if isinstance(error, StatusError) else "cancelled"
        self._metrics.requests.labels("stream" if self._deliver_chunks else "generate", outcome).inc()

    def _result(self, tokens: TokenStream, matched_stop: str | None) -> GenerationResult:
        now = time.monotonic()
        finished = tokens.finished or pb.Finished()  # absent when a stop string matched and the worker did not answer
        accepted = tokens.accepted or pb.Accepted()
        usage = finished.usage if finished.HasField("usage") else None
        timings = finished.timings if finished.HasField("timings") else None
        first = tokens.first_delta_at if self._decode_at_end else self._first_output_at
        decode = self._first_text_at - tokens.first_delta_at if self._first_text_at and tokens.first_delta_at else None
        if first is not None:
            self._metrics.time_to_first_token.observe(first - self._started_at)
        if decode is not None and not self._decode_at_end:
            self._metrics.first_text.observe(decode)
        matched_token = finished.matched_stop_token if finished.HasField("matched_stop_token") else None
        return GenerationResult(
            text=self.text,
            output_ids=self.output_ids,
            logprobs=self._logprobs[: self._ids_out] if self.plan.logprobs else None,
            finish_reason=FinishReason.STOP_STRING if matched_stop is not None else _REASONS[finished.reason],
            matched_stop=matched_stop,
            matched_stop_token=None if matched_stop is not None else matched_token,
            prompt_ids=self._prompt_ids,
            usage=Usage(
                prompt_tokens=len(self._prompt_ids),
                completion_tokens=len(tokens.output_ids),
                cached_prompt_tokens=usage.cached_prompt_tokens if usage else None,
                forward_passes=usage.forward_passes if usage else None,
                preemptions=usage.preemptions if usage else None,
                peak_pages=usage.peak_pages if usage else None,
                peak_kv_bytes=usage.peak_kv_bytes if usage else None,
            ),
            timings=Timings(
                total_seconds=now - self._started_at,
                encode_seconds=self._encode_seconds,
                time_to_first_token=None if first is None else first - self._started_at,
                decode_seconds=decode,
                worker_queue_seconds=timings.queue_seconds if timings else None,
                worker_prefill_seconds=timings.prefill_seconds if timings else None,
                worker_decode_seconds=timings.decode_seconds if timings else None,
                worker_total_seconds=timings.total_seconds if timings else None,
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

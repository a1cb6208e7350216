"""Translates our answers to a gateway's: chunks where it streams, and one `complete` with all of each output."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from smg_grpc_proto import vllm_engine_pb2 as vllm

from tandem.inference.v1 import inference_pb2 as pb

_REASONS = {
    pb.FINISH_REASON_MAX_TOKENS: "length",
    pb.FINISH_REASON_CANCELLED: "abort",
}
_OTHER_REASON = "stop"


@dataclass(slots=True)
class _Output:
    ids: list[int] = field(default_factory=list)
    logprobs: vllm.OutputLogProbs = field(default_factory=vllm.OutputLogProbs)


@dataclass(slots=True)
class Answers:
    """Translates the messages of one request."""

    stream: bool
    top: int | None  # logprobs of so many other tokens at each position; None: no logprobs
    prompt_top: int  # the same of the prompt
    _prompt_tokens: int = 0
    _prompt: vllm.InputLogProbs | None = None
    _outputs: dict[int, _Output] = field(default_factory=dict)

    @classmethod
    def to(cls, request: vllm.GenerateRequest) -> Answers:
        """Makes it for a request."""
        params = request.sampling_params
        top = params.logprobs if params.HasField("logprobs") else None
        return cls(request.stream, top, params.prompt_logprobs)

    def take(self, message: pb.GenerateResponse) -> Iterator[vllm.GenerateResponse]:
        """Yields what the gateway is told of one of our messages."""
        match message.WhichOneof("event"):
            case "accepted":
                self._prompt_tokens = message.accepted.prompt_tokens
            case "prompt_logprobs":
                self._add_prompt(message.prompt_logprobs)
            case "delta":
                yield from self._delta(message.delta)
            case "finished":
                yield vllm.GenerateResponse(complete=self._complete(message.finished))

    def _add_prompt(self, part: pb.PromptLogprobs) -> None:
        if self._prompt is None:
            self._prompt = vllm.InputLogProbs()
        self._prompt.token_ids.extend(part.ids)
        for value in part.logprobs:
            self._prompt.token_logprobs.append(
                vllm.InputTokenLogProb() if math.isnan(value) else vllm.InputTokenLogProb(value=value)
            )
        self._prompt.top_logprobs.extend(_top(part.top_logprobs, self.prompt_top))

    def _delta(self, delta: pb.Delta) -> Iterator[vllm.GenerateResponse]:
        output = self._outputs.setdefault(delta.index, _Output())
        first = not output.ids
        output.ids.extend(delta.ids)
        logprobs = None
        if self.top is not None:
            logprobs = vllm.OutputLogProbs(
                token_logprobs=delta.logprobs, token_ids=delta.ids, top_logprobs=_top(delta.top_logprobs, self.top)
            )
        if self.stream:
            yield vllm.GenerateResponse(
                chunk=vllm.GenerateStreamChunk(
                    token_ids=delta.ids,
                    prompt_tokens=self._prompt_tokens,
                    completion_tokens=len(output.ids),
                    output_logprobs=logprobs,
                    input_logprobs=self._prompt if first else None,
                    index=delta.index,
                )
            )
        elif logprobs is not None:
            output.logprobs.MergeFrom(logprobs)

    def _complete(self, finished: pb.Finished) -> vllm.GenerateComplete:
        output = self._outputs.pop(finished.index, None) or _Output()
        whole = not self.stream
        complete = vllm.GenerateComplete(
            output_ids=output.ids,
            finish_reason=_REASONS.get(finished.reason, _OTHER_REASON),
            prompt_tokens=self._prompt_tokens,
            completion_tokens=len(output.ids),
            cached_tokens=finished.usage.cached_prompt_tokens,
            output_logprobs=output.logprobs if whole and self.top is not None else None,
            input_logprobs=self._prompt if whole or not output.ids else None,
            index=finished.index,
            spec_accepted_tokens=finished.usage.draft_tokens_accepted,
            spec_draft_tokens=finished.usage.draft_tokens_proposed,
        )
        if finished.reason == pb.FINISH_REASON_STOP_TOKEN:
            complete.matched_token_id = finished.matched_stop_token
        return complete


def _top(others: Sequence[pb.TopLogprobs], count: int) -> list[vllm.TopLogProbs]:
    if not count:
        return []
    return [vllm.TopLogProbs(values=each.logprobs[:count], token_ids=each.ids[:count]) for each in others]

"""What answers of both interfaces have in common."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tandem.client import FinishReason, Output, Timings, Usage
from tandem.http.errors import ApiError, unavailable


class PromptDetails(msgspec.Struct):
    """Of the tokens of a prompt."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct):
    """Of the tokens of an answer."""

    reasoning_tokens: int


class UsageBody(msgspec.Struct):
    """What a request cost, in tokens, all its choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class RunningUsage(msgspec.Struct):
    """What a stream has cost until now; what was cached, and what was reasoning, is told at the end."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


def usage_until(prompt_tokens: int, completion_tokens: int) -> RunningUsage:
    """As vLLM's chunks have it."""
    return RunningUsage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens)


class TimingsBody(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Where the time of an answer went, in seconds: the tokenizer service, the worker, and the tokenizer service again,
    which decodes while the worker does. What is not known is left out."""

    tokenize: float | None = None
    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None
    detokenize: float | None = None
    total: float


def timings_of(timings: Timings) -> TimingsBody:
    """As our own parameter `timings` asks for."""
    return TimingsBody(
        tokenize=timings.encode_seconds,
        queue=timings.worker_queue_seconds,
        prefill=timings.worker_prefill_seconds,
        decode=timings.worker_decode_seconds,
        detokenize=timings.decode_seconds,
        total=timings.total_seconds,
    )


def usage_of(usage: Usage, outputs: Sequence[Output] = ()) -> UsageBody:
    """As OpenAI's interface has it."""
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptDetails(usage.cached_prompt_tokens or 0),
        completion_tokens_details=CompletionDetails(sum(output.reasoning_tokens for output in outputs)),
    )


def finish_reason(output: Output) -> str:
    """Raises ApiError for an output that somebody ended at the worker."""
    if output.finish_reason is FinishReason.CANCELLED:
        raise aborted()
    if output.finish_reason is FinishReason.MAX_TOKENS:
        return "length"
    return "tool_calls" if output.tool_calls else "stop"


def aborted() -> ApiError:
    """An operator has ended the generation."""
    return unavailable("the generation was aborted at the worker", "aborted")

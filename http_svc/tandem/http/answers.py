"""What answers of both interfaces have in common."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tandem.client import FinishReason, Output, Usage
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

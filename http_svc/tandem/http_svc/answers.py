"""What answers of both interfaces have in common."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tandem.client import FinishReason, Output, Usage
from tandem.http_svc.errors import ApiError, unavailable

FINISH_REASONS: Mapping[FinishReason, str] = {
    FinishReason.MAX_TOKENS: "length",
    FinishReason.STOP_STRING: "stop",
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.STOP_SEQUENCE: "stop",
    FinishReason.EOS: "stop",
    FinishReason.GRAMMAR_END: "stop",
}


class PromptDetails(msgspec.Struct):
    """Of the tokens of a prompt."""

    cached_tokens: int


class UsageBody(msgspec.Struct):
    """What a request cost, in tokens, all its choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage_of(usage: Usage) -> UsageBody:
    """As OpenAI's interface has it."""
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptDetails(usage.cached_prompt_tokens or 0),
    )


def finish_reason(output: Output) -> str:
    """Raises ApiError for an output that somebody ended at the worker."""
    if output.finish_reason is FinishReason.CANCELLED:
        raise aborted()
    return FINISH_REASONS[output.finish_reason]


def aborted() -> ApiError:
    """An operator has ended the generation."""
    return unavailable("the generation was aborted at the worker", "aborted")

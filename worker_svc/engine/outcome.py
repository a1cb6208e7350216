"""What sampled tokens do to their request: they are appended, drafts are accepted by them, and they may end it.

    not finite                    the model's numbers are broken: ERROR
    not possible                  its constraints leave no id: IMPOSSIBLE
    exhausted                     a limit of the grammar was reached: ERROR; grammar, min_tokens and ignore_eos together
                                  leave no id: GRAMMAR_END
    a stop id, an EOS id          STOP_TOKEN, EOS; the id is output only with include_stop
    not allowed by the grammar    a limit of the grammar was reached: ERROR
    completes a stop sequence     STOP_SEQUENCE; its ids are output only with include_stop
    ends the grammar              GRAMMAR_END
    the last of max_tokens        MAX_TOKENS

in this order, token by token, so that speculation ends a request where single steps would. Pure: no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker_svc.engine.grammar import Matcher
from worker_svc.engine.request import FinishReason, Request


@dataclass(frozen=True, slots=True)
class End:
    """Why a request is over; `trim` of its last output tokens are not part of the answer."""

    reason: FinishReason
    matched_token: int | None = None
    matched_sequence: int | None = None
    trim: int = 0
    detail: str = ""  # of an ERROR, in words for the caller
    broken: bool = False  # the request's keys and values are not to be shown to anybody


_BROKEN = End(FinishReason.ERROR, detail="the model's logits are not finite", broken=True)
_IMPOSSIBLE = End(
    FinishReason.IMPOSSIBLE, detail="allowed and banned ids and sequences leave no token that could come next"
)


def take_tokens(
    request: Request,
    sampled: Sequence[int],
    finite: Sequence[bool],
    possible: Sequence[bool],
    exhausted: Sequence[bool],
) -> tuple[int, End | None]:
    """Appends `sampled[0]`, and `sampled[i + 1]` while `sampled[i]` is what draft i said; all `[drafts + 1]`.

    Returns how many of them are output, and the end if one of them is the last.
    """
    drafts = request.tokens[request.num_tokens : request.num_tokens + len(sampled) - 1].tolist()
    request.drafts = 0
    taken = 0
    for place, token in enumerate(sampled):
        if not finite[place]:
            return taken, _BROKEN
        if exhausted[place]:
            assert request.matcher is not None
            return taken, _grammar_error(request.matcher) or End(FinishReason.GRAMMAR_END)
        if not possible[place]:
            return taken, _IMPOSSIBLE
        if not request.stopping.max_tokens:  # the prompt was only scored
            return taken, End(FinishReason.MAX_TOKENS)
        request.append(token)
        end = _end_after(request, token)
        if end is not None:
            left_out = end.matched_token is not None and not request.stopping.include_stop
            return taken + (not left_out), end
        taken += 1
        if place < len(drafts) and token != drafts[place]:
            break
    return taken, None


def resume(request: Request) -> End | None:
    """Puts a request where the output that another worker produced leaves it; the end if that was all."""
    output = request.known[request.prompt_tokens :].tolist()
    if request.stopping.sequences is not None:
        request.stop_state = request.stopping.sequences.after_all(output)
        match = request.stopping.sequences.match(request.stop_state)
        early = request.output_tokens <= request.stopping.min_tokens
        if match is not None and request.stopping.include_stop and not early:
            return End(FinishReason.STOP_SEQUENCE, matched_sequence=match.place)
    if request.matcher is not None:
        for token in output:
            request.matcher.consume(token)
        if output and request.matcher.ended and not request.matcher.error:
            return End(FinishReason.GRAMMAR_END)
    if request.output_tokens >= request.stopping.max_tokens and not request.scoring:
        # Another worker produced everything and was lost before it could say so.
        return End(FinishReason.MAX_TOKENS)
    return None


def _grammar_error(matcher: Matcher) -> End | None:
    return End(FinishReason.ERROR, detail=f"guided decoding cannot go on: {matcher.error}") if matcher.error else None


def _end_after(request: Request, token: int) -> End | None:
    stopping = request.stopping
    if token in stopping.stop_ids:
        return End(FinishReason.STOP_TOKEN, matched_token=token)
    if token in stopping.eos_ids:
        return End(FinishReason.EOS, matched_token=token)
    if request.matcher is not None:
        request.matcher.consume(token)
        if error := _grammar_error(request.matcher):
            return error
    if stopping.sequences is not None:
        request.stop_state = stopping.sequences.after(request.stop_state, token)
        match = stopping.sequences.match(request.stop_state)
        if match is not None:
            trim = 0 if stopping.include_stop else match.length
            return End(FinishReason.STOP_SEQUENCE, matched_sequence=match.place, trim=trim)
    if request.matcher is not None and request.matcher.ended:
        return End(FinishReason.GRAMMAR_END)
    if request.output_tokens >= stopping.max_tokens:
        return End(FinishReason.MAX_TOKENS)
    return None

"""Applies sampled tokens to their request: appends them, accepts drafts by them, and decides whether they end it.

    not finite                    the model's numbers are broken: ERROR
    nothing is generated          how the output ends that there was already, none included
    not possible                  its constraints leave no id: IMPOSSIBLE
    exhausted                     grammar, min_tokens and ignore_eos together leave no id: GRAMMAR_END
    a stop id, an EOS id          STOP_TOKEN, EOS; the id is output only with include_stop
    completes a stop sequence     STOP_SEQUENCE; its ids are output only with include_stop
    the matcher cannot go on      a limit was reached: GUIDE, or ERROR where that is our fault
    ends the grammar              GRAMMAR_END
    the last of max_tokens        MAX_TOKENS

in this order, token by token, so that speculation ends a request where single steps would. What the matcher makes of
the last token is told later: then `decide` has the last three. Pure: no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.worker.engine.account import FinishReason
from tandem.worker.engine.ends import End, Failure
from tandem.worker.engine.request import Request

BROKEN = End(Failure.ERROR, detail="the model's logits are not finite", broken=True)
_IMPOSSIBLE = End(Failure.IMPOSSIBLE, detail="allowed and banned ids and sequences leave no token that could come next")


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
            return taken, BROKEN
        if request.ending is not None:
            return taken, request.ending
        if exhausted[place]:
            return taken, End(FinishReason.GRAMMAR_END)
        if not possible[place]:
            return taken, _IMPOSSIBLE
        guided = request.matcher is not None
        request.append(token)
        drafted = place < len(drafts) and token == drafts[place]
        end = _end_after(request, token, place if drafted else None)
        if end is not None:
            left_out = end.matched_token is not None and not request.stopping.include_stop
            return taken + (not left_out), end
        taken += 1
        if not drafted or guided != (request.matcher is not None):  # it begins or waits: what follows was not masked
            break
    if request.matcher is not None:
        request.matcher.move()
    return taken, None


def decide(request: Request) -> End | None:
    """Returns the end that the last token is, once the request's matcher has told of it."""
    matcher = request.matcher
    assert matcher is not None
    if matcher.error:
        if matcher.ours:
            return End(Failure.ERROR, detail=f"guided decoding cannot go on: {matcher.error}")
        return End(Failure.GUIDE, detail=matcher.error)
    if matcher.decided or not matcher.known:
        return None
    matcher.decided = True
    if matcher.over:
        return End(FinishReason.GRAMMAR_END)
    return _full(request)


def resume(request: Request) -> End | None:
    """Puts a request in the state after the output that another worker produced; returns the end if that was all."""
    output, stopping = request.known[request.prompt_tokens :].tolist(), request.stopping
    if request.thinking is not None:
        request.thinking.resume(output)
        request.matcher = request.thinking.guiding
    told = stopping.include_stop and request.output_tokens > stopping.min_tokens  # what ends it is part of the output
    if told and (end := _ending(request, output[-1])) is not None:
        return end
    if stopping.sequences is not None:
        request.stop_state = stopping.sequences.after_all(output)
        match = stopping.sequences.match(request.stop_state)
        if match is not None and told:
            return End(FinishReason.STOP_SEQUENCE, matched_sequence=match.place)
    if request.matcher is not None and output:
        request.matcher.decided = False
        return None
    # Another worker produced everything and was lost before it could say so; or nothing is to be generated.
    return _full(request)


def _ending(request: Request, token: int) -> End | None:
    if token in request.stopping.stop_ids:
        return End(FinishReason.STOP_TOKEN, matched_token=token)
    if token in request.stopping.eos_ids:
        return End(FinishReason.EOS, matched_token=token)
    return None


def _full(request: Request) -> End | None:
    return End(FinishReason.MAX_TOKENS) if request.output_tokens >= request.stopping.max_tokens else None


def _end_after(request: Request, token: int, draft: int | None) -> End | None:
    """Returns the end that a token is, if any; `draft` is which draft the token is, if it is one."""
    stopping = request.stopping
    if (end := _ending(request, token)) is not None:
        return end
    if stopping.sequences is not None:
        request.stop_state = stopping.sequences.after(request.stop_state, token)
        match = stopping.sequences.match(request.stop_state)
        if match is not None:
            trim = 0 if stopping.include_stop else match.length
            return End(FinishReason.STOP_SEQUENCE, matched_sequence=match.place, trim=trim)
    if request.matcher is not None:
        if draft is None:
            return None  # `decide` will tell
        if request.matcher.ends_after(draft):
            return End(FinishReason.GRAMMAR_END)
    return _full(request)

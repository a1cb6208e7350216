"""Drafts: tokens that probably come next, so that one forward pass can tell several.

A step computes a request's last token and its k drafts together and samples after each of them, with the very numbers
that it would use token by token. Draft after draft is accepted while it equals what was sampled before it; the first
one that differs, and all behind it, are rejected. So speculation changes how many passes an answer takes and nothing
else. What rejected drafts left in the cache is overwritten by the tokens that take their places.

The window (how many drafts) adapts: it doubles when all were accepted, shrinks to what was accepted and one more, and
after rounds in which nothing was, the request rests for a while. All requests together get MAX_ROWS rows: with many of
them, rows that are sure to count are worth more than rows that may, so windows shrink and speculation ends by itself.

Where drafts come from, the first that has any: what a grammar forces; prompt lookup (Saxena 2023): where the last n
tokens stood before in prompt or output, what followed then; a draft model (`draft_model.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from worker_svc.engine.drafting import Drafting, NGramIndex
from worker_svc.engine.pages import Tokens
from worker_svc.engine.request import Request

MAX_ROWS = 32  # of requests that decode, drafts included


class Proposer(Protocol):
    """Finds drafts; a draft model does, beside prompt lookup."""

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> None:
        """Writes up to `counts[i]` drafts behind the known tokens of `requests[i]`, and how many into `.drafts`."""
        ...


@dataclass(slots=True)
class Speculation:
    """Gives requests their drafts before each step."""

    model: Proposer | None = None

    def propose(self, running: Sequence[Request]) -> None:
        """Writes drafts behind the known tokens of those that decode and want some."""
        # A draw that depends on earlier draws cannot be made before they are.
        wanting = [r for r in running if r.drafting is not None and not r.sampling.stateful]
        if not wanting:
            return
        decoding = sum(request.owed == 1 for request in running)
        most = MAX_ROWS // max(1, decoding) - 1
        asked: list[Request] = []
        counts: list[int] = []
        for request in wanting:
            request.drafts = 0
            drafting = request.drafting
            assert drafting is not None
            # One token is sampled in any case; drafts behind the last one that is wanted would be in vain.
            left = request.stopping.max_tokens - request.output_tokens - 1
            count = min(most, drafting.window, drafting.max_tokens, left)
            if request.owed != 1 or count < 1 or request.num_tokens < drafting.rest_until:
                continue
            if self._guess(request, drafting, count):
                continue
            asked.append(request)
            counts.append(count)
        if self.model is not None and asked:
            self.model.propose(asked, counts)

        for request in wanting:
            if request.matcher is not None and request.drafts:
                # Behind a token that the grammar forbids, nothing can be accepted.
                first = request.num_tokens
                request.drafts = request.matcher.allowed_prefix(request.tokens[first : first + request.drafts].tolist())

    @staticmethod
    def _guess(request: Request, drafting: Drafting, count: int) -> bool:
        """What costs no model: what a grammar forces, or what followed the last tokens before."""
        draft: Sequence[int] | Tokens = ()
        if request.matcher is not None:
            draft = request.matcher.forced()[:count]
        if not len(draft) and drafting.ngram:
            if drafting.index is None:
                drafting.index = NGramIndex(drafting.ngram)
            draft = drafting.index.continuation(request.known, count)
        request.drafts = len(draft)
        request.tokens[request.num_tokens : request.num_tokens + len(draft)] = draft
        return len(draft) > 0

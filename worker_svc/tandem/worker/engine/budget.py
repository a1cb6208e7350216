"""What one step computes of each request, and how much more it may."""

from __future__ import annotations

from dataclasses import dataclass, field

from tandem.worker.engine.request import Request
from tandem.worker.engine.states import StateStep

SCORED_TOKENS = 64  # prompt tokens in a step whose logits are wanted: a row of logits can be half a megabyte


@dataclass(slots=True, eq=False)
class Chunk:
    """`length` tokens of `request` from `start` on, of which the logits of the last `samples` are wanted: 1 if they
    reach its last token, so that the next is drawn, and one more for each of its drafts; else 0.

    What has no finite number makes none of all that follows finite. So the last token's logits tell of all before."""

    request: Request
    start: int
    length: int
    samples: int
    scores: bool = False  # the logits of all its tokens are wanted, for the logprobs of the prompt
    checked: bool = False  # those of its last token are wanted to see that they are finite, where nothing is sampled
    state: StateStep | None = None  # of a sequence that has a state
    dropped: bool = False  # by `Scheduler.drop`
    sound: bool = False  # once its last token's logits were seen to be finite

    @property
    def logits(self) -> int:
        """Returns how many of its last tokens' logits are wanted."""
        return self.length if self.scores else self.samples or int(self.checked)


@dataclass(slots=True)
class Budget:
    """The tokens that a step may still compute, among them prompt tokens whose logits are wanted, and the chunks that
    got the others."""

    tokens: int
    scored: int = SCORED_TOKENS
    chunks: dict[int, Chunk] = field(default_factory=dict)  # by number

    def left(self, request: Request) -> int:
        """Returns how many tokens a request may get."""
        return min(self.tokens, self.scored) if request.scoring else self.tokens

    def spend(self, chunk: Chunk) -> None:
        """Gives a request its chunk."""
        self.chunks[chunk.request.number] = chunk
        self.tokens -= chunk.length
        self.scored -= chunk.length if chunk.scores else 0

    def give_back(self, request: Request) -> None:
        """Takes a request's chunk back, if it has one."""
        if (chunk := self.chunks.pop(request.number, None)) is not None:
            self.tokens += chunk.length

"""A step between its launch and the reading of its results.

Overlap: while the device computes step n, step n + 1 is scheduled and launched behind it, with the ids that n samples
left on the device; only then is n read, and told. So the host's work is hidden behind the device's.

    launch n      requests of n get a *pending* token: one that counts, and is not known
    sample n      its ids lie on the device
    launch n + 1  of the requests whose token is pending, the input is taken from those ids
    land n        its ids become known; what ended computes one row too many in n + 1, which is dropped and counted

What a request gets is fixed by its own tokens, so overlap changes no bit of an answer, only who shares a step.

It needs requests whose next step can be launched without their last token (`can_overlap`), and pages for all of them:
who must give pages back is decided when everything is known. While one request of another kind runs, or pages are
short, steps are launched when the one before has landed. A step that samples by torch's operations is waited for while
it does: then nothing runs while the next one is launched, and that does not count as overlap (`Flight.runs_on`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from tandem.worker.engine.constraints import Masks, StepConstraints
from tandem.worker.engine.request import Request
from tandem.worker.engine.sampler import Launched, Rows, SamplingTable, launch
from tandem.worker.engine.scheduler import Chunk
from tandem.worker.engine.scoring import PromptScores, score_prompts
from tandem.worker.model.runner import Work
from tandem.worker.model.states import STATELESS_WORK, StateWork


@dataclass(slots=True)
class Flight:
    """A step that has been launched."""

    chunks: list[Chunk]
    constraints: StepConstraints
    logits: torch.Tensor | None  # until it is sampled
    schedule_seconds: float
    forward_seconds: float
    prompts: list[PromptScores] = field(default_factory=list)
    exhausted: list[bool] = field(default_factory=list)
    tokens: Launched | None = None
    runs_on: bool = False  # the device may still be computing it: what was sampled last did not wait for it

    @property
    def seconds(self) -> float:
        """Returns how long its launch took, in seconds."""
        return self.schedule_seconds + self.forward_seconds

    @property
    def sampling(self) -> list[Chunk]:
        """Returns the chunks behind which a token is sampled; the ids are in their order."""
        return [chunk for chunk in self.chunks if chunk.samples and not chunk.dropped]

    def sample(self, table: SamplingTable) -> None:
        """Samples the tokens; on a GPU without waiting for them, where that can be."""
        logits, self.logits = self.logits, None
        assert logits is not None, "a step is sampled once"
        masks, exhausted, kept = self.constraints.finish(logits.shape[1])
        self.exhausted = exhausted.tolist()
        with torch.inference_mode():
            self.prompts, logits = score_prompts(self.chunks, logits)
            if kept is not None:
                logits = logits[torch.from_numpy(kept).to(logits.device)]
            if sampling := self.sampling:
                self.tokens = launch(logits, _rows(sampling, masks), table)
        waited = self.tokens is not None and self.tokens.waited
        self.runs_on = logits.is_cuda and not waited and not self.prompts


def can_overlap(request: Request) -> bool:
    """Tells whether a step can be launched without the request's last token being known: what it computes depends
    neither on drafts nor on a guide that must be told the token. What is sampled behind it may depend on all tokens
    before, for it is sampled when these have landed."""
    return request.matcher is None and request.drafting is None


def work(chunk: Chunk) -> Work:
    """Returns what the model is to compute of a chunk."""
    request = chunk.request
    assert request.pages is not None
    tokens, in_flight = request.tokens[chunk.start : chunk.start + chunk.length], request.in_flight
    row = in_flight.row if in_flight.pending else None
    state = STATELESS_WORK if chunk.state is None else StateWork(*chunk.state)
    return Work(tokens, chunk.start, request.pages.held, chunk.logits, row, state)


def _rows(chunks: list[Chunk], masks: Masks | None) -> Rows:
    """Returns one row for the next token of each chunk's request, and one behind each of its drafts."""
    samples = np.array([chunk.samples for chunk in chunks], dtype=np.int64)
    first = np.cumsum(samples) - samples
    ends = np.array([chunk.start + chunk.length for chunk in chunks], dtype=np.int64)
    positions = np.arange(samples.sum()) + np.repeat(ends + 1 - samples - first, samples)
    return Rows([chunk.request for chunk in chunks for _ in range(chunk.samples)], positions, masks)

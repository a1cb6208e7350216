"""A step between its launch and the reading of its results.

Overlap: while the device computes step n, step n + 1 is scheduled and launched behind it, with the ids that n samples
left on the device; only then is n read, and told. So the host's work is hidden behind the device's.

    launch n      requests of n get a *pending* token: one that counts, and is not known
    sample n      its ids lie on the device
    launch n + 1  of the requests whose token is pending, the input is taken from those ids
    land n        its ids become known; what ended computes one row too many in n + 1, which is dropped and counted

What a request gets is fixed by its own tokens, so overlap changes no bit of an answer, only who shares a step. Masks
and penalties depend on all tokens before: a step is sampled when these have landed, while the device still computes it.

How many tokens drafts become is not known before they have landed. So a request with drafts in flight sits out the step
that is launched meanwhile, and so may one that is likely to get some (`Speculation.lets_overlap`).

While pages are short, or many sit out, steps are launched when the one before has landed. A step that torch's
operations sample is waited for, and one whose masks come late has been computed before it is sampled: then nothing runs
while the next one is launched, and that does not count as overlap (`Flight.runs_on`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from tandem.worker.engine.budget import Chunk
from tandem.worker.engine.constraints import Masks, StepConstraints
from tandem.worker.engine.sampler import Launched, Rows, SamplingTable, launch
from tandem.worker.engine.scoring import PromptScores, score_prompts
from tandem.worker.model.inference import in_inference_mode
from tandem.worker.model.states import STATELESS_WORK, StateWork
from tandem.worker.model.work import Work


@dataclass(slots=True)
class Flight:
    """A step that has been launched."""

    chunks: list[Chunk]
    constraints: StepConstraints | None  # once all tokens before its rows are known
    logits: torch.Tensor | None  # until it is sampled
    schedule_seconds: float
    forward_seconds: float
    prompts: list[PromptScores] = field(default_factory=list)
    exhausted: list[bool] = field(default_factory=list)
    broken: list[Chunk] = field(default_factory=list)  # chunks that were checked, and whose numbers are not finite
    tokens: Launched | None = None
    _busy: bool = False  # the device was computing it when it was sampled, and was not waited for
    _computed: torch.cuda.Event | None = None  # of a step with guided rows

    def __post_init__(self) -> None:
        if self.logits is not None and self.logits.is_cuda and any(c.request.matcher is not None for c in self.chunks):
            self._computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._computed.record()

    @property
    def seconds(self) -> float:
        """Returns how long its launch took, in seconds."""
        return self.schedule_seconds + self.forward_seconds

    @property
    def runs_on(self) -> bool:
        """Tells whether the device is still computing it, without having paused."""
        return self._busy and not (self.tokens is not None and self.tokens.arrived)

    @property
    def sampling(self) -> list[Chunk]:
        """Returns the chunks behind which a token is sampled; the ids are in their order."""
        return [chunk for chunk in self.chunks if chunk.samples and not chunk.dropped]

    @in_inference_mode
    def sample(self, table: SamplingTable, drop: Callable[[list[Chunk]], None]) -> None:
        """Samples the tokens, on a GPU without waiting where that can be. `drop` is told whose masks have not come."""
        logits, self.logits = self.logits, None
        assert logits is not None and self.constraints is not None, "a step is sampled once"
        masks, exhausted, dropped, kept = self.constraints.finish(logits.shape[1])
        drop(dropped)
        self.exhausted = exhausted
        idle = self._computed is not None and self._computed.query()  # type: ignore[no-untyped-call]
        row, sampling = 0, self.sampling
        for chunk in sampling:
            chunk.request.in_flight.row = row
            row += chunk.samples
        if dropped or any(chunk.checked for chunk in self.chunks):
            self._check(logits)
        self.prompts, logits = score_prompts(self.chunks, logits)
        if kept is not None:
            logits = logits[torch.from_numpy(kept).to(logits.device)]
        if sampling:
            self.tokens = launch(logits, _rows(sampling, masks), table)
        self._busy = logits.is_cuda and not idle and not self.prompts

    def _check(self, logits: torch.Tensor) -> None:
        """Looks at the logits of what is checked and of what was dropped, which nobody samples."""
        row = 0
        for chunk in self.chunks:
            row += chunk.logits
            if chunk.checked or (chunk.dropped and not logits.is_cuda):
                chunk.sound = bool(logits[row - 1].isfinite().all())
                if chunk.checked and not chunk.sound:
                    self.broken.append(chunk)


def work(chunk: Chunk) -> Work:
    """Returns what the model is to compute of a chunk."""
    request = chunk.request
    assert request.pages is not None
    tokens, in_flight = request.tokens[chunk.start : chunk.start + chunk.length], request.in_flight
    row = in_flight.row if in_flight.pending else None
    state = STATELESS_WORK if chunk.state is None else StateWork(*chunk.state)
    return Work(tokens, chunk.start, request.pages.held, chunk.logits, row, state, request.adapter)


def _rows(chunks: list[Chunk], masks: Masks | None) -> Rows:
    """Returns one row for the next token of each chunk's request, and one behind each of its drafts."""
    ends = [chunk.start + chunk.length for chunk in chunks]
    if all(chunk.samples == 1 for chunk in chunks):
        return Rows([chunk.request for chunk in chunks], ends, masks)
    samples = np.array([chunk.samples for chunk in chunks], dtype=np.int64)
    positions = np.arange(samples.sum()) + np.repeat(np.array(ends) + 1 - np.cumsum(samples), samples)
    return Rows([chunk.request for chunk in chunks for _ in range(chunk.samples)], positions, masks)

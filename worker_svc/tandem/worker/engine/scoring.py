"""Scores prompt tokens chunk by chunk: never more than a chunk's logits are held.

The logits of the token at position i say how probable the token at i + 1 is. So a chunk that scores wants the logits
of all its tokens, and takes nothing from the cache whose logits it still needs: `Request.scored` tokens are told so
far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.engine.budget import Chunk
from tandem.worker.engine.sampler.logprobs import Told, report
from tandem.worker.engine.sampler.rows import Alternatives


@dataclass(slots=True)
class PromptScores:
    """Logprobs of the next tokens of a request's prompt, in parallel arrays."""

    number: int
    logprobs: npt.NDArray[np.float32]
    ranks: npt.NDArray[np.int32]
    alternatives: Alternatives


def score_prompts(chunks: Sequence[Chunk], logits: torch.Tensor) -> tuple[list[PromptScores], torch.Tensor]:
    """Returns what the chunks that score tell, but of requests that have ended, and the logits of the rows that are
    sampled, in order; `logits` has rows for both, and for those that are checked."""
    if not any(chunk.scores or chunk.checked for chunk in chunks):
        return [], logits
    scores: list[PromptScores] = []
    sampled: list[npt.NDArray[np.int64]] = []
    row = 0
    for chunk in chunks:
        # Where pages were lost, what was told is computed again, maybe in several chunks.
        told = chunk.start + chunk.length < chunk.request.scored
        if chunk.scores and not told and not chunk.request.in_flight.ended:
            scores.append(_score(chunk, logits[row : row + chunk.length]))
        row += chunk.logits
        sampled.append(np.arange(row - chunk.samples, row))
    return scores, logits[torch.from_numpy(np.concatenate(sampled)).to(logits.device)]


def _score(chunk: Chunk, logits: torch.Tensor) -> PromptScores:
    """Scores the chunk's tokens but its first, and the one behind it, as far as they are prompt and not told yet."""
    request = chunk.request
    first = max(chunk.start + 1, request.scored)
    end = min(chunk.start + 1 + chunk.length, request.prompt_tokens)
    rows = logits[first - 1 - chunk.start : end - 1 - chunk.start]
    ids = request.tokens[first:end].astype(np.int32)
    request.scored = end
    every = np.arange(len(ids))
    return PromptScores(request.number, *report(Told(every, rows, every), ids, [request.logprobs] * len(ids)))

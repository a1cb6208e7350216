"""A synthetic model that counts: after tokens 3, 4, 5 comes 6. A wrong page, slot or position shows at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tandem.worker.engine.request import Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.model.work import Work

VOCABULARY = 64


class CountingRunner:
    """Keeps, instead of keys and values, the tokens themselves in its pages, and says what follows the last one.

    Each step it reads every token of a sequence back through its pages and checks that they count upward.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        self.memory = np.full((pages, page_size), -1, dtype=np.int64)
        self.page_size = page_size
        self.computed_tokens = 0
        self.largest_batch = 0
        self.poisoned: set[int] = set()  # tokens that make the numbers break
        self.jumps = False  # what is forced need not count

    def forward(self, work: Sequence[Work], sampled: torch.Tensor | None = None) -> torch.Tensor:
        logits = []
        self.largest_batch = max(self.largest_batch, sum(len(item.tokens) for item in work))
        for item in work:
            tokens = item.tokens
            if item.row is not None:
                assert sampled is not None and len(tokens) == 1
                tokens = sampled[item.row : item.row + 1].numpy()
            positions = np.arange(item.position, item.position + len(tokens))
            self.memory[item.pages[positions // self.page_size], positions % self.page_size] = tokens
            self.computed_tokens += len(tokens)
        for item in work:
            end = np.arange(item.position + len(item.tokens))
            seen = self.memory[item.pages[end // self.page_size], end % self.page_size]
            assert self.jumps or np.array_equal(seen, (seen[0] + end) % VOCABULARY), f"does not count: {seen}"
            for length in range(len(seen) - item.samples + 1, len(seen) + 1):
                row = torch.zeros(VOCABULARY)
                row[(int(seen[length - 1]) + 1) % VOCABULARY] = 50.0
                if self.poisoned & set(seen[:length].tolist()):
                    row[:] = float("nan")
                logits.append(row)
        return torch.stack(logits) if logits else torch.empty(0, VOCABULARY)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.memory[list(targets)] = self.memory[list(sources)]

    def zero(self, pages: Sequence[int]) -> None:
        self.memory[list(pages)] = -1


def counting_request(number: int, first: int, prompt: int, output: int, **options: object) -> Request:
    """A request whose prompt is `prompt` numbers from `first` on, and that wants `output` more."""
    ids = (first + np.arange(prompt)) % VOCABULARY
    sampling = Sampling(temperature=0.0)
    return Request.make(number, ids, sampling, Stopping(max_tokens=output), **options)  # type: ignore[arg-type]

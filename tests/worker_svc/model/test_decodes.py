"""Steps of decodes that go on where the last one left off have the bits of steps that are prepared anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.random_llama import RandomCheckpoint, llama
from tandem.worker.checkpoints.model_parts.heads import KVHeads
from tandem.worker.model.cpu import native
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import Plain
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.work import Work

pytestmark = pytest.mark.skipif(not native.available(), reason="the compiled library plans such steps")

PAGE = 16
PAGES = 4  # of a sequence


class Forgetting(ModelRunner):
    """Prepares every step anew."""

    def forward(self, work: Sequence[Work], sampled: torch.Tensor | None = None) -> torch.Tensor:
        self._decodes = None
        return super().forward(work, sampled)


class Sequences:
    """Sequences of two runners with the same model, which are given the same steps."""

    def __init__(self, count: int) -> None:
        config = replace(llama("tiny", 128), head_dim=8)
        model = load_transformer(RandomCheckpoint(config, "cpu", torch.float32), "cpu", torch.float32)
        heads = (KVHeads(config.num_kv_heads, config.head_dim),) * config.num_layers
        shape = CacheShape(heads, count * PAGES + 1, PAGE, Plain(torch.float32))
        self.runner = ModelRunner(model, KVCache(shape, "cpu"))
        self.forgetting = Forgetting(model, KVCache(shape, "cpu"))
        self.pages = [np.arange(PAGES) + PAGES * n for n in range(count)]
        self.ends = [0] * count
        self.drawn = np.random.default_rng(0)

    def go(self, *numbers: int, length: int = 1, samples: int | None = None, rows: Sequence[int | None] = ()) -> None:
        """Computes the next tokens of some sequences, and compares the logits; `rows` are among 7, 5, 3 and 1."""
        work = []
        for place, number in enumerate(numbers):
            tokens = self.drawn.integers(0, 128, length).astype(np.int32)
            row = rows[place] if rows else None
            wanted = length if samples is None else samples
            work.append(Work(tokens, self.ends[number], self.pages[number], wanted, row))
            self.ends[number] += length
        sampled = torch.tensor([7, 5, 3, 1]) if rows else None
        ours = self.runner.forward(work, sampled).clone()
        assert torch.equal(ours, self.forgetting.forward(work, sampled))

    @property
    def step(self) -> object:
        """The step that is kept."""
        return self.runner._decodes


def test_decodes_go_on_with_what_the_last_step_made_until_a_page_ends() -> None:
    sequences = Sequences(3)
    for number, length in enumerate((3, 9, 1)):
        sequences.go(number, length=length)
    sequences.go(0, 1, 2)
    step, went_on = sequences.step, 0
    for _ in range(2 * PAGE):
        sequences.go(0, 1, 2)
        went_on += sequences.step is step
        step = sequences.step
    assert went_on == 2 * PAGE - 3 * 2  # each sequence has entered two pages


def test_whoever_comes_goes_or_changes_places_is_noticed() -> None:
    sequences = Sequences(4)
    for number in range(4):
        sequences.go(number, length=2 + number)
    for company in ((0, 1), (0, 1), (1, 0), (1, 0), (1, 0, 2), (1, 2), (1, 2), (1,), (1,), (3,), (3, 1), (3, 1)):
        sequences.go(*company)


def test_other_pages_another_position_and_more_tokens_are_noticed() -> None:
    sequences = Sequences(2)
    sequences.go(0, length=4)
    sequences.go(1, length=5)
    sequences.go(0, 1)
    sequences.go(0, 1)
    # A page that turned out to be another's equal is given back.
    for runner in (sequences.runner, sequences.forgetting):
        runner.copy([0], [2 * PAGES])
        runner.zero([0])
    sequences.pages[0] = np.array([2 * PAGES, 1, 2, 3])
    sequences.go(0, 1)
    sequences.go(0, 1)
    sequences.ends[1] -= 2  # two drafts were rejected
    sequences.go(0, 1)
    sequences.go(0, 1, length=2)
    sequences.go(0, 1)
    sequences.go(0, 1, samples=0)
    sequences.go(0, 1)


def test_sampled_ids_are_taken_in_steps_that_go_on() -> None:
    sequences = Sequences(2)
    sequences.go(0, length=4)
    sequences.go(1, length=5)
    for rows in ((1, 0), (3, 2), (None, 1), (2, None), ()):
        sequences.go(0, 1, rows=rows)

"""Finds the number of rows to pad to, so that a row's bits do not depend on how many others there are.

It is what the model's matrix products need (on a CPU `product_rows.py` finds out), or the most that may help where the
whole model does not show that this is enough. On a GPU every number of rows that a step of decodes is computed with is
tried: each matrix alone (`row_trial.py`), the whole model, and the whole model as it was recorded.

Ranks that share a model have other matrices, and maybe other libraries and less free memory. They try the same, since
all must come to each sum, and only what all of them found holds.

On a CPU the answer is kept for models of the same shape; it holds until the processor, a library, the number of threads
or our own code is another (`measured_with.py`). That rows depend on each other is never kept, and said at every start.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tandem.common.kept_facts import keep_fact, kept_fact
from tandem.worker.model.compressed_plan import CompressedPlan
from tandem.worker.model.cpu.measured_with import measured_with
from tandem.worker.model.row_trial import products_ignore_other_rows
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.selection import SelectingPlan, scores_ignore_company
from tandem.worker.model.states import STATELESS_WORK, StateWork
from tandem.worker.model.work import Work

logger = logging.getLogger("tandem.worker.engine")

_CROWD = {"cuda": 2048, "cpu": 100}  # rows of other sequences, at most, that a row is tried in company with
_PREFILLS = (320, 384, 512, 640, 768, 1024, 1280, 1536, 2048)  # rows of a step that is not of decodes alone


def choose_padding(runner: ModelRunner, record: Callable[[], None] = lambda: None) -> bool:
    """Finds how little padding makes a row's bits independent of the others, and by which products, where the usual
    ones do not; returns False if none does. `record` prepares the runner.

    Uses the cache's first pages, which must not hold anything yet, and leaves them zero.
    """
    most, products = runner.model.operations.row_multiple, runner.model.operations.products
    for product in products:
        runner.model.multiply_by(product)
        for multiple in sorted({runner.model.ranks.largest(min(runner.model.row_multiple, most)), most}):
            runner.forget()
            runner.row_multiple = multiple
            if _is_row_invariant(runner, record):
                if product is not products[0]:
                    logger.warning(
                        "the library's matrix products let a row's bits depend on the other rows: matrices of "
                        "floats are multiplied by our own kernel, which is slower for many rows"
                    )
                return True
    runner.model.multiply_by(products[0])  # the quickest, if none helps
    runner.forget()
    record()
    return False


def known_padding(runner: ModelRunner) -> bool:
    """As `choose_padding` for a CPU, which need not try again what it has found out on this machine before."""
    about = measured_with() | _described(runner)
    known = kept_fact("rows", about)
    if isinstance(known, int):
        runner.row_multiple = known
        return True
    alike = choose_padding(runner)
    if alike:
        keep_fact("rows", about, runner.row_multiple)
    return alike


def _described(runner: ModelRunner) -> dict[str, object]:
    """Tells what about a model and its cache decides which code computes."""
    model, shape = runner.model, runner.cache.shape
    weights = [
        (name, type(module).__name__, type(part).__name__, tuple(part.shape), str(part.dtype), part.is_mkldnn)
        for name, module in model.named_modules()
        for part in (*module.parameters(recurse=False), *module.buffers(recurse=False))
    ]
    return {
        "model": repr(model.config),
        "dtype": str(model.dtype),
        "operations": type(model.operations).__name__,
        "weights": hashlib.sha256(repr(weights).encode()).hexdigest(),
        "cache": [type(runner.cache).__name__, shape.format.name, shape.page_size, shape.heads],
        "states": runner.states is not None,
        "trial": _Trial.sizes(runner),
    }


def _is_row_invariant(runner: ModelRunner, record: Callable[[], None]) -> bool:
    """Tells whether a row's bits are the same in any company, also in the steps that `record` has recorded."""
    indexer, compression = runner.model.config.indexer, runner.model.config.compression
    heads = compression.index_heads if compression is not None else indexer.heads if indexer is not None else 0
    ranks = runner.model.ranks  # most sequences below are too short for an indexer
    chosen_by = heads if _scores_by_products(runner) else 0
    if chosen_by and not ranks.all(scores_ignore_company(runner.cache, chosen_by)):
        return False
    trial = _Trial.of(runner)
    if trial is None:
        record()
        return True
    try:
        if not trial.is_alike(trial.ways()):
            return False
        counts = runner.tried_decodes if runner.device.type == "cuda" else []
        rows = {-(-count // runner.row_multiple) * runner.row_multiple for count in (*counts, *_PREFILLS)}
        if counts and not ranks.all(products_ignore_other_rows(runner.model, rows)):
            return False
        if not trial.is_alike(trial.among_decodes(counts)):
            return False
        record()
        return trial.is_alike(itertools.chain(trial.among_decodes(counts), trial.as_drafts()))
    finally:
        trial.clear()


def _scores_by_products(runner: ModelRunner) -> bool:
    """Tells whether a library's products score the tokens that are chosen, and not kernels that compute a row alone."""
    config, plan = runner.model.config, runner.model.operations.plan
    return any(
        isinstance(plan((), runner.cache, config.num_heads, kind), SelectingPlan | CompressedPlan)
        for kind in set(config.attention_kinds)
    )


@dataclass(frozen=True, slots=True)
class _Trial:
    """A sequence whose last logits are computed in many ways, and others beside it."""

    runner: ModelRunner
    tokens: npt.NDArray[np.int32]
    own: npt.NDArray[np.int64]  # its pages
    others: npt.NDArray[np.int32]
    foreign: npt.NDArray[np.int64]
    whole: torch.Tensor  # the logits, computed in one piece

    @staticmethod
    def of(runner: ModelRunner) -> _Trial | None:
        """Makes a trial as large as the cache has room for; None without room for two tokens."""
        size = runner.cache.shape.page_size
        length, most = _Trial.sizes(runner)
        if length < 2:
            return None
        pages = -(-length // size)
        generator = np.random.default_rng(0)
        tokens = generator.integers(0, runner.model.vocab_size, length).astype(np.int32)
        others = generator.integers(0, runner.model.vocab_size, most).astype(np.int32)
        own, foreign = np.arange(pages, dtype=np.int64), np.arange(pages, pages - (-most // size), dtype=np.int64)
        whole = runner.forward([Work(tokens, 0, own, 1)])[0].clone()
        return _Trial(runner, tokens, own, others, foreign, whole)

    @staticmethod
    def sizes(runner: ModelRunner) -> tuple[int, int]:
        """Returns how many tokens the sequence has, and those beside it."""
        size, operations = runner.cache.shape.page_size, runner.model.operations
        context = runner.model.config.context_length
        length = min(max(2 * size + 3, operations.tried_context), context, runner.cache.shape.pages // 2 * size)
        crowded = _CROWD.get(runner.device.type, length)
        return length, min(crowded, context, (runner.cache.shape.pages - -(-length // size)) * size)

    def is_alike(self, answers: Iterable[torch.Tensor]) -> bool:
        """Tells whether all of these logits are the expected ones; computes all, so that nothing is left to compile."""
        others = [answer for answer in answers if not torch.equal(self.whole, answer)]
        return self.runner.model.ranks.all(not others)

    def ways(self) -> list[torch.Tensor]:
        """Computes the logits in chunks, token by token, as drafts and in a batch, and where all of a chunk's logits
        are wanted."""
        runner, tokens, own, others, foreign = self.runner, self.tokens, self.own, self.others, self.foreign
        length, most = len(tokens), len(others)
        companies = [1, 2, 4, 16, 40, 100]  # odd numbers of rows, and of logits
        if runner.device.type == "cuda":  # whose libraries have many kernels, for few rows and for thousands
            companies.append(200)

        # States are that of the last token, and that of the cut.
        last, cut = length - 1, length // 3 + 1
        before_last, before_cut = STATELESS_WORK, STATELESS_WORK
        if runner.states is not None:
            before_last, before_cut = StateWork(0, last, last), StateWork(1, cut, cut)

        runner.forward([Work(tokens[:cut], 0, own, 0, state=before_cut._replace(position=0))])
        if runner.states is not None:
            runner.copy_states([1], [0])
        chunked = runner.forward([Work(tokens[cut:], cut, own, 1, state=before_last._replace(position=cut))])[0].clone()
        crowd = [Work(others[: most - 1], 0, foreign, 1), Work(tokens[-1:], last, own, 1, state=before_last)]
        in_company = runner.forward(crowd)[1].clone()
        alone = runner.forward([Work(tokens[-1:], last, own, 1, state=before_last)])[0].clone()
        ends = before_cut._replace(commit=length if runner.states is not None else 0)
        each = runner.forward([Work(tokens[cut:], cut, own, length - cut, state=ends)])[length - cut - 1].clone()
        answers = [chunked, in_company, alone, each]
        for run in runner.model.operations.tried_runs if runner.states is None else ():
            drafts = Work(tokens[-run:], max(length - run, 0), own, 1)
            answers.append(runner.forward([drafts])[0].clone())
        for company in companies:
            crowd = [Work(tokens[-1:], last, own, 1, state=before_last)]
            crowd += [Work(others[i : i + 1], i, foreign, 1) for i in range(min(company, most))]
            answers.append(runner.forward(crowd)[0].clone())
        return answers

    def among_decodes(self, counts: Iterable[int]) -> Iterable[torch.Tensor]:
        """Computes the logits by steps of so many decodes, this one the last of them."""
        last = len(self.tokens) - 1
        state = STATELESS_WORK if self.runner.states is None else StateWork(0, last, last)  # as `ways` has left it
        own = Work(self.tokens[-1:], last, self.own, 1, state=state)
        for count in counts:
            crowd = [Work(self.others[i : i + 1], i, self.foreign, 1) for i in range(min(count - 1, len(self.others)))]
            yield self.runner.forward([*crowd, own])[len(crowd)]

    def as_drafts(self) -> Iterable[torch.Tensor]:
        """Computes the logits by steps that sample behind each of the last tokens."""
        length = len(self.tokens)
        for run in self.runner.model.operations.tried_runs if self.runner.states is None else ():
            count = min(run, length)
            yield self.runner.forward([Work(self.tokens[-count:], length - count, self.own, count)])[count - 1]

    def clear(self) -> None:
        """Leaves the cache as it was."""
        self.runner.zero([*self.own.tolist(), *self.foreign.tolist(), self.runner.cache.padding_page])

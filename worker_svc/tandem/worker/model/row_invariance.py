"""Finds the number of rows to pad to, so that a row's bits do not depend on how many others there are.

It is what the model's matrix products need (on a CPU `product_rows.py` finds out), or the most that may help where the
whole model does not show that this is enough.
"""

from __future__ import annotations

import logging

import numpy as np
import torch

from tandem.worker.model.runner import ModelRunner, Work
from tandem.worker.model.states import STATELESS_WORK, StateWork

logger = logging.getLogger("tandem.worker.engine")

_CROWD = {"cuda": 2048, "cpu": 100}  # rows of other sequences, at most, that a row is tried in company with


def choose_padding(runner: ModelRunner) -> bool:
    """Finds how little padding makes a row's bits independent of the others, and by which products, where the usual
    ones do not; returns False if none does.

    Uses the cache's first pages, which must not hold anything yet, and leaves them zero.
    """
    most, products = runner.model.operations.row_multiple, runner.model.operations.products
    for product in products:
        runner.model.multiply_by(product)
        for multiple in sorted({min(runner.model.row_multiple, most), most}):
            runner.row_multiple = multiple
            if _is_row_invariant(runner):
                if product is not products[0]:
                    logger.warning(
                        "the library's matrix products let a row's bits depend on the other rows: matrices of "
                        "floats are multiplied by our own kernel, which is slower for many rows"
                    )
                return True
    runner.model.multiply_by(products[0])  # the quickest, if none helps
    return False


def _is_row_invariant(runner: ModelRunner) -> bool:
    """Tells whether a sequence's logits are the same bits in one piece, in chunks, token by token, as drafts and in a
    batch, and whether all of a chunk's logits are wanted or the last one's only."""
    size, operations = runner.cache.shape.page_size, runner.model.operations
    length = max(2 * size + 3, operations.tried_context)
    length = min(length, runner.model.config.context_length, runner.cache.shape.pages // 2 * size)
    if length < 2:
        return True
    pages = -(-length // size)
    companies = [1, 2, 4, 16, 40, 100]  # odd numbers of rows, and of logits
    if runner.device.type == "cuda":  # whose libraries have many kernels, for few rows and for thousands
        companies.append(200)
    crowded = _CROWD.get(runner.device.type, length)
    most = min(crowded, runner.model.config.context_length, (runner.cache.shape.pages - pages) * size)
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, runner.model.config.vocab_size, length).astype(np.int32)
    others = generator.integers(0, runner.model.config.vocab_size, most).astype(np.int32)
    own, foreign = np.arange(pages, dtype=np.int64), np.arange(pages, pages - (-most // size), dtype=np.int64)

    # States are that of the last token, and that of the cut.
    last, cut = length - 1, length // 3 + 1
    before_last, before_cut = STATELESS_WORK, STATELESS_WORK
    if runner.states is not None:
        before_last, before_cut = StateWork(0, last, last), StateWork(1, cut, cut)

    whole = runner.forward([Work(tokens, 0, own, 1)])[0].clone()
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
    for run in operations.tried_runs if runner.states is None else ():
        drafts = Work(tokens[-run:], max(length - run, 0), own, 1)
        answers.append(runner.forward([drafts])[0].clone())
    for company in companies:
        crowd = [Work(tokens[-1:], last, own, 1, state=before_last)]
        crowd += [Work(others[i : i + 1], i, foreign, 1) for i in range(min(company, most))]
        answers.append(runner.forward(crowd)[0].clone())
    runner.zero([*own.tolist(), *foreign.tolist(), runner.cache.padding_page])
    return all(torch.equal(whole, answer) for answer in answers)

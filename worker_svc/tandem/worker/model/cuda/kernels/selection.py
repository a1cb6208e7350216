"""Which tokens an indexer chooses (`model_parts/indexer.py`): those of the highest scores, of equal ones the first.

    score = sum over heads h of weight_h max(q_h . k, 0)

Two launches. Programs of a row score its tokens tile by tile; then one program finds the least score that is chosen,
digit by digit of 8 bits from the highest on, and writes down where the chosen tokens are stored, in the order of their
positions. A token that has no more before it than are chosen is scored by nobody: it sees all. What a program does
depends on its row alone, and so do the bits.

Scores are kept as integers of the same order; what is not finite becomes the lowest or the highest number that is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tandem.worker.model.cuda.kernels.dependent import is_dependent, options, wait_for_inputs

TILE = 64  # tokens that are scored at once
_BLOCK = 4096  # scores that are looked at together
_LARGEST = tl.constexpr(torch.finfo(torch.float32).max)
_BINS = tl.constexpr(256)


class Rows(NamedTuple):
    """The tokens of a step for which others are chosen."""

    rows: torch.Tensor  # [N, 2] int32: a token's position, -1 if it is nobody's; where its pages begin in `tables`
    tables: torch.Tensor  # int32, the pages of each sequence, in order, one sequence behind the other


@triton.jit(do_not_specialize=["most", "width"])
def _index_scores(
    queries, weights, keys, rows, tables, scores, most, width,
    HEADS: tl.constexpr, M: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, PAGE: tl.constexpr, N: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(rows + 2 * row)
    table = tables + tl.load(rows + 2 * row + 1)
    head = tl.arange(0, M)
    number = tl.arange(0, D_PAD)
    inside = (number < D)[None, :]
    q = tl.load(
        queries + (row * HEADS + head)[:, None] * D + number[None, :], mask=(head < HEADS)[:, None] & inside, other=0.0
    )
    weight = tl.load(weights + row * HEADS + head, mask=head < HEADS, other=0.0)
    end = tl.where(position < most, 0, position + 1)
    for first in range(tl.program_id(1) * N, end, tl.num_programs(1) * N):
        token = first + tl.arange(0, N)
        live = token < end
        page = tl.load(table + token // PAGE, mask=live, other=0).to(tl.int64)
        at = keys + (page * PAGE + token % PAGE)[:, None] * D + number[None, :]
        k = tl.load(at, mask=live[:, None] & inside, other=0.0).to(q.dtype)
        products = tl.dot(k, tl.trans(q), input_precision="ieee")
        score = tl.sum(tl.where(products < 0, 0.0, products) * weight[None, :], 1)
        score = tl.where(score == score, score, -_LARGEST)
        score = tl.where(score > _LARGEST, _LARGEST, tl.where(score < -_LARGEST, -_LARGEST, score))
        score = tl.where(score == 0, 0.0, score)  # of whatever sign
        bits = score.to(tl.int32, bitcast=True)
        tl.store(scores + row * width + token, bits ^ ((bits >> 31) & 0x7FFFFFFF), mask=live)


@triton.jit(do_not_specialize=["most", "width"])
def _choose_places(
    scores, rows, tables, places, most, width,
    PAGE: tl.constexpr, N: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(rows + 2 * row)
    table = tables + tl.load(rows + 2 * row + 1)
    of = scores + row * width
    to = places + row * most
    block = tl.arange(0, N)
    if position < most:
        for first in range(0, position + 1, N):
            token = first + block
            page = tl.load(table + token // PAGE, mask=token <= position, other=0)
            tl.store(to + token, page * PAGE + token % PAGE, mask=token <= position)
    else:
        least = tl.zeros([1], tl.uint32)
        known = tl.zeros([1], tl.uint32)
        missing = most
        digit = tl.arange(0, _BINS)
        for place in tl.static_range(3, -1, -1):
            counts = tl.zeros([_BINS], tl.int32)
            for first in range(0, position + 1, N):
                token = first + block
                score = tl.load(of + token, mask=token <= position, other=0).to(tl.uint32, bitcast=True) ^ 0x80000000
                alike = (token <= position) & ((score & known) == least)
                its = ((score >> (8 * place)) & 255).to(tl.int32)
                counts += tl.histogram(its, _BINS, mask=alike)
            reached = tl.cumsum(counts, 0, reverse=True)  # of this digit or a higher one
            found = tl.sum((reached >= missing).to(tl.int32)) - 1
            missing -= tl.sum(tl.where(digit == found + 1, reached, 0))
            least = least | (found.to(tl.uint32) << (8 * place))
            known = known | (tl.full([1], 255, tl.uint32) << (8 * place))
        lowest = (least ^ 0x80000000).to(tl.int32, bitcast=True)
        done = 0
        for first in range(0, position + 1, N):
            token = first + block
            live = token <= position
            score = tl.load(of + token, mask=live, other=0)
            equal = live & (score == lowest)
            chosen = (live & (score > lowest)) | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= missing))
            before = tl.cumsum(chosen.to(tl.int32), 0)
            page = tl.load(table + token // PAGE, mask=chosen, other=0)
            tl.store(to + done + before - 1, page * PAGE + token % PAGE, mask=chosen)
            done += tl.sum(chosen.to(tl.int32))
            missing -= tl.minimum(missing, tl.sum(equal.to(tl.int32)))


def choose_places(
    queries: torch.Tensor,
    weights: torch.Tensor,
    keys: torch.Tensor,
    these: Rows,
    scores: torch.Tensor,
    places: torch.Tensor,
    programs: int,
) -> None:
    """Fills `places` `[N, most]` int32 with where the tokens that are chosen for each row are stored (page * page_size
    + place in it), in the order of their positions; a row with no more than `most` up to itself has as many.

    queries, weights: `[N, heads, size]`, and what each weighs `[N, heads]` float32.
    keys: index keys `[pages, 1, page_size, size]`.
    scores: `[N, width]` int32, room for the scores of each.
    """
    (count, heads, size), page_size, most = queries.shape, keys.shape[2], places.shape[1]
    assert queries.is_contiguous() and weights.is_contiguous() and keys.is_contiguous() and places.is_contiguous()
    assert weights.dtype == torch.float32 and these.rows.is_contiguous()
    assert len(these.rows) == len(weights) == len(scores) == len(places) == count
    dependent = is_dependent(queries.device)
    wanted = max(1, min(programs // count, triton.cdiv(scores.shape[1], TILE)))
    _index_scores[(count, wanted)](
        queries, weights, keys, these.rows, these.tables, scores, most, scores.shape[1],
        heads, max(16, triton.next_power_of_2(heads)), size, max(16, triton.next_power_of_2(size)), page_size, TILE,
        dependent, num_warps=4, **options(dependent),
    )  # fmt: skip
    _choose_places[(count,)](
        scores, these.rows, these.tables, places, most, scores.shape[1], page_size, _BLOCK, dependent,
        num_warps=8, **options(dependent),
    )  # fmt: skip

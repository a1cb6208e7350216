"""What is done with rows of logits, compiled: the largest are found, tokens drawn, and logprobs told."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.model.cpu.native.library import calls


def largest(x: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest of each row of `x [rows, n]` fp32, at most n, in falling order, and their places: each
    `[rows, count]`. Of equal ones the first are taken, and come first."""
    x = x.contiguous()
    rows, n = x.shape
    values, places = torch.empty((rows, count)), torch.empty((rows, count), dtype=torch.int64)
    if calls().tandem_largest(
        x.data_ptr(), rows, n, count, values.data_ptr(), places.data_ptr(), torch.get_num_threads()
    ):
        raise MemoryError("no memory to order logits")
    return values, places


def first_largest(x: torch.Tensor, rows: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Where the largest number of each of the first rows of `x [>= rows, n]` fp32 is, and whether it is finite, both
    `[rows]`: as numpy's argmax, of equal ones the first, and a NaN before all others. Rows may lie apart."""
    n, (stride, step) = x.shape[1], x.stride()
    assert n and step == 1
    places, finite = (ctypes.c_int32 * rows)(), (ctypes.c_bool * rows)()
    calls().tandem_first_largest(x.data_ptr(), rows, n, stride, places, finite)
    return np.frombuffer(memoryview(places), dtype=np.int32), np.frombuffer(memoryview(finite), dtype=np.bool_)


class Draw(NamedTuple):
    """What was drawn of each row of logits, and from what: those from `low` to `high` weigh
    e^((logit - high) / temperature), `total` together. Each `[rows]`."""

    ids: npt.NDArray[np.int32]
    finite: npt.NDArray[np.bool_]  # false: the largest logit is not, and the id is where that is
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    total: npt.NDArray[np.float64]


def draw(
    x: torch.Tensor,
    temperature: npt.NDArray[np.float64],
    uniforms: npt.NDArray[np.float64],
    few: int,
    *,
    top_n_sigma: npt.NDArray[np.float64],
    top_k: npt.NDArray[np.int64],
    top_p: npt.NDArray[np.float64],
    min_p: npt.NDArray[np.float64],
) -> Draw:
    """Draws an id of each row of `x [>= rows, n]` fp32, which may lie apart: all else is `[rows]`, uniforms in [0, 1).
    Temperature 0 takes the first of the largest; filters come before it, as `sampler/filters.py` has them, and where
    the first that cuts leaves fewer than `few`, the order is that of falling logits, else that of ids."""
    rows, n, (stride, step) = len(temperature), x.shape[1], x.stride()
    assert n and step == 1
    asked = np.array([temperature, uniforms, top_n_sigma, top_k, top_p, min_p], dtype=np.float64)
    drawn = Draw(np.empty(rows, np.int32), np.empty(rows, np.bool_), *np.empty((3, rows)))
    if calls().tandem_draw(
        x.data_ptr(),
        rows,
        n,
        stride,
        few,
        asked.ctypes.data,
        drawn.ids.ctypes.data,
        drawn.finite.ctypes.data,
        drawn.low.ctypes.data,  # of which the others lie behind
        torch.get_num_threads(),
    ):
        raise MemoryError("no memory to draw tokens")
    return drawn


class Report(NamedTuple):
    """What was told of rows of logits: `logprobs` and `ranks` of ids, one row's behind the other's; of the most
    probable ones, `tops [rows]` of them in each row of the others, `[rows, most]`; and, `[rows]` each, the logit whose
    logprob is -log_mass."""

    logprobs: npt.NDArray[np.float32]
    ranks: npt.NDArray[np.int32]
    tops: npt.NDArray[np.int32]
    top_ids: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]
    top_ranks: npt.NDArray[np.int32]
    highs: npt.NDArray[np.float64]
    log_masses: npt.NDArray[np.float64]


def report(
    x: torch.Tensor,
    places: npt.NDArray[np.int64],
    ids: Sequence[npt.NDArray[np.int32]],
    tops: npt.NDArray[np.int32],
    by: npt.NDArray[np.float64] | None = None,
) -> Report:
    """Tells logprobs and ranks in rows `places [rows]` of `x [.., n]` fp32, which may lie apart: of the `ids` of each,
    which it must have, and of the `tops [rows]` most probable ones, the first of equal ones first.

    With `by [4, rows]`, logits from by[0] to by[1] have the logprob (logit - by[1]) / by[2] - log(by[3]), all others
    none. A row whose largest number is not finite has NaN, and no most probable ones.
    """
    n, (stride, step) = x.shape[1], x.stride()
    ends = np.zeros(len(places) + 1, np.int64)
    np.cumsum([len(each) for each in ids], out=ends[1:])
    flat = np.ascontiguousarray(np.concatenate([np.empty(0, np.int32), *ids]), np.int32)
    assert n and step == 1 and (not flat.size or 0 <= flat.min() <= flat.max() < n)
    most = int(min(n, max(tops, default=0)))
    told = Report(
        np.empty(len(flat), np.float32),
        np.empty(len(flat), np.int32),
        np.minimum(tops, most, dtype=np.int32),
        np.empty((len(places), most), np.int32),
        np.empty((len(places), most), np.float32),
        np.empty((len(places), most), np.int32),
        *np.empty((2, len(places))),
    )
    by = None if by is None else np.ascontiguousarray(by)
    if calls().tandem_report(
        x.data_ptr(),
        n,
        stride,
        np.ascontiguousarray(places).ctypes.data,
        len(places),
        0 if by is None else by.ctypes.data,
        flat.ctypes.data,
        ends.ctypes.data,
        told.logprobs.ctypes.data,
        told.ranks.ctypes.data,
        most,
        told.tops.ctypes.data,
        told.top_ids.ctypes.data,
        told.top_logprobs.ctypes.data,
        told.top_ranks.ctypes.data,
        told.highs.ctypes.data,
        told.log_masses.ctypes.data,
        torch.get_num_threads(),
    ):
        raise MemoryError("no memory to tell logprobs")
    return told

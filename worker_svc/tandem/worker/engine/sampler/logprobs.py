"""Computes logprobs and ranks: of the chosen token, of the most probable ones, and of ids that were asked for.

On a CPU by one compiled call (`report.c`), which makes no logprobs of a whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import limits_of
from tandem.worker.engine.request import LogprobOptions
from tandem.worker.engine.sampler.draw import Distribution
from tandem.worker.engine.sampler.rows import Alternatives
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.native import choice

# Torch always looks for so many: which of several equal tokens are among them may depend on this number, and must not
# depend on what other rows ask for. Compiled, the first ids are.
MOST_PROBABLE = int(limits_of(pb.GenerateRequest.DESCRIPTOR)["output.top_logprobs"].high)


class Told(NamedTuple):
    """Rows of which something is told."""

    rows: npt.NDArray[np.int64]  # of a step
    logits: torch.Tensor  # [.., vocabulary]
    places: npt.NDArray[np.int64]  # of the rows in `logits`
    drawn_from: Distribution | None = None  # of all rows of `logits`; None: the model's own logprobs are told

    def take(self, place: int) -> Told:
        """Returns a single one of the rows."""
        only = slice(place, place + 1)
        return Told(self.rows[only], self.logits, self.places[only], self.drawn_from)

    @property
    def compiled(self) -> bool:
        """Tells whether the compiled library tells of them."""
        if self.logits.device.type != "cpu" or self.logits.dtype != torch.float32 or not native.available():
            return False
        return self.drawn_from is None or not bool(self.drawn_from.aims[torch.from_numpy(self.places)].any())

    @property
    def by(self) -> npt.NDArray[np.float64] | None:
        """Returns what the compiled library tells them by, `[4, rows]`."""
        if (of := self.drawn_from) is None:
            return None
        columns: npt.NDArray[np.float64] = torch.stack([of.low, of.high, of.temperature, of.mass]).numpy()
        return columns[:, self.places]

    def logprobs(self) -> torch.Tensor:
        """Returns those of every token, by torch, `[rows, vocabulary]` float32."""
        places = torch.from_numpy(self.places).to(self.logits.device)
        if self.drawn_from is None:
            return torch.log_softmax(self.logits[places].float(), dim=-1)
        return self.drawn_from.select(places).logprobs(self.logits[places])


class Report(NamedTuple):
    """Of one id a row its logprob and its rank, `[rows]`, and what each row reports of other tokens: the most probable
    in order of rank (those that are possible at all; at most MOST_PROBABLE), then the ids it asks for. A rank of 1 is
    the most probable; equal tokens share a rank."""

    logprobs: npt.NDArray[np.float32]
    ranks: npt.NDArray[np.int32]
    alternatives: Alternatives


def report(told: Told, chosen: npt.NDArray[np.int32], options: Sequence[LogprobOptions]) -> Report:
    """Reports of rows, given the id that was chosen in each, `[rows]`. Either all of them aim at a probability, or none
    does."""
    return _compiled(told, chosen, options) if told.compiled else _by_torch(told.logprobs(), chosen, options)


def whole(told: Told, place: int) -> npt.NDArray[np.float32]:
    """Returns the logprobs of the whole vocabulary in one of the rows: the same numbers as `report` has."""
    one = told.take(place)
    if not one.compiled:
        return one.logprobs()[0].cpu().numpy()
    by = one.by
    found = choice.report(one.logits, one.places, [np.empty(0, np.int32)], np.zeros(1, np.int32), by)
    high, log_mass = found.highs[0], found.log_masses[0]  # NaN where the row is broken
    low, temperature = (-np.inf, 1.0) if by is None else (by[0, 0], by[2, 0])
    logits = one.logits[int(one.places[0])].double().numpy()
    with np.errstate(invalid="ignore", over="ignore"):
        values: npt.NDArray[np.float32] = ((logits - high) / temperature - log_mass).astype(np.float32)
    if high == high:
        values[(logits < low) | (logits > high)] = -np.inf
    return values


def _compiled(told: Told, chosen: npt.NDArray[np.int32], options: Sequence[LogprobOptions]) -> Report:
    tops = np.array([min(each.top, MOST_PROBABLE) for each in options], np.int32)
    ids = [np.array([id_, *each.ids], np.int32) for id_, each in zip(chosen.tolist(), options, strict=True)]
    found = choice.report(told.logits, told.places, ids, tops, told.by)
    lengths = np.array([len(each) for each in ids], np.int64)
    firsts = np.cumsum(lengths) - lengths
    asked = np.ones(len(found.logprobs), np.bool_)
    asked[firsts] = False
    inside = np.arange(found.top_ids.shape[1]) < found.tops[:, None]
    alternatives = _joined(
        len(options),
        [np.nonzero(inside)[0], np.repeat(np.arange(len(options)), lengths - 1)],
        [found.top_ids[inside], np.concatenate([np.empty(0, np.int32), *ids])[asked]],
        [found.top_logprobs[inside], found.logprobs[asked]],
        [found.top_ranks[inside], found.ranks[asked]],
    )
    return Report(found.logprobs[firsts], found.ranks[firsts], alternatives)


def _by_torch(logprobs: torch.Tensor, chosen: npt.NDArray[np.int32], options: Sequence[LogprobOptions]) -> Report:
    places = torch.from_numpy(chosen.astype(np.int64)).to(logprobs.device)
    found = logprobs.gather(1, places.unsqueeze(1))
    its_ranks = (logprobs > found).sum(dim=-1) + 1
    tops = np.array([each.top for each in options])
    owners, ids, values, ranks = [], [], [], []
    if tops.any():
        best = logprobs.topk(min(MOST_PROBABLE, logprobs.shape[1]), dim=-1)
        falling = -best.values
        larger = torch.searchsorted(falling, falling) + 1
        inside = (np.arange(falling.shape[1]) < tops[:, None]) & (falling < float("inf")).cpu().numpy()
        owners.append(np.nonzero(inside)[0])
        ids.append(best.indices.cpu().numpy()[inside])
        values.append(best.values.cpu().numpy()[inside])
        ranks.append(larger.cpu().numpy()[inside])
    for row, each in enumerate(options):
        if each.ids:
            asked = torch.tensor(each.ids, dtype=torch.int64, device=logprobs.device)
            of_asked = logprobs[row, asked]
            owners.append(np.full(len(each.ids), row))
            ids.append(np.array(each.ids))
            values.append(of_asked.cpu().numpy())
            ranks.append(((logprobs[row] > of_asked.unsqueeze(1)).sum(dim=-1) + 1).cpu().numpy())
    return Report(
        found.squeeze(1).cpu().numpy(),
        its_ranks.cpu().numpy().astype(np.int32),
        _joined(len(options), owners, ids, values, ranks),
    )


def _joined(
    rows: int,
    owners: list[npt.NDArray[np.int64]],
    ids: list[npt.NDArray[Any]],
    values: list[npt.NDArray[np.float32]],
    ranks: list[npt.NDArray[Any]],
) -> Alternatives:
    """Joins tokens of `owners`' rows, of each row in the order of the parts."""
    if not sum(map(len, owners)):
        return Alternatives.nothing(rows)
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    return Alternatives(
        np.bincount(owner, minlength=rows).astype(np.int32),
        np.concatenate(ids)[order].astype(np.int32),
        np.concatenate(values)[order],
        np.concatenate(ranks)[order].astype(np.int32),
    )

"""The sampler's input and output: one row for each token that is to be chosen."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tandem.worker.engine.request import Request


@dataclass(slots=True)
class Rows:
    """Row i chooses the token at the absolute position `positions[i]` of `requests[i]`, given its tokens before that.

    A request may have several rows, one for each draft that is verified; then the drafts stand in `request.tokens`
    beyond `num_tokens`. A request whose draws depend on each other (`Sampling.stateful`) has one row at most.
    """

    requests: Sequence[Request]
    _positions: Sequence[int] | npt.NDArray[np.int64]  # [rows]; most rows never ask
    # [rows, ceil(vocabulary / 32)]: bit id % 32 of word id // 32 is set if the id is allowed, as llguidance writes it.
    # A row without a grammar has every bit set.
    mask: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """Returns where each row's token will stand."""
        return np.asarray(self._positions, dtype=np.int64)

    def take(self, rows: npt.NDArray[np.int64]) -> Rows:
        """Returns some of the rows, in this order."""
        mask = self.mask[rows] if self.mask is not None else None
        return Rows([self.requests[row] for row in rows.tolist()], self.positions[rows], mask)

    @classmethod
    def next_tokens(cls, requests: Sequence[Request]) -> Rows:
        """Makes one row a request, for its next token."""
        positions = np.fromiter((request.num_tokens for request in requests), dtype=np.int64, count=len(requests))
        return cls(requests, positions)


@dataclass(slots=True)
class Alternatives:
    """Other tokens at each row's position: `counts[i]` of them for row i, one row after the other in the flat
    arrays."""

    counts: npt.NDArray[np.int32]
    ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    ranks: npt.NDArray[np.int32]

    @classmethod
    def nothing(cls, rows: int) -> Alternatives:
        """Makes an empty entry for each row."""
        return cls(np.zeros(rows, np.int32), np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.int32))

    def take(self, rows: npt.NDArray[np.int64]) -> Alternatives:
        """Returns those of some rows, in this order."""
        if not self.ids.size:
            return Alternatives.nothing(len(rows))
        ends = np.cumsum(self.counts)
        counts = self.counts[rows]
        places = np.arange(counts.sum()) + np.repeat(ends[rows] - np.cumsum(counts), counts)
        return Alternatives(counts, self.ids[places], self.logprobs[places], self.ranks[places])

    @classmethod
    def joined(cls, parts: Sequence[Alternatives]) -> Alternatives:
        """Joins the parts one after the other."""
        return cls(
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.logprobs for part in parts]),
            np.concatenate([part.ranks for part in parts]),
        )


@dataclass(slots=True)
class Sampled:
    """One entry a row, in parallel arrays."""

    ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]  # NaN where not asked for
    ranks: npt.NDArray[np.int32]  # of the id; 1 is the most probable, 0 where not asked for
    finite: npt.NDArray[np.bool_]  # false: the model's numbers are broken, the id means nothing
    possible: npt.NDArray[np.bool_]  # false: the request's constraints allow no id at all, the id means nothing
    alternatives: Alternatives
    whole: dict[int, npt.NDArray[np.float32]] = field(
        default_factory=dict
    )  # logprobs of all ids, by row where asked for

    def take(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> Sampled:
        """Returns some of the rows, in this order."""
        rows = np.asarray(rows, dtype=np.int64)
        return Sampled(
            self.ids[rows],
            self.logprobs[rows],
            self.ranks[rows],
            self.finite[rows],
            self.possible[rows],
            self.alternatives.take(rows),
            {place: self.whole[row] for place, row in enumerate(rows.tolist()) if row in self.whole}
            if self.whole
            else {},
        )

    @classmethod
    def plain(
        cls, ids: npt.NDArray[np.int32], finite: npt.NDArray[np.bool_], possible: npt.NDArray[np.bool_]
    ) -> Sampled:
        """Makes a result without logprobs."""
        count = len(ids)
        nan, none = np.full(count, np.nan, dtype=np.float32), np.zeros(count, dtype=np.int32)
        return cls(ids, nan, none, finite, possible, Alternatives.nothing(count))

    @classmethod
    def unreported(cls, ids: npt.NDArray[np.int32], finite: npt.NDArray[np.bool_]) -> Sampled:
        """Makes a result of possible tokens whose logprobs nobody will fill in: what is the same of all such results
        they share, and it cannot be written."""
        logprobs, ranks, possible, alternatives = _unreported(len(ids))
        return cls(ids, logprobs, ranks, finite, possible, alternatives)

    @classmethod
    def joined(cls, parts: Sequence[Sampled]) -> Sampled:
        """Joins the parts one after the other."""
        starts = np.cumsum([0, *(len(part.ids) for part in parts[:-1])]).tolist()
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.logprobs for part in parts]),
            np.concatenate([part.ranks for part in parts]),
            np.concatenate([part.finite for part in parts]),
            np.concatenate([part.possible for part in parts]),
            Alternatives.joined([part.alternatives for part in parts]),
            {
                start + row: found
                for start, part in zip(starts, parts, strict=True)
                for row, found in part.whole.items()
            },
        )

    @classmethod
    def nothing(cls) -> Sampled:
        """Returns a result without rows."""
        none = np.empty(0, np.int32)
        bools = np.empty(0, np.bool_)
        return cls(none, np.empty(0, np.float32), none, bools, bools, Alternatives.nothing(0))


@functools.lru_cache(maxsize=64)
def _unreported(
    count: int,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.bool_], Alternatives]:
    logprobs, ranks = np.full(count, np.nan, dtype=np.float32), np.zeros(count, dtype=np.int32)
    possible, alternatives = np.ones(count, dtype=np.bool_), Alternatives.nothing(count)
    for shared in (logprobs, ranks, possible, alternatives.counts):
        shared.flags.writeable = False
    return logprobs, ranks, possible, alternatives

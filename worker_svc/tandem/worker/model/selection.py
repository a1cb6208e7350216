"""Attention of each token to some of those before it, which an indexer chooses (`model_parts/indexer.py`).

The first tokens of a sequence see all, and are computed as elsewhere. Each later one sees the same number of tokens:
what is stored of these is copied, in the order of their positions, into pages of its own, over which it attends as a
decode does. Those pages hold nothing else, so that an answer's bits depend on the chosen tokens alone.

A token's scores are made page by page, each by a product of the same shape, and its heads' added up as a balanced tree:
their bits do not depend on the batch either, and of equal scores the earliest is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from tandem.worker.checkpoints.model_parts.heads import AttentionKind
from tandem.worker.model.attention import ROW_MULTIPLE, Plan, Scores, Segment, tree_sum
from tandem.worker.model.kv_cache import KVCache, TileReader
from tandem.worker.model.kv_formats import Parts

_SLAB_FLOATS = 1 << 22  # numbers in the largest operand of the products that score tokens at once
_COPIED_BYTES = 16 << 20  # of what tokens see, at once
_TRIED_PAGES = 24  # at start

Planner = Callable[[Sequence[Segment], KVCache, int, AttentionKind], Plan]


@runtime_checkable
class Selecting(Protocol):
    """A `Plan` of attention to chosen tokens: a layer chooses before it attends, also for those behind it."""

    @property
    def chooses(self) -> bool:
        """Tells whether some token of the step does not see all before it."""
        ...

    def choose(self, keys: torch.Tensor, queries: torch.Tensor, weights: torch.Tensor) -> None:
        """Chooses what is seen from now on, by a layer's index keys `[pages, 1, page_size, size]`, which are stored,
        queries `[N, heads, size]` and what each head weighs, `[N, heads]`."""
        ...


def divided(segments: Sequence[Segment], most: int) -> tuple[list[Segment], list[Segment]]:
    """Returns those tokens of segments that see all before them, the first `most` of a sequence, and the others."""
    counts = [min(max(most - each.position, 0), each.length) for each in segments]
    both = list(zip(segments, counts, strict=True))
    near = [each._replace(length=count) for each, count in both if count]
    far = [
        Segment(each.row + count, each.length - count, each.position + count, each.pages)
        for each, count in both
        if count < each.length
    ]
    return near, far


class Far(NamedTuple):
    """Tokens of segments, each with its row, its position, and the number of its segment `[rows]`."""

    rows: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    owners: npt.NDArray[np.int64]

    @staticmethod
    def of(segments: Sequence[Segment]) -> Far:
        lengths = np.array([each.length for each in segments], dtype=np.int64)
        offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows = np.array([each.row for each in segments], dtype=np.int64)
        positions = np.array([each.position for each in segments], dtype=np.int64)
        owners = np.repeat(np.arange(len(segments)), lengths)
        return Far(rows[owners] + offsets, positions[owners] + offsets, owners)


class SelectingPlan:
    """Plans one step's attention for all layers, of which one chooses before any attends."""

    def __init__(
        self, plan: Planner, segments: Sequence[Segment], cache: KVCache, num_heads: int, kind: AttentionKind
    ) -> None:
        """`plan` plans attention to all tokens; the others are as `AttentionPlan` has them."""
        everything = kind._replace(most=0)
        self._cache, self._most, self._size = cache, kind.most, cache.shape.page_size
        self._reader = cache.readers[kind.heads]
        near, far = divided(segments, kind.most)
        self._near = plan(near, cache, num_heads, everything)
        tokens = Far.of(far)
        self._rows, self._positions, self._owner = torch.from_numpy(tokens.rows), tokens.positions, tokens.owners
        self._tiles = self._positions // self._size + 1
        self._tables = np.zeros((len(far), int(self._tiles.max(initial=1))), dtype=np.int64)
        for table, each in zip(self._tables, far, strict=True):
            pages = each.pages[: len(table)]
            table[: len(pages)] = pages
        self._copies = self._plan_copies(plan, num_heads, everything)
        self._chosen: torch.Tensor | None = None  # [rows, n] page * page_size + place in it

    def _plan_copies(self, plan: Planner, num_heads: int, kind: AttentionKind) -> list[tuple[int, int, Plan]]:
        """Returns first row and last of those that attend at once, and how."""
        pages = -(-self._most // self._size)
        at_once = max(1, _COPIED_BYTES // (pages * self._size * self._cache.shape.layer_bytes(kind.heads)))
        plans: dict[int, Plan] = {}
        copies = []
        for first in range(0, len(self._rows), at_once):
            count = min(at_once, len(self._rows) - first)
            if count not in plans:
                own = np.arange(count * pages).reshape(count, pages)
                segments = [Segment(row, 1, self._most - 1, own[row]) for row in range(count)]
                plans[count] = plan(segments, self._cache, num_heads, kind)
            copies.append((first, first + count, plans[count]))
        return copies

    @property
    def chooses(self) -> bool:
        """See `Selecting`."""
        return len(self._rows) > 0

    def choose(self, keys: torch.Tensor, queries: torch.Tensor, weights: torch.Tensor) -> None:
        """See `Selecting`."""
        padding = -queries.shape[1] % ROW_MULTIPLE
        queries = F.pad(queries.index_select(0, self._rows).float(), (0, 0, 0, padding))
        weights = F.pad(weights.index_select(0, self._rows).float(), (0, padding))
        floats = np.cumsum(self._tiles) * (queries.shape[1] * max(self._size, queries.shape[2]))
        chosen, first = [], 0
        while first < len(floats):
            before = floats[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(floats, before + _SLAB_FLOATS, side="right")))
            part = slice(first, last)
            scores = self._scores(keys, queries[part], weights[part], part)
            chosen.append(self._places(highest(scores, self._most), part))
            first = last
        places = torch.cat(chosen)
        # A page is filled up with one of the tokens, at which nobody looks: anything else might not be finite.
        self._chosen = torch.cat((places, places[:, :1].expand(-1, -self._most % self._size)), dim=1)

    def _scores(self, keys: torch.Tensor, queries: torch.Tensor, weights: torch.Tensor, part: slice) -> torch.Tensor:
        """Returns the scores `[rows, tokens]` of all tokens up to each row's own; -inf for those behind it."""
        reader = self._cache.index_readers[keys.shape[-1]]
        return page_scores(reader, keys, queries, weights, self._tables[self._owner[part]], self._positions[part])

    def _places(self, positions: torch.Tensor, part: slice) -> torch.Tensor:
        """Returns where tokens at `positions` `[rows, most]` of their sequences are stored."""
        tables = torch.from_numpy(self._tables[self._owner[part]])
        return tables.gather(1, positions // self._size) * self._size + positions % self._size

    def attend(self, keys: Parts, values: Parts, q: torch.Tensor, scores: Scores) -> torch.Tensor:
        """See `Plan`; values are the first numbers of keys."""
        out = self._near.attend(keys, values, q, scores)
        for first, last, plan in self._copies:
            assert self._chosen is not None, "no layer before this one has chosen"
            seen = self._reader.taken(keys, self._chosen[first:last])
            rows = self._rows[first:last]
            out.index_copy_(0, rows, plan.attend(seen, seen, q.index_select(0, rows), scores))
        return out


def page_scores(
    reader: TileReader,
    keys: torch.Tensor,
    queries: torch.Tensor,
    weights: torch.Tensor,
    tables: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
) -> torch.Tensor:
    """Returns the scores `[rows, n]` of the keys in a row's pages, up to the `last` one that it sees; -inf behind that.

    keys: `[pages, 1, page_size, size]`, of which a row has those of its table `[rows, most]`.
    queries, weights: `[rows, heads, size]` and `[rows, heads]`, of a multiple of `ROW_MULTIPLE` heads.
    """
    size = keys.shape[2]
    tiles = last // size + 1
    width = int(tiles.max())
    job_row = np.repeat(np.arange(len(tiles)), tiles)
    job_tile = np.arange(len(job_row)) - np.repeat(np.cumsum(tiles) - tiles, tiles)
    pages = tables[job_row, job_tile]
    rows = torch.from_numpy(job_row)
    each = reader.times_keys(queries.index_select(0, rows), (keys,), torch.from_numpy(pages), reader.runs(pages))
    each.clamp_(min=0).mul_(weights.index_select(0, rows).unsqueeze(-1))
    scores = torch.zeros((len(tiles) * width, size))
    scores.index_copy_(0, torch.from_numpy(job_row * width + job_tile), tree_sum(each))
    scores = scores.view(len(tiles), -1)
    # What is not finite is a broken sequence's own, or stale behind its end, where it is masked.
    scores.nan_to_num_(nan=torch.finfo(torch.float32).min)
    return scores.masked_fill_(torch.arange(scores.shape[1]) > torch.from_numpy(last)[:, None], float("-inf"))


def scores_ignore_company(cache: KVCache, heads: int) -> bool:
    """Tells whether a page's scores by so many queries have the same bits whatever other pages are scored beside it: a
    library may choose another product for more of them."""
    draw = np.random.default_rng(0)  # not torch.Generator, which engines import without (`torch_import.py`)
    queries = -(-heads // ROW_MULTIPLE) * ROW_MULTIPLE
    for size, reader in cache.index_readers.items():
        keys = torch.from_numpy(draw.standard_normal((_TRIED_PAGES, 1, cache.shape.page_size, size), dtype=np.float32))
        keys = keys.to(cache.shape.index_dtype)
        rows = torch.from_numpy(draw.standard_normal((_TRIED_PAGES, queries, size), dtype=np.float32))
        alone = [_scored(reader, rows[page, None], keys, np.array([page])) for page in range(_TRIED_PAGES)]
        for count in (2, 3, 7, _TRIED_PAGES):
            for pages in (np.arange(count), np.arange(_TRIED_PAGES)[::-1][:count].copy()):
                together = _scored(reader, rows[torch.from_numpy(pages)], keys, pages)
                if not all(torch.equal(each, alone[page][0]) for each, page in zip(together, pages, strict=True)):
                    return False
    return True


def _scored(reader: TileReader, rows: torch.Tensor, keys: torch.Tensor, pages: npt.NDArray[np.int64]) -> torch.Tensor:
    return reader.times_keys(rows, (keys,), torch.from_numpy(pages), reader.runs(pages)).clone()


def highest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the places `[rows, count]`, in their order, of each row's highest scores `[rows, n]`, of which no more
    are -inf than are left over; of equal ones the first."""
    lowest = scores.topk(count, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    chosen, equal = scores > lowest, scores == lowest
    missing = count - chosen.sum(-1, keepdim=True)
    if bool((equal.sum(-1, keepdim=True) > missing).any()):
        equal &= equal.cumsum(-1) <= missing
    return (chosen | equal).nonzero()[:, 1].view(len(scores), count)

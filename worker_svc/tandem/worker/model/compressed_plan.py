"""Attention to a window and to entries before it (`model_parts/compression.py`).

What a token looks at is copied, entries before the tokens of its window and each in the order of their positions, into
pages of its own, over which it attends as a decode does. Those pages hold nothing else, so that an answer's bits depend
on what it looks at alone. Entries that an indexer chooses are scored as tokens are (`selection.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from tandem.worker.checkpoints.model_parts.heads import AttentionKind
from tandem.worker.model.attention import ROW_MULTIPLE, Plan, Scores, Segment
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.kv_formats import Parts
from tandem.worker.model.rope import RotaryTable, Rotation
from tandem.worker.model.selection import Far, highest, page_scores

_COPIED_BYTES = 16 << 20  # of what tokens see, at once
_SCORED_FLOATS = 1 << 22  # numbers in the largest operand of the products that score entries at once

Ints = npt.NDArray[np.int64]
Planner = Callable[[Sequence[Segment], KVCache, int, AttentionKind], Plan]


class CompressedPlan:
    """Plans one step's attention for all layers of a kind."""

    def __init__(
        self, plan: Planner, segments: Sequence[Segment], cache: KVCache, num_heads: int, kind: AttentionKind
    ) -> None:
        """`plan` plans attention to all tokens; the others are as `AttentionPlan` has them."""
        self._cache, self._kind, self._size = cache, kind, cache.shape.page_size
        self._segments = list(segments)
        of = Far.of(segments)
        self._rows, self._owner = torch.from_numpy(of.rows), of.owners
        self._seen = (of.positions + 1) // kind.every  # entries of each row that are there
        self._counts = np.minimum(self._seen, kind.most) if kind.most else self._seen  # that it looks at
        self._oldest = np.maximum(of.positions - kind.window + 1, 0)
        self._lengths = self._counts + of.positions - self._oldest + 1
        self._tables = _tables(segments, self._size)
        self._places = self._all_places()
        self._far = np.flatnonzero(self._seen > self._counts)  # rows for which entries are chosen
        self._copies = self._plan_copies(plan, num_heads, kind._replace(window=0, most=0, every=0))
        self._make_ended()

    def _make_ended(self) -> None:
        """Finds the entries that end in this step."""
        every = self._kind.every
        numbers = [
            np.arange(each.position // every, (each.position + each.length) // every, dtype=np.int64)
            for each in self._segments
        ]
        owners = np.repeat(np.arange(len(numbers)), np.array([len(each) for each in numbers], dtype=np.int64))
        entries = np.concatenate(numbers) if numbers else np.zeros(0, dtype=np.int64)
        tokens = entries[:, None] * every + np.arange(every)
        self.tokens = torch.from_numpy(self._token_places(owners, tokens))
        self.before = torch.from_numpy(self._token_places(owners, np.where(tokens < every, tokens, tokens - every)))
        self.first = torch.from_numpy(entries == 0)
        self._positions = torch.from_numpy(entries * every)
        self.rotation: Rotation | None = None  # by the positions of their first tokens

    def rotate(self, table: RotaryTable) -> None:
        """Looks up how the entries that end in this step are rotated."""
        self.rotation = table.at(self._positions)

    def _token_places(self, owners: Ints, positions: Ints) -> Ints:
        """Returns where tokens at `positions` `[n, ...]` of the sequences `owners` `[n]` are stored."""
        pages = self._tables[owners[:, None], positions // self._size]
        return pages * self._size + positions % self._size

    def _all_places(self) -> Ints:
        """Returns the vectors that each row looks at `[rows, n]`, its first entries where it looks at some alone; n is
        a multiple of a page, and what is behind a row's own number of them is one of its own."""
        vectors, every = self._kind.heads.vectors, self._kind.every
        width = -(-int(self._lengths.max(initial=1)) // self._size) * self._size
        places = np.minimum(np.arange(width), self._lengths[:, None] - 1)
        of_entry = places < self._counts[:, None]
        positions = np.where(
            of_entry, places * every + every - 1, self._oldest[:, None] + places - self._counts[:, None]
        )
        found = self._token_places(self._owner, positions) * vectors
        return np.where(of_entry, found + self._of_entry, found)

    @property
    def _of_entry(self) -> int:
        """Returns which of a token's vectors is the entry that ends with it."""
        return (self._kind.heads.vectors - 1) // 2

    def _plan_copies(self, plan: Planner, num_heads: int, kind: AttentionKind) -> list[tuple[int, int, Plan]]:
        """Returns first row and last of those that attend at once, and how."""
        pages = self._places.shape[1] // self._size
        one = kind.heads._replace(vectors=1)
        at_once = max(1, _COPIED_BYTES // (pages * self._size * self._cache.shape.layer_bytes(one)))
        copies = []
        for first in range(0, len(self._rows), at_once):
            last = min(first + at_once, len(self._rows))
            segments = [
                Segment(row, 1, int(length) - 1, np.arange(row * pages, (row + 1) * pages))
                for row, length in enumerate(self._lengths[first:last])
            ]
            copies.append((first, last, plan(segments, self._cache, num_heads, kind)))
        return copies

    @property
    def chooses(self) -> bool:
        """Tells whether some token of the step does not look at all entries before it."""
        return len(self._far) > 0

    def choose(self, keys: torch.Tensor, queries: torch.Tensor, weights: torch.Tensor) -> None:
        """Chooses the entries that are looked at until this is called again, by a layer's index vectors
        `[places, vectors, size]`, which are stored, queries `[N, heads, size]` and what each head weighs
        `[N, heads]`."""
        padding = -queries.shape[1] % ROW_MULTIPLE
        rows = self._rows[torch.from_numpy(self._far)]
        queries = F.pad(queries.index_select(0, rows).float(), (0, 0, 0, padding))
        weights = F.pad(weights.index_select(0, rows).float(), (0, padding))
        pages, tables = self._index_pages(keys)
        reader, last = self._cache.index_readers[keys.shape[-1]], self._seen[self._far] - 1
        floats = np.cumsum(last // self._size + 1) * (queries.shape[1] * max(self._size, queries.shape[2]))
        first = 0
        while first < len(floats):
            before = floats[first - 1] if first else 0
            end = max(first + 1, int(np.searchsorted(floats, before + _SCORED_FLOATS, side="right")))
            part, far = slice(first, end), self._far[first:end]
            scores = page_scores(reader, pages, queries[part], weights[part], tables[self._owner[far]], last[part])
            chosen = highest(scores, self._kind.most).numpy()
            tokens = chosen * self._kind.every + self._kind.every - 1
            found = self._token_places(self._owner[far], tokens) * self._kind.heads.vectors + self._of_entry
            self._places[far, : self._kind.most] = found
            first = end

    def _index_pages(self, keys: torch.Tensor) -> tuple[torch.Tensor, Ints]:
        """Copies the index entries of sequences with rows that choose to pages `[pages, 1, page_size, size]`; returns
        them, and the pages of each segment `[segments, most]`."""
        every, size = self._kind.every, self._size
        owners = np.unique(self._owner[self._far])
        most = {int(owner): int(self._seen[self._owner == owner].max()) for owner in owners}
        width = -(-max(most.values()) // size)
        tables, places, page = np.zeros((len(self._segments), width), dtype=np.int64), [], 0
        for owner, count in most.items():
            filled = -(-count // size)
            entries = np.minimum(np.arange(filled * size), count - 1)
            places.append(self._token_places(np.array([owner]), entries[None] * every + every - 1)[0])
            tables[owner, :filled] = np.arange(page, page + filled)
            page += filled
        which = torch.from_numpy(np.concatenate(places) * keys.shape[1] + 1)  # the last of two keys
        return keys.flatten(0, 1).index_select(0, which).view(page, 1, size, -1), tables

    def attend(self, keys: Parts, values: Parts, q: torch.Tensor, scores: Scores) -> torch.Tensor:
        """See `Plan`; values are the keys."""
        out = torch.zeros_like(q)
        flat = keys[0].view(-1, keys[0].shape[-1])
        for first, last, plan in self._copies:
            places = torch.from_numpy(self._places[first:last].reshape(-1))
            seen = (flat.index_select(0, places).view(-1, 1, self._size, flat.shape[-1]),)
            rows = self._rows[first:last]
            out.index_copy_(0, rows, plan.attend(seen, seen, q.index_select(0, rows), scores))
        return out


def _tables(segments: Sequence[Segment], size: int) -> Ints:
    """Returns the pages of each segment `[segments, most]`."""
    counts = [(each.position + each.length - 1) // size + 1 for each in segments]
    tables = np.zeros((len(segments), max(counts, default=1)), dtype=np.int64)
    for table, each, count in zip(tables, segments, counts, strict=True):
        table[:count] = each.pages[:count]
    return tables

"""Plans a step's attention kernels as arrays. Numpy alone.

A *block* is up to `queries` consecutive query tokens of one sequence. A *job* is a block with all of its splits, or
with one of them. Which it is changes the order of work and not a bit of the result, so it may depend on the batch: the
longest blocks are divided, and so many that the busiest program has little more to do than the average one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tandem.worker.model.attention import Segment, oldest_seen

Ints = npt.NDArray[np.int32]

_FEW = 16  # segments, one after the other
_UNEVEN = 1.15  # times the average that a program may have to do; dividing a block costs a second pass over its results


def page_tables(segments: Sequence[Segment], page_size: int) -> Ints:
    """Returns the pages that each segment looks at, in rows `[segments, longest]`; what is not used is page 0."""
    counts = [(s.position + s.length - 1) // page_size + 1 for s in segments]
    tables = np.zeros((len(segments), max(counts, default=1)), dtype=np.int32)
    if len(segments) <= _FEW:
        for table, s, count in zip(tables, segments, counts, strict=True):
            table[:count] = s.pages[:count]
    else:
        held = np.concatenate([s.pages[:count] for s, count in zip(segments, counts, strict=True)])
        tables[np.arange(tables.shape[1]) < np.array(counts)[:, None]] = held
    return tables


def cut(segments: Sequence[Segment], queries: int) -> Ints:
    """Cuts segments into blocks of `queries` tokens `[B, 6]`, each of segment (and table row) i; no partials yet."""
    if all(s.length <= queries for s in segments):
        blocks = np.zeros((len(segments), 6), dtype=np.int32)
        blocks[:, 0] = [s.row for s in segments]
        blocks[:, 1] = [s.length for s in segments]
        blocks[:, 2] = [s.position for s in segments]
        blocks[:, 3] = range(len(segments))
        return blocks
    lengths = np.array([s.length for s in segments], dtype=np.int64)
    per_segment = -(-lengths // queries)
    owner = np.repeat(np.arange(len(segments)), per_segment)
    start = (np.arange(len(owner)) - np.repeat(np.cumsum(per_segment) - per_segment, per_segment)) * queries
    blocks = np.zeros((len(owner), 6), dtype=np.int32)
    blocks[:, 0] = np.array([s.row for s in segments], dtype=np.int64)[owner] + start
    blocks[:, 1] = np.minimum(queries, lengths[owner] - start)
    blocks[:, 2] = np.array([s.position for s in segments], dtype=np.int64)[owner] + start
    blocks[:, 3] = owner
    return blocks


def tables_from(blocks: Ints, tables: Ints) -> Ints:
    """Returns blocks that tell where their table begins in `tables`, and not which one it is."""
    return blocks * np.array([1, 1, 1, tables.shape[1], 1, 1], dtype=np.int32)


def divide(blocks: Ints, split: int, window: int, lanes: int, room: int) -> tuple[Ints, Ints, int]:
    """Divides blocks into jobs; returns blocks with their partials, jobs, and how many partials, at most `room`.

    lanes: programs that each kv head has. The longest jobs come first.
    """
    oldest = np.maximum(oldest_seen(blocks[:, 2], window), 0) if window else np.zeros(len(blocks), dtype=np.int32)
    first = oldest // split
    splits = (blocks[:, 2] + blocks[:, 1] - 1) // split + 1 - first
    share = _share(splits, lanes)
    while int(splits[splits > share].sum()) > room:
        share *= 2
    divided = splits > share
    partials = int(splits[divided].sum())

    blocks = blocks.copy()
    blocks[divided, 4] = np.cumsum(splits[divided]) - splits[divided]
    blocks[divided, 5] = splits[divided]
    jobs = np.empty((partials + int((~divided).sum()), 4), dtype=np.int32)
    ones, wholes = jobs[:partials], jobs[partials:]
    ones[:, 0] = np.repeat(np.flatnonzero(divided), splits[divided])
    ones[:, 1] = np.arange(partials) - np.repeat(blocks[divided, 4] - first[divided], splits[divided])
    ones[:, 2] = 1
    ones[:, 3] = np.arange(partials)
    whole = np.flatnonzero(~divided)
    whole = whole[np.argsort(-splits[whole], kind="stable")]
    wholes[:, 0], wholes[:, 1], wholes[:, 2], wholes[:, 3] = whole, first[whole], splits[whole], -1
    if share == 1:  # the whole ones are no longer than the parts of others
        return blocks, jobs, partials
    return blocks, np.concatenate([wholes, ones]), partials


def _share(splits: Ints, lanes: int) -> int:
    """Returns the most splits of a block that stays whole: as many as leave no lane with much more than the average."""
    average = max(1, int(splits.sum()) // lanes)
    if average == 1:
        return 1
    busiest: dict[int, int] = {}
    share = average
    while share:
        whole = -np.sort(-splits[splits <= share])
        work = np.concatenate([whole, np.ones(int(splits[splits > share].sum()), whole.dtype)])
        busiest[share] = int(np.bincount(np.arange(len(work)) % lanes, weights=work).max(initial=0))
        if busiest[share] <= _UNEVEN * average:
            break
        share //= 2
    return min(busiest, key=lambda share: (busiest[share], -share))


def longest_first(blocks: Ints) -> Ints:
    """Sorts blocks by the keys they look at, the most first, so that no program is left with a long one."""
    return blocks if len(blocks) < 2 else blocks[np.argsort(-(blocks[:, 2] + blocks[:, 1]), kind="stable")]

"""What happens to cached pages in a gateway's words: a page is a block, its serial the block's hash."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from smg_grpc_proto.generated import common_pb2 as common

from tandem.worker.front.gateway.page_feed import Batch, Page

CHUNK_PAGES = 256  # of a snapshot, in one message


def batch_message(batch: Batch) -> common.KvEventBatch:
    """Returns a batch as it is sent."""
    numbers = itertools.count(1)
    message = common.KvEventBatch(sequence_number=batch.number, timestamp=batch.time)
    if batch.cleared:
        message.events.add(event_id=next(numbers), cleared=common.KvCacheCleared())
    for run in _runs(batch.published):
        message.events.add(event_id=next(numbers), stored=_stored(run))
    if batch.forgotten:
        removed = common.KvBlocksRemoved(
            block_hashes=batch.forgotten,
            tier=common.KV_CACHE_TIER_DEVICE,
            locality=common.KV_CACHE_LOCALITY_LOCAL,
        )
        message.events.add(event_id=next(numbers), removed=removed)
    return message


def snapshot_messages(pages: Sequence[Page], number: int, time: float) -> Iterator[common.KvEventBatch]:
    """Yields the chunks of a snapshot taken when `number` was the last batch; parents come before their children."""
    count = max(1, -(-len(pages) // CHUNK_PAGES))
    for index in range(count):
        message = common.KvEventBatch(
            sequence_number=number - count + 1 + index,
            timestamp=time,
            snapshot=common.KvSnapshotChunk(index=index, count=count, blocks=len(pages)),
        )
        if not index:
            message.events.add(cleared=common.KvCacheCleared())
        for run in _runs(pages[index * CHUNK_PAGES : (index + 1) * CHUNK_PAGES]):
            message.events.add(stored=_stored(run))
        yield message


def _runs(pages: Iterable[Page]) -> Iterator[list[Page]]:
    """Yields pages that follow each other in one chain."""
    run: list[Page] = []
    for page in pages:
        if run and (page.parent != run[-1].serial):
            yield run
            run = []
        run.append(page)
    if run:
        yield run


def _stored(run: Sequence[Page]) -> common.KvBlocksStored:
    first = run[0]
    stored = common.KvBlocksStored(
        tier=common.KV_CACHE_TIER_DEVICE, locality=common.KV_CACHE_LOCALITY_LOCAL, cache_salt=first.salt or None
    )
    if first.parent:
        stored.parent_block_hash = first.parent
    for page in run:
        ids = np.frombuffer(page.tokens, np.int32).tolist()
        stored.blocks.add(block_hash=page.serial, token_ids=ids, block_size=len(ids))
    return stored

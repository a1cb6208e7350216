"""Steps of nothing but decodes, recorded once as CUDA graphs and replayed.

A step of a small model costs the processor more time to launch than the card to compute. A graph launches it at once,
but reads and writes the same addresses each time. So what differs between steps lies in fixed places and is filled in
there, and a recording exists for a few numbers of rows; rows that are too many write to the padding page and have no
attention.

Nothing but the recording needs a card: `forward` without one runs the same step on the same places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.model.attention import Segment
from worker_svc.model.cuda_operations import (
    JOBS_PER_LANE,
    KernelPlan,
    PagedLaunch,
    Sizes,
    TritonOperations,
)
from worker_svc.model.kernels.paged_attention import PagedWork, Partials
from worker_svc.model.kv_cache import KVCache
from worker_svc.model.paged_plan import cut, divide, page_tables
from worker_svc.model.runner import ModelRunner, Work
from worker_svc.model.transformer import Transformer

MOST_ROWS = 256


def recorded_rows(most: int, multiple: int) -> list[int]:
    """Numbers of rows worth a recording, for steps of up to `most` rows padded to a multiple: 1, 2, 4, 8, then every
    16; each a multiple itself."""
    wanted = [1, 2, 4, 8, *range(16, most + 16, 16)]
    return sorted({-(-min(rows, most) // multiple) * multiple for rows in wanted})


class _Place:
    """A tensor on the device, filled from two host buffers in turn: one may still be on its way."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.there = torch.zeros(shape, dtype=dtype, device=device)
        self._here = [torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda") for _ in range(2)]

    def put(self, turn: int, array: npt.NDArray[np.generic]) -> None:
        """Fills the beginning of each dimension; rows of the first one that are not named stay."""
        here = self._here[turn][: len(array)]
        here.numpy()[tuple(slice(size) for size in array.shape)] = array
        self.there[: len(array)].copy_(here, non_blocking=True)


@dataclass(slots=True)
class _Attention:
    """The places of one window's attention."""

    blocks: _Place  # [rows, 6]
    jobs: _Place  # [rows + room, 4]
    num_jobs: _Place  # [1]


class DecodeInputs:
    """The places of what a step of up to `rows` decodes reads."""

    def __init__(self, model: Transformer, cache: KVCache, rows: int) -> None:
        config, device, operations = model.config, cache.device, model.operations
        assert isinstance(operations, TritonOperations)
        self._operations = operations
        self._sizes = Sizes.of(cache, config.num_heads)
        self._padding_page = cache.padding_page
        lanes = operations.lanes(self._sizes.kv_heads)
        self._room = lanes * JOBS_PER_LANE
        width = -(-config.context_length // self._sizes.page_size)
        self._ids = _Place((rows,), torch.int64, device)
        self._positions = _Place((rows,), torch.int64, device)
        self._slots = _Place((2 * rows,), torch.int64, device)
        self._slots.there[:] = self._padding_page  # nothing is stored where a page could have an owner
        self._tables = _Place((rows, width), torch.int32, device)
        self._attention = {
            window: _Attention(
                _Place((rows, 6), torch.int32, device),
                _Place((rows + self._room, 4), torch.int32, device),
                _Place((1,), torch.int32, device),
            )
            for window in set(config.layer_windows)
        }
        stored = self._sizes.stored
        self._partials = Partials.empty(self._room, self._sizes.kv_heads, self._sizes.group, stored.head_dim, device)
        self._logit_rows = torch.arange(rows, device=device)
        self._turn = 0
        self._sent: list[torch.cuda.Event] = []
        if device.type == "cuda":
            self._sent = [torch.cuda.Event(), torch.cuda.Event()]  # type: ignore[no-untyped-call]

    @property
    def ids(self) -> torch.Tensor:
        """Of each row, `[rows]`."""
        return self._ids.there

    def fill(self, work: Sequence[Work], rows: int) -> None:
        """Puts a step of decodes in its places, for a run of `rows` rows."""
        size, count = self._sizes.page_size, len(work)
        turn = self._turn = 1 - self._turn
        if self._sent:
            self._sent[turn].synchronize()  # what was sent from these buffers two steps ago has arrived
        position = np.fromiter((item.position for item in work), dtype=np.int64, count=count)
        segments = [Segment(row, 1, item.position, item.pages) for row, item in enumerate(work)]
        tables = page_tables(segments, size)

        ids, positions, slots = np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.empty((2, rows), np.int64)
        ids[:count] = [item.tokens[0] for item in work]
        positions[:count] = position
        slots[0, :count] = tables[np.arange(count), position // size]
        slots[1, :count] = position % size
        slots[0, count:] = self._padding_page
        slots[1, count:] = np.arange(rows - count) % size
        self._ids.put(turn, ids)
        self._positions.put(turn, positions)
        self._slots.put(turn, slots.reshape(-1))
        self._tables.put(turn, tables)

        blocks = cut(segments, 1)
        lanes = self._operations.lanes(self._sizes.kv_heads)
        for window, attention in self._attention.items():
            divided, jobs, _ = divide(blocks, self._operations.split, window, lanes, self._room)
            padded = np.zeros((rows, 6), dtype=np.int32)  # a block of no queries and no partials
            padded[:count] = divided
            attention.blocks.put(turn, padded)
            attention.jobs.put(turn, jobs)
            attention.num_jobs.put(turn, np.array([len(jobs)], dtype=np.int32))
        if self._sent:
            self._sent[turn].record()

    def run(self, model: Transformer, cache: KVCache, rows: int) -> torch.Tensor:
        """One forward pass over the first `rows` places: logits `[rows, vocabulary]`."""
        tables = self._tables.there
        queries = self._operations.queries(self._sizes, 1)
        plans = {}
        for window, places in self._attention.items():
            work = PagedWork(tables, places.blocks.there[:rows], places.jobs.there, places.num_jobs.there)
            launch = PagedLaunch(
                self._sizes, work, self._partials, queries, self._operations.split, window, self._operations.programs
            )
            plans[window] = KernelPlan([launch])
        slots = self._slots.there[: 2 * rows].view(2, rows)
        logits: torch.Tensor = model(
            self._ids.there[:rows], self._positions.there[:rows], cache, slots, plans, self._logit_rows[:rows]
        )
        return logits


class GraphedRunner(ModelRunner):
    """A runner whose steps of decodes alone take the fixed places, and are replayed where they were recorded."""

    def __init__(self, model: Transformer, cache: KVCache, max_running: int) -> None:
        """`model` computes by TritonOperations."""
        super().__init__(model, cache)
        self._most = min(max_running, MOST_ROWS)
        self._rows: list[int] = []
        self._inputs: DecodeInputs | None = None
        self._logits = torch.empty(0)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def prepare(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Makes the places, and on a card the recordings, the largest first so that smaller ones fit into its memory.

        Comes after `choose_padding`. `progress(recordings done, in all)`. Raises torch.OutOfMemoryError.
        """
        self._rows = recorded_rows(self._most, self._row_multiple)
        inputs = self._inputs = DecodeInputs(self.model, self.cache, self._rows[-1])
        if self.cache.device.type != "cuda":
            return
        self._logits = torch.empty(
            (self._rows[-1], self.model.config.vocab_size), dtype=torch.float32, device=self.cache.device
        )
        pool = None
        with torch.inference_mode():
            for done, rows in enumerate(reversed(self._rows)):
                inputs.run(self.model, self.cache, rows)  # compiles and chooses what must not happen while recording
                torch.cuda.synchronize(self.cache.device)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool):
                    self._logits[:rows].copy_(inputs.run(self.model, self.cache, rows))
                pool = graph.pool()
                self._graphs[rows] = graph
                if progress is not None:
                    progress(done + 1, len(self._rows))

    @torch.inference_mode()
    def forward(self, work: Sequence[Work], sampled: torch.Tensor | None = None) -> torch.Tensor:
        """As `ModelRunner.forward`; logits of decodes hold until the next call."""
        if self._inputs is None or len(work) > self._most or any(len(w.tokens) > 1 or w.samples != 1 for w in work):
            return super().forward(work, sampled)
        rows = next(rows for rows in self._rows if rows >= len(work))
        self._inputs.fill(work, rows)
        self._take_sampled(self._inputs.ids, np.arange(len(work)), work, sampled)
        if rows in self._graphs:
            self._graphs[rows].replay()
            return self._logits[:rows]
        return self._inputs.run(self.model, self.cache, rows)

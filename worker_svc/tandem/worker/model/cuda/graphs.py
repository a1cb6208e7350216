"""Records steps of decodes, and of drafts behind them, once as CUDA graphs and replays them.

A step of a small model costs the processor more time to launch than the GPU to compute. A graph launches it at once,
but reads and writes the same addresses each time. So what differs between steps lies in fixed places and is filled in
there, and a recording exists for a few numbers of rows; rows that are too many write to the padding page and have no
attention. Whose the rows are is told by what is filled in: those of one sequence, its last token and its drafts, are
blocks of attention of no more queries than the matrix of a decode has lines for anyway. So a step that verifies drafts
replays what a step of as many decodes would.

Nothing but the recording needs a GPU: `forward` without one runs the same step on the same places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.checkpoints.model_parts.heads import AttentionKind
from tandem.worker.model.attention import Plan, Segment
from tandem.worker.model.cuda.kernels.paged_attention import PagedWork, Partials, matrix_rows
from tandem.worker.model.cuda.kernels.selection import Rows
from tandem.worker.model.cuda.operations import (
    JOBS_PER_LANE,
    KernelPlan,
    PagedLaunch,
    Sizes,
    TritonOperations,
)
from tandem.worker.model.cuda.selection import KernelSelectingPlan, listed, scores_room
from tandem.worker.model.cuda.states import KernelMoves, StateArrays
from tandem.worker.model.inference import in_inference_mode
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.paged_plan import cut, divide, page_tables, tables_from
from tandem.worker.model.runner import MOST_DECODES, ModelRunner, decode_rows, first_rows, state_plan
from tandem.worker.model.states import STATELESS, StateCache
from tandem.worker.model.transformer import Transformer
from tandem.worker.model.work import Work

STATES_PER_ROW = 2  # tokens that states move by, the new one and one that is repeated; and states that are saved


class _Places:
    """Arrays on the device that one copy fills, from two host buffers in turn: one may still be on its way."""

    def __init__(self, shapes: dict[str, tuple[tuple[int, ...], torch.dtype]], device: torch.device) -> None:
        """Allocates the arrays; the last of `shapes`, of one dimension, may be sent in part."""
        ends = np.cumsum(
            [-(-math.prod(shape) * dtype.itemsize // 16) * 16 for shape, dtype in shapes.values()]
        ).tolist()
        self._last = list(shapes)[-1]
        self._last_start = ends[-2]
        self._there = torch.zeros(ends[-1], dtype=torch.uint8, device=device)
        on_card = device.type == "cuda"
        self._here = [torch.zeros(ends[-1], dtype=torch.uint8, pin_memory=on_card) for _ in range(2)]

        def views(flat: torch.Tensor) -> dict[str, torch.Tensor]:
            starts = zip([0, *ends], shapes.items(), strict=False)
            return {
                name: flat[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
                for start, (name, (shape, dtype)) in starts
            }

        self.there = views(self._there)
        self._arrays = [{name: view.numpy() for name, view in views(here).items()} for here in self._here]
        self._turn = 0
        self._on_card = on_card
        self._sent: list[torch.cuda.Event | None] = [None, None]

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the arrays to fill for the next `send`; they hold what was sent the time before last."""
        self._turn = 1 - self._turn
        if (sent := self._sent[self._turn]) is not None:
            sent.synchronize()  # what was sent from here has arrived
        return self._arrays[self._turn]

    def send(self, count: int) -> None:
        """Copies all to the device, and of the last the first `count` numbers."""
        end = self._last_start + count * self._arrays[0][self._last].itemsize
        self._there[:end].copy_(self._here[self._turn][:end], non_blocking=True)
        if self._on_card:
            event = self._sent[self._turn] = self._sent[self._turn] or torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()


def _block(sizes: Sizes) -> int:
    """Returns how many queries of a sequence the matrix of a decode has lines for."""
    return matrix_rows(1, sizes.group) // sizes.group


class StepInputs:
    """The inputs of a step of up to `rows` tokens behind each of which one is sampled, at fixed addresses."""

    def __init__(self, model: Transformer, cache: KVCache, states: StateCache | None, rows: int) -> None:
        config, device, operations = model.config, cache.device, model.operations
        assert isinstance(operations, TritonOperations)
        self._operations = operations
        self._page_size = cache.shape.page_size
        self._padding_page = cache.padding_page
        self._kinds = sorted(set(config.attention_kinds))
        self._sizes = {
            kind: operations.sizes(cache, kind.query_heads or config.num_heads, kind.heads) for kind in self._kinds
        }
        self._lanes = {kind: operations.lanes(sizes) for kind, sizes in self._sizes.items()}
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "ids": ((rows,), torch.int64),
            "positions": ((rows,), torch.int64),
            "slots": ((2 * rows,), torch.int64),
        }
        self._states = states
        self._room = torch.empty(0)
        if states is not None:
            shapes["works"] = ((rows, 9), torch.int32)
            shapes["saves"] = ((STATES_PER_ROW * rows, 2), torch.int32)
            shapes["owners"] = ((STATES_PER_ROW * rows,), torch.int32)
            width = states.shape.sizes.channels + states.shape.sizes.factors
            self._room = torch.empty((STATES_PER_ROW * rows, width), device=device)
        context = min(-(-config.context_length // self._page_size), cache.shape.pages) * self._page_size
        self._places_of: dict[AttentionKind, torch.Tensor] = {}
        self._scores: dict[AttentionKind, torch.Tensor] = {}
        for kind in self._kinds:
            if kind.most:
                numbers: dict[str, Any] = {"dtype": torch.int32, "device": device}
                self._places_of[kind] = torch.empty((rows, kind.most), **numbers)
                self._scores[kind] = torch.empty(scores_room(rows, context), **numbers)
                shapes[f"rows {kind}"] = ((rows, 2), torch.int32)
        for kind, lanes in self._lanes.items():
            shapes[f"blocks {kind}"] = ((rows, 6), torch.int32)
            shapes[f"jobs {kind}"] = ((rows + lanes * JOBS_PER_LANE, 4), torch.int32)
            shapes[f"number {kind}"] = ((1,), torch.int32)
        shapes["tables"] = ((rows * -(-config.context_length // self._page_size),), torch.int32)
        self._places = _Places(shapes, device)
        self._partials = {
            kind.heads: Partials.empty(
                self._lanes[kind] * JOBS_PER_LANE, sizes.kv_heads, _block(sizes) * sizes.group, sizes.stored.value,
                device,
            )
            for kind, sizes in self._sizes.items()
        }  # fmt: skip
        self._logit_rows = torch.arange(rows, device=device)

    @property
    def ids(self) -> torch.Tensor:
        """Returns the token ids of each row, `[rows]`."""
        return self._places.there["ids"]

    def fill(self, work: Sequence[Work], rows: int) -> None:
        """Fills in a step, or none, for a run of `rows` rows."""
        size = self._page_size
        lengths = np.fromiter((len(item.tokens) for item in work), dtype=np.int64, count=len(work))
        starts = np.fromiter((item.position for item in work), dtype=np.int64, count=len(work))
        first, count = first_rows(lengths), int(lengths.sum())
        position = np.arange(count) + np.repeat(starts - first, lengths)
        segments = [
            Segment(row, length, item.position, item.pages)
            for row, length, item in zip(first.tolist(), lengths.tolist(), work, strict=True)
        ]
        tables = page_tables(segments, size)

        arrays = self._places.arrays()
        ids = np.concatenate([item.tokens for item in work]) if work else ()
        for name, values in (("ids", ids), ("positions", position)):
            arrays[name][:count] = values
            arrays[name][count:rows] = 0
        slots = arrays["slots"][: 2 * rows].reshape(2, rows)
        slots[0, :count] = tables[np.repeat(np.arange(len(work)), lengths), position // size]
        slots[1, :count] = position % size
        slots[0, count:] = self._padding_page
        slots[1, count:] = np.arange(rows - count) % size
        arrays["tables"][: tables.size] = tables.reshape(-1)
        for kind, lanes in self._lanes.items():
            if kind.most:
                rows_of, blocks = listed(segments, tables.shape[1], kind.most)
                arrays[f"rows {kind}"][:count] = rows_of
                arrays[f"rows {kind}"][count:rows] = (-1, 0)
            else:
                blocks = tables_from(cut(segments, _block(self._sizes[kind])), tables)
            divided, jobs, _ = divide(blocks, self._operations.split, kind.window, lanes, lanes * JOBS_PER_LANE)
            arrays[f"blocks {kind}"][: len(divided)] = divided
            arrays[f"blocks {kind}"][len(divided) : rows] = 0  # no queries and no partials
            arrays[f"jobs {kind}"][: len(jobs)] = jobs
            arrays[f"number {kind}"][0] = len(jobs)
        if self._states is not None:
            plan = state_plan(first.tolist(), work, self._states)
            for name, lines, rest in (("works", plan.works, 0), ("saves", plan.saves, 0), ("owners", plan.owners, -1)):
                arrays[name][: len(lines)] = lines
                arrays[name][len(lines) :] = rest  # no tokens, and nobody's
        self._places.send(tables.size)

    def run(self, model: Transformer, cache: KVCache, rows: int) -> torch.Tensor:
        """Does one forward pass over the first `rows` rows: logits `[rows, vocabulary]`."""
        there = self._places.there
        plans: dict[AttentionKind, Plan] = {}
        for kind, sizes in self._sizes.items():
            blocks, jobs, number = (there[f"{name} {kind}"] for name in ("blocks", "jobs", "number"))
            queries = 1 if kind.most else max(_block(sizes), self._operations.queries(sizes, 1))
            tables = self._places_of[kind] if kind.most else there["tables"]
            launch = PagedLaunch(
                sizes, PagedWork(tables, blocks[:rows], jobs, number), self._partials[kind.heads], queries,
                self._operations.split, kind.window, self._operations.programs_for(sizes),
            )  # fmt: skip
            plans[kind] = KernelPlan([launch], sizes.stored.value)
            if kind.most:
                plans[kind] = KernelSelectingPlan(
                    plans[kind],
                    Rows(there[f"rows {kind}"][:rows], there["tables"]),
                    tables[:rows],
                    self._scores[kind],
                    self._operations.programs,
                )
        slots = there["slots"][: 2 * rows].view(2, rows)
        moves = None
        if self._states is not None:
            most = STATES_PER_ROW * rows
            arrays = StateArrays(there["works"][:rows], there["saves"][:most], there["owners"][:most])
            moves = KernelMoves(arrays, self._states, self._room[:most])
        logits: torch.Tensor = model(
            there["ids"][:rows], there["positions"][:rows], cache, slots, plans, self._logit_rows[:rows], moves
        )
        return logits


class GraphedRunner(ModelRunner):
    """Runs steps of decodes and drafts alone at fixed addresses, and replays them where they were recorded."""

    def __init__(self, model: Transformer, cache: KVCache, most_rows: int, states: StateCache | None = None) -> None:
        """Takes a `model` that computes by TritonOperations. Steps of up to `most_rows` tokens are recorded."""
        super().__init__(model, cache, states)
        self._most = min(most_rows, MOST_DECODES)
        self._rows: list[int] = []
        self._inputs: StepInputs | None = None
        self._logits = torch.empty(0)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    @property
    def tried_decodes(self) -> list[int]:
        """Implements `ModelRunner.tried_decodes`: one for each recording."""
        return [min(rows, self._most) for rows in decode_rows(self._most, self.row_multiple)]

    def forget(self) -> None:
        """Implements `ModelRunner.forget`."""
        self._graphs.clear()
        self._inputs, self._logits = None, torch.empty(0)

    def prepare(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Allocates the inputs, and on a GPU makes the recordings, the largest first so that smaller ones fit into its
        memory.

        `progress(recordings done, in all)`. Raises torch.OutOfMemoryError.
        """
        self._rows = decode_rows(self._most, self.row_multiple)
        inputs = self._inputs = StepInputs(self.model, self.cache, self.states, self._rows[-1])
        if self.cache.device.type != "cuda":
            return
        self._logits = torch.empty(
            (self._rows[-1], self.model.config.vocab_size), dtype=self.model.logits_dtype, device=self.cache.device
        )
        pool = None
        # A stream of its own: of the one that torch records on by default, the end of one engine's graphs takes away
        # the workspaces that another engine's graphs multiply with (https://github.com/pytorch/pytorch/issues/193402).
        stream = torch.cuda.Stream(self.cache.device)  # type: ignore[no-untyped-call]
        with torch.inference_mode():
            for done, rows in enumerate(reversed(self._rows)):
                inputs.fill((), rows)  # nothing is stored where a page could have an owner
                inputs.run(self.model, self.cache, rows)  # compiles and chooses what must not happen while recording
                torch.cuda.synchronize(self.cache.device)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=stream):
                    self._logits[:rows].copy_(inputs.run(self.model, self.cache, rows))
                pool = graph.pool()
                self._graphs[rows] = graph
                if progress is not None:
                    progress(done + 1, len(self._rows))

    @in_inference_mode
    def forward(self, work: Sequence[Work], sampled: torch.Tensor | None = None) -> torch.Tensor:
        """Does what `ModelRunner.forward` does; logits of a recorded step hold until the next call."""
        lengths = np.array([len(item.tokens) for item in work], dtype=np.int64)
        count = self._needed(work, int(lengths.sum()))
        recorded = all(len(item.tokens) == item.samples and item.adapter < 0 for item in work)
        if self._inputs is None or count > self._most or not recorded:
            return super().forward(work, sampled)
        rows = next(rows for rows in self._rows if rows >= count)
        self._inputs.fill(work, rows)
        if sampled is not None:
            self._take_sampled(self._inputs.ids, first_rows(lengths).tolist(), work, sampled)
        if rows in self._graphs:
            self._graphs[rows].replay()
            return self._logits[:rows]
        return self._inputs.run(self.model, self.cache, rows)

    def _needed(self, work: Sequence[Work], count: int) -> int:
        """Returns how many rows a recording needs for steps of `count` tokens, so that it also has room for those that
        states repeat, and for the states that are saved."""
        if self.states is None:
            return count
        repeated = sum(item.position - item.state.position for item in work if item.state.slot != STATELESS)
        saved = sum(len(item.state.saves) for item in work)
        return max(count, -(-max(count + repeated, saved) // STATES_PER_ROW))

"""Implements `Operations` by our own Triton kernels.

Two ways to attend. *Reproducible*: every query, of a decode, a prefill or a draft, goes through one compiled kernel, so
that its bits depend on its own sequence alone. *Fast*: decodes get a kernel with no more rows than they need, and
prefills one that keeps a single softmax in progress; a token's bits then depend on how it was computed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from tandem.worker.checkpoints.grouped import Float8Rows, Grouped, Quantization
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.heads import AttentionKind, KVHeads
from tandem.worker.checkpoints.model_parts.mlp import Activation
from tandem.worker.model.attention import Plan, Scores, Segment
from tandem.worker.model.cuda import products as cuda_products
from tandem.worker.model.cuda.experts import JoinedExperts
from tandem.worker.model.cuda.flash_infer import FlashInfer, FlashInferLaunch, Launch
from tandem.worker.model.cuda.heads import JoinedHeads
from tandem.worker.model.cuda.kernels.add_norm import add_norm, add_norm_float8
from tandem.worker.model.cuda.kernels.card import HOPPER, Card, card_of
from tandem.worker.model.cuda.kernels.latents import store_latents
from tandem.worker.model.cuda.kernels.paged_attention import (
    IN_FLIGHT,
    PagedWork,
    Partials,
    matrix_rows,
    paged_attention,
)
from tandem.worker.model.cuda.kernels.prefill import prefill_attention
from tandem.worker.model.cuda.kernels.selection import Rows
from tandem.worker.model.cuda.kernels.store import rotate_and_store
from tandem.worker.model.cuda.kernels.swiglu import swiglu, swiglu_float8
from tandem.worker.model.cuda.kernels.tiles import INT4, INT6, INT8, Block, Stored
from tandem.worker.model.cuda.quantized import KernelWeight
from tandem.worker.model.cuda.selection import KernelSelectingPlan, listed, scores_room
from tandem.worker.model.cuda.states import KernelMoves, StateArrays
from tandem.worker.model.feed_forward import FeedForward, UngatedFeedForward
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.kv_formats import Parts
from tandem.worker.model.linear import HeadLinear
from tandem.worker.model.operations import TorchOperations
from tandem.worker.model.paged_plan import Ints, cut, divide, longest_first, page_tables, tables_from
from tandem.worker.model.quantization import QuantizedWeight
from tandem.worker.model.states import StatePlan
from tandem.worker.model.unfinished import FINISHED, Unfinished

logger = logging.getLogger(__name__)

SPLIT = 256  # tokens
VERIFIED = 16  # queries in a row that are still treated like decodes
RESULT = 64 * 256  # numbers of a block's result, of which a program's registers hold two
BLOCK_ROWS = 64  # of the matrix of a block, a row a query and head: what Hopper's matrix units take
FLOAT32_ROWS = 16  # the same in float32, which has no matrix unit: more rows would not fit into registers
PREFILL_ROWS = 128
PROGRAMS_PER_PROCESSOR = 2
JOBS_PER_LANE = 32  # partials that there is room for


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a cache and a model that determine how attention is laid out."""

    stored: Stored
    kv_heads: int  # groups of heads; over latents several share the one that is stored
    group: int  # heads of a group
    page_size: int
    float32: bool  # what queries are, whatever is stored
    number_bytes: int
    converted: bool  # to float32, what is stored
    rows: int  # of the matrix of a block, at most
    shared: int  # bytes of shared memory that a program may have

    @property
    def tile(self) -> int:
        """Returns how many keys are read at once. Converted ones wait in registers, all of a tile, and those of 6 bits
        with what they are put together from."""
        if self.converted:
            return 16
        if self.stored.latent:  # of which two should be there at a time, beside the queries
            return 32 if self.block(self.rows, 32).shared(4) <= self.shared else 16
        return 64 if self.stored.padded <= (64 if self.stored.format == INT6.value else 128) else 32

    @property
    def prefill_tile(self) -> int:
        """Returns the tile of a prefill, whose matrix units should have work for longer than shared memory takes to
        feed them: as many keys as registers allow. With head_dim 64, two programs share a processor instead, if numbers
        are plain. Scales of int8 are copied by one thread each where there are as many of them as threads."""
        if self.float32 or self.stored.format in (INT4.value, INT6.value) or self.stored.padded > 128:
            return self.tile
        return 128 if self.stored.padded == 128 or self.stored.format == INT8.value else 64

    def block(self, rows: int, tile: int) -> Block:
        """Returns what a program with so many rows holds."""
        return Block.of(self.stored, rows, 4 if self.float32 else 2, tile, self.number_bytes)


@dataclass(slots=True)
class PagedLaunch:
    """One launch of `paged_attention` and what it works on."""

    sizes: Sizes
    work: PagedWork
    partials: Partials
    queries: int
    split: int
    window: int
    programs: int

    def attend(self, keys: Parts, values: Parts, q: torch.Tensor, out: torch.Tensor, scores: Scores) -> None:
        paged_attention(
            q, out, keys, values, self.sizes.stored, self.work, self.partials, scores,
            group=self.sizes.group, queries=self.queries, split=self.split, tile=self.sizes.tile, window=self.window,
            programs=self.programs,
        )  # fmt: skip


@dataclass(slots=True)
class PrefillLaunch:
    """One launch of `prefill_attention` and what it works on."""

    sizes: Sizes
    tables: torch.Tensor
    blocks: torch.Tensor
    rows: int  # of a block's matrix
    tile: int
    window: int

    def attend(self, keys: Parts, values: Parts, q: torch.Tensor, out: torch.Tensor, scores: Scores) -> None:
        prefill_attention(
            q, out, keys, values, self.sizes.stored, self.tables, self.blocks, scores,
            group=self.sizes.group, rows=self.rows, tile=self.tile, window=self.window,
        )  # fmt: skip


@dataclass(slots=True)
class KernelPlan:
    """A step's attention: at most one launch of each kind.

    All layers write to the same place, whose padding rows are cleared once: what a layer gets holds until the next.
    """

    launches: Sequence[Launch]
    value: int  # numbers of a value
    _out: torch.Tensor | None = None

    def attend(self, keys: Parts, values: Parts, q: torch.Tensor, scores: Scores) -> torch.Tensor:
        out, shape = self._out, (*q.shape[:2], self.value)
        if out is None or out.shape != shape:
            out = self._out = q.new_zeros(shape)
        for launch in self.launches:
            launch.attend(keys, values, q, out, scores)
        return out


class TritonOperations:
    """Operations for CUDA; under Triton's interpreter also for CPUs."""

    wide_logits = False  # who reads them converts them

    def __init__(
        self,
        programs: int,
        *,
        reproducible: bool = True,
        float32: bool = False,
        split: int = SPLIT,
        card: Card = HOPPER,
    ) -> None:
        """Runs attention by up to `programs` side by side; their number changes no bit. `split` does: tokens of a fixed
        split, a multiple of every tile. `float32`: the model computes in it, which a cache of 8 or 4 bits does not
        tell."""
        self.split = split
        self.float32 = float32
        self.reproducible = reproducible
        self.programs = programs
        self.card = card
        # The interpreter is quicker with few large blocks.
        self.float32_rows = FLOAT32_ROWS if torch.cuda.is_available() else BLOCK_ROWS
        # Rows of a product are padded to this where a row's bits must not depend on the others: to whole tiles.
        self.row_multiple = 64 if reproducible else 1
        # Drafts of every length that has a kernel in fast mode, over several splits.
        self.tried_context = 2 * split + 3
        self.tried_runs = tuple(1 << power for power in range(1, VERIFIED.bit_length()))
        self.products = cuda_products.products(reproducible=reproducible)
        self.flash_infer: FlashInfer | None = None  # for prefills in fast mode
        self._told: set[str] = set()  # by what prefills are computed

    @staticmethod
    def on(device: torch.device, *, reproducible: bool, float32: bool) -> TritonOperations:
        """Makes operations for a GPU, with as many programs as keep it busy."""
        card = card_of(device)
        programs = card.processors * PROGRAMS_PER_PROCESSOR
        operations = TritonOperations(programs, reproducible=reproducible, float32=float32, card=card)
        if not reproducible:
            operations.flash_infer = FlashInfer.installed()
        return operations

    def programs_for(self, sizes: Sizes) -> int:
        """Returns how many programs attend: no more than have room on the processors at a time."""
        block = sizes.block(matrix_rows(self.queries(sizes, VERIFIED), sizes.group), sizes.tile)
        fit = self.card.programs(block.shared(block.depth(IN_FLIGHT, self.card)))
        return max(1, self.programs * min(fit, PROGRAMS_PER_PROCESSOR) // PROGRAMS_PER_PROCESSOR)

    def lanes(self, sizes: Sizes) -> int:
        """Returns how many programs work on one kv head."""
        return max(1, self.programs_for(sizes) // sizes.kv_heads)

    def prefill_block(self, sizes: Sizes) -> Block:
        """Returns the block of a prefill: with smaller tiles, and then fewer rows, where they would not fit."""
        rows, tile = (self.float32_rows if sizes.float32 else PREFILL_ROWS), sizes.prefill_tile
        if sizes.stored.latent:  # of whose tiles a program with more rows would still find room
            rows = min(rows, 2 * sizes.rows)
        while sizes.block(rows, tile).shared(4) > self.card.shared and rows > 16:
            if tile > sizes.tile:
                tile //= 2
            else:
                rows //= 2
        return sizes.block(rows, tile)

    def sizes(self, cache: KVCache, num_heads: int, heads: KVHeads) -> Sizes:
        """Returns the sizes of layers with so many heads for queries, and of keys and values."""
        shape = cache.shape
        stored, plain = Stored.of(shape.format, heads), cache.keys[0][0].dtype == torch.float32
        float32 = self.float32 or plain
        rows = self.float32_rows if float32 else BLOCK_ROWS
        rows = max(16, min(rows, RESULT // stored.padded))
        groups = -(-num_heads // rows) if heads.latent else heads.number
        return Sizes(
            stored, groups, -(-num_heads // groups), shape.page_size, float32, cache.keys[0][0].element_size(),
            self.float32 and not plain, rows, self.card.shared,
        )  # fmt: skip

    def queries(self, sizes: Sizes, longest: int) -> int:
        """Returns the tokens in a block, if a step has up to `longest` new ones of a sequence for `paged_attention`."""
        most = max(1, sizes.rows // sizes.group)
        return most if self.reproducible else min(most, 1 << (longest - 1).bit_length())

    def plan(self, segments: Sequence[Segment], cache: KVCache, num_heads: int, kind: AttentionKind) -> Plan:
        sizes, window = self.sizes(cache, num_heads, kind.heads), kind.window
        if kind.most:
            return self._selecting(segments, sizes, cache, kind.most)
        short = [s for s in segments if self.reproducible or s.length <= VERIFIED]
        long = [s for s in segments if not self.reproducible and s.length > VERIFIED]
        launches: list[Launch] = []
        if short:
            launches.append(self._paged(short, sizes, cache, window))
        if long:
            launches.append(self._prefill(long, sizes, cache, kind))
        return KernelPlan(launches, sizes.stored.value)

    def _selecting(self, segments: Sequence[Segment], sizes: Sizes, cache: KVCache, most: int) -> KernelSelectingPlan:
        lanes, tables = self.lanes(sizes), page_tables(segments, sizes.page_size)
        rows, listed_blocks = listed(segments, tables.shape[1], most)
        blocks, jobs, count = divide(listed_blocks, self.split, 0, lanes, lanes * JOBS_PER_LANE)
        tables_there, rows_there, blocks_there, jobs_there, num_jobs = _to(
            cache.device, tables, rows, blocks, jobs, np.array([len(jobs)], dtype=np.int32)
        )
        places = torch.empty((len(rows), most), dtype=torch.int32, device=cache.device)
        room = scores_room(len(rows), tables.shape[1] * sizes.page_size)
        scores = torch.empty(room, dtype=torch.int32, device=cache.device)
        partials = Partials.empty(count, sizes.kv_heads, sizes.group, sizes.stored.value, cache.device)
        work = PagedWork(places, blocks_there, jobs_there, num_jobs)
        launch = PagedLaunch(sizes, work, partials, 1, self.split, 0, self.programs_for(sizes))
        attending = KernelPlan([launch], sizes.stored.value)
        return KernelSelectingPlan(attending, Rows(rows_there, tables_there), places, scores, self.programs)

    def _prefill(self, segments: Sequence[Segment], sizes: Sizes, cache: KVCache, kind: AttentionKind) -> Launch:
        ours = partial(self._own_prefill, segments, sizes, cache, kind.window)
        library = self.flash_infer
        refused = "FlashInfer is not installed" if library is None else library.refuses(cache, kind)
        by = f"our own kernel: {refused}" if library is None or refused else library.name
        if by not in self._told:
            self._told.add(by)
            level = logging.WARNING if library is not None and library.refused else logging.INFO
            logger.log(level, "prefills are computed by %s", by)
        return ours() if library is None or refused else FlashInferLaunch(library, segments, cache, kind, ours)

    def _own_prefill(self, segments: Sequence[Segment], sizes: Sizes, cache: KVCache, window: int) -> PrefillLaunch:
        block = self.prefill_block(sizes)
        queries = max(1, block.rows // sizes.group)
        blocks = longest_first(cut(segments, queries))
        tables = page_tables(segments, sizes.page_size)
        tables_there, blocks_there = _to(cache.device, tables, tables_from(blocks, tables))
        rows = matrix_rows(queries, sizes.group)
        return PrefillLaunch(sizes, tables_there, blocks_there, rows, block.tile, window)

    def _paged(self, segments: Sequence[Segment], sizes: Sizes, cache: KVCache, window: int) -> PagedLaunch:
        queries = self.queries(sizes, max(s.length for s in segments))
        lanes = self.lanes(sizes)
        blocks, jobs, count = divide(cut(segments, queries), self.split, window, lanes, lanes * JOBS_PER_LANE)
        tables = page_tables(segments, sizes.page_size)
        tables_there, blocks_there, jobs_there, num_jobs = _to(
            cache.device, tables, tables_from(blocks, tables), jobs, np.array([len(jobs)], dtype=np.int32)
        )
        lines = min(queries, max(s.length for s in segments)) * sizes.group
        partials = Partials.empty(count, sizes.kv_heads, lines, sizes.stored.value, cache.device)
        work = PagedWork(tables_there, blocks_there, jobs_there, num_jobs)
        return PagedLaunch(sizes, work, partials, queries, self.split, window, self.programs_for(sizes))

    def add_norm(self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return add_norm(x, delta, weight, eps)

    def add_norm_float8(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> Float8Rows:
        return add_norm_float8(x, delta, weight, eps)

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        cache: KVCache,
        layer: int,
        slots: torch.Tensor | None,
        first: Unfinished = FINISHED,
    ) -> torch.Tensor:
        if type(cache) is not KVCache:  # one that does more than store
            return TorchOperations().rotate_and_store(qkv, rotation, cache, layer, slots, first).contiguous()
        stored = Stored.of(cache.shape.format, cache.shape.heads[layer])
        channels = cache.key_channels[layer] if cache.key_channels else None
        pages = cache.keys[layer], cache.values[layer]
        return rotate_and_store(qkv, rotation, *pages, stored, slots, channels, first.bias, first.norms, first.eps)

    def store_latents(
        self,
        latent: torch.Tensor,
        norm: tuple[torch.Tensor, float],
        queries: torch.Tensor,
        absorbed: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        cache: KVCache,
        layer: int,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        if type(cache) is not KVCache:  # one that does more than store
            args = latent, norm, queries, absorbed, rotation, cache, layer, slots
            return TorchOperations().store_latents(*args).contiguous()
        stored = Stored.of(cache.shape.format, cache.shape.heads[layer])
        channels = cache.key_channels[layer] if cache.key_channels else None
        return store_latents(latent, *norm, queries, absorbed, rotation, cache.keys[layer], stored, slots, channels)

    def plan_states(self, plan: StatePlan, device: torch.device) -> KernelMoves:
        arrays = [each.astype(np.int32) for each in (plan.works, plan.saves, plan.owners)]
        return KernelMoves(StateArrays(*_to(device, *arrays)), plan.cache)

    def swiglu(self, gate_up: torch.Tensor, size: int) -> torch.Tensor:
        return swiglu(gate_up, size)

    def swiglu_float8(self, gate_up: torch.Tensor, size: int) -> Float8Rows:
        return swiglu_float8(gate_up, size)

    def limited_swiglu(self, gate_up: torch.Tensor, size: int, limit: float) -> torch.Tensor:
        return TorchOperations().limited_swiglu(gate_up, size, limit)

    def geglu(self, gate_up: torch.Tensor, size: int) -> torch.Tensor:
        return TorchOperations().geglu(gate_up, size)

    def add_layer_norm(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        return TorchOperations().add_layer_norm(x, delta, weight, bias, eps)

    def activate(self, activation: Activation, x: torch.Tensor) -> torch.Tensor:
        return TorchOperations().activate(activation, x)

    def gate_by_sigmoid(self, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        return TorchOperations().gate_by_sigmoid(x, gates)

    def gate_by_softplus(self, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        return TorchOperations().gate_by_softplus(x, gates)

    def quantized_weight(
        self, kind: Quantization, rows: int, columns: int, like: Grouped, device: torch.device
    ) -> QuantizedWeight:
        return KernelWeight(kind, rows, columns, like, device, reproducible=self.reproducible)

    def join_heads(self, linear: torch.nn.Module) -> JoinedHeads:
        assert isinstance(linear, HeadLinear)
        return JoinedHeads(linear, reproducible=self.reproducible)

    def join_experts(self, config: Experts, experts: Sequence[torch.nn.Module]) -> JoinedExperts | str:
        try:
            return JoinedExperts(
                config,
                [each for each in experts if isinstance(each, FeedForward | UngatedFeedForward)],
                reproducible=self.reproducible,
            )
        except ValueError as error:
            return str(error)


def _to(device: torch.device, *arrays: Ints) -> list[torch.Tensor]:
    """Copies the arrays to the device at once. Each begins at a multiple of 16 bytes: kernels are compiled again for
    pointers that do not."""
    starts = np.cumsum([0, *(-(-array.size // 4) * 4 for array in arrays)]).tolist()
    flat = np.empty(starts[-1], dtype=np.int32)
    for start, array in zip(starts, arrays, strict=False):
        flat[start : start + array.size] = array.reshape(-1)
    there = torch.from_numpy(flat)
    if device.type == "cuda":
        there = there.pin_memory().to(device, non_blocking=True)
    return [there[start : start + array.size].view(array.shape) for start, array in zip(starts, arrays, strict=False)]

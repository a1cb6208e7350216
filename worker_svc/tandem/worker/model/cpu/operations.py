"""The operations of a CPU that has the compiled library (`native`): a few calls a layer instead of dozens of torch's.

They compute in float32 on sizes that are multiples of 8; what is not so is left to torch, whose operations are also the
reference they are tested against. Which of both serves a model depends on its shape and dtype alone, so that the bits
of a row never depend on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.heads import AttentionKind
from tandem.worker.checkpoints.model_parts.mlp import Activation
from tandem.worker.model.attention import MovingPlan, Plan, Scores, Segment
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.experts import CompiledExperts
from tandem.worker.model.cpu.heads import CompiledHeads
from tandem.worker.model.cpu.native import layers
from tandem.worker.model.cpu.recurrence import CompiledMoves
from tandem.worker.model.cpu.selection import NativeSelectingPlan
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.kv_formats import Parts
from tandem.worker.model.linear import HeadLinear
from tandem.worker.model.operations import JoinedExperts, Operations, StateMoves, TorchOperations
from tandem.worker.model.paged_plan import cut, longest_first, page_tables
from tandem.worker.model.states import StatePlan
from tandem.worker.model.unfinished import FINISHED, Unfinished

_PIECE = 8  # of a latent's queries that are a piece of work
_BLOCK_ROWS = 64  # queries of one kv head that share each look at a page: their numbers stay in the first two caches


def cpu_operations() -> Operations:
    """What computes beside the matrix products where there are no kernels for the device."""
    return NativeOperations() if native.available() else TorchOperations()


class NativeOperations(TorchOperations):
    """Compiled where that can be, torch's elsewhere."""

    def plan(self, segments: Sequence[Segment], cache: KVCache, num_heads: int, kind: AttentionKind) -> Plan:
        if cache.device.type != "cpu" or kind.heads.size % layers.LANES or kind.every:
            return super().plan(segments, cache, num_heads, kind)
        if kind.most:
            work_of = partial(_work_of, cache=cache, num_heads=num_heads, kind=kind)
            return NativeSelectingPlan(work_of, segments, cache, kind)
        return NativePlan(segments, cache, num_heads, kind)

    def add_norm(self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if not _served(x, x.shape[-1]):
            return super().add_norm(x, delta, weight, eps)
        # Rows may be parts of longer ones; nothing tells that of a single row, which must have the same bits.
        if delta is not None and not x.is_contiguous():
            x, delta = x.add_(delta), None
        return layers.add_norm(x.contiguous(), delta, weight, eps)

    def add_layer_norm(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        if not _served(x, x.shape[-1]):
            return super().add_layer_norm(x, delta, weight, bias, eps)
        if delta is not None and not x.is_contiguous():
            x, delta = x.add_(delta), None
        return layers.add_layer_norm(x.contiguous(), delta, weight, bias, eps)

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        cache: KVCache,
        layer: int,
        slots: torch.Tensor | None,
        first: Unfinished = FINISHED,
    ) -> torch.Tensor:
        if not _served(qkv, qkv.shape[-1]) or not stores_rows(cache):
            return super().rotate_and_store(qkv, rotation, cache, layer, slots, first)
        kv_heads = 0 if slots is None else cache.shape.heads[layer].number
        heads = qkv.shape[1] - 2 * kv_heads
        channels = None if cache.key_channels is None else cache.key_channels[layer]
        made = layers.heads_of(first, heads, kv_heads, qkv.shape[2], channels)
        layers.rotate_and_store(qkv, made, rotation, cache, layer, slots)
        return qkv[:, :heads]

    def swiglu(self, gate_up: torch.Tensor, size: int) -> torch.Tensor:
        if _served(gate_up, size):
            return layers.gate("silu", gate_up, size)
        return super().swiglu(gate_up, size)

    def geglu(self, gate_up: torch.Tensor, size: int) -> torch.Tensor:
        if _served(gate_up, size):
            return layers.gate("gelu_tanh", gate_up, size)
        return super().geglu(gate_up, size)

    def limited_swiglu(self, gate_up: torch.Tensor, size: int, limit: float) -> torch.Tensor:
        if _served(gate_up, size):
            return layers.gate("silu", gate_up, size, limit)
        return super().limited_swiglu(gate_up, size, limit)

    def activate(self, activation: Activation, x: torch.Tensor) -> torch.Tensor:
        if _served(x, x.shape[1]) and x.is_contiguous():
            return layers.activate(activation, x)
        return super().activate(activation, x)

    def gate_by_sigmoid(self, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        if _gates_are_served(x, gates):
            return layers.gate_by_sigmoid(x.contiguous(), gates)
        return super().gate_by_sigmoid(x, gates)

    def gate_by_softplus(self, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        if _gates_are_served(x, gates):
            return layers.gate_by_softplus(x.contiguous(), gates)
        return super().gate_by_softplus(x, gates)

    def plan_states(self, plan: StatePlan, device: torch.device) -> StateMoves:
        return CompiledMoves(plan)

    def join_heads(self, linear: torch.nn.Module) -> CompiledHeads | None:
        assert isinstance(linear, HeadLinear)
        try:
            return CompiledHeads(linear)
        except ValueError:
            return None

    def join_experts(self, config: Experts, experts: Sequence[torch.nn.Module]) -> JoinedExperts | str:
        try:
            return CompiledExperts(config, experts)  # type: ignore[arg-type]
        except ValueError as error:
            return str(error)


def stores_rows(cache: KVCache) -> bool:
    """Whether the library writes the pages of this cache, and not a class derived from it."""
    return type(cache) is KVCache and cache.shape.format.name in layers.FORMATS


def _gates_are_served(x: torch.Tensor, gates: torch.Tensor) -> bool:
    together = x.shape[1] // gates.shape[1]
    return _served(x, x.shape[1]) and (together == 1 or together % layers.LANES == 0)


def _served(x: torch.Tensor, size: int) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and size % layers.LANES == 0


def _work_of(segments: Sequence[Segment], cache: KVCache, num_heads: int, kind: AttentionKind) -> layers.AttentionWork:
    group = num_heads // kind.heads.number
    # All heads look at one latent: without pieces, a thread would have them all.
    shares = group // max(part for part in range(1, _PIECE + 1) if group % part == 0) if kind.heads.latent else 1
    block = max(1, _BLOCK_ROWS // (group // shares))
    return layers.AttentionWork(
        blocks=longest_first(cut(segments, block)),
        tables=page_tables(segments, cache.shape.page_size),
        most=min(block, max((segment.length for segment in segments), default=1)),
        keys=sum(segment.length * (segment.position + segment.length) for segment in segments),
        window=kind.window,
        shares=shares,
    )


class NativePlan(MovingPlan):
    """One step's attention, for all layers."""

    def __init__(self, segments: Sequence[Segment], cache: KVCache, num_heads: int, kind: AttentionKind) -> None:
        """See `AttentionPlan`."""
        self._format, self._latent = cache.shape.format.name, kind.heads.latent
        self.rows = sum(segment.length for segment in segments)
        self.work = _work_of(segments, cache, num_heads, kind)
        self._positions = self.work.blocks[:, 2].data  # of each block's first token

    def move_on(self) -> None:
        """See `MovingPlan`. All blocks look at as many more keys, so the longest are still the first."""
        positions, work = self._positions, self.work
        for block in range(len(positions)):
            positions[block] += 1
        work.keys += self.rows

    def attend(self, keys: Parts, values: Parts, q: torch.Tensor, scores: Scores) -> torch.Tensor:
        """Attention of queries `q` `[N, heads, head_dim]` over one layer's pages; rows of no segment give zeros."""
        out = layers.attention(self.work, self._format, keys, values, q.float(), scores, self._latent)
        if len(out) != self.rows:
            self._clear_padding(out)
        return out.to(q.dtype)

    def _clear_padding(self, out: torch.Tensor) -> None:
        first, count = self.work.blocks[:, 0], self.work.blocks[:, 1]
        padding = torch.ones(len(out), dtype=torch.bool)
        for row, rows in zip(first.tolist(), count.tolist(), strict=True):
            padding[row : row + rows] = False
        out[padding] = 0

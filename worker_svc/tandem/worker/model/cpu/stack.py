"""The layers of a model in a step, as many in one call of the compiled library as follow each other.

There the time between two operations decides: threads that have nothing to do fall asleep within 20 us, about as long
as Python takes from one call to the next, and waking them takes longer than a small operation. What is called are the
same functions in the same order as otherwise, so the bits are the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from tandem.worker.checkpoints.model_config import AttentionKind, Rope
from tandem.worker.model.attention import Plan
from tandem.worker.model.cpu.layer import Alike, CompiledLayer, CompiledStep, LayerKind
from tandem.worker.model.cpu.native.library import calls
from tandem.worker.model.cpu.operations import NativeOperations, NativePlan, stores_rows
from tandem.worker.model.cpu.selection import NativeSelectingPlan
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.operations import Operations, StateMoves
from tandem.worker.model.rope import Rotation


class Placed(NamedTuple):
    """A compiled layer, and which of the model's keys and values, and of its states, are its own."""

    layer: CompiledLayer
    kind: LayerKind
    of_cache: int
    of_states: int


class CompiledStack:
    """The layers of a model."""

    def __init__(self, layers: Sequence[Placed | None]) -> None:
        """Takes all layers; None are those that are always computed piece by piece."""
        self._layers = layers
        self._turns = (ctypes.c_void_p * len(layers))(*(each and each.layer.turn for each in layers))
        kinds: dict[LayerKind, list[CompiledLayer]] = {}
        for each in layers:
            if each is not None:
                kinds.setdefault(each.kind, []).append(each.layer)
        self._kinds = {kind: Alike(some) for kind, some in kinds.items()}

    def steps(
        self,
        operations: Operations,
        cache: KVCache,
        rotations: Mapping[Rope, Rotation],
        growth: torch.Tensor | None,
        slots: torch.Tensor,
        plans: Mapping[AttentionKind, Plan],
        inputs: torch.Tensor | None,
    ) -> dict[LayerKind, CompiledStep]:
        """Returns what layers of each kind share in a step; without kinds that are to be computed piece by piece."""
        if type(operations) is not NativeOperations or not stores_rows(cache):
            return {}
        return {
            kind: CompiledStep(alike, cache, rotations[kind[1]], growth, slots, plan, inputs)
            for kind, alike in self._kinds.items()
            if isinstance(plan := plans[kind[0]], NativePlan | NativeSelectingPlan)
            and slots.shape[1] <= alike.most_rows
        }

    def run(
        self,
        steps: Mapping[LayerKind, CompiledStep],
        first: int,
        last: int,
        x: torch.Tensor,
        delta: torch.Tensor | None,
        cache: KVCache,
        states: StateMoves | None,
    ) -> tuple[int, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Computes layers from `first` on, before `last`, until one comes that is computed piece by piece. Returns
        which one that is, and x and delta before it, as `Layer.forward` has them, x being overwritten; and, where the
        call ends before the feed-forward part of the layer before it, what that is given, which holds until the next
        call."""
        place, seen = first, None
        while place < last and seen is None:
            placed = self._layers[place]
            step = None if placed is None else steps.get(placed.kind)
            if placed is None or step is None:
                break
            placed.layer.prepare(step, cache, placed.of_cache, placed.of_states, states)
            seen = placed.layer.seen(step, x) if placed.layer.ends_early else None
            place += 1
        if place == first:
            return first, x, delta, None
        begins = delta is None
        delta = torch.empty_like(x) if delta is None else delta.contiguous()
        turns = ctypes.addressof(self._turns) + first * ctypes.sizeof(ctypes.c_void_p)
        if calls().tandem_layers(turns, place - first, x.data_ptr(), delta.data_ptr(), begins):
            raise MemoryError("no memory for a block of attention")
        return place, x, delta, seen

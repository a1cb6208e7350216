"""The layers of a model in a step, as many in one call of the compiled library as follow each other.

There the time between two operations decides: threads that have nothing to do fall asleep within 20 us, about as long
as Python takes from one call to the next, and waking them takes longer than a small operation. What is called are the
same functions in the same order as otherwise, so the bits are the same.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from tandem.worker.checkpoints.model_parts.heads import AttentionKind
from tandem.worker.checkpoints.model_parts.positions import Rope
from tandem.worker.model.attention import Plan
from tandem.worker.model.cpu.ending import CompiledEnding
from tandem.worker.model.cpu.layer import MOST_ROWS, Alike, CompiledLayer, CompiledStep, LayerKind
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


class Computed(NamedTuple):
    """What a call has computed."""

    place: int  # the layer before which it has ended
    x: torch.Tensor  # x and delta before that layer, as `Layer.forward` has them
    delta: torch.Tensor | None
    # Where the call has ended before the feed-forward part of the layer before it, what that is given; it holds until
    # the next call.
    seen: torch.Tensor | None = None
    logits: torch.Tensor | None = None  # behind all layers


class _Ready(NamedTuple):
    """Layers whose turns are those of some steps already: from `first` on, before `last` or where the call ends."""

    first: int
    last: int
    steps: tuple[CompiledStep, ...]
    cache: weakref.ref[KVCache]
    place: int


class CompiledStack:
    """The layers of a model."""

    def __init__(self, layers: Sequence[Placed | None], ending: CompiledEnding | None) -> None:
        """Takes all layers; None are those that are always computed piece by piece. `ending`: what follows them, if
        that is compiled."""
        self._layers, self._ending = layers, ending
        self._turns = (ctypes.c_void_p * len(layers))(*(each and each.layer.turn for each in layers))
        kinds: dict[LayerKind, list[CompiledLayer]] = {}
        for each in layers:
            if each is not None:
                kinds.setdefault(each.kind, []).append(each.layer)
        self._kinds = {kind: Alike(some) for kind, some in kinds.items()}
        self._ready: _Ready | None = None
        self._first: tuple[torch.Tensor, torch.Tensor] | None = None  # x and delta of a step's first call

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
        """Returns what layers of each kind share in a step, until the next one is made; without kinds that are to be
        computed piece by piece."""
        steps: dict[LayerKind, CompiledStep] = {}
        if type(operations) is not NativeOperations or not stores_rows(cache):
            return steps
        rows = slots.shape[1]
        for kind, alike in self._kinds.items():
            plan = plans[kind[0]]
            if isinstance(plan, NativePlan | NativeSelectingPlan) and rows <= alike.most_rows:
                steps[kind] = alike.step(rows)
                steps[kind].plan(cache, rotations[kind[1]], growth, slots, plan, inputs)
        return steps

    def run(
        self,
        steps: Mapping[LayerKind, CompiledStep],
        first: int,
        last: int,
        x: torch.Tensor,
        delta: torch.Tensor | None,
        cache: KVCache,
        states: StateMoves | None,
        *,
        ends: bool = False,
    ) -> Computed:
        """Computes layers from `first` on, before `last`, until one comes that is computed piece by piece; x is
        overwritten. If it `ends` the model, what follows the last one is computed with it."""
        place, seen = self._prepare(steps, first, last, x, cache, states)
        if place == first:
            return Computed(first, x, delta)
        begins = delta is None
        delta = self._begun(x) if delta is None else delta.contiguous()
        turns = ctypes.addressof(self._turns) + first * ctypes.sizeof(ctypes.c_void_p)
        logits, ending = None, None
        if self._ending is not None and ends and place == last and seen is None:
            logits, ending = self._ending.logits(x.shape[0]), self._ending.address
        if calls().tandem_layers(turns, place - first, x.data_ptr(), delta.data_ptr(), begins, ending):
            raise MemoryError("no memory for a block of attention")
        return Computed(place, x, delta, seen, logits)

    def _begun(self, x: torch.Tensor) -> torch.Tensor:
        """Returns room for what is to be added to x, which is kept for a step that begins with the same tensor."""
        if self._first is not None and self._first[0] is x:
            return self._first[1]
        delta = torch.empty_like(x)
        self._first = (x, delta) if x.shape[0] <= MOST_ROWS else None
        return delta

    def _prepare(
        self,
        steps: Mapping[LayerKind, CompiledStep],
        first: int,
        last: int,
        x: torch.Tensor,
        cache: KVCache,
        states: StateMoves | None,
    ) -> tuple[int, torch.Tensor | None]:
        """Makes the turns of layers those of this step; returns before which one the call ends, and what the
        feed-forward part before that is given, if it is not in the call. Where nothing has changed since the last step
        but what its `CompiledStep`s hold, nothing is to be done."""
        known, ready = tuple(steps.values()), self._ready
        if ready is not None and ready[:3] == (first, last, known) and ready.cache() is cache and states is None:
            return ready.place, None
        place, seen = first, None
        while place < last and seen is None:
            placed = self._layers[place]
            step = None if placed is None else steps.get(placed.kind)
            if placed is None or step is None:
                break
            placed.layer.prepare(step, cache, placed.of_cache, placed.of_states, states)
            seen = placed.layer.seen(step, x) if placed.layer.ends_early else None
            place += 1
        kept = seen is None and states is None and x.shape[0] <= MOST_ROWS
        self._ready = _Ready(first, last, known, weakref.ref(cache), place) if kept else None
        return place, seen

"""A layer, or all of it up to the feed-forward part, as the compiled library computes it, for the few rows of a decode.

See `stack.py`, which calls it.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from operator import is_
from typing import TypeAlias

import torch

from tandem.worker.checkpoints.grouped import FINE_GROUP, GROUPS
from tandem.worker.checkpoints.model_parts.heads import AttentionKind
from tandem.worker.checkpoints.model_parts.latents import NORM_EPS
from tandem.worker.checkpoints.model_parts.positions import Rope
from tandem.worker.model.cpu.experts import CompiledExperts
from tandem.worker.model.cpu.layer_parts import (
    NORMS,
    PIECES,
    ROOMS,
    Attending,
    AttendingLatents,
    Behind,
    Carried,
    Choosing,
    Feeding,
    FeedingExperts,
    Given,
    IndexerStruct,
    LatentsStruct,
    LayerNorms,
    LayerStruct,
    MixingStruct,
    NormStruct,
    StepStruct,
    TurnStruct,
)
from tandem.worker.model.cpu.matrices import Matrix, matrices_of
from tandem.worker.model.cpu.native.layers import (
    ACTIVATIONS,
    FORMATS,
    LANES,
    LIMITED,
    WORTH_A_THREAD,
    heads_of,
    pages_of,
)
from tandem.worker.model.cpu.operations import NativePlan
from tandem.worker.model.cpu.recurrence import Carrying, CompiledMoves, carries_on, carrying, serves
from tandem.worker.model.cpu.selection import NativeSelectingPlan
from tandem.worker.model.cpu.wide_panels import WidePanels
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.linear import Linear
from tandem.worker.model.operations import StateMoves
from tandem.worker.model.recurrence import Rule
from tandem.worker.model.rope import Rotation
from tandem.worker.model.states import StateCache

MOST_ROWS = 64  # with more, quantized products take so long that nothing else matters
MOST_WIDE_ROWS = 2048  # with plain ones, room for what a layer computes is had once instead of once a layer

LayerKind: TypeAlias = tuple[AttentionKind, Rope]  # how it attends and rotates


class CompiledLayer:
    """A layer's weights as the library takes them."""

    def __init__(
        self,
        layer: LayerStruct,
        rooms: Mapping[str, int],
        rule: Rule | None,
        experts: CompiledExperts | None,
        *,
        wide: bool,
    ) -> None:
        self._struct, self._rule, self._experts, self._wide = layer, rule, experts, wide
        self._attends = bool(layer.attention.output.outputs)
        self.rooms = rooms  # numbers a row of what it computes
        self.ends_early = layer.feeds == Behind.THE_CALLERS.value
        self._turn = TurnStruct(layer=ctypes.addressof(layer))
        self.turn = ctypes.addressof(self._turn)
        self._cache: weakref.ref[KVCache] | None = None  # what the turn has pages of
        self._pages: list[ctypes.Structure] = []
        self._carrying: Carrying | None = None
        self._states: weakref.ref[StateCache] | None = None  # what `_carrying` is of

    @property
    def most_rows(self) -> int:
        """Up to how many rows a call pays."""
        return MOST_WIDE_ROWS if self._wide else MOST_ROWS

    @property
    def has_experts(self) -> bool:
        """Tells whether its feed-forward part has experts."""
        return self._experts is not None

    def experts_room(self, rows: int) -> int:
        """Returns the bytes that experts of so many rows need."""
        return 0 if self._experts is None else self._experts.room(rows)

    @classmethod
    def of(
        cls,
        hidden: int,
        attending: Attending | AttendingLatents | None,
        carried: Carried | None,
        feeding: Feeding | FeedingExperts | None,
        behind: Behind,
        norms: LayerNorms,
        *,
        parallel: bool = False,
        given: Given | None = None,
        by: torch.Tensor | None = None,
        kept: tuple[float, float] = (0.0, 0.0),
    ) -> CompiledLayer | None:
        """Of attention and a state there may be either, both on the same rows, or none; `feeding` is there if it is in
        the call, and `parallel` if it is given the same rows too; behind all comes what the layer is `given` beside the
        stream, and a factor `[1]` that the stream is multiplied `by`. Norms before both parts that are `kept` take the
        stream's place, multiplied. None if the library does not serve such a layer."""
        taken = _Taken()
        rooms = dict.fromkeys(ROOMS, 0) | {"normed": hidden}
        layer = LayerStruct(hidden=hidden, eps=norms.eps, centred=norms.centred)
        layer.feeds, layer.parallel = behind.value, parallel
        layer.keeps_mixed, layer.keeps_fed = kept
        try:
            taken.lanes(hidden)
            for name, norm in zip(NORMS, norms[2:], strict=True):
                setattr(layer, name, NormStruct(*(taken.vector(one) for one in norm or (None, None))))
            if isinstance(attending, AttendingLatents):
                _attends_latents(layer, attending, taken, rooms)
            elif attending is not None:
                layer.attention = taken.mixing(attending, rooms)
                _attends(layer, attending, taken)
                if attending.values_are_keys:
                    rooms["first"] += attending.kv_heads * attending.head_dim
                if attending.narrow:
                    rooms["first"] += attending.kv_heads * (attending.head_dim - attending.narrow)
                    rooms["mixed"] = max(rooms["mixed"], attending.heads * attending.head_dim)
            if carried is not None:
                layer.state = taken.mixing(carried, rooms)
                if not serves(carried.rule):
                    return None
                if carried.gates is not None:
                    layer.gates = taken.one(carried.gates, padded=True)
                    rooms["gates"] = layer.gates.width
            if isinstance(feeding, FeedingExperts):
                _feeds_experts(layer, feeding, taken, rooms)
            elif feeding is not None:
                _feeds(layer, feeding, taken, rooms)
            layer.by = taken.vector(by)
            if given is not None:
                _is_given(layer, given, taken, rooms)
        except _NotServedError:
            return None
        if parallel or (attending is not None and carried is not None):
            rooms["beside"] = hidden
        rooms["piece"] = taken.widest_piece
        # As much as products in the smallest groups need, whatever this layer's are: another's may be stored otherwise.
        widest = max(-(-linear.in_features // max(GROUPS)) * max(GROUPS) for linear in taken.linears)
        rooms["room"] = widest + 6 * widest // FINE_GROUP
        wide = all(isinstance(weight, WidePanels) for linear in taken.linears for weight in linear.weights)
        rule = None if carried is None else carried.rule
        experts = feeding.experts if isinstance(feeding, FeedingExperts) else None
        return cls(layer, rooms, rule, experts, wide=wide)

    def prepare(
        self, step: CompiledStep, cache: KVCache, index: int, state_index: int, states: StateMoves | None
    ) -> None:
        """Makes the turn that of this layer in a step; all of these must outlive its call. `index` is that of the
        layer's keys and values, `state_index` that of its states."""
        turn = self._turn
        turn.step = step.address
        if self._attends and (self._cache is None or self._cache() is not cache):
            self._pages = [pages_of(cache.keys[index]), pages_of(cache.values[index])]
            turn.keys, turn.values = map(ctypes.addressof, self._pages)
            made, channels = self._struct.made, None if cache.key_channels is None else cache.key_channels[index]
            made.key_mean = None if channels is None else channels.mean.data_ptr()
            made.key_scale = None if channels is None else channels.scale.data_ptr()
            if self._struct.indexer.heads:
                self._pages.append(pages_of((cache.index_keys[index],)))
                turn.index_keys = ctypes.addressof(self._pages[-1])
            self._cache = weakref.ref(cache)
        if self._rule is not None:
            assert isinstance(states, CompiledMoves), "a step of a model with states says where they are"
            plan, known = states.plan, None if self._states is None else self._states()
            if self._carrying is None or known is None or known is not plan.cache:
                self._carrying = carrying(self._rule, state_index, plan)
                self._states = None if plan.cache is None else weakref.ref(plan.cache)
                turn.state = ctypes.addressof(self._carrying)
            else:
                carries_on(self._carrying, self._rule, plan)

    def seen(self, step: CompiledStep, x: torch.Tensor) -> torch.Tensor:
        """Returns what the feed-forward part is given behind a layer that ends early, which holds until the next."""
        return step.normed if self._struct.enter_mlp.weight else x


class Alike:
    """Layers of the same kind, and what they need in each step."""

    def __init__(self, layers: Sequence[CompiledLayer]) -> None:
        self.most_rows = min(layer.most_rows for layer in layers)
        widths = {name: max(layer.rooms[name] for layer in layers) for name in ROOMS}
        self.rooms = {name: width for name, width in widths.items() if width}  # numbers a row
        self._with_experts = [layer for layer in layers if layer.has_experts]
        self._last: CompiledStep | None = None

    def step(self, rows: int) -> CompiledStep:
        """Returns a step of so many rows, which is still to be planned: the last one where that had as many."""
        if self._last is None or self._last.rows != rows:
            self._last = CompiledStep(self, rows)
        step = self._last
        if rows > MOST_ROWS:  # too much room to be kept
            self._last = None
        return step

    def experts_room(self, rows: int) -> int:
        """Returns the bytes that experts of so many rows need."""
        return max((layer.experts_room(rows) for layer in self._with_experts), default=0)


class CompiledStep:
    """What all layers of the same kind share in one step: where rows go, and room for what they compute."""

    def __init__(self, alike: Alike, rows: int) -> None:
        rooms = {name: torch.empty((rows, width)) for name, width in alike.rooms.items()}
        experts_room = torch.empty(alike.experts_room(rows), dtype=torch.uint8)
        self.rows, self.normed = rows, rooms["normed"]
        self._width = max(alike.rooms.get("mixed", 0), alike.rooms.get("attended", 0))
        self._rooms = (rooms, experts_room)  # what `struct` points at, as `_planned`
        self._planned: tuple[object, ...] | None = None
        self.struct = StepStruct(
            rows=rows,
            experts_room=experts_room.data_ptr(),
            **{name: room.data_ptr() for name, room in rooms.items()},
        )
        self.address = ctypes.addressof(self.struct)

    def plan(
        self,
        cache: KVCache,
        rotation: Rotation,
        growth: torch.Tensor | None,
        slots: torch.Tensor,
        plan: NativePlan | NativeSelectingPlan,
        inputs: torch.Tensor | None,
    ) -> None:
        """Takes what is this step's own. `inputs`: what all layers are given beside the stream, `[N, layers, size]`."""
        work, struct, threads = plan.work, self.struct, torch.get_num_threads()
        far = plan.far if isinstance(plan, NativeSelectingPlan) else None
        keys = work.keys + (0 if far is None else far.keys)
        struct.threads = threads
        struct.attention_threads = threads if keys * self._width > WORTH_A_THREAD else 1
        planned, before = (cache.shape, rotation, growth, slots, plan, inputs), self._planned
        if before is not None and all(map(is_, planned, before)):
            return
        self._planned = planned
        struct.cos, struct.sin = rotation[0].data_ptr(), rotation[1].data_ptr()
        struct.growth = None if growth is None else growth.data_ptr()
        struct.slots = slots.data_ptr()
        struct.blocks, struct.tables = work.blocks.ctypes.data, work.tables.ctypes.data
        struct.count, struct.most, struct.width = len(work.blocks), work.most, work.tables.shape[1]
        struct.window, struct.page_size, struct.shares_of_heads = work.window, cache.shape.page_size, work.shares
        struct.attending = plan.rows
        struct.choice = ctypes.addressof(plan.choice) if isinstance(plan, NativeSelectingPlan) else None
        struct.far = None if far is None else far.blocks.ctypes.data
        struct.format = FORMATS[cache.shape.format.name]
        struct.inputs = None if inputs is None else inputs.data_ptr()
        struct.input_stride = 0 if inputs is None else inputs.stride(0)


class _NotServedError(Exception):
    """The library has nothing for a part of a layer."""


class _Taken:
    """What is taken of a layer's weights."""

    def __init__(self) -> None:
        self.linears: list[Linear] = []
        self.widest_piece = 0

    def lanes(self, size: int) -> int:
        """Returns a size that must be a multiple of a register's."""
        if size % LANES:
            raise _NotServedError
        return size

    def vector(self, vector: torch.Tensor | None) -> int | None:
        """Returns where a vector lies, if there is one."""
        if vector is not None and vector.dtype != torch.float32:
            raise _NotServedError
        return None if vector is None else vector.data_ptr()

    def pieces(self, linear: Linear, *, padded: bool = False) -> list[Matrix]:
        """Returns the parts of a matrix that are stored alike. Not served are too many, products that are not compiled
        or of fp8, and, unless they may be `padded`, rows of a product that columns fill up to a panel."""
        self.vector(None if linear.bias is None else linear.bias.weight)
        pieces = matrices_of(linear)
        whole = padded or all(piece.width == piece.outputs for piece in pieces)
        if not whole or not 0 < len(pieces) <= PIECES or any(piece.bits < 0 for piece in pieces):
            raise _NotServedError
        self.linears.append(linear)
        self.widest_piece = max(self.widest_piece, *(piece.width for piece in pieces))
        return pieces

    def one(self, linear: Linear, *, padded: bool = False) -> Matrix:
        """Returns a matrix of which all rows are stored alike."""
        pieces = self.pieces(linear, padded=padded)
        if len(pieces) > 1:
            raise _NotServedError
        return pieces[0]

    def mixing(self, how: Attending | Carried, rooms: dict[str, int]) -> MixingStruct:
        """Returns what comes before and behind something that mixes tokens."""
        pieces = self.pieces(how.matrix)
        rooms["first"] = max(rooms["first"], sum(piece.width for piece in pieces))
        rooms["mixed"] = max(rooms["mixed"], self.lanes(how.output.in_features))
        return MixingStruct((Matrix * PIECES)(*pieces), self.one(how.output), how.by)


def _feeds(layer: LayerStruct, how: Feeding, taken: _Taken, rooms: dict[str, int]) -> None:
    if how.activation is None or not how.served:
        raise _NotServedError
    layer.gate_up = (Matrix * PIECES)(*taken.pieces(how.up))
    layer.down, layer.inner = taken.one(how.down), taken.lanes(how.down.in_features)
    layer.activation = LIMITED if how.limit else ACTIVATIONS[how.activation]
    layer.limit, layer.gated_mlp = how.limit, how.gated
    layer.gate_by, layer.fed_by = how.gate_by, how.by
    rooms["inner"] = layer.inner
    rooms["gate_up"] = 2 * layer.inner if how.gated else 0


def _feeds_experts(layer: LayerStruct, how: FeedingExperts, taken: _Taken, rooms: dict[str, int]) -> None:
    config = how.experts.config
    layer.experts, layer.routing = how.experts.address, how.routing
    layer.router = taken.one(how.router, padded=True)
    layer.logits_by, layer.weighs_input = config.logit_multiplier, config.weighs_input
    rooms |= {"logits": layer.router.width, "shares": config.per_token, "chosen": 2 * config.per_token}
    if config.weighs_input:
        rooms["given"] = layer.hidden
    if how.into is not None and how.out_of is not None:
        layer.into_experts, layer.out_of_experts = taken.one(how.into), taken.one(how.out_of)
        rooms |= dict.fromkeys(("given", "input"), taken.lanes(config.latent))
    if how.shared is None:
        return
    _feeds(layer, how.shared, taken, rooms)
    rooms["beside"] = layer.hidden
    if how.shared_router is not None:
        layer.shared_router = taken.one(how.shared_router, padded=True)
        rooms["logits"] = max(rooms["logits"], layer.shared_router.width)


def _is_given(layer: LayerStruct, how: Given, taken: _Taken, rooms: dict[str, int]) -> None:
    layer.given_gate, layer.given_output = taken.one(how.gate), taken.one(how.output)
    layer.given_norm, layer.given_eps = taken.vector(how.norm), how.eps
    layer.given_at, layer.given_activation = how.place, ACTIVATIONS[how.activation]
    rooms["input"] = taken.lanes(how.gate.out_features)


def _attends_latents(layer: LayerStruct, how: AttendingLatents, taken: _Taken, rooms: dict[str, int]) -> None:
    sizes, heads = how.sizes, how.heads
    for size in (sizes.rank, sizes.rotated, sizes.query_rank):
        taken.lanes(size)
    layer.attention.output, layer.attention.by = taken.one(how.output), 1.0
    layer.latents = LatentsStruct(
        query=taken.one(how.query),
        latent=taken.one(how.latent),
        query_norm=taken.vector(how.query_norm),
        latent_norm=taken.vector(how.latent_norm),
        key_up=ctypes.addressof(how.key_up.matrices),
        value_up=ctypes.addressof(how.value_up.matrices),
        heads=heads,
        rank=sizes.rank,
        rotated=sizes.rotated,
        unrotated=sizes.unrotated,
        value=sizes.value,
        eps=NORM_EPS,
    )
    if how.query_latent is not None:
        layer.latents.query_latent = taken.one(how.query_latent)
    layer.scale, layer.cap, layer.grows = how.scores.scale, how.scores.cap, how.grows
    if how.choosing is not None:
        _chooses(layer, how.choosing, taken, rooms)
    if how.gates is not None:
        layer.gates, layer.share_a_gate = taken.one(how.gates, padded=True), taken.lanes(sizes.value)
    rooms |= {
        "first": heads * sizes.query,
        "gates": max(sizes.query_rank, 0 if how.gates is None else layer.gates.width),
        "mixed": taken.lanes(how.output.in_features),
        "latent": sizes.size,
        "by_head": heads * max(sizes.unrotated, sizes.rank),
        "of_head": heads * max(how.key_up.width, how.value_up.width),
        "queries": heads * sizes.size,
        "attended": heads * sizes.size,
    }


def _chooses(layer: LayerStruct, how: Choosing, taken: _Taken, rooms: dict[str, int]) -> None:
    size, heads = taken.lanes(how.sizes.size), how.sizes.heads
    layer.indexer = IndexerStruct(
        query=taken.one(how.query),
        key=taken.one(how.key),
        weights=(weights := taken.one(how.weights, padded=True)),
        norm=NormStruct(*(taken.vector(one) for one in how.norm)),
        heads=heads,
        size=size,
        eps=how.eps,
        scale=how.scale,
    )
    rooms |= {"index_keys": size, "index_queries": heads * size, "index_weights": weights.width}


def _attends(layer: LayerStruct, how: Attending, taken: _Taken) -> None:
    """Adds what becomes of queries, keys and values, which get the first product's bias with what else they need."""
    for piece in layer.attention.first:
        piece.bias = None
    taken.lanes(how.head_dim)
    for vector in (how.first.bias, *how.first.norms):
        taken.vector(vector)
    layer.made = heads_of(how.first, how.heads, how.kv_heads, how.head_dim, whole=how.whole)
    layer.made.stored_heads, layer.made.limit = how.stored_heads, how.limit
    layer.stores, layer.values_are_keys, layer.narrow = how.stores, how.values_are_keys, how.narrow
    layer.sinks, layer.query_weights = taken.vector(how.scores.sinks), taken.vector(how.query_weights)
    layer.scale, layer.cap, layer.grows = how.scores.scale, how.scores.cap, how.grows
    layer.share_a_gate, layer.softplus = how.share_a_gate, how.gates_by_softplus

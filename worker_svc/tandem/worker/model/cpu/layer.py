"""Whole layers, or all of them up to the feed-forward part, in one call of the compiled library, for the few rows of a
decode.

There the time between two operations decides: threads that have nothing to do fall asleep within 20 us, about as long
as Python takes from one call to the next, and waking them takes longer than a small operation. What is called are the
same functions in the same order as otherwise, so the bits are the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch

from tandem.worker.checkpoints.grouped import FINE_GROUP, GROUPS
from tandem.worker.checkpoints.layer_parts import Activation
from tandem.worker.checkpoints.model_config import AttentionKind, Rope
from tandem.worker.model.attention import Scores
from tandem.worker.model.cpu.matrices import Matrix, matrices_of
from tandem.worker.model.cpu.native.layers import (
    ACTIVATIONS,
    FORMATS,
    GATES,
    LANES,
    WORTH_A_THREAD,
    Heads,
    heads_of,
    pages_of,
)
from tandem.worker.model.cpu.native.library import calls
from tandem.worker.model.cpu.operations import NativeOperations, NativePlan, stores_rows
from tandem.worker.model.cpu.recurrence import CompiledMoves, carrying, serves
from tandem.worker.model.cpu.wide_panels import WidePanels
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.linear import Linear
from tandem.worker.model.operations import Operations, Plan, StateMoves
from tandem.worker.model.recurrence import Rule
from tandem.worker.model.rope import Rotation
from tandem.worker.model.unfinished import Unfinished

MOST_ROWS = 64  # with more, quantized products take so long that nothing else matters
MOST_WIDE_ROWS = 2048  # with plain ones, room for what a layer computes is had once instead of once a layer

LayerKind: TypeAlias = tuple[AttentionKind, Rope]  # how it attends and rotates
_Pointer, _Size, _Number, _Float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


_PIECES = 3  # of a matrix whose rows are not all stored alike


_NORMS = ("enter_attention", "leave_attention", "enter_mlp", "leave_mlp")


class _Norm(ctypes.Structure):
    weight: int | None
    _fields_ = (("weight", _Pointer), ("bias", _Pointer))


class _Layer(ctypes.Structure):
    first: ctypes.Array[Matrix]
    made: Heads
    sinks: int | None
    enter_mlp: _Norm
    scale: float
    cap: float
    grows: bool
    gated: bool
    _fields_ = (
        ("first", Matrix * _PIECES),
        ("gates", Matrix),
        ("output", Matrix),
        ("gate_up", Matrix * _PIECES),
        ("down", Matrix),
        *((name, _Norm) for name in _NORMS),
        ("made", Heads),
        ("sinks", _Pointer),
        *((name, _Size) for name in ("hidden", "inner")),
        *((name, _Float) for name in ("eps", "scale", "cap")),
        *((name, _Number) for name in ("activation", "grows", "gated", "centred", "gated_mlp")),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("cos", "sin", "growth", "slots", "blocks", "tables")),
        *((name, _Size) for name in ("count", "most", "width", "window", "page_size")),
        *((name, _Pointer) for name in ("normed", "first", "gates", "mixed", "gate_up", "inner", "piece", "room")),
        *((name, _Size) for name in ("rows", "attending")),
        *((name, _Number) for name in ("format", "threads", "attention_threads")),
    )


NormVectors: TypeAlias = tuple[torch.Tensor, torch.Tensor | None]  # a weight and perhaps a bias, [hidden]


class LayerNorms(NamedTuple):
    """The norms of what comes into a part of a layer and of what comes out; None: there is none."""

    eps: float
    centred: bool  # LayerNorm
    enter_attention: NormVectors | None
    leave_attention: NormVectors | None
    enter_mlp: NormVectors | None
    leave_mlp: NormVectors | None


class Feeding(NamedTuple):
    """A feed-forward part: gate and up, or up alone, and down."""

    up: Linear
    down: Linear
    activation: Activation | None  # None: another one
    gated: bool


class Attending(NamedTuple):
    """What becomes of a layer's queries, keys and values."""

    first: Unfinished
    whole: bool  # the norms are over all heads of a row at once
    heads: int
    kv_heads: int
    head_dim: int
    scores: Scores
    grows: bool  # queries are multiplied by the step's factors
    gated: bool  # what is attended to is multiplied by the sigmoids of the last numbers of the first product


class Carried(NamedTuple):
    """What a layer has in the place of attention."""

    rule: Rule
    gates: Linear | None  # None: they are part of the first product


class CompiledLayer:
    """A layer's weights as the library takes them."""

    def __init__(self, layer: _Layer, rooms: Mapping[str, int], rule: Rule | None, *, wide: bool) -> None:
        self._struct, self._rule, self._wide = layer, rule, wide
        self.rooms = rooms  # numbers a row of what it computes
        self.ends_early = not layer.inner  # before the feed-forward part

    @property
    def most_rows(self) -> int:
        """Up to how many rows a call pays."""
        return MOST_WIDE_ROWS if self._wide else MOST_ROWS

    @classmethod
    def of(
        cls,
        mixing: tuple[Linear, Linear],
        feeding: Feeding | None,
        norms: LayerNorms,
        how: Attending | Carried,
    ) -> CompiledLayer | None:
        """`mixing` are the matrices of what attention or a state is given and of the output. Without `feeding`, or with
        an activation that is not compiled, the layer ends before that part. None if the library does not serve such a
        layer."""
        if feeding is not None and feeding.activation not in (GATES if feeding.gated else ACTIVATIONS):
            feeding = None
        gates = how.gates if isinstance(how, Carried) else None
        named = dict(zip(("first", "output", "gate_up", "down"), (*mixing, *(feeding or ())[:2]), strict=False))
        named |= {"gates": gates} if gates is not None else {}
        pieces = {name: _pieces(matrix) for name, matrix in named.items()}
        hidden, inner = mixing[0].in_features, feeding.down.in_features if feeding else 0
        vectors = [vector for norm in norms[2:] for vector in norm or ()] + [_bias(matrix) for matrix in named.values()]
        sizes = [hidden, inner, mixing[1].in_features]
        if isinstance(how, Attending):
            vectors += [*how.first.norms, how.first.bias, how.scores.sinks]
            sizes.append(how.head_dim)
        elif not serves(how.rule):
            return None
        if any(not some or (len(some) > 1 and name not in ("first", "gate_up")) for name, some in pieces.items()):
            return None
        if any(size % LANES for size in sizes):
            return None
        if any(vector is not None and vector.dtype != torch.float32 for vector in vectors):
            return None
        places = dict(zip(_NORMS, norms[2:], strict=True))
        layer = _Layer(
            **{
                name: (Matrix * _PIECES)(*some) if name in ("first", "gate_up") else some[0]
                for name, some in pieces.items()
            },
            **{name: _Norm(*(_pointer(one) for one in norms_of or (None, None))) for name, norms_of in places.items()},
            hidden=hidden,
            inner=inner,
            eps=norms.eps,
            centred=norms.centred,
            activation=ACTIVATIONS[feeding.activation] if feeding and feeding.activation else 0,
            gated_mlp=feeding is not None and feeding.gated,
        )
        if isinstance(how, Attending):
            _attends(layer, how)
        # As much as products in the smallest groups need, whatever this layer's are: another's may be stored otherwise.
        widest = max(-(-matrix.in_features // max(GROUPS)) * max(GROUPS) for matrix in named.values())
        rooms = {
            "normed": hidden,
            "first": sum(piece.outputs for piece in pieces["first"]),
            "gates": sum(piece.outputs for piece in pieces.get("gates", ())),
            "mixed": mixing[1].in_features,
            "gate_up": 2 * inner if feeding and feeding.gated else 0,
            "inner": inner,
            "piece": max(piece.outputs for some in pieces.values() for piece in some),
            "room": widest + 4 * widest // FINE_GROUP,
        }
        wide = all(isinstance(weight, WidePanels) for matrix in named.values() for weight in matrix.weights)
        return cls(layer, rooms, how.rule if isinstance(how, Carried) else None, wide=wide)

    def run(
        self,
        step: CompiledStep,
        x: torch.Tensor,
        delta: torch.Tensor | None,
        cache: KVCache,
        index: int,
        states: StateMoves | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what is to be added to `x` `[N, hidden]`, which is overwritten, as `Layer.forward` has it; and, where
        the layer ends early, what its feed-forward part is given, which holds until the next layer. `index` is that of
        the layer's keys and values, or of its states."""
        begins = delta is None
        delta = torch.empty_like(x) if delta is None else delta.contiguous()
        if self._rule is not None:
            assert isinstance(states, CompiledMoves), "a step of a model with states says where they are"
            given: list[ctypes.Structure | None] = [None, None, carrying(self._rule, index, states.plan)]
        else:
            given = [pages_of(cache.keys[index]), pages_of(cache.values[index]), None]
            if cache.key_channels is not None:
                channels, made = cache.key_channels[index], self._struct.made
                made.key_mean, made.key_scale = channels.mean.data_ptr(), channels.scale.data_ptr()
        failed = calls().tandem_layer(
            ctypes.addressof(self._struct),
            ctypes.addressof(step.struct),
            x.data_ptr(),
            delta.data_ptr(),
            begins,
            *(None if one is None else ctypes.addressof(one) for one in given),
        )
        if failed:
            raise MemoryError("no memory for a block of attention")
        return delta, step.normed if self._struct.enter_mlp.weight else x


class CompiledStep:
    """What all layers of the same kind share in one step: where rows go, and room for what they compute."""

    def __init__(
        self,
        layers: Sequence[CompiledLayer],
        cache: KVCache,
        rotation: Rotation,
        growth: torch.Tensor | None,
        slots: torch.Tensor,
        plan: NativePlan,
    ) -> None:
        """`layers`: those of the kind."""
        work, rows = plan.work, slots.shape[1]
        names = layers[0].rooms
        rooms = {name: torch.empty((rows, max(layer.rooms[name] for layer in layers))) for name in names}
        self.normed = rooms["normed"]
        threads = torch.get_num_threads()
        self._kept = (rotation, growth, slots, plan, rooms)  # what `struct` points at
        self.struct = _Step(
            cos=rotation[0].data_ptr(),
            sin=rotation[1].data_ptr(),
            growth=None if growth is None else growth.data_ptr(),
            slots=slots.data_ptr(),
            blocks=work.blocks.ctypes.data,
            tables=work.tables.ctypes.data,
            count=len(work.blocks),
            most=work.most,
            width=work.tables.shape[1],
            window=work.window,
            page_size=cache.shape.page_size,
            rows=rows,
            attending=plan.rows,
            format=FORMATS[cache.shape.format.name],
            threads=threads,
            attention_threads=threads if work.keys * rooms["mixed"].shape[1] > WORTH_A_THREAD else 1,
            **{name: room.data_ptr() for name, room in rooms.items()},
        )


def compiled_steps(
    operations: Operations,
    layers: Mapping[LayerKind, Sequence[CompiledLayer]],
    cache: KVCache,
    rotations: Mapping[Rope, Rotation],
    growth: torch.Tensor | None,
    slots: torch.Tensor,
    plans: Mapping[AttentionKind, Plan],
) -> dict[LayerKind, CompiledStep]:
    """For each kind of layer; without those that are to be computed piece by piece."""
    if type(operations) is not NativeOperations or not stores_rows(cache):
        return {}
    return {
        kind: CompiledStep(some, cache, rotations[kind[1]], growth, slots, plan)
        for kind, some in layers.items()
        if isinstance(plan := plans[kind[0]], NativePlan) and slots.shape[1] <= min(each.most_rows for each in some)
    }


def _attends(layer: _Layer, how: Attending) -> None:
    """Adds what becomes of queries, keys and values, which get the first product's bias with what else they need."""
    for piece in layer.first:
        piece.bias = None
    layer.made = heads_of(how.first, how.heads, how.kv_heads, how.head_dim, whole=how.whole)
    layer.sinks = _pointer(how.scores.sinks)
    layer.scale, layer.cap, layer.grows, layer.gated = how.scores.scale, how.scores.cap, how.grows, how.gated


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _bias(matrix: Linear) -> torch.Tensor | None:
    return None if matrix.bias is None else matrix.bias.weight


def _pieces(linear: Linear) -> list[Matrix]:
    """The parts of a matrix that are stored alike; none if there are too many, or if a product is not compiled, is of
    fp8, or has columns that fill up a panel."""
    pieces = matrices_of(linear)
    served = all(piece.bits >= 0 and piece.width == piece.outputs for piece in pieces)
    return pieces if served and len(pieces) <= _PIECES else []

"""What a layer in one compiled call is made of: as the library takes it, and as a layer says it."""

from __future__ import annotations

import ctypes
from enum import Enum
from typing import NamedTuple, TypeAlias

import torch

from tandem.worker.checkpoints.model_parts.indexer import Indexer
from tandem.worker.checkpoints.model_parts.latents import Latents
from tandem.worker.checkpoints.model_parts.mlp import Activation
from tandem.worker.model.attention import Scores
from tandem.worker.model.cpu.experts import CompiledExperts, Routing
from tandem.worker.model.cpu.heads import CompiledHeads
from tandem.worker.model.cpu.matrices import Matrix
from tandem.worker.model.cpu.native.layers import ACTIVATIONS, Heads
from tandem.worker.model.linear import Linear
from tandem.worker.model.recurrence import Rule
from tandem.worker.model.unfinished import Unfinished

PIECES = 3  # of a matrix whose rows are not all stored alike
# What a layer computes on its way, in the order of layer.c. `chosen` are numbers of 64 bits.
ROOMS = (
    *("normed", "first", "gates", "mixed", "beside", "gate_up", "inner", "piece", "room"),
    *("logits", "shares", "given", "input", "latent", "by_head", "of_head", "queries", "attended", "chosen"),
    *("index_keys", "index_queries", "index_weights"),
)
NORMS = ("enter_attention", "leave_attention", "enter_mlp", "leave_mlp")
_Pointer, _Size, _Number, _Float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class NormStruct(ctypes.Structure):
    weight: int | None
    _fields_ = (("weight", _Pointer), ("bias", _Pointer))


class MixingStruct(ctypes.Structure):
    first: ctypes.Array[Matrix]
    output: Matrix
    by: float
    _fields_ = (("first", Matrix * PIECES), ("output", Matrix), ("by", _Float))


class LatentsStruct(ctypes.Structure):
    query_latent: Matrix
    query: Matrix
    latent: Matrix
    query_norm: int | None
    latent_norm: int | None
    key_up: int
    value_up: int
    heads: int
    rank: int
    rotated: int
    unrotated: int
    value: int
    eps: float
    _fields_ = (
        *((name, Matrix) for name in ("query_latent", "query", "latent")),
        *((name, _Pointer) for name in ("query_norm", "latent_norm", "key_up", "value_up")),
        *((name, _Size) for name in ("heads", "rank", "rotated", "unrotated", "value")),
        ("eps", _Float),
    )


class IndexerStruct(ctypes.Structure):
    heads: int
    _fields_ = (
        *((name, Matrix) for name in ("query", "key", "weights")),
        ("norm", NormStruct),
        *((name, _Size) for name in ("heads", "size")),
        *((name, _Float) for name in ("eps", "scale")),
    )


class LayerStruct(ctypes.Structure):
    attention: MixingStruct
    state: MixingStruct
    gates: Matrix
    gate_up: ctypes.Array[Matrix]
    down: Matrix
    enter_mlp: NormStruct
    latents: LatentsStruct
    indexer: IndexerStruct
    made: Heads
    sinks: int | None
    query_weights: int | None
    hidden: int
    inner: int
    scale: float
    cap: float
    gate_by: float
    fed_by: float
    activation: int
    grows: bool
    share_a_gate: int
    gated_mlp: bool
    feeds: int
    parallel: bool
    experts: int | None
    router: Matrix
    shared_router: Matrix
    into_experts: Matrix
    out_of_experts: Matrix
    routing: Routing
    given_gate: Matrix
    given_output: Matrix
    given_norm: int | None
    given_eps: float
    given_at: int
    given_activation: int
    by: int | None
    logits_by: float
    weighs_input: bool
    limit: float
    softplus: bool
    keeps_mixed: float
    keeps_fed: float
    stores: bool
    values_are_keys: bool
    narrow: int
    _fields_ = (
        ("attention", MixingStruct),
        ("state", MixingStruct),
        ("gates", Matrix),
        ("gate_up", Matrix * PIECES),
        ("down", Matrix),
        *((name, NormStruct) for name in NORMS),
        ("latents", LatentsStruct),
        ("indexer", IndexerStruct),
        ("made", Heads),
        *((name, _Pointer) for name in ("sinks", "query_weights")),
        *((name, _Size) for name in ("hidden", "inner")),
        *((name, _Float) for name in ("eps", "scale", "cap", "gate_by", "fed_by")),
        *(
            (name, _Number)
            for name in ("activation", "grows", "share_a_gate", "centred", "gated_mlp", "feeds", "parallel")
        ),
        *((name, _Number) for name in ("stores", "values_are_keys", "narrow")),
        ("experts", _Pointer),
        *((name, Matrix) for name in ("router", "shared_router", "into_experts", "out_of_experts")),
        ("routing", Routing),
        *((name, Matrix) for name in ("given_gate", "given_output")),
        ("given_norm", _Pointer),
        ("given_eps", _Float),
        ("given_at", _Size),
        ("given_activation", _Number),
        ("by", _Pointer),
        ("logits_by", _Float),
        ("weighs_input", _Number),
        ("limit", _Float),
        ("softplus", _Number),
        *((name, _Float) for name in ("keeps_mixed", "keeps_fed")),
    )


class StepStruct(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("cos", "sin", "growth", "slots", "blocks", "tables")),
        *((name, _Size) for name in ("count", "most", "width", "window", "page_size", "shares_of_heads")),
        *((name, _Pointer) for name in (*ROOMS, "experts_room", "inputs")),
        ("input_stride", _Size),
        *((name, _Size) for name in ("rows", "attending")),
        *((name, _Pointer) for name in ("choice", "far")),
        *((name, _Number) for name in ("format", "threads", "attention_threads")),
    )


class EndingStruct(ctypes.Structure):
    """What follows the last layer, and where its answer goes."""

    output: Matrix
    logits: int
    _fields_ = (
        ("norm", NormStruct),
        ("output", Matrix),
        ("hidden", _Size),
        ("eps", ctypes.c_float),
        ("centred", _Number),
        ("logits", _Pointer),
    )


class TurnStruct(ctypes.Structure):
    """A layer in a step, and what it keeps."""

    step: int
    keys: int
    values: int
    state: int
    index_keys: int
    _fields_ = tuple((name, _Pointer) for name in ("layer", "step", "keys", "values", "state", "index_keys"))


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
    gate_by: float = 1.0  # what the gate is multiplied by
    by: float = 1.0  # the same of the answer
    limit: float = 0.0  # of the activation, and of up (`LimitedSwiGLU`); 0: none

    @property
    def served(self) -> bool:
        """Tells whether its activation is compiled."""
        return self.activation in ACTIVATIONS


class FeedingExperts(NamedTuple):
    """Experts, what rows of another width than the stream's are made by and made the stream's again, and the
    feed-forward part that every row has beside them."""

    experts: CompiledExperts
    router: Linear
    routing: Routing
    into: Linear | None
    out_of: Linear | None
    shared: Feeding | None
    shared_router: Linear | None


class Attending(NamedTuple):
    """Attention: its matrices, and what becomes of queries, keys and values."""

    matrix: Linear
    output: Linear
    by: float  # what the answer is multiplied by
    first: Unfinished
    whole: bool  # the norms are over all heads of a row at once
    limit: float  # of the size of what comes out of them; 0: none
    heads: int
    kv_heads: int  # that the first product gives keys of
    stored_heads: int  # that are looked at
    head_dim: int
    scores: Scores
    grows: bool  # queries are multiplied by the step's factors
    query_weights: torch.Tensor | None  # [head_dim], each query is multiplied by, once it is rotated
    share_a_gate: int  # what is attended to is multiplied by sigmoids of the first product's last numbers; 0: it is not
    gates_by_softplus: bool  # by log(1 + exp) of these instead
    stores: bool  # keys and values are the layer's own
    values_are_keys: bool  # before both are finished
    narrow: int  # numbers of a value, if it is shorter than a key; else 0


class Choosing(NamedTuple):
    """What chooses the tokens that attention over latents looks at: its matrices and norm."""

    query: Linear
    key: Linear
    weights: Linear
    norm: NormVectors
    eps: float
    sizes: Indexer
    scale: float  # of weights


class AttendingLatents(NamedTuple):
    """Attention over latents: its matrices and norms."""

    query_latent: Linear | None
    query_norm: torch.Tensor | None
    query: Linear
    latent: Linear
    latent_norm: torch.Tensor
    key_up: CompiledHeads
    value_up: CompiledHeads
    output: Linear
    heads: int
    sizes: Latents
    scores: Scores
    grows: bool  # queries are multiplied by the step's factors
    choosing: Choosing | None = None
    gates: Linear | None = None  # of each head


class Carried(NamedTuple):
    """A state: the matrices before and behind it."""

    matrix: Linear
    output: Linear
    rule: Rule
    gates: Linear | None  # None: they are part of the first product
    by: float = 1.0  # what the answer is multiplied by


class Given(NamedTuple):
    """What a layer does with its own input (`per_layer_inputs.py`)."""

    gate: Linear
    output: Linear
    norm: torch.Tensor  # [hidden]
    eps: float
    activation: Activation
    place: int  # of the layer's numbers among those of all


class Behind(Enum):
    """What follows what mixes tokens, as layer.c has it."""

    NOTHING = 0
    IN_THE_CALL = 1
    THE_CALLERS = 2  # the feed-forward part is not in the call

"""What a layer does beside its products, compiled: norms, rotation, attention over pages, the gated activation.

All numbers are float32, and so are the tensors but for the cache. Where a tensor may have rows that lie apart, its last
dimensions are contiguous.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.checkpoints.model_parts.mlp import Activation
from tandem.worker.model.attention import Scores
from tandem.worker.model.cpu.native.library import calls
from tandem.worker.model.kv_cache import KeyChannels, KVCache
from tandem.worker.model.kv_formats import Parts
from tandem.worker.model.unfinished import Unfinished

LANES = 8  # sizes are multiples of it

FORMATS = {"float32": 0, "bfloat16": 1, "float16": 2, "int8": 3, "int4": 4, "fp8": 5, "int6": 6}  # as in numbers.h
ACTIVATIONS: Mapping[Activation, int] = {"silu": 0, "gelu_tanh": 1, "relu2": 2, "relu": 4, "gelu": 5}  # as in gates.h
CLAMPED, LIMITED = 3, 6  # the same, of gates with limits
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64
WORTH_A_THREAD = 1 << 17  # multiplications that take about as long as it takes to wake a thread


class Pages(ctypes.Structure):
    """Keys or values of one layer, as the library takes them."""

    numbers: int
    constants: int
    _fields_ = (("numbers", _POINTER), ("constants", _POINTER))


class Heads(ctypes.Structure):
    """What becomes of a row of queries, keys and values, as the library takes it."""

    heads: int
    kv_heads: int
    head_dim: int
    stored_heads: int
    limit: float  # 0 unless it is set
    _fields_ = (
        ("bias", _POINTER),
        ("norms", _POINTER * 3),
        ("key_mean", _POINTER),
        ("key_scale", _POINTER),
        *((name, _SIZE) for name in ("heads", "kv_heads", "head_dim", "stored_heads")),
        ("eps", ctypes.c_float),
        ("limit", ctypes.c_float),
        ("whole", ctypes.c_int32),
    )


class Rotary(ctypes.Structure):
    """A table of positions, [count, 2 half] cosines, then sines, as the library takes it."""

    table: int
    count: int
    half: int
    _fields_ = (("table", _POINTER), ("count", _SIZE), ("half", _SIZE))


@dataclass(slots=True)
class AttentionWork:
    """Which queries look at what; see `attention.c` and `paged_plan.py`."""

    blocks: npt.NDArray[np.int32]  # [B, 6]
    tables: npt.NDArray[np.int32]  # [sequences, width] pages; where keys lie `apart`, places of single ones
    most: int  # tokens in a block
    keys: int  # that all blocks' tokens look at, each counted for itself
    window: int
    shares: int = 1  # pieces of work that the queries of a kv head are divided into
    apart: bool = False


def add_norm(x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Adds `delta` to `x` `[N, size]` in place, then gives `x / sqrt(mean(x^2) + eps) * weight`."""
    out = torch.empty_like(x)
    delta = None if delta is None else delta.contiguous()
    calls().tandem_add_norm(
        x.data_ptr(),
        None if delta is None else delta.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        *x.shape,
        eps,
        torch.get_num_threads(),
    )
    return out


def add_layer_norm(
    x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """Adds `delta` to `x` `[N, size]` in place, then gives its LayerNorm."""
    out = torch.empty_like(x)
    delta = None if delta is None else delta.contiguous()
    calls().tandem_add_layer_norm(
        x.data_ptr(),
        None if delta is None else delta.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
        *x.shape,
        eps,
        torch.get_num_threads(),
    )
    return out


def activate(activation: Activation, x: torch.Tensor) -> torch.Tensor:
    """Makes contiguous `x` `[N, size]` an activation of it, in place."""
    calls().tandem_activate(ACTIVATIONS[activation], x.data_ptr(), x.numel(), torch.get_num_threads())
    return x


def gate(activation: Activation, gate_up: torch.Tensor, size: int, limit: float = 0.0) -> torch.Tensor:
    """`activation(gate) * up` of `[N, 2 size]`, with a `limit` as `Operations.limited_swiglu` has it."""
    rows = gate_up.shape[0]
    out = torch.empty((rows, size))
    calls().tandem_gate(
        LIMITED if limit else ACTIVATIONS[activation],
        limit,
        gate_up.data_ptr(),
        out.data_ptr(),
        rows,
        size,
        gate_up.stride(0),
        torch.get_num_threads(),
    )
    return out


def gate_by_sigmoid(x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """Makes contiguous `x` `[N, size]` `x / (1 + exp(-gates))`, in place; numbers that follow each other may share a
    gate, a multiple of `LANES`."""
    together, threads = x.shape[1] // gates.shape[1], torch.get_num_threads()
    calls().tandem_gate_by_sigmoid(x.data_ptr(), gates.data_ptr(), *x.shape, together, gates.stride(0), threads)
    return x


def gate_by_softplus(x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """Makes contiguous `x` `[N, size]` `x * log(1 + exp(gates))` in the same way."""
    together, threads = x.shape[1] // gates.shape[1], torch.get_num_threads()
    calls().tandem_gate_by_softplus(x.data_ptr(), gates.data_ptr(), *x.shape, together, gates.stride(0), threads)
    return x


def add_gated(out: torch.Tensor, added: torch.Tensor, gates: torch.Tensor) -> None:
    """Adds contiguous `added` to `out` `[N, size]`, each row multiplied by the sigmoid of its gate `[N, 1]`."""
    calls().tandem_add_gated(
        out.data_ptr(), added.data_ptr(), gates.data_ptr(), *out.shape, gates.stride(0), torch.get_num_threads()
    )


def heads_of(
    first: Unfinished,
    heads: int,
    kv_heads: int,
    head_dim: int,
    channels: KeyChannels | None = None,
    *,
    whole: bool = False,
) -> Heads:
    """What becomes of rows of so many heads of queries, keys and values. The tensors must outlive it; `whole`: the
    norms are those of all heads of a row at once."""
    return Heads(
        bias=None if first.bias is None else first.bias.data_ptr(),
        norms=(_POINTER * 3)(*(weight.data_ptr() for weight in first.norms)),
        key_mean=None if channels is None else channels.mean.data_ptr(),
        key_scale=None if channels is None else channels.scale.data_ptr(),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        stored_heads=kv_heads if channels is None else len(channels.scale),
        eps=first.eps,
        whole=whole,
    )


def allow_wide_scores(allowed: bool) -> bool:
    """Whether tokens may be scored by AVX-512 from now on, as they are at first; whether the processor has it. For
    comparisons: the bits are the same."""
    return bool(calls().tandem_allow_wide_scores(allowed))


class Choice(ctypes.Structure):
    """Tokens that are chosen for rows of a step, as the library takes them."""

    count: int
    _fields_ = (
        *((name, _POINTER) for name in ("rows", "positions", "owners", "tables", "chosen")),
        *((name, _SIZE) for name in ("count", "most", "width", "page_size", "most_scores")),
        ("format", ctypes.c_int32),
    )


class Scored(ctypes.Structure):
    """By what tokens are chosen, as the library takes it."""

    _fields_ = (
        *((name, _POINTER) for name in ("keys", "queries", "weights")),
        *((name, _SIZE) for name in ("heads", "size", "weights_stride")),
        ("scale", ctypes.c_float),
    )


def choose(choice: Choice, keys: torch.Tensor, queries: torch.Tensor, weights: torch.Tensor) -> None:
    """Chooses by a layer's index keys `[pages, 1, page_size, size]`, and by all rows' queries `[N, heads, size]` and
    what each weighs `[N, heads]`, contiguous float32 both."""
    scored = Scored(
        keys.data_ptr(), queries.data_ptr(), weights.data_ptr(), *queries.shape[1:], weights_stride=weights.stride(0)
    )
    scored.scale = 1.0
    if calls().tandem_choose(ctypes.addressof(choice), ctypes.addressof(scored), torch.get_num_threads()):
        raise MemoryError("no memory for the scores of tokens")


def pages_of(parts: Parts) -> Pages:
    """One layer's keys or values, which must outlive it."""
    return Pages(parts[0].data_ptr(), parts[-1].data_ptr())


def rotations(of: Rotary, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines at `positions` `[N]` int64, each `[N, 1, head_dim]`. Raises IndexError for positions
    that the table does not have."""
    rows, size = len(positions), 2 * of.half
    cos, sin = torch.empty((rows, 1, size)), torch.empty((rows, 1, size))
    if calls().tandem_rotations(
        of.table, of.count, of.half, positions.data_ptr(), rows, cos.data_ptr(), sin.data_ptr()
    ):
        raise IndexError(f"positions {positions.tolist()} of a table of {of.count}")
    return cos, sin


def rotate_and_store(
    qkv: torch.Tensor,
    heads: Heads,
    rotation: tuple[torch.Tensor, torch.Tensor],
    cache: KVCache,
    layer: int,
    slots: torch.Tensor | None,
) -> None:
    """Finishes and rotates the queries and keys in `qkv` `[N, heads + 2 kv_heads, head_dim]` where they are; then
    stores keys and values at `slots`, if these are given."""
    stored = cache.shape.format.name
    pages = [pages_of(parts) for parts in (cache.keys[layer], cache.values[layer])]
    keys, values = (None, None) if slots is None else map(ctypes.addressof, pages)
    calls().tandem_rotate_and_store(
        qkv.data_ptr(),
        qkv.stride(0),
        ctypes.addressof(heads),
        rotation[0].data_ptr(),
        rotation[1].data_ptr(),
        keys,
        values,
        FORMATS[stored],
        None if slots is None else slots.data_ptr(),
        len(qkv),
        cache.shape.page_size,
        torch.get_num_threads(),
    )


def attention_call(
    work: AttentionWork,
    format_name: str,
    keys: Parts,
    values: Parts,
    q: torch.Tensor,
    scores: Scores,
    latent: int,
    out: torch.Tensor,
) -> Callable[[], int]:
    """What `attention` calls, which must not outlive what it is given; its result tells that there was no memory."""
    _, heads, head_dim = q.shape
    kv_heads, page_size = keys[0].shape[1:3]
    pages = [pages_of(parts) for parts in (keys, values)]
    return partial(
        calls().tandem_attention,
        *(pointer for each in pages for pointer in (each.numbers, each.constants)),
        FORMATS[format_name],
        work.blocks.ctypes.data,
        len(work.blocks),
        work.most,
        work.tables.ctypes.data,
        work.tables.shape[1],
        work.apart,
        q.data_ptr(),
        q.stride(0),
        out.data_ptr(),
        kv_heads,
        heads // kv_heads // work.shares,
        work.shares,
        head_dim,
        head_dim if latent % LANES else latent or head_dim,
        page_size,
        work.window,
        scores.scale,
        scores.cap,
        None if scores.sinks is None else scores.sinks.data_ptr(),
        torch.get_num_threads() if work.keys * heads * head_dim > WORTH_A_THREAD else 1,
    )


def attention(
    work: AttentionWork,
    format_name: str,
    keys: Parts,
    values: Parts,
    q: torch.Tensor,
    scores: Scores,
    latent: int = 0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of queries `q` `[N, heads, head_dim]` over one layer's pages, to `out`; rows of no block keep what they
    have there, or hold anything. Unless `latent` is 0, values are the first so many numbers, and the others of what is
    given are 0."""
    out = torch.empty(q.shape) if out is None else out
    if attention_call(work, format_name, keys, values, q, scores, latent, out)():
        raise MemoryError("no memory for a block of attention")
    return out

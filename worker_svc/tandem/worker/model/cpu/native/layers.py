"""What a layer does beside its products, compiled: norms, rotation, attention over pages, the gated activation.

All numbers are float32, and so are the tensors but for the cache. Where a tensor may have rows that lie apart, its last
dimensions are contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.model.attention import Scores
from tandem.worker.model.cpu.native.library import calls
from tandem.worker.model.kv_formats import Parts

LANES = 8  # sizes are multiples of it

FORMATS = {"float32": 0, "bfloat16": 1, "float16": 2, "int8": 3, "int4": 4, "fp8": 5}  # as in numbers.h
_FLOAT8 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
WORTH_A_THREAD = 1 << 17  # multiplications that take about as long as it takes to wake a thread


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Which queries look at what; see `attention.c` and `paged_plan.py`."""

    blocks: npt.NDArray[np.int32]  # [B, 6]
    tables: npt.NDArray[np.int32]  # [sequences, width]
    most: int  # tokens in a block
    keys: int  # that all blocks' tokens look at, each counted for itself
    window: int


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


def swiglu(gate_up: torch.Tensor, size: int) -> torch.Tensor:
    """`silu(gate) * up` of `[N, 2 size]`."""
    rows = gate_up.shape[0]
    out = torch.empty((rows, size))
    calls().tandem_swiglu(gate_up.data_ptr(), out.data_ptr(), rows, size, gate_up.stride(0), torch.get_num_threads())
    return out


def rotate(
    qkv: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor],
    heads: int,
    pages: tuple[torch.Tensor, torch.Tensor] | None,
    slots: torch.Tensor | None,
) -> None:
    """Rotates the queries and keys in `qkv` `[N, heads + 2 kv_heads, head_dim]` where they are; then stores keys and
    values in `pages` of fp32, bf16 or fp16 at `slots`, if these are given."""
    rows, all_heads, head_dim = qkv.shape
    keys, values = (None, None) if pages is None else pages
    calls().tandem_rotate_and_store(
        qkv.data_ptr(),
        qkv.stride(0),
        rotation[0].data_ptr(),
        rotation[1].data_ptr(),
        None if keys is None else keys.data_ptr(),
        None if values is None else values.data_ptr(),
        0 if keys is None else FORMATS[str(keys.dtype).removeprefix("torch.")],
        None if slots is None else slots.data_ptr(),
        rows,
        heads,
        (all_heads - heads) // 2,
        head_dim,
        0 if keys is None else keys.shape[2],
        torch.get_num_threads(),
    )


def attention(
    work: AttentionWork, format_name: str, keys: Parts, values: Parts, q: torch.Tensor, scores: Scores
) -> torch.Tensor:
    """Attention of queries `q` `[N, heads, head_dim]` over one layer's pages; rows of no block hold anything."""
    rows, heads, head_dim = q.shape
    out = torch.empty((rows, heads, head_dim))
    kv_heads, page_size = keys[0].shape[1:3]
    constants = (_FLOAT8, _FLOAT8) if format_name == "fp8" else (keys[-1], values[-1])
    failed = calls().tandem_attention(
        keys[0].data_ptr(),
        constants[0].data_ptr(),
        values[0].data_ptr(),
        constants[1].data_ptr(),
        FORMATS[format_name],
        work.blocks.ctypes.data,
        len(work.blocks),
        work.most,
        work.tables.ctypes.data,
        work.tables.shape[1],
        q.data_ptr(),
        q.stride(0),
        out.data_ptr(),
        kv_heads,
        heads // kv_heads,
        head_dim,
        page_size,
        work.window,
        scores.scale,
        scores.cap,
        None if scores.sinks is None else scores.sinks.data_ptr(),
        torch.get_num_threads() if work.keys * heads * head_dim > WORTH_A_THREAD else 1,
    )
    if failed:
        raise MemoryError("no memory for a block of attention")
    return out

"""Computes attention over pages by torch in float64, a sequence and a head at a time: the reference of the kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tandem.worker.model.attention import Segment
from tandem.worker.model.kv_formats import KVFormat, Parts


def attention(
    q: torch.Tensor,
    keys: Parts,
    values: Parts,
    stored: KVFormat,
    segments: Sequence[Segment],
    scale: float,
    window: int = 0,
    cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Computes attention of `q` `[N, heads, head_dim]` in float64; rows of no segment give zeros."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    kv_heads, size = keys[0].shape[1:3]
    for segment in segments:
        end = segment.position + segment.length
        pages = torch.from_numpy(segment.pages[: -(-end // size)]).to(q.device)
        rows = slice(segment.row, segment.row + segment.length)
        k, v = (
            stored.decode(parts, torch.empty((*parts[0].shape[:3], q.shape[-1]), device=q.device))
            .double()
            .transpose(1, 2)
            .reshape(-1, kv_heads, q.shape[-1])[:end]
            .repeat_interleave(q.shape[1] // kv_heads, 1)
            for parts in (tuple(part[pages] for part in layer) for layer in (keys, values))
        )
        scores = torch.einsum("qhd,khd->hqk", q[rows].double(), k) * scale
        if cap:
            scores = cap * (scores / cap).tanh()
        query = torch.arange(segment.position, end, device=q.device)[:, None]
        key = torch.arange(end, device=q.device)
        hidden = key > query
        if window:
            hidden |= (key <= query - window) if window > 0 else (key // -window != query // -window)
        scores = scores.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            scores = torch.cat((scores, sinks.double().view(-1, 1, 1).expand(-1, len(query), 1)), -1)
        weights = scores.softmax(-1)[..., :end]
        out[rows] = torch.einsum("hqk,khd->qhd", weights, v)
    return out

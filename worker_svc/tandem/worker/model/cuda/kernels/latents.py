"""What stands around attention over latents (`model_parts/latents.py`), in one pass over the projections' output:

    c      <- c / sqrt(mean(c^2) + eps) weight      rounded to the dtype
    r, q'  <- x cos + roll(x, half) signed_sin      the part of all keys, and of each head's query, that is rotated
    (c, r)  = a latent, stored once                 (k - mean) / scale, where keys are stored normalized (KVCache)
    (absorbed, q') = a query, times scale           what looks at what is stored

A program takes the latents of some rows, or one head's queries. How vectors are stored: `store.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.worker.model.cuda.kernels.dependent import is_dependent, options, wait_for_inputs
from tandem.worker.model.cuda.kernels.store import (
    head_of,
    root_mean_square,
    rotated,
    store_int4,
    store_int6,
    store_numbers,
)
from tandem.worker.model.cuda.kernels.tiles import INT4, INT6, Stored, numbers_and_constants
from tandem.worker.model.kv_formats import Parts

_MOST_ROWS = 4  # that a program takes: more of 1,024 numbers, which a latent is filled up to, would leave its registers


@triton.jit
def _latent(
    x, weight, rms, cos, sin, mean, scale, row, real, row_stride, at,
    D: tl.constexpr, RANK: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Returns coordinates `at` of latents as they are to be stored, `[rows, at]` float32."""
    inside = at < D
    kept = head_of(x, x, weight, rms, row, real, row_stride, at, at < RANK, False, True).to(tl.float32)
    turned = rotated(
        x + RANK, x, weight, rms, cos, sin, row, real, row_stride, at - RANK, inside & (at >= RANK),
        D - RANK, False, False,
    )  # fmt: skip
    numbers = tl.where((at < RANK)[None, :], kept, turned)
    if CHANNELS:
        centred = numbers - tl.load(mean + at, mask=inside, other=0.0)[None, :]
        numbers = tl.div_rn(centred, tl.load(scale + at, mask=inside, other=1.0)[None, :] + tl.zeros_like(centred))
    return numbers


@triton.jit(do_not_specialize=["rows"])
def _store_latents(
    latent, queries, absorbed, out, cos, sin, slots, weight, mean, scale, numbers, constants, rows, row_stride, eps,
    ROWS: tl.constexpr, HEADS: tl.constexpr, QUERY: tl.constexpr, D: tl.constexpr, RANK: tl.constexpr,
    D_PAD: tl.constexpr, RANK_PAD: tl.constexpr, REST: tl.constexpr, PAGE: tl.constexpr, CHANNELS: tl.constexpr,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(DEPENDENT)
    ROTATED: tl.constexpr = D - RANK
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = row < rows
    head = tl.program_id(1)
    if head < HEADS:
        vector = row * HEADS + head
        of_rank = tl.arange(0, RANK_PAD)
        mask = real[:, None] & (of_rank < RANK)[None, :]
        kept = tl.load(absorbed + vector[:, None] * RANK + of_rank[None, :], mask=mask, other=0.0)
        if CHANNELS:
            kept = kept.to(tl.float32) * tl.load(scale + of_rank, mask=of_rank < RANK, other=0.0)[None, :]
        tl.store(out + vector[:, None] * D + of_rank[None, :], kept.to(out.dtype.element_ty), mask=mask)
        of_rest = tl.arange(0, REST)
        inside = of_rest < ROTATED
        x = queries + head * QUERY + (QUERY - ROTATED)
        turned = rotated(x, x, x, row, cos, sin, row, real, HEADS * QUERY, of_rest, inside, ROTATED, False, False)
        if CHANNELS:
            turned *= tl.load(scale + RANK + of_rest, mask=inside, other=0.0)[None, :]
        behind = out + vector[:, None] * D + RANK + of_rest[None, :]
        tl.store(behind, turned.to(out.dtype.element_ty), mask=real[:, None] & inside[None, :])
    else:
        rms = root_mean_square(latent, latent, row, real, row_stride, eps, RANK, RANK_PAD, False)
        page = tl.load(slots + row, mask=real, other=0).to(tl.int64)
        vector = page * PAGE + tl.load(slots + rows + row, mask=real, other=0)  # its number in the pages
        if FORMAT == INT4:
            # Neighbours share a byte: even and odd coordinates apart, and each vector's groups as rows.
            half = tl.arange(0, D_PAD // 2)
            even = _latent(
                latent, weight, rms, cos, sin, mean, scale, row, real, row_stride, 2 * half, D, RANK, CHANNELS
            )
            odd = _latent(
                latent, weight, rms, cos, sin, mean, scale, row, real, row_stride, 2 * half + 1, D, RANK, CHANNELS
            )
            store_int4(even, odd, vector, real, numbers, constants, ROWS, D, D_PAD, GROUP, GROUP_PAD)
        elif FORMAT == INT6:
            # Four neighbours share three bytes: each of the four for itself.
            fourth = 4 * tl.arange(0, D_PAD // 4)
            first = _latent(
                latent, weight, rms, cos, sin, mean, scale, row, real, row_stride, fourth, D, RANK, CHANNELS
            )
            second = _latent(
                latent, weight, rms, cos, sin, mean, scale, row, real, row_stride, fourth + 1, D, RANK, CHANNELS
            )
            third = _latent(
                latent, weight, rms, cos, sin, mean, scale, row, real, row_stride, fourth + 2, D, RANK, CHANNELS
            )
            last = _latent(
                latent, weight, rms, cos, sin, mean, scale, row, real, row_stride, fourth + 3, D, RANK, CHANNELS
            )
            store_int6(first, second, third, last, vector, real, numbers, constants, D, D_PAD)
        else:
            at = tl.arange(0, D_PAD)
            made = _latent(latent, weight, rms, cos, sin, mean, scale, row, real, row_stride, at, D, RANK, CHANNELS)
            store_numbers(made, vector, real, at, at < D, numbers, constants, D, FORMAT)


def store_latents(
    latent: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    queries: torch.Tensor,
    absorbed: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor],
    keys: Parts,
    stored: Stored,
    slots: torch.Tensor,
    channels: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Fills one layer's `keys` at `slots` `[2, N]`; gives the queries `[N, heads, size]` that look at them.

    latent: `[N, size]`, each row contiguous, whose first `rank` numbers are normed by `weight` `[rank]` and `eps`.
    queries: `[N, heads, query]`, of which the last `size - rank` are rotated. absorbed: `[N, heads, rank]`.
    rotation: cosines and signed sines `[N, 1, size - rank]` float32.
    channels: mean and scale `[1, size]` float32, where keys are stored normalized.
    """
    (rows, size), (_, heads, query) = latent.shape, queries.shape
    rank, page_size = absorbed.shape[2], keys[0].shape[2]
    cos, sin = rotation
    assert latent.stride(1) == 1 and queries.is_contiguous() and absorbed.is_contiguous() and slots.is_contiguous()
    assert cos.is_contiguous() and sin.is_contiguous() and cos.shape[-1] == size - rank and stored.latent == rank
    out = queries.new_empty((rows, heads, size))
    if rows:
        block = min(_MOST_ROWS, triton.next_power_of_2(rows))
        dependent = is_dependent(out.device)
        _store_latents[(triton.cdiv(rows, block), heads + 1)](
            latent, queries, absorbed, out, cos, sin, slots, weight, *(channels or (weight, weight)),
            *numbers_and_constants(keys), rows, latent.stride(0), eps,
            block, heads, query, size, rank, max(16, triton.next_power_of_2(size)), stored.padded, stored.rest,
            page_size, channels is not None, stored.format, stored.group, triton.next_power_of_2(stored.group),
            dependent, num_warps=4, **options(dependent),
        )  # fmt: skip
    return out

"""A CPU's kernels in C: products with plain, int8, int6 and int4 weights (here), the rest of a layer (`layers.py`),
and what is done with rows of logits (`choice.py`).

A wheel brings them compiled; else the machine's C compiler (`CC`, else cc, gcc or clang) makes them when they are first
needed, which takes a few seconds; `tandem.common.compiled` says what is loaded. Where there is neither, torch's own
operations serve, slower.

Measured on one Zen 3 core, W `[11264, 2048]`, milliseconds:

| rows                            | 1   | 4   | 8   | 16  | 128 |
|---------------------------------|-----|-----|-----|-----|-----|
| bf16, torch                     | 6.9 | 18  | 38  | 73  |     |
| bf16, here                      | 1.9 | 4.1 | 6.4 | 10  | 67  |
| int8, `_weight_int8pack_mm` on bf16 rows | 3.1 | 6.7 | 13 | 27 | |
| int8 in groups of 32 / 128, here | 1.4 / 1.1 | 2.4 / 2.5 | 4.2 / 4.0 | 7.1 / 6.5 | 53 / 48 |
| int4 in groups of 32, here      | 0.9 | 2.2 | 4.0 | 7.4 | 59  |

The same on one Zen 5 core, with AVX2 alone / with AVX-512 and VNNI (`quantized_wide.h`), which have the same bits:

| rows                            | 1         | 4         | 8         | 16        | 128       |
|---------------------------------|-----------|-----------|-----------|-----------|-----------|
| int8 in groups of 32            | 0.9 / 0.8 | 2.1 / 0.7 | 2.5 / 1.0 | 4.7 / 2.0 | 34 / 16   |
| int4 in groups of 32            | 0.5 / 0.4 | 1.1 / 0.4 | 1.9 / 0.6 | 3.2 / 1.2 | 22 / 9.9  |

The products of bf16 and fp32 for AVX-512 (`panels_wide.c`) beside oneDNN's with a W that was rearranged once, two cores
of a Xeon with AMX that others use too, W `[11264, 2048]`, ours / oneDNN in milliseconds, medians:

| rows | 1         | 4         | 16        | 32        | 128         | 512         |
|------|-----------|-----------|-----------|-----------|-------------|-------------|
| bf16 | 1.8 / 2.0 | 1.9 / 1.9 | 2.0 / 2.0 | 2.1 / 2.7 | 4.0 / 3.9   | 14.6 / 14.6 |
| fp32 | 3.7 / 3.8 | 3.9 / 4.0 | 5.1 / 5.8 | 6.2 / 7.8 | 18.1 / 20.5 | 78 / 79     |
"""

from __future__ import annotations

import torch

from tandem.worker.checkpoints.grouped import E8M0, FLOAT8
from tandem.worker.model.cpu.native.library import calls, library

PANEL = 16  # rows of a weight that lie interleaved
WIDE_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # as numbers.h has them
BF16_WAYS = ("shifts", "twos", "amx")  # of AVX-512; the later the better
SCALES = {torch.float32: 0, torch.float16: 1, E8M0: 2, torch.int8: 3, FLOAT8: 4}  # as `Product` has them
_WORTH_THREADS = 1 << 16
_FEW_NUMBERS = 2048  # that a product gives: a thread by itself has them sooner than several that wait for each other
WIDE_TILE = 32  # inputs of bf16 that `wide_product` takes at once


def available() -> bool:
    """Whether the compiled products can be used on this machine; compiles them if need be."""
    return library() is not None


def allow_wide(allowed: bool) -> bool:
    """Whether quantized products may use AVX-512 with VNNI from now on, as they do at first; whether the processor has
    it. For comparisons: the bits are the same."""
    return bool(calls().tandem_allow_wide(allowed))


def allow_amx(allowed: bool) -> bool:
    """Whether several rows may be multiplied with quantized weights by AMX from now on, and several queries with int8
    and int6, as they are at first; whether the processor has it. For comparisons: the bits are the same, but those of
    attention over int8 where the instructions of bf16 serve instead."""
    return bool(calls().tandem_allow_amx(allowed))


def round_to_int8(wanted: bool) -> None:
    """Says whether activations beside int8 weights in groups of 32 and less become int8 from now on, and not int16, as
    they do at first. The bits differ."""
    calls().tandem_round_to_int8(wanted)


def allow_wide_attention(allowed: bool) -> bool:
    """Whether attention may use AVX-512 with VNNI from now on, as it does at first; whether the processor has it. For
    comparisons: the bits differ."""
    return bool(calls().tandem_allow_wide_attention(allowed))


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def put_into_panels(rows: torch.Tensor, panels: torch.Tensor) -> None:
    """Stores `rows [n * 16, columns]` as `panels [n, columns, 16]`, both contiguous and of one dtype."""
    assert rows.is_contiguous() and panels.is_contiguous() and rows.dtype == panels.dtype
    assert panels.itemsize in (1, 2, 4) and panels.numel() == rows.numel()
    threads = torch.get_num_threads() if rows.numel() > _WORTH_THREADS else 1
    calls().tandem_fill_panels(
        panels.itemsize, rows.data_ptr(), panels.data_ptr(), len(panels), panels.shape[1], threads
    )


def rows_of_panels(ids: torch.Tensor, panels: torch.Tensor) -> torch.Tensor:
    """Rows `ids [n]` int64 of contiguous `panels [.., steps, beside, words, 16]`, `beside` of which lie side by side:
    `[n, steps * words]` of their dtype. Raises IndexError for rows that they do not have."""
    assert panels.is_contiguous() and panels.itemsize in (1, 2, 4)
    steps, beside, words, _ = panels.shape[1:]
    ids = ids.contiguous()
    rows = torch.empty((len(ids), steps * words), dtype=panels.dtype)
    all_panels = len(panels) * beside
    if calls().tandem_panel_rows(
        panels.itemsize, panels.data_ptr(), all_panels, steps, beside, words, ids.data_ptr(), len(ids), rows.data_ptr()
    ):
        raise IndexError(f"rows {ids.tolist()} of a matrix of {all_panels * PANEL}")
    return rows


def quantized_product(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    least: torch.Tensor | None,
    groups: int,
    group: int,
    *,
    bits: int,
    table: torch.Tensor | None = None,
    scale_unit: torch.Tensor | None = None,
    least_unit: torch.Tensor | None = None,
    order: torch.Tensor | None = None,
) -> torch.Tensor:
    """`x [rows, k]` fp32 times int8, int6 or int4 weights: `[rows, panels * 16]` fp32.

    See `QuantizedWeight`; rows are quantized in `groups` groups of `group` numbers, which zeros fill up: to int8 for
    int4 weights in groups of 32 or 16 whose numbers are digits, these less 8, or e2m1, else to int16, but see
    `round_to_int8`. `order [k]` int64: which number of a row each column of the weights multiplies, if not that of its
    place.
    """
    x = x.contiguous()
    rows, k = x.shape
    panels = weight.shape[0]
    out = torch.empty((rows, panels * PANEL))
    room = torch.empty(2 * rows * groups * (group // 2 + 4), dtype=torch.int32)
    calls().tandem_quantized_product(
        bits,
        weight.data_ptr(),
        scale.data_ptr(),
        _address(least),
        _address(scale_unit),
        _address(least_unit),
        _address(table),
        SCALES[scale.dtype],
        scale.shape[1] == 1 and groups > 1,
        x.data_ptr(),
        _address(order),
        k,
        room.data_ptr(),
        out.data_ptr(),
        rows,
        panels,
        groups,
        group,
        torch.get_num_threads(),
    )
    return out


def quantized_rows(
    ids: torch.Tensor,
    columns: int,
    weight: torch.Tensor,
    scale: torch.Tensor,
    least: torch.Tensor | None,
    groups: int,
    group: int,
    *,
    bits: int,
    table: torch.Tensor | None = None,
    scale_unit: torch.Tensor | None = None,
    least_unit: torch.Tensor | None = None,
    order: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rows `ids [n]` int64 of the weights that `quantized_product` takes: `[n, columns]` fp32.

    Raises IndexError for ids beyond their panels.
    """
    ids = ids.contiguous()
    out = torch.empty((len(ids), columns))
    failed = calls().tandem_quantized_rows(
        bits,
        weight.data_ptr(),
        scale.data_ptr(),
        _address(least),
        _address(scale_unit),
        _address(least_unit),
        _address(table),
        SCALES[scale.dtype],
        scale.shape[1],
        _address(order),
        columns,
        len(weight),
        groups,
        group,
        ids.data_ptr(),
        len(ids),
        out.data_ptr(),
        torch.get_num_threads(),
    )
    if failed:
        raise IndexError(f"rows {ids.tolist()} of a matrix of {len(weight) * PANEL}")
    return out


def half_product(x: torch.Tensor, panels: torch.Tensor) -> torch.Tensor:
    """`x [rows, k]` fp32 times panels `[out / 16, k, 16]` of bf16 or fp16: `[rows, out]` fp32."""
    x = x.contiguous()
    rows, k = x.shape
    out = torch.empty((rows, len(panels) * PANEL))
    bf16 = panels.dtype == torch.bfloat16
    calls().tandem_half_product(
        bf16, panels.data_ptr(), x.data_ptr(), out.data_ptr(), rows, k, len(panels), torch.get_num_threads()
    )
    return out


def float_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`x [rows, k]` times `weight [out, k]`, both fp32: `[rows, out]`."""
    x = x.contiguous()
    out = torch.empty((len(x), len(weight)))
    calls().tandem_float_product(
        weight.data_ptr(), x.data_ptr(), out.data_ptr(), *x.shape, len(weight), torch.get_num_threads()
    )
    return out


def float8_product(x: torch.Tensor, panels: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """`x [rows, k]` fp32 times panels `[out / 16, k, 16]` of e4m3, with scales in panels too, one a row or every 128
    inputs: `[rows, out]` fp32."""
    x = x.contiguous()
    rows, k = x.shape
    out = torch.empty((rows, len(panels) * PANEL))
    calls().tandem_float8_product(
        panels.data_ptr(),
        scale.data_ptr(),
        scale.shape[1],
        x.data_ptr(),
        out.data_ptr(),
        rows,
        k,
        len(panels),
        torch.get_num_threads(),
    )
    return out


def wide_serves(dtype: torch.dtype) -> bool:
    """Whether the processor has the instructions for `wide_product` with weights of this dtype."""
    return available() and dtype in WIDE_KINDS and calls().tandem_wide_serves() > 0


def limit_bf16(way: str) -> bool:
    """Makes `wide_product`, and attention over bf16, compute by the best of `BF16_WAYS` up to this one from now on;
    whether the processor has it. For comparisons: the bits differ, and by shifts activations stay fp32."""
    most = BF16_WAYS.index(way) + 1
    calls().tandem_limit_bf16(most)
    return int(calls().tandem_wide_serves()) >= most


def wide_product(x: torch.Tensor, panels: torch.Tensor, outputs: int) -> torch.Tensor:
    """`x [rows, k]` fp32 times the panels of `WidePanels`: `[rows, outputs]` fp32. Instructions for bf16 round x."""
    x = x.contiguous()
    rows, k = x.shape
    out = torch.empty((rows, outputs))
    room = torch.empty(rows * -(-k // WIDE_TILE) * WIDE_TILE)
    calls().tandem_wide_product(
        WIDE_KINDS[panels.dtype],
        panels.data_ptr(),
        x.data_ptr(),
        room.data_ptr(),
        out.data_ptr(),
        rows,
        k,
        outputs,
        torch.get_num_threads() if rows * outputs > _FEW_NUMBERS else 1,
    )
    return out

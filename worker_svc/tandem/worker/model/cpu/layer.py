"""Whole layers in one call of the compiled library, for the few rows of a decode.

There the time between two operations decides: threads that have nothing to do fall asleep within 20 us, about as long
as Python takes from one call to the next, and waking them takes longer than a small operation. What is called are the
same functions in the same order as otherwise, so the bits are the same.

A layer is served if its matrices are stored for compiled products and it has neither biases nor norms of heads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import torch

from tandem.worker.checkpoints.grouped import GROUPS
from tandem.worker.checkpoints.model_config import AttentionKind, ModelConfig, Rope
from tandem.worker.model.cpu.native import PANEL, SCALES
from tandem.worker.model.cpu.native.layers import FORMATS, LANES, WORTH_A_THREAD
from tandem.worker.model.cpu.native.library import calls
from tandem.worker.model.cpu.operations import NativeOperations, NativePlan, stores_as_given
from tandem.worker.model.cpu.wide_panels import WidePanels
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.linear import HalfPanels, Linear
from tandem.worker.model.operations import Operations, Plan
from tandem.worker.model.quantization import QuantizedWeight
from tandem.worker.model.rope import Rotation

MOST_ROWS = 64  # with more, quantized products take so long that nothing else matters
MOST_WIDE_ROWS = 2048  # with plain ones, room for what a layer computes is had once instead of once a layer

LayerKind: TypeAlias = tuple[AttentionKind, Rope]  # how it attends and rotates
_Pointer, _Size, _Number, _Float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class _Weight(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("numbers", "scale", "least", "table")),
        *((name, _Number) for name in ("bits", "half", "per_channel")),
        *((name, _Size) for name in ("inputs", "outputs", "panels", "groups", "group")),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Weight) for name in ("qkv", "output", "gate_up", "down")),
        *((name, _Pointer) for name in ("attention_norm", "mlp_norm")),
        *((name, _Size) for name in ("hidden", "inner", "heads", "kv_heads", "head_dim")),
        *((name, _Float) for name in ("eps", "scale")),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("cos", "sin", "slots", "blocks", "tables")),
        *((name, _Size) for name in ("count", "most", "width", "window", "page_size")),
        *((name, _Pointer) for name in ("normed", "qkv", "attended", "gate_up", "inner", "room")),
        *((name, _Size) for name in ("rows", "attending")),
        *((name, _Number) for name in ("format", "threads", "attention_threads")),
    )


class CompiledLayer:
    """A layer's weights as the library takes them."""

    def __init__(self, layer: _Layer, room: int, *, wide: bool) -> None:
        self.struct, self.room, self._wide = layer, room, wide

    @property
    def most_rows(self) -> int:
        """Up to how many rows a call pays."""
        return MOST_WIDE_ROWS if self._wide else MOST_ROWS

    @classmethod
    def of(
        cls,
        matrices: tuple[Linear, Linear, Linear, Linear],
        norms: tuple[torch.Tensor, torch.Tensor],
        config: ModelConfig,
    ) -> CompiledLayer | None:
        """`matrices` are qkv, output, gate_up and down; None if the library does not serve such a layer."""
        weights = [_weight(matrix) for matrix in matrices]
        sizes = (config.hidden_size, config.intermediate_size, config.head_dim)
        if not all(weights) or any(size % LANES for size in sizes) or any(n.dtype != torch.float32 for n in norms):
            return None
        layer = _Layer(
            *weights,
            *(norm.data_ptr() for norm in norms),
            hidden=config.hidden_size,
            inner=config.intermediate_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            eps=config.stream_eps,
            scale=config.attention_scale,
        )
        # As much as products in the smallest groups need, whatever this layer's are: another's may be stored otherwise.
        widest = max(-(-matrix.in_features // max(GROUPS)) * max(GROUPS) for matrix in matrices)
        wide = all(isinstance(weight, WidePanels) for matrix in matrices for weight in matrix.weights)
        return cls(layer, widest + 4 * widest // min(GROUPS), wide=wide)

    def run(
        self, step: CompiledStep, x: torch.Tensor, delta: torch.Tensor | None, pages: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """What is to be added to `x` `[N, hidden]`, which is overwritten, as `Layer.forward` has it. `pages` are the
        layer's keys and values."""
        begins = delta is None
        delta = torch.empty_like(x) if delta is None else delta.contiguous()
        failed = calls().tandem_layer(
            ctypes.addressof(self.struct),
            ctypes.addressof(step.struct),
            x.data_ptr(),
            delta.data_ptr(),
            begins,
            pages[0].data_ptr(),
            pages[1].data_ptr(),
        )
        if failed:
            raise MemoryError("no memory for a block of attention")
        return delta


class CompiledStep:
    """What all layers of the same kind share in one step: where rows go, and room for what they compute."""

    def __init__(
        self,
        layer: CompiledLayer,
        cache: KVCache,
        rotation: tuple[torch.Tensor, torch.Tensor],
        slots: torch.Tensor,
        plan: NativePlan,
    ) -> None:
        """`layer`: any one, all being of the same size."""
        work, size, rows = plan.work, layer.struct, slots.shape[1]
        width = size.heads * size.head_dim
        parts = {
            "normed": size.hidden,
            "qkv": width + 2 * size.kv_heads * size.head_dim,
            "attended": width,
            "gate_up": 2 * size.inner,
            "inner": size.inner,
            "room": layer.room,
        }
        buffers = {name: torch.empty((rows, count)) for name, count in parts.items()}
        threads = torch.get_num_threads()
        self._kept = (rotation, slots, plan, buffers)  # what `struct` points at
        self.struct = _Step(
            cos=rotation[0].data_ptr(),
            sin=rotation[1].data_ptr(),
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
            attention_threads=threads if work.keys * width > WORTH_A_THREAD else 1,
            **{name: buffer.data_ptr() for name, buffer in buffers.items()},
        )


def compiled_steps(
    operations: Operations,
    layer: CompiledLayer | None,
    cache: KVCache,
    rotations: Mapping[Rope, Rotation],
    slots: torch.Tensor,
    plans: Mapping[AttentionKind, Plan],
    kinds: Iterable[LayerKind],
) -> dict[LayerKind, CompiledStep]:
    """For each kind of layer; empty where a step's layers are to be computed piece by piece."""
    if layer is None or slots.shape[1] > layer.most_rows:
        return {}
    if type(operations) is not NativeOperations or not stores_as_given(cache):
        return {}
    return {
        (attention, rope): CompiledStep(layer, cache, rotations[rope], slots, plan)
        for attention, rope in kinds
        if isinstance(plan := plans[attention], NativePlan)
    }


def _weight(matrix: Linear) -> _Weight | None:
    """None if its product is not compiled, or has a bias, or columns that fill up a panel."""
    if matrix.bias is not None or len(matrix.weights) != 1:
        return None
    weight, inputs, outputs = matrix.weights[0], matrix.in_features, matrix.out_features
    if isinstance(weight, WidePanels):
        bf16 = weight.panels.dtype == torch.bfloat16
        return _Weight(numbers=weight.panels.data_ptr(), half=bf16, inputs=inputs, outputs=outputs)
    if outputs % PANEL:
        return None
    if isinstance(weight, HalfPanels):
        panels = weight.panels
        bf16 = panels.dtype == torch.bfloat16
        return _Weight(numbers=panels.data_ptr(), bits=16, half=bf16, inputs=inputs, panels=len(panels))
    if type(weight) is not QuantizedWeight or not weight.compiled or weight.order is not None:
        return None
    return _Weight(
        numbers=weight.q.data_ptr(),
        scale=weight.scale.data_ptr(),
        least=None if weight.least is None else weight.least.data_ptr(),
        bits=weight.kind.bits,
        table=None if weight.table is None else weight.table.data_ptr(),
        half=SCALES[weight.scale.dtype],
        per_channel=weight.scale.shape[1] == 1 and weight.groups > 1,
        inputs=inputs,
        panels=len(weight.q),
        groups=weight.groups,
        group=weight.group,
    )

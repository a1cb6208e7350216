"""A step of a layer with states, compiled; see `recurrence.h`."""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from tandem.worker.model.cpu.native.layers import LANES
from tandem.worker.model.cpu.native.library import calls
from tandem.worker.model.delta_rule import DeltaRule
from tandem.worker.model.mamba_rule import MambaRule
from tandem.worker.model.recurrence import Rule, TorchMoves
from tandem.worker.model.short_convolution import ConvolutionRule
from tandem.worker.model.states import StatePlan

_MOST_ROWS = 256  # as in recurrence.h
_NORMS = {"none": 0, "after": 1, "before": 2}  # as in mamba.c

_Pointer, _Size = ctypes.c_void_p, ctypes.c_int64


class _Recurrence(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("mixed", "gates", "filter", "filter_bias", "rate", "bias", "skip", "norm")),
        *((name, _Pointer) for name in ("states", "tails", "journals", "room", "out")),
        *((name, _Size) for name in ("stride", "gates_stride", "channels", "groups", "heads")),
        *((name, _Size) for name in ("rows", "columns", "kernel", "journal", "factors")),
        *((name, ctypes.c_float) for name in ("eps", "least", "most", "dt_by", "z_by")),
        *((name, ctypes.c_int) for name in ("norm_kind", "threads")),
    )


def serves(rule: Rule) -> bool:
    """Tells whether layers with a rule of these sizes are compiled."""
    sizes = rule.sizes
    _, rows, columns = sizes.state
    if sizes.channels % LANES or columns % LANES or rows > _MOST_ROWS:
        return False
    return isinstance(rule, ConvolutionRule | MambaRule) or (isinstance(rule, DeltaRule) and rows % LANES == 0)


class CompiledMoves(TorchMoves):
    """Moves a step's states by compiled code, and by torch where there is none for a rule or for the device."""

    def recur(self, rule: Rule, layer: int, mixed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        if mixed.device.type != "cpu" or not serves(rule):
            return super().recur(rule, layer, mixed, gates)
        return _recur(rule, layer, mixed.float(), gates.float(), self.plan).to(mixed.dtype)


def _recur(rule: Rule, layer: int, mixed: torch.Tensor, gates: torch.Tensor, plan: StatePlan) -> torch.Tensor:
    sizes, cache = rule.sizes, plan.cache
    covered = int(plan.works[:, 3].sum()) == len(mixed)
    out = (torch.empty if covered else torch.zeros)((len(mixed), sizes.size))
    heads, rows, columns = sizes.state
    step = _Recurrence(
        mixed=mixed.data_ptr(),
        gates=gates.data_ptr(),
        filter=rule.filter_rows.data_ptr(),
        states=None if cache is None else cache.recurrent[layer].data_ptr(),
        tails=None if cache is None else cache.tails[layer].data_ptr(),
        journals=None if cache is None else cache.journals[layer].data_ptr(),
        room=plan.room(sizes.channels + sizes.factors).data_ptr(),
        out=out.data_ptr(),
        stride=mixed.stride(0),
        gates_stride=gates.stride(0),
        channels=sizes.channels,
        heads=heads,
        rows=rows,
        columns=columns,
        kernel=sizes.kernel,
        journal=0 if cache is None else cache.shape.journal,
        factors=sizes.factors,
        threads=torch.get_num_threads(),
    )
    works, saves = np.ascontiguousarray(plan.works), np.ascontiguousarray(plan.saves)
    call = _fill(step, rule)
    call(ctypes.addressof(step), works.ctypes.data, len(works), saves.ctypes.data)
    return out


def _fill(step: _Recurrence, rule: Rule) -> ctypes._NamedFuncPointer:
    """Adds what a rule alone has; returns the function that computes it."""
    match rule:
        case DeltaRule():
            step.rate, step.bias, step.norm = (part.data_ptr() for part in (rule.decay_rate, rule.bias, rule.norm))
            step.groups, step.eps = rule.sizes.key_heads, rule.eps
            return calls().tandem_delta_net
        case ConvolutionRule():
            step.filter_bias = None if rule.filter_bias is None else rule.filter_bias.data_ptr()
            return calls().tandem_short_convolution
        case MambaRule():
            step.filter_bias = None if rule.filter_bias is None else rule.filter_bias.data_ptr()
            parts = (rule.rate, rule.bias, rule.skip, rule.norm)
            step.rate, step.bias, step.skip, step.norm = (part.data_ptr() for part in parts)
            step.groups, step.eps, step.norm_kind = rule.sizes.groups, rule.eps, _NORMS[rule.sizes.norm]
            step.least, step.most = rule.sizes.least_dt, rule.sizes.most_dt
            step.z_by, *_, step.dt_by = rule.sizes.multipliers
            return calls().tandem_mamba
    raise AssertionError(f"{type(rule).__name__} is not compiled")

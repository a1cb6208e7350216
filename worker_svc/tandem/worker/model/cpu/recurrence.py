"""A step of a layer with states, compiled; see `recurrence.h`."""

from __future__ import annotations

import ctypes

import torch

from tandem.worker.model.cpu.native.layers import LANES
from tandem.worker.model.cpu.native.library import calls
from tandem.worker.model.delta_rule import DeltaRule
from tandem.worker.model.kimi_delta_rule import KimiDeltaRule
from tandem.worker.model.lightning import LightningRule
from tandem.worker.model.mamba_rule import MambaRule
from tandem.worker.model.recurrence import Rule, TorchMoves
from tandem.worker.model.short_convolution import ConvolutionRule
from tandem.worker.model.states import StatePlan

_MOST_ROWS = 256  # as in recurrence.h
_RULES = ("delta_net", "mamba", "short_convolution", "kimi_delta")  # as in layer.c
_NORMS = {"none": 0, "after": 1, "before": 2}  # as in mamba.c
_BEFORE_SIGMOID = 3

_Pointer, _Size = ctypes.c_void_p, ctypes.c_int64


class _Recurrence(ctypes.Structure):
    room: int
    threads: int
    _fields_ = (
        *((name, _Pointer) for name in ("mixed", "gates", "filter", "filter_bias", "rate", "bias", "skip", "norm")),
        *((name, _Pointer) for name in ("states", "tails", "journals", "room", "out")),
        *((name, _Size) for name in ("stride", "gates_stride", "channels", "groups", "heads")),
        *((name, _Size) for name in ("rows", "columns", "kernel", "journal", "factors")),
        *((name, ctypes.c_float) for name in ("eps", "least", "most", "dt_by", "z_by", "beta_by")),
        *((name, ctypes.c_int) for name in ("norm_kind", "threads")),
        ("norm_groups", _Size),
    )


class Carrying(ctypes.Structure):
    """How the states of one layer move, as the library takes it."""

    r: _Recurrence
    works: int
    saves: int
    count: int
    covered: int
    rule: int
    _fields_ = (
        ("r", _Recurrence),
        *((name, _Pointer) for name in ("works", "saves")),
        *((name, _Size) for name in ("count", "covered")),
        ("rule", ctypes.c_int),
    )


def serves(rule: Rule) -> bool:
    """Tells whether layers with a rule of these sizes are compiled."""
    sizes = rule.sizes
    _, rows, columns = sizes.state
    if sizes.channels % LANES or columns % LANES or rows > _MOST_ROWS:
        return False
    return isinstance(rule, ConvolutionRule | MambaRule | LightningRule) or (
        isinstance(rule, DeltaRule | KimiDeltaRule) and rows % LANES == 0
    )


class CompiledMoves(TorchMoves):
    """Moves a step's states by compiled code, and by torch where there is none for a rule or for the device."""

    def recur(self, rule: Rule, layer: int, mixed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        if mixed.device.type != "cpu" or not serves(rule):
            return super().recur(rule, layer, mixed, gates)
        return _recur(rule, layer, mixed.float(), gates.float(), self.plan).to(mixed.dtype)


def _recur(rule: Rule, layer: int, mixed: torch.Tensor, gates: torch.Tensor, plan: StatePlan) -> torch.Tensor:
    """Computes as `recurrence.recur` does, in float32."""
    whole = carrying(rule, layer, plan)
    out = (torch.empty if whole.covered == len(mixed) else torch.zeros)((len(mixed), rule.sizes.size))
    step = whole.r
    step.mixed, step.gates, step.out = mixed.data_ptr(), gates.data_ptr(), out.data_ptr()
    step.stride, step.gates_stride = mixed.stride(0), gates.stride(0)
    call = getattr(calls(), f"tandem_{_RULES[whole.rule]}")
    call(ctypes.addressof(step), whole.works, whole.count, whole.saves)
    return out


def carrying(rule: Rule, layer: int, plan: StatePlan) -> Carrying:
    """Returns what a layer's states are moved by in a step, but for its rows; `rule` and `plan` must outlive it."""
    sizes, cache = rule.sizes, plan.cache
    heads, rows, columns = sizes.state
    step = _Recurrence(
        filter=rule.filter_rows.data_ptr(),
        states=None if cache is None else cache.recurrent[layer].data_ptr(),
        tails=None if cache is None else cache.tails[layer].data_ptr(),
        journals=None if cache is None else cache.journals[layer].data_ptr(),
        channels=sizes.channels,
        heads=heads,
        rows=rows,
        columns=columns,
        kernel=sizes.kernel,
        journal=0 if cache is None else cache.shape.journal,
        factors=sizes.factors,
    )
    kind = _fill(step, rule)
    made = Carrying(r=step, rule=_RULES.index(kind))
    carries_on(made, rule, plan)
    return made


def carries_on(carrying: Carrying, rule: Rule, plan: StatePlan) -> None:
    """Makes of what moved the same layer's states in another step, of the same cache, what moves them in this one."""
    step = carrying.r
    step.room, step.threads = plan.room(rule.sizes.channels + rule.sizes.factors).data_ptr(), torch.get_num_threads()
    carrying.works, carrying.saves = plan.works.ctypes.data, plan.saves.ctypes.data
    carrying.count, carrying.covered = len(plan.works), plan.rows


def _fill(step: _Recurrence, rule: Rule) -> str:
    """Adds what a rule alone has; returns the one of `_RULES` that computes it."""
    match rule:
        case DeltaRule():
            step.rate, step.bias, step.norm = (part.data_ptr() for part in (rule.decay_rate, rule.bias, rule.norm))
            step.groups, step.eps, step.beta_by = rule.sizes.key_heads, rule.eps, rule.sizes.beta_multiplier
            return "delta_net"
        case KimiDeltaRule():
            step.rate, step.bias, step.norm = (part.data_ptr() for part in (rule.decay_rate, rule.bias, rule.norm))
            step.groups, step.eps, step.beta_by = rule.sizes.heads, rule.eps, 1.0
            step.least = rule.sizes.least
            return "kimi_delta"
        case ConvolutionRule():
            step.filter_bias = None if rule.filter_bias is None else rule.filter_bias.data_ptr()
            return "short_convolution"
        case MambaRule():
            step.filter_bias = None if rule.filter_bias is None else rule.filter_bias.data_ptr()
            parts = (rule.rate, rule.bias, rule.skip, rule.norm)
            step.rate, step.bias, step.skip, step.norm = (part.data_ptr() for part in parts)
            step.groups, step.eps, step.norm_kind = rule.sizes.groups, rule.eps, _NORMS[rule.sizes.norm]
            step.norm_groups = rule.sizes.groups
            step.least, step.most = rule.sizes.least_dt, rule.sizes.most_dt
            step.z_by, *_, step.dt_by = rule.sizes.multipliers
            return "mamba"
        case LightningRule():
            step.rate, step.skip, step.norm = (part.data_ptr() for part in (rule.rate, rule.skip, rule.norm))
            step.groups, step.eps = rule.sizes.heads, rule.eps
            step.norm_kind, step.norm_groups = _BEFORE_SIGMOID, 1
            return "mamba"
    raise AssertionError(f"{type(rule).__name__} is not compiled")

"""A step of a layer with a gated delta rule, compiled; see `delta_net.c`."""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from tandem.worker.checkpoints.layer_parts import DeltaNet
from tandem.worker.model.cpu.native.layers import LANES
from tandem.worker.model.cpu.native.library import calls
from tandem.worker.model.delta_rule import DeltaWeights
from tandem.worker.model.states import StatePlan

_MOST_KEYS = 256  # as in delta_net.c

_Pointer, _Size = ctypes.c_void_p, ctypes.c_int64


class _Delta(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("mixed", "gates", "filter", "rate", "bias", "norm")),
        *((name, _Pointer) for name in ("states", "tails", "journals", "room", "out")),
        *((name, _Size) for name in ("stride", "gates_stride", "channels", "key_heads", "heads")),
        *((name, _Size) for name in ("key_dim", "value_dim", "kernel", "journal")),
        ("eps", ctypes.c_float),
        ("threads", ctypes.c_int),
    )


def serves(sizes: DeltaNet) -> bool:
    """Tells whether layers of these sizes are compiled."""
    return sizes.key_dim % LANES == 0 and sizes.value_dim % LANES == 0 and sizes.key_dim <= _MOST_KEYS


def delta_rule(
    weights: DeltaWeights, layer: int, mixed: torch.Tensor, gates: torch.Tensor, plan: StatePlan
) -> torch.Tensor:
    """Computes as `delta_net.delta_rule` does, in float32."""
    sizes, cache = weights.sizes, plan.cache
    covered = int(plan.works[:, 3].sum()) == len(mixed)
    out = (torch.empty if covered else torch.zeros)((len(mixed), sizes.value_size))
    room = plan.room(sizes.channels + 2 * sizes.value_heads)
    delta = _Delta(
        mixed=mixed.data_ptr(),
        gates=gates.data_ptr(),
        filter=weights.filter_rows.data_ptr(),
        rate=weights.decay_rate.data_ptr(),
        bias=weights.bias.data_ptr(),
        norm=weights.norm.data_ptr(),
        states=None if cache is None else cache.recurrent[layer].data_ptr(),
        tails=None if cache is None else cache.tails[layer].data_ptr(),
        journals=None if cache is None else cache.journals[layer].data_ptr(),
        room=room.data_ptr(),
        out=out.data_ptr(),
        stride=mixed.stride(0),
        gates_stride=gates.stride(0),
        channels=sizes.channels,
        key_heads=sizes.key_heads,
        heads=sizes.value_heads,
        key_dim=sizes.key_dim,
        value_dim=sizes.value_dim,
        kernel=sizes.kernel,
        journal=0 if cache is None else cache.shape.journal,
        eps=weights.eps,
        threads=torch.get_num_threads(),
    )
    works, saves = np.ascontiguousarray(plan.works), np.ascontiguousarray(plan.saves)
    calls().tandem_delta_net(ctypes.addressof(delta), works.ctypes.data, len(works), saves.ctypes.data)
    return out

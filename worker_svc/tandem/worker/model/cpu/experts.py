"""The experts of a layer, compiled: one call for all rows; see `native/experts.c`.

| experts' matrices | how they are multiplied |
|---|---|
| in panels: bf16, fp16, fp32 with AVX-512, fp8 | together, by the kernels of other layers |
| int8, int6, int4, MXFP4 and other codes of 4 bits | the same |
| fp32 without AVX-512 | one expert after the other, by torch |
| GPTQ's with an order of columns (`desc_act`) | one expert after the other |
| of different kinds, within a matrix or between experts | one expert after the other |

Both ways give the same bits where what lies between the two products is compiled for both.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.mlp import ClampedSwiGLU
from tandem.worker.model.activations import sigmoid
from tandem.worker.model.cpu.matrices import ALIKE, Matrix, matrices_of
from tandem.worker.model.cpu.native import layers
from tandem.worker.model.cpu.native.library import calls
from tandem.worker.model.feed_forward import FeedForward, UngatedFeedForward
from tandem.worker.model.linear import Linear

_SCORES = {"softmax": 0, "sigmoid": 1, "mixer": 2}  # as in operations.h
_Pointer, _Size = ctypes.c_void_p, ctypes.c_int64


class Routing(ctypes.Structure):
    """How a row's experts are chosen, as the library takes it."""

    _fields_ = (
        *((name, _Pointer) for name in ("bias", "weights")),
        *((name, _Size) for name in ("count", "per_row", "groups", "groups_per_row", "best_of_group")),
        *((name, ctypes.c_float) for name in ("scale", "sum_offset", "jitter")),
        *((name, ctypes.c_int32) for name in ("score", "normalized")),
    )

    @classmethod
    def of(cls, config: Experts, bias: torch.Tensor | None, weights: torch.Tensor | None) -> Routing:
        """`bias` and `weights` `[experts]` as `moe.choose` has them; they must outlive it."""
        return cls(
            bias=None if bias is None else bias.data_ptr(),
            weights=None if weights is None else weights.data_ptr(),
            count=config.count,
            per_row=config.per_token,
            groups=config.groups,
            groups_per_row=config.groups_per_token,
            best_of_group=config.best_of_group,
            scale=config.scale,
            sum_offset=config.sum_offset,
            jitter=config.jitter,
            score=_SCORES[config.score],
            normalized=config.normalized,
        )


class _Experts(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("gate_up", "down")),
        *((name, _Size) for name in ("count", "per_row", "hidden", "inner")),
        *((name, ctypes.c_int32) for name in ("gated", "gate")),
        *((name, ctypes.c_float) for name in ("alpha", "limit")),
    )


def _gate_of(config: Experts) -> int:
    if config.clamped is None:
        return layers.ACTIVATIONS[config.activation]
    return layers.CLAMPED if isinstance(config.clamped, ClampedSwiGLU) else layers.LIMITED


class CompiledExperts:
    """All experts of a layer, for any number of rows."""

    def __init__(self, config: Experts, experts: Sequence[FeedForward | UngatedFeedForward]) -> None:
        """Takes the experts' matrices where they are; raises ValueError where they are not served."""
        first, clamped = experts[0], config.clamped
        if config.score not in _SCORES or (isinstance(clamped, ClampedSwiGLU) and clamped.offset != 1):
            raise ValueError("there are no kernels for their scores or their gate")
        matrices = [_matrices([each.first for each in experts]), _matrices([each.down for each in experts])]
        self.config = config
        self._kept = (list(experts), matrices)  # what the structure points at
        self._struct = _Experts(
            *(ctypes.addressof(each) for each in matrices),
            count=len(experts),
            per_row=config.per_token,
            hidden=first.first.in_features,
            inner=first.intermediate_size,
            gated=config.gated,
            gate=_gate_of(config),
            alpha=clamped.alpha if isinstance(clamped, ClampedSwiGLU) else 0.0,
            limit=0.0 if clamped is None else clamped.limit,
        )
        self.address = ctypes.addressof(self._struct)

    def room(self, rows: int) -> int:
        """Returns the bytes that so many rows need."""
        size: int = calls().tandem_experts_room(self.address, rows)
        return size

    def route(
        self, logits: torch.Tensor, bias: torch.Tensor | None, weights: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = logits.float()
        shares = torch.empty((len(logits), self.config.per_token))
        chosen = torch.empty(shares.shape, dtype=torch.int64)
        how = Routing.of(self.config, bias, weights)
        calls().tandem_route(
            ctypes.addressof(how),
            logits.data_ptr(),
            logits.stride(0),
            shares.data_ptr(),
            chosen.data_ptr(),
            len(logits),
            torch.get_num_threads(),
        )
        return shares, chosen

    def __call__(
        self,
        x: torch.Tensor,
        shares: torch.Tensor,
        chosen: torch.Tensor,
        shared: torch.Tensor | None,
        gate: torch.Tensor | None,
    ) -> torch.Tensor:
        rows, inputs = len(x), x.float().contiguous()
        shares, chosen = shares.contiguous(), chosen.contiguous()
        room = torch.empty(self.room(rows), dtype=torch.uint8)
        out = torch.empty_like(inputs)
        calls().tandem_experts(
            self.address,
            inputs.data_ptr(),
            chosen.data_ptr(),
            shares.data_ptr(),
            out.data_ptr(),
            room.data_ptr(),
            rows,
            torch.get_num_threads(),
        )
        if shared is None:
            return out.to(x.dtype)
        if gate is None:
            out += shared
        elif out.shape[1] % layers.LANES:
            out += shared * sigmoid(gate.float())
        else:
            layers.add_gated(out, shared.float().contiguous(), gate.float())
        return out.to(x.dtype)


def _matrices(linears: Sequence[Linear]) -> ctypes.Array[Matrix]:
    if any(linear.bias is not None and linear.bias.weight.dtype != torch.float32 for linear in linears):
        raise ValueError("their biases are not of float32")
    found = [matrices_of(linear) for linear in linears]
    if any(len(some) != 1 for some in found):
        raise ValueError("there are no kernels for their matrices")
    matrices = [matrix for (matrix,) in found]
    if any(matrix.order for matrix in matrices):
        raise ValueError("columns of theirs are in another order than the inputs")
    if len({tuple(getattr(matrix, name) for name in ALIKE) for matrix in matrices}) > 1:
        raise ValueError("experts' matrices are of different kinds")
    return (Matrix * len(matrices))(*matrices)

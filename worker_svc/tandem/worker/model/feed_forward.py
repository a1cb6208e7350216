"""The feed-forward layer: gated, `(silu(x Wgate) * x Wup) Wdown`, or not, `activation(x Wup) Wdown`; the gate may be
another one, and there may be biases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import NormalDist

import torch

from tandem.worker.checkpoints.model_parts.mlp import XIELU_CONSTANTS, Activation, ClampedSwiGLU, LimitedSwiGLU
from tandem.worker.model.activations import ACTIVATIONS, xielu
from tandem.worker.model.linear import Bias, Linear, Rows
from tandem.worker.model.norms import row_sums
from tandem.worker.model.operations import Operations
from tandem.worker.model.parallel import ALONE, Ranks


class FeedForward(torch.nn.Module):
    """Does one product for gate and up, whose rows lie below each other, and one for down."""

    __call__: Callable[..., torch.Tensor]

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        dtype: torch.dtype,
        operations: Operations,
        activation: Activation = "silu",
        *,
        clamped: ClampedSwiGLU | LimitedSwiGLU | None = None,
        biases: bool = False,
        gate_multiplier: float = 1.0,
        sparsity: float = 0.0,
        ranks: Ranks = ALONE,
    ) -> None:
        """`clamped` is the gate instead of one with the activation. `sparsity`: the share of the gate's numbers, which
        `ranks` share, that become 0 (`_thinned`)."""
        super().__init__()
        self.intermediate_size = intermediate_size
        self.activation = None if isinstance(clamped, ClampedSwiGLU) else activation
        self.limit = clamped.limit if isinstance(clamped, LimitedSwiGLU) else 0.0  # of an activation that has one
        self.gate_multiplier = gate_multiplier
        self._operations, self._is_swiglu = operations, activation == "silu" and clamped is None
        self._gated: Callable[[torch.Tensor, int], torch.Tensor] = operations.swiglu
        if activation != "silu":
            gelu = activation == "gelu_tanh"
            self._gated = operations.geglu if gelu else partial(_gated, ACTIVATIONS[activation])
        if isinstance(clamped, ClampedSwiGLU):
            self._gated = partial(_clamped, clamped)
        elif clamped is not None:
            self._gated = partial(operations.limited_swiglu, limit=clamped.limit)
        if gate_multiplier != 1:
            self._is_swiglu, self._gated = False, partial(_multiplied, gate_multiplier, self._gated)
        if sparsity:
            above = NormalDist().inv_cdf(sparsity)
            self._is_swiglu, self._gated = False, partial(_thinned, above, ranks, self._gated)
        self.gate_up = Linear(hidden_size, 2 * intermediate_size, dtype, bias=biases)
        self.down = Linear(intermediate_size, hidden_size, dtype, bias=biases)

    @property
    def first(self) -> Linear:
        """Returns the matrix that rows come into."""
        return self.gate_up

    def forward(self, x: Rows) -> torch.Tensor:
        """Computes `[N, hidden] -> [N, hidden]`."""
        if self._is_swiglu and isinstance(x, torch.Tensor) and (gated := self.gate_up.gated(x)) is not None:
            return self.down(gated)
        gate_up = self.gate_up(x)
        if self._is_swiglu and gate_up.dtype == torch.bfloat16 and self.down.takes_float8:
            return self.down(self._operations.swiglu_float8(gate_up, self.intermediate_size))
        return self.down(self._gated(gate_up, self.intermediate_size))


class UngatedFeedForward(torch.nn.Module):
    """One product for up, and one for down."""

    __call__: Callable[..., torch.Tensor]

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        dtype: torch.dtype,
        operations: Operations,
        activation: Activation,
        *,
        biases: bool = False,
    ) -> None:
        super().__init__()
        self.intermediate_size = intermediate_size
        self.activation = activation
        self._operations = operations
        self.constants = Bias(len(XIELU_CONSTANTS), torch.float32) if activation == "xielu" else None
        self.up = Linear(hidden_size, intermediate_size, dtype, bias=biases)
        self.down = Linear(intermediate_size, hidden_size, dtype, bias=biases)

    @property
    def first(self) -> Linear:
        """Returns the matrix that rows come into."""
        return self.up

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Computes `[N, hidden] -> [N, hidden]`."""
        up = self.up(x)
        if self.constants is not None:
            return self.down(xielu(up, self.constants.weight))
        return self.down(self._operations.activate(self.activation, up))


def _gated(activation: Callable[[torch.Tensor], torch.Tensor], gate_up: torch.Tensor, size: int) -> torch.Tensor:
    return (activation(gate_up[:, :size].float()) * gate_up[:, size:]).to(gate_up.dtype)


def _multiplied(
    by: float, gated: Callable[[torch.Tensor, int], torch.Tensor], gate_up: torch.Tensor, size: int
) -> torch.Tensor:
    gate_up[:, :size] *= by
    return gated(gate_up, size)


def _thinned(
    above: float,
    ranks: Ranks,
    gated: Callable[[torch.Tensor, int], torch.Tensor],
    gate_up: torch.Tensor,
    size: int,
) -> torch.Tensor:
    """Leaves of the gate what is more than its mean and so many standard deviations `above` it, less these (You et al.
    2025, https://arxiv.org/abs/2506.06644)."""
    gate, count = gate_up[:, :size].float(), size * ranks.size
    gate = gate - (ranks.add_up(row_sums(gate)) / count)[:, None]
    deviation = (ranks.add_up(row_sums(gate.square())) / count).sqrt()
    gate_up[:, :size] = (gate - deviation[:, None] * above).relu_()
    return gated(gate_up, size)


def _clamped(gate_of: ClampedSwiGLU, gate_up: torch.Tensor, size: int) -> torch.Tensor:
    """By exp, whose bits do not depend on the place of a number."""
    gate = gate_up[:, :size].float().clamp(max=gate_of.limit)
    up = gate_up[:, size:].float().clamp(-gate_of.limit, gate_of.limit)
    return (gate / (gate * -gate_of.alpha).exp_().add_(1) * (up + gate_of.offset)).to(gate_up.dtype)

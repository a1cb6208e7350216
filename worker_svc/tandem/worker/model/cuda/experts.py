"""Experts on CUDA: the matrices of all of a layer lie behind each other and are multiplied together.

    route     1 launch                  gate, up    1 launch, gate or activation included
    arrange   1 launch                  down        1 launch
                                        weigh       1 launch

The host waits for none of it and every launch has the same shape whatever rows choose, so that it can be recorded.

| experts' matrices | how they are multiplied |
|---|---|
| in the model's dtype | as they are |
| int8, int4, MXFP4 and other codes of 4 bits | as they are, as `kernels/quantized.py` and `words.py` do |
| fp8, a scale a channel or 128 columns | widened in the kernel; rows are not rounded. From compute capability 8.9 on |
| GPTQ's with an order of columns (`desc_act`) | one expert after the other |
| of different kinds, within a matrix or between experts | one expert after the other |

Those that are computed one after the other wait for the host and are not recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.mlp import ClampedSwiGLU
from tandem.worker.model.cuda.kernels.expert_products import Floats, Integers, Matrices, expert_product
from tandem.worker.model.cuda.kernels.experts import arrange, route, weigh
from tandem.worker.model.cuda.kernels.product import Tile
from tandem.worker.model.cuda.quantized import KernelWeight
from tandem.worker.model.feed_forward import FeedForward, UngatedFeedForward
from tandem.worker.model.float8 import CAPABILITY, Float8Weight
from tandem.worker.model.linear import Linear, PlainWeight

# Of gate and up a program reads as many numbers again, so it has half as many outputs or columns.
MANY_ROWS = Tile(64, 64, 64), Tile(64, 128, 64)  # gate and up; down
FEW_ROWS = Tile(16, 32, 128), Tile(16, 32, 256)
FLOAT32 = Tile(16, 32, 32), Tile(16, 64, 32)
INTEGERS = {torch.int8: 32, torch.int16: 64}  # outputs of a program, of int8 and of words of 4 bits
FEW = 16  # pairs of an expert, on average, up to which fast mode takes the smallest tile


class JoinedExperts:
    """All experts of a layer, for any number of rows."""

    def __init__(
        self, config: Experts, experts: Sequence[FeedForward | UngatedFeedForward], *, reproducible: bool
    ) -> None:
        """Joins the experts' matrices, which become views of what is joined; raises ValueError where that cannot be."""
        self._config, self._reproducible = config, reproducible
        if config.activation not in (("silu", "gelu_tanh") if config.gated else ("relu2",)):
            raise ValueError(f"no kernel for {config.activation} {'with' if config.gated else 'without'} a gate")
        clamped = config.clamped
        if config.score == "root_softplus" or (isinstance(clamped, ClampedSwiGLU) and clamped.offset != 1):
            raise ValueError("no kernel for their scores or their gate")
        self._first, self._first_bias = _joined([each.first for each in experts])
        self._down, self._down_bias = _joined([each.down for each in experts])

    def route(
        self, logits: torch.Tensor, bias: torch.Tensor | None, weights: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return route(logits, bias, self._config, weights)

    def __call__(
        self,
        x: torch.Tensor,
        shares: torch.Tensor,
        chosen: torch.Tensor,
        shared: torch.Tensor | None,
        gate: torch.Tensor | None,
    ) -> torch.Tensor:
        config, pairs = self._config, chosen.numel()
        of_first, of_down = self._tiles(x.dtype, pairs)
        arrangement = arrange(chosen.to(torch.int32), config.count, of_down.rows)
        inner = expert_product(
            x.contiguous(), self._first, self._first_bias, arrangement, pairs, of_first, config.clamped,
            config.activation, has_gate=config.gated,
        )  # fmt: skip
        answers = expert_product(inner, self._down, self._down_bias, arrangement, pairs, of_down)
        return weigh(answers, shares.contiguous(), shared, gate)

    def _tiles(self, dtype: torch.dtype, pairs: int) -> tuple[Tile, Tile]:
        if dtype == torch.float32:  # which has no matrix unit
            tiles = FLOAT32
        else:
            few = not self._reproducible and pairs <= FEW * self._config.count
            tiles = FEW_ROWS if few else MANY_ROWS
        first, down = (
            tile if isinstance(matrices, Floats) else tile._replace(outputs=INTEGERS[matrices.q.dtype])
            for tile, matrices in zip(tiles, (self._first, self._down), strict=True)
        )
        return first, down


def _joined(linears: Sequence[Linear]) -> tuple[Matrices, torch.Tensor | None]:
    """Joins the matrices and biases of one place in all experts."""
    if any(len(linear.weights) != 1 for linear in linears):
        raise ValueError("a matrix of an expert has parts of different kinds")
    weights = [linear.weights[0] for linear in linears]
    biases = [linear.bias.weight for linear in linears if linear.bias is not None]
    bias = torch.stack([each.data for each in biases]) if biases else None
    first = weights[0]
    if any(_kind(weight) != _kind(first) for weight in weights):
        raise ValueError("experts' matrices are of different kinds")
    if isinstance(first, PlainWeight):
        return Floats(_stacked(weights, "weight"), None), bias
    if isinstance(first, Float8Weight):
        if first.q.is_cuda and torch.cuda.get_device_capability(first.q.device) < CAPABILITY:
            raise ValueError("fp8 needs a GPU of compute capability 8.9")
        return Floats(_stacked(weights, "q"), _stacked(weights, "scale")), bias
    if not isinstance(first, KernelWeight):
        raise ValueError(f"no kernel for {type(first).__name__}")
    if any(weight.order is not None for weight in weights):
        raise ValueError("an expert's matrix has an order of its columns")
    least = None if first.least is None else _stacked(weights, "least")
    q, scale = _stacked(weights, "q"), _stacked(weights, "scale")
    return Integers(q, scale, least, first.table, first.group, first.kind.code), bias


def _kind(weight: torch.nn.Module) -> tuple[object, ...]:
    """Describes how a matrix is stored; what is alike can be joined."""
    parts = {name: part for name, part in (*weight.named_buffers(), *weight.named_parameters()) if name != "order"}
    return type(weight), getattr(weight, "kind", None), *((name, p.shape, p.dtype) for name, p in parts.items())


def _stacked(weights: Sequence[torch.nn.Module], name: str) -> torch.Tensor:
    """Stacks one part of all matrices, which becomes a view of it in each."""
    stacked = torch.stack([getattr(weight, name).detach() for weight in weights])
    for weight, part in zip(weights, stacked, strict=True):
        plain = isinstance(getattr(weight, name), torch.nn.Parameter)
        setattr(weight, name, torch.nn.Parameter(part, requires_grad=False) if plain else part)
    return stacked

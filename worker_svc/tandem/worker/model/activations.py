"""The activations of feed-forward layers, by operations whose bits do not depend on the number of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from tandem.worker.checkpoints.model_parts.mlp import Activation


def silu(x: torch.Tensor) -> torch.Tensor:
    """Computes `x / (1 + exp(-x))`."""
    wide = x.float()
    return (wide / wide.neg().exp_().add_(1)).to(x.dtype)


def squared_relu(x: torch.Tensor) -> torch.Tensor:
    """Computes the square of what is above 0."""
    return x.relu().square_()


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """Computes `x / 2 (1 + tanh(u))`, which is `x / (1 + exp(-2 u))`, with u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    wide = x.float()
    u = wide * (1 + 0.044715 * wide.square()) * math.sqrt(2 / math.pi)
    return (wide / u.mul_(-2).exp_().add_(1)).to(x.dtype)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Computes `x / 2 (1 + erf(x / sqrt(2)))`."""
    wide = x.float()
    return (wide * (wide * math.sqrt(0.5)).erf_().add_(1).mul_(0.5)).to(x.dtype)


def xielu(x: torch.Tensor, constants: torch.Tensor) -> torch.Tensor:
    """Computes `beta x + alpha x^2` above 0 and `beta x + alpha (e^min(x, eps) - 1 - x)` elsewhere, by the constants
    alpha_p, alpha_n, beta and eps `[4]`: alpha is softplus(alpha_p), or beta + softplus(alpha_n) (Huang and Schlag
    2024, https://arxiv.org/abs/2411.13010)."""
    alpha_p, alpha_n, beta, eps = constants
    wide = x.float()
    above = torch.nn.functional.softplus(alpha_p) * wide.square()
    below = (beta + torch.nn.functional.softplus(alpha_n)) * (torch.expm1(torch.minimum(wide, eps)) - wide)
    result: torch.Tensor = torch.where(wide > 0, above, below) + beta * wide
    return result.to(x.dtype)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Computes it by exp, whose bits do not depend on the place of a number."""
    return x.neg().exp_().add_(1).reciprocal_()


def softplus(x: torch.Tensor) -> torch.Tensor:
    """Computes `log(1 + exp(x))`, which is `max(x, 0) + log(1 + t)` with t = exp(-|x|): the logarithm is twice the
    series of atanh(t / (2 + t)), since the bits of torch's own may depend on the place of a number."""
    t = x.abs().neg_().exp_()
    z = t / (t + 2)
    square, series = z.square(), torch.full_like(z, 1 / 13)
    for odd in (11, 9, 7, 5, 3, 1):
        series = series.mul_(square).add_(1 / odd)
    return series.mul_(z).mul_(2).add_(x.clamp(min=0))


ACTIVATIONS: Mapping[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": silu,
    "relu": torch.relu,
    "relu2": squared_relu,
    "gelu_tanh": gelu_tanh,
    "gelu": gelu,
}

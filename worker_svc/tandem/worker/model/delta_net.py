"""A gated delta rule in the place of attention (Qwen3-Next, Qwen3.5; Yang et al. 2024,
https://arxiv.org/abs/2412.06464).

A sequence has a state `S [key_dim, value_dim]` in each head instead of keys and values, and every token changes it:

    q, k, v = silu(convolution of the last `kernel` rows of x Wqkv)   each channel for itself; q, k of unit length
    decay   = exp(-exp(A) softplus(x Wa + bias))
    beta    = sigmoid(x Wb)
    S       = decay S + k (beta (v - k (decay S)))
    y       = norm(q S / sqrt(key_dim)) * silu(x Wz)

It is computed token by token, for prefills and decodes alike. The published form for prefills works on chunks of 64
tokens by matrix products; its bits depend on where chunks begin, and it would gain little: the products of a layer are
tens of times the arithmetic (docs/design.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch

from tandem.worker.checkpoints.layer_parts import DeltaNet
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.model.delta_rule import DeltaWeights
from tandem.worker.model.linear import Linear


class Constants(torch.nn.Module):
    """Numbers that are no matrix, in float32."""

    weight: torch.nn.Parameter

    def __init__(self, *size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size, dtype=torch.float32), requires_grad=False)


class DeltaNetMixer(torch.nn.Module):
    """What a layer has instead of attention, but for the output matrix."""

    __call__: Callable[..., torch.Tensor]

    def __init__(self, config: ModelConfig, sizes: DeltaNet, dtype: torch.dtype) -> None:
        super().__init__()
        self.sizes, self._eps = sizes, config.norm_eps
        self.mixed = Linear(config.hidden_size, sizes.channels + sizes.value_size, dtype)  # q, k, v, z
        self.gates = Linear(config.hidden_size, 2 * sizes.value_heads, dtype)  # b, a
        self.filter = Constants(sizes.channels, sizes.kernel)
        self.rate = Constants(sizes.value_heads)  # A, of which decays are made
        self.bias = Constants(sizes.value_heads)
        self.norm = Constants(sizes.value_dim)

    @cached_property
    def weights(self) -> DeltaWeights:
        """Returns what the rule computes with, once the numbers are there."""
        return DeltaWeights(
            self.sizes,
            self._eps,
            self.filter.weight.t().contiguous(),
            -self.rate.weight.exp(),
            self.bias.weight,
            self.norm.weight,
        )

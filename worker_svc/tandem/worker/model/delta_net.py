"""A gated delta rule in the place of attention (Qwen3-Next, Qwen3.5; Yang et al. 2024,
https://arxiv.org/abs/2412.06464).

A sequence has a state `S [key_dim, value_dim]` in each head instead of keys and values, and every token changes it:

    q, k, v = silu(convolution of the last `kernel` rows of x Wqkv)   each channel for itself; q, k of unit length
    decay   = exp(-exp(A) softplus(x Wa + bias))
    beta    = sigmoid(x Wb)                                           or twice that
    S       = decay S + k (beta (v - k (decay S)))
    y       = norm(q S / sqrt(key_dim)) * silu(x Wz)

It is computed token by token, for prefills and decodes alike. The published form for prefills works on chunks of 64
tokens by matrix products; its bits depend on where chunks begin, and it would gain little: the products of a layer are
tens of times the arithmetic (docs/design.md).
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.recurrences import DeltaNet
from tandem.worker.model.delta_rule import DeltaRule
from tandem.worker.model.linear import Linear
from tandem.worker.model.mixer import Constants, Filled, Mixer


class DeltaNetMixer(Mixer):
    """See `Mixer`."""

    name = "delta_net"

    def __init__(self, config: ModelConfig, sizes: DeltaNet, dtype: torch.dtype) -> None:
        super().__init__(config)
        self.sizes: DeltaNet = sizes
        self.mixed = Linear(config.hidden_size, sizes.channels + sizes.size, dtype)  # q, k, v, z
        self.gates = Linear(config.hidden_size, 2 * sizes.value_heads, dtype)  # b, a
        self.filter = Constants(sizes.channels, sizes.kernel)
        self.rate = Constants(sizes.value_heads)  # A, of which decays are made
        self.bias = Constants(sizes.value_heads)
        self.norm = Constants(sizes.value_dim)

    @cached_property
    def rule(self) -> DeltaRule:
        return DeltaRule(
            self.sizes,
            self._eps if self.sizes.norm_eps is None else self.sizes.norm_eps,
            self.filter.weight.t().contiguous(),
            -self.rate.weight.exp(),
            self.bias.weight,
            self.norm.weight,
        )

    def destinations(self) -> dict[str, tuple[Filled, int]]:
        parts: dict[str, tuple[Filled, int]] = {"qkv": (self.mixed, 0)}
        if self.sizes.apart:
            rows = accumulate(self.sizes.parts.values(), initial=0)
            parts = {part: (self.mixed, row) for part, row in zip(self.sizes.parts, rows, strict=False)}
        return parts | {
            "z": (self.mixed, self.sizes.channels),
            "b": (self.gates, 0),
            "a": (self.gates, self.sizes.value_heads),
            "filter": (self.filter, 0),
            "rate": (self.rate, 0),
            "bias": (self.bias, 0),
            "norm_weight": (self.norm, 0),
        }

"""Mamba-2's selective state space in the place of attention, or beside it (Granite 4, Nemotron-H, Falcon-H1; Dao and Gu
2024, https://arxiv.org/abs/2405.21060).

A sequence has a state `S [state_size, head_dim]` in each head, and every token changes it:

    x, B, C = silu(convolution of the last `kernel` rows of u W)    each channel for itself; heads of a group share B, C
    dt      = softplus(u Wdt + bias), within limits
    S       = exp(-exp(A) dt) S + B (dt x)
    y       = C S + D x
    out     = norm(y * silu(u Wz))                                  over groups of channels; or by the gate behind the
                                                                    norm, or without one

It is computed token by token, for prefills and decodes alike, as the gated delta rule is (`delta_net.py`).
"""

from __future__ import annotations

from functools import cached_property

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.recurrences import Mamba
from tandem.worker.model.linear import Linear
from tandem.worker.model.mamba_rule import MambaRule
from tandem.worker.model.mixer import Constants, Filled, Mixer


class MambaMixer(Mixer):
    """See `Mixer`."""

    name = "mamba"

    def __init__(self, config: ModelConfig, sizes: Mamba, dtype: torch.dtype) -> None:
        super().__init__(config)
        self.sizes: Mamba = sizes
        bias = sizes.input_bias
        self.mixed = Linear(config.hidden_size, sizes.channels + sizes.size, dtype, bias=bias)  # x, B, C, z
        self.gates = Linear(config.hidden_size, sizes.heads, dtype, bias=bias)  # dt
        self.filter = Constants(sizes.channels, sizes.kernel)
        self.filter_bias = Constants(sizes.channels) if sizes.filter_bias else None
        self.rate = Constants(sizes.heads)  # A, of which decays are made
        self.bias = Constants(sizes.heads)  # of dt
        self.skip = Constants(sizes.heads)  # D
        self.norm = Constants(sizes.size) if sizes.norm != "none" else None

    @cached_property
    def rule(self) -> MambaRule:
        sizes, weights = self.sizes, self.filter.weight
        group = sizes.groups * sizes.state_size
        by = torch.tensor(sizes.multipliers[1:4]).repeat_interleave(torch.tensor([sizes.size, group, group]))
        norm = weights.new_ones(sizes.size) if self.norm is None else self.norm.weight
        return MambaRule(
            sizes,
            self._eps,
            (weights.t() * by.to(weights.device)).contiguous(),
            None if self.filter_bias is None else self.filter_bias.weight,
            -self.rate.weight.exp(),
            self.bias.weight,
            self.skip.weight,
            norm,
        )

    @property
    def output_bias(self) -> bool:
        return self.sizes.output_bias

    def destinations(self) -> dict[str, tuple[Filled, int]]:
        places: dict[str, tuple[Filled, int]] = {
            "z": (self.mixed, self.sizes.channels),
            "channels": (self.mixed, 0),
            "dt": (self.gates, 0),
            "filter": (self.filter, 0),
            "rate": (self.rate, 0),
            "bias": (self.bias, 0),
            "skip": (self.skip, 0),
        }
        if self.mixed.bias is not None and self.gates.bias is not None:
            places["z_bias"] = (self.mixed.bias, self.sizes.channels)
            places["channels_bias"] = (self.mixed.bias, 0)
            places["dt_bias"] = (self.gates.bias, 0)
        if self.filter_bias is not None:
            places["filter_bias"] = (self.filter_bias, 0)
        if self.norm is not None:
            places["norm_weight"] = (self.norm, 0)
        return places

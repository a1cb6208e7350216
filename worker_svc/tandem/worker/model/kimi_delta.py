"""A gated delta rule with a decay of each channel of the keys (Kimi Linear; Kimi Team 2025,
https://arxiv.org/abs/2510.26692): as in `delta_net.py`, but

    decay   = exp(-exp(A) softplus(x Wdown Wup + bias))      of each row of a head's state, A being the head's
    y       = norm(q S / sqrt(head_dim)) * sigmoid(x Gdown Gup)

Ling 3.0 has one matrix instead of each two, and

    decay   = exp(least sigmoid(exp(A) (x W + bias)))

It is computed token by token, for prefills and decodes alike.
"""

from __future__ import annotations

from functools import cached_property

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.recurrences import KimiDelta
from tandem.worker.model.kimi_delta_rule import KimiDeltaRule
from tandem.worker.model.linear import Linear
from tandem.worker.model.mixer import Constants, Filled, Mixer


class KimiDeltaMixer(Mixer):
    """See `Mixer`."""

    name = "kimi_delta"

    def __init__(self, config: ModelConfig, sizes: KimiDelta, dtype: torch.dtype) -> None:
        super().__init__(config)
        self.sizes: KimiDelta = sizes
        hidden, rank, size = config.hidden_size, sizes.head_dim, sizes.size
        made_of = size if sizes.directly else rank
        self.mixed = Linear(hidden, sizes.channels + made_of, dtype)  # q, k, v, and what gates are made of
        self.gates = Linear(hidden, sizes.heads + made_of, dtype)  # b, and what decays are made of
        self.gate_out: Linear | None = None
        self.decay_out: Linear | None = None
        if not sizes.directly:
            self.gate_out, self.decay_out = Linear(rank, size, dtype), Linear(rank, size, dtype)
        self.filter = Constants(sizes.channels, sizes.kernel)
        self.rate = Constants(sizes.heads)  # A, of which decays are made
        self.bias = Constants(size)
        self.norm = Constants(rank)

    def forward(self, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Mixer.forward`."""
        sizes = self.sizes
        mixed, gates = self.mixed(normed), self.gates(normed)
        if self.gate_out is None or self.decay_out is None:
            return mixed, gates
        gate = self.gate_out(mixed[:, sizes.channels :].contiguous())
        decay = self.decay_out(gates[:, sizes.heads :].contiguous())
        return torch.cat((mixed[:, : sizes.channels], gate), 1), torch.cat((gates[:, : sizes.heads], decay), 1)

    @cached_property
    def rule(self) -> KimiDeltaRule:
        return KimiDeltaRule(
            self.sizes,
            self._eps,
            self.filter.weight.t().contiguous(),
            -self.rate.weight.exp(),
            self.bias.weight,
            self.norm.weight,
        )

    def destinations(self) -> dict[str, tuple[Filled, int]]:
        sizes = self.sizes
        apart: dict[str, tuple[Filled, int]] = {}
        for part, name in enumerate("qkv"):
            apart[name] = (self.mixed, part * sizes.size)
            apart[f"{name}_filter"] = (self.filter, part * sizes.size)
        behind = "" if self.gate_out is None else "_in"
        if self.gate_out is not None and self.decay_out is not None:
            apart |= {"gate_out": (self.gate_out, 0), "decay_out": (self.decay_out, 0)}
        return {
            **apart,
            f"gate{behind}": (self.mixed, sizes.channels),
            "b": (self.gates, 0),
            f"decay{behind}": (self.gates, sizes.heads),
            "rate": (self.rate, 0),
            "bias": (self.bias, 0),
            "norm_weight": (self.norm, 0),
        }

"""Mixture of experts (Mixtral, Qwen3-MoE): a router sends each row to a few of many feed-forward layers.

    s = softmax(x Wrouter)                         float32
    y = sum of s_e expert_e(x) over the largest s  (divided by their sum where the model says so)

An expert computes all rows that chose it in one product, padded to as many as a row's bits do not depend on, and a row
adds up its experts in the order of their numbers. So a row's bits depend neither on the others nor on which expert
they chose.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tandem.worker.checkpoints.model_config import Experts
from tandem.worker.model.feed_forward import FeedForward
from tandem.worker.model.linear import Linear
from tandem.worker.model.operations import Operations


class MixtureOfExperts(torch.nn.Module):
    """The feed-forward part of a layer with experts."""

    __call__: Callable[..., torch.Tensor]

    def __init__(self, hidden_size: int, experts: Experts, dtype: torch.dtype, operations: Operations) -> None:
        super().__init__()
        self._per_token = experts.per_token
        self._normalized = experts.normalized
        self._row_multiple = 0  # not known before the weights are
        self.router = Linear(hidden_size, experts.count, dtype)
        self.experts = torch.nn.ModuleList(
            FeedForward(hidden_size, experts.intermediate_size, dtype, operations) for _ in range(experts.count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Computes `[N, hidden] -> [N, hidden]`."""
        if not self._row_multiple:
            self._row_multiple = max(each.row_multiple for each in self.experts.modules() if isinstance(each, Linear))
        shares, chosen = self.router(x).float().softmax(-1).topk(self._per_token, dim=-1)
        if self._normalized:
            shares = shares / shares.sum(-1, keepdim=True)
        # Pairs (row, expert), those of expert 0 first; `place` counts through `chosen`.
        place = chosen.flatten().argsort(stable=True)
        row, share = place // self._per_token, shares.flatten()[place].unsqueeze(-1)
        result = torch.zeros_like(x, dtype=torch.float32)
        start = 0
        for expert, count in zip(self.experts, chosen.flatten().bincount(minlength=len(self.experts)), strict=True):
            end = start + int(count)
            if start < end:
                rows = row[start:end]
                padded = torch.nn.functional.pad(rows, (0, -len(rows) % self._row_multiple))
                answers = expert(x.index_select(0, padded))[: len(rows)]
                result.index_add_(0, rows, answers * share[start:end])
            start = end
        return result.to(x.dtype)

"""Sums over the vocabulary so that the bits depend on nothing but the row.

A plain sum of torch splits a long row over threads when there are few rows, and then adds up in another order. Here
a row is added in groups of GROUP numbers, and the groups one after the other in float64.
"""

from __future__ import annotations

import torch

GROUP = 32


def group_sums(x: torch.Tensor) -> torch.Tensor:
    """Sums groups: `[rows, n] -> [rows, ceil(n / GROUP)]`, float64; the last group may be smaller."""
    rows, n = x.shape
    whole = n // GROUP * GROUP
    sums = x[:, :whole].reshape(-1, GROUP).sum(dim=-1).view(rows, -1).double()
    if whole < n:
        sums = torch.cat([sums, x[:, whole:].cumsum(dim=-1, dtype=torch.float64)[:, -1:]], dim=1)
    return sums


def row_sums(x: torch.Tensor) -> torch.Tensor:
    """Sums rows: `[rows, n] -> [rows]`, float64."""
    return group_sums(x).cumsum(dim=-1)[:, -1]


def invert(weights: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Finds for each row the first index at which the sum of `weights` `[rows, n]` exceeds `uniforms` `[rows]` times
    the whole sum, and returns it with the whole sum. The index has weight itself, unless nothing has any."""
    n = weights.shape[1]
    groups = group_sums(weights).cumsum(dim=-1)
    total = groups[:, -1:]
    target = uniforms.unsqueeze(1) * total
    group = torch.searchsorted(groups, target, right=True).clamp_max(groups.shape[1] - 1)
    before = torch.where(group > 0, groups.gather(1, (group - 1).clamp_min(0)), 0.0)
    places = (group * GROUP + torch.arange(GROUP, device=weights.device)).clamp_max(n - 1)
    inside = weights.gather(1, places).double()
    inside[group * GROUP + torch.arange(GROUP, device=weights.device) >= n] = 0.0
    reached = inside.cumsum(dim=-1) > target - before
    # A group's own sum may be a little larger than what its numbers add up to one by one: then its last weight counts.
    last = GROUP - 1 - (inside.flip(1) > 0).int().argmax(dim=-1, keepdim=True)
    inner = torch.where(reached.any(dim=-1, keepdim=True), reached.int().argmax(dim=-1, keepdim=True), last)
    return places.gather(1, inner).squeeze(1), total.squeeze(1)

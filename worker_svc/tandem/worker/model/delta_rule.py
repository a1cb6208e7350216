"""The gated delta rule in torch's operations: where it is not compiled, and the reference of what is.

One sequence and one token after the other, so that torch always computes in the same shapes, and a row's bits depend on
nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tandem.worker.checkpoints.layer_parts import DeltaNet
from tandem.worker.model.states import StatePlan


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """What a layer's rule computes with, float32."""

    sizes: DeltaNet
    eps: float
    filter_rows: torch.Tensor  # [kernel, channels]
    decay_rate: torch.Tensor  # [value_heads], -exp(A)
    bias: torch.Tensor  # [value_heads], of what decays are made of
    norm: torch.Tensor  # [value_dim]


def delta_rule(
    weights: DeltaWeights, layer: int, mixed: torch.Tensor, gates: torch.Tensor, plan: StatePlan
) -> torch.Tensor:
    """Computes the outputs `[N, value_heads * value_dim]` of `mixed` `[N, channels + value_size]` and `gates`
    `[N, 2 value_heads]`, and moves the states of delta-net layer number `layer`; rows of no work give zeros."""
    out = torch.zeros((len(mixed), weights.sizes.value_size), device=mixed.device)
    for line in plan.lines():
        row, length = line[2], line[3]
        rows = slice(row, row + length)
        out[rows] = _one(weights, layer, mixed[rows].float(), gates[rows].float(), plan, line)
    return out.to(mixed.dtype)


def _one(
    weights: DeltaWeights, layer: int, mixed: torch.Tensor, gates: torch.Tensor, plan: StatePlan, line: list[int]
) -> torch.Tensor:
    sizes, cache = weights.sizes, plan.cache
    slot, fresh, _, length, replayed, commit, _, first_save, last_save = line
    heads, keys, values, tail = sizes.value_heads, sizes.key_dim, sizes.value_dim, sizes.kernel - 1
    state = torch.zeros((heads, keys, values), device=mixed.device)
    inputs = torch.zeros((tail, sizes.channels), device=mixed.device)
    factors = [_decay_and_beta(weights, gates[token]) for token in range(length)]
    if slot >= 0:
        assert cache is not None
        if not fresh:
            state.copy_(cache.recurrent[layer][slot])
            inputs.copy_(cache.tails[layer][slot, :tail])
        inputs = torch.cat((inputs, cache.tails[layer][slot, tail : tail + replayed]))
        factors = [*cache.journals[layer][slot, :replayed].clone().unbind(), *factors]
    inputs = torch.cat((inputs, mixed[:, : sizes.channels]))
    saves = [*plan.saves[first_save:last_save].tolist(), (commit, slot)]
    z = mixed[:, sizes.channels :].view(length, heads, values)
    out = []
    for token in range(replayed + length + 1):
        for count, target in saves:
            if count == token and target >= 0:
                assert cache is not None
                cache.recurrent[layer][target].copy_(state)
        if token == replayed + length:
            break
        x = _silu((inputs[token : token + sizes.kernel] * weights.filter_rows).sum(0))
        q, k, v = torch.split(x, [sizes.key_size, sizes.key_size, sizes.value_size])
        q, k = (_unit(part.view(-1, keys)).repeat_interleave(heads // sizes.key_heads, 0) for part in (q, k))
        decay, beta = factors[token].view(2, heads, 1)
        state = state * decay.unsqueeze(-1)
        delta = (v.view(heads, values) - (state * k.unsqueeze(-1)).sum(1)) * beta
        state = state + k.unsqueeze(-1) * delta.unsqueeze(1)
        if token >= replayed:
            o = (state * (q * keys**-0.5).unsqueeze(-1)).sum(1)
            o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + weights.eps) * weights.norm
            out.append(o * _silu(z[token - replayed]))
    for count, target in saves:
        if target < 0:
            continue
        assert cache is not None
        kept = inputs[count : count + tail] if target != slot else inputs[count:]
        cache.tails[layer][target, : len(kept)] = kept
    if slot >= 0 and factors[commit:]:
        assert cache is not None
        cache.journals[layer][slot, : len(factors) - commit] = torch.stack(factors[commit:])
    return torch.stack(out).flatten(1)


def _decay_and_beta(weights: DeltaWeights, gates: torch.Tensor) -> torch.Tensor:
    """Computes both of a token's `[2 heads]` gates b and a."""
    b, a = gates.chunk(2)
    return torch.cat(((weights.decay_rate * F.softplus(a + weights.bias)).exp(), 1 / (1 + (-b).exp())))


def _silu(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + (-x).exp())


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)

"""What the kernels of layers with states compute of their launches' arguments, by torch; see `kernels_in_torch.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from tandem.worker.model.activations import sigmoid, silu
from tandem.worker.model.cuda.kernels.state_rows import AFTER_GATE, BEFORE_GATE, CONSTANT, DELTA, KIMI, MAMBA, NO_NORM

Grid = tuple[int, ...]


def _softplus(x: torch.Tensor) -> torch.Tensor:
    """Unlike torch's, the same wherever a number lies."""
    return (1 + x.exp()).log()


def _works(a: Any) -> Iterator[list[int]]:
    """The lines of works that have tokens. No two of them have a slot, or save to one, that the other has."""
    lines = [line for line in a.works.tolist() if line[3]]
    all_saves = a.saves.tolist() if hasattr(a, "saves") else []
    saved = [slot for *_, first, last in lines for _, slot in all_saves[first:last]]
    slots = [line[0] for line in lines if line[0] >= 0] + saved
    assert len(slots) == len(set(slots)) and all(slot >= 0 for slot in saved)
    yield from lines


def _inputs(a: Any, line: list[int]) -> torch.Tensor:
    """The inputs of a work: tail, journal and new rows in a line."""
    slot, fresh, row, length, replayed = line[:5]
    old = torch.zeros(a.KERNEL - 1 + replayed, a.CHANNELS)
    if slot >= 0:
        assert slot < len(a.tails), "a slot that is not there"
        old.copy_(a.tails[slot, : len(old)])
        if fresh:
            old[: a.KERNEL - 1] = 0
    assert row + length <= len(a.mixed)
    return torch.cat((old, a.mixed[row : row + length, : a.CHANNELS].float()))


def _convolved(a: Any, line: list[int]) -> torch.Tensor:
    inputs, count = _inputs(a, line), line[3] + line[4]
    number, place = a.works.tolist().index(line), line[6]
    assert a.tokens[place : place + count].tolist() == [number] * count and place + count <= a.count == len(a.tokens)
    x = sum(inputs[tap : tap + count] * a.filters[tap] for tap in range(a.KERNEL))
    assert isinstance(x, torch.Tensor)
    return x + a.filter_bias if a.BIASED else x


def _enter(a: Any, grid: Grid) -> None:
    by_row = a.FACTORS != 2 * a.HEADS  # factors are another kernel's
    assert grid == (-(-a.count // a.T), a.UNITS + (not by_row)) and a.count <= len(a.room)
    for line in _works(a):
        slot, _, row, length, replayed, _, place = line[:7]
        x = silu(_convolved(a, line))
        for first in range(0, a.KEYS * a.KEY, a.KEY or 1):
            part = x[:, first : first + a.KEY]
            part /= (part.square().sum(-1, keepdim=True) + 1e-6).sqrt()
            part *= a.unit_by if first < a.KEYS * a.KEY // 2 else 1
        if by_row:
            a.room[place : place + len(x), : a.CHANNELS] = x
            continue
        gates = a.gates[row : row + length].float()
        if a.RULE == DELTA:
            decay = (a.rate * _softplus(gates[:, a.HEADS : 2 * a.HEADS] + a.bias)).exp()
            other = a.gate_by * sigmoid(gates[:, : a.HEADS])
        elif a.RULE == CONSTANT:
            decay, other = a.rate.exp().expand(length, -1), torch.ones(length, a.HEADS)
        else:
            other = _softplus(gates[:, : a.HEADS] * a.gate_by + a.bias).clamp(a.least, a.most)
            decay = (a.rate * other).exp()
        factors = torch.cat((decay, other), 1)
        if replayed:
            factors = torch.cat((a.journals[slot, :replayed], factors))
        a.room[place : place + len(x)] = torch.cat((x, factors), 1)


def _decays(a: Any, grid: Grid) -> None:
    assert grid == (-(-a.count // a.T), a.HEADS) and a.R >= a.ROWS
    size = a.HEADS * a.ROWS
    for slot, _, row, length, replayed, _, place, *_ in _works(a):
        gates = a.gates[row : row + length].float()
        rate = a.rate.repeat_interleave(a.ROWS)
        given = gates[:, a.HEADS : a.HEADS + size] + a.bias
        decays = (a.least * sigmoid(-rate * given) if a.LIMITED else rate * _softplus(given)).exp()
        factors = torch.cat((decays, sigmoid(gates[:, : a.HEADS])), 1)
        if replayed:
            factors = torch.cat((a.journals[slot, :replayed], factors))
        a.room[place : place + len(factors), a.CHANNELS :] = factors


def _recur(a: Any, grid: Grid) -> None:
    assert grid[:2] == (len(a.works), a.HEADS) and grid[2] * a.C >= a.COLUMNS and a.R >= a.ROWS
    groups = a.HEADS // a.SHARE
    for slot, fresh, row, length, replayed, commit, place, first, last in _works(a):
        state = torch.zeros(a.HEADS, a.ROWS, a.COLUMNS)
        if slot >= 0 and not fresh:
            state.copy_(a.states[slot])
        saves = [*a.saves[first:last].tolist(), *([[commit, slot]] if slot >= 0 else [])]
        assert saves == sorted(saves, key=lambda save: save[0])
        for token in range(replayed + length + 1):
            for count, target in saves:
                if count == token:
                    a.states[target] = state
            if token == replayed + length:
                break
            line = a.room[place + token]
            decays = a.ROWS if a.RULE == KIMI else 1
            decay = line[a.CHANNELS :][: a.HEADS * decays].view(a.HEADS, decays)
            other = line[a.CHANNELS + a.HEADS * decays :].view(a.HEADS, 1)
            read, write = (
                line[at : at + groups * a.ROWS].view(groups, a.ROWS).repeat_interleave(a.SHARE, 0)
                for at in (a.READ, a.WRITE)
            )
            value = line[a.VALUE : a.VALUE + a.HEADS * a.COLUMNS].view(a.HEADS, a.COLUMNS)
            state = state * decay[..., None]
            known = 0 if a.RULE == MAMBA else torch.einsum("hrc,hr->hc", state, write)
            state += torch.einsum("hr,hc->hrc", write, (value - known) * other)
            seen = torch.einsum("hrc,hr->hc", state, read) + (a.skip[:, None] * value if a.RULE == MAMBA else 0)
            if token >= replayed:
                a.given[row + token - replayed] = seen.flatten()


def _leave(a: Any, grid: Grid) -> None:
    assert grid == (len(a.given), a.SIZE // a.GROUP) and a.BLOCK >= a.GROUP
    y = a.given.view(len(a.given), -1, a.GROUP)
    z = a.mixed[:, a.CHANNELS : a.CHANNELS + a.SIZE].float() * a.z_by
    gate = (sigmoid(z) if a.SIGMOID else silu(z)).view(y.shape)
    weight = a.weight if a.SHARED else a.weight.view(-1, a.GROUP)
    assert a.NORM in (NO_NORM.value, AFTER_GATE.value, BEFORE_GATE.value)
    if BEFORE_GATE.value != a.NORM:
        y = y * gate
    if NO_NORM.value != a.NORM:
        y = y / (y.square().mean(-1, keepdim=True) + a.eps).sqrt()
    y = y * weight
    a.out.copy_((y * gate if BEFORE_GATE.value == a.NORM else y).flatten(1))


def _keep(a: Any, grid: Grid) -> None:
    assert grid == (len(a.works), a.BLOCKS + -(-a.FACTORS // a.F_PAD)) and a.BLOCK * a.BLOCKS >= a.CHANNELS
    for line in _works(a):
        slot, _, _, length, replayed, commit, place, first, last = line
        if slot < 0:
            continue
        inputs, rest = _inputs(a, line), replayed + length - commit
        assert 0 <= rest <= a.JOURNAL
        for count, target in a.saves[first:last].tolist():
            a.tails[target, : a.KERNEL - 1] = inputs[count : count + a.KERNEL - 1]
        a.tails[slot, : a.KERNEL - 1 + rest] = inputs[commit:]
        if a.FACTORS:
            a.journals[slot, :rest] = a.room[place + commit : place + commit + rest, a.CHANNELS :]


def _gated_convolution(a: Any, grid: Grid) -> None:
    assert grid == (-(-a.count // a.T), -(-a.CHANNELS // a.BLOCK))
    for line in _works(a):
        row, length, replayed = line[2:5]
        rows = slice(row, row + length)
        a.out[rows] = (_convolved(a, line)[replayed:] * a.gates[rows].float()).to(a.out.dtype)


KERNELS: dict[str, Callable[[Any, Grid], None]] = {
    each.__name__: each for each in (_enter, _decays, _recur, _leave, _keep, _gated_convolution)
}

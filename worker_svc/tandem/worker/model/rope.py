"""Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864) on halves.

Coordinates i and i + head_dim / 2 of a head are a pair, which position p rotates by p * frequency[i]:

    frequency[i] = theta ^ (-2 i / rotary_dim)        (stretched by RopeScaling and rope_scale)
                   0 from rotary_dim / 2 on
    x'[i]        = x[i] cos - x[i + d/2] sin
    x'[i + d/2]  = x[i + d/2] cos + x[i] sin
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.positions import Rope
from tandem.worker.checkpoints.model_parts.rope import QueryGrowth, RopeScaling
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.native import layers

Rotation: TypeAlias = tuple[torch.Tensor, torch.Tensor]  # cosines and signed sines, each [N, 1, head_dim]

_BLOCK = 8192  # positions whose angles are worked out at once, and that a table has at first


def frequencies(config: ModelConfig) -> torch.Tensor:
    """Returns the rotation of each pair per position, radians `[head_dim / 2]`, float32."""
    turning_as = config.head_dim if config.in_proportion else config.rotated
    exponents = torch.arange(0, config.rotated, 2, dtype=torch.float64) / turning_as
    turning = (_stretched(config, config.rope_theta**-exponents) / config.rope_scale).float()
    return torch.nn.functional.pad(turning, (0, (config.head_dim - config.rotated) // 2))


def _stretched(config: ModelConfig, base: torch.Tensor) -> torch.Tensor:
    """Applies the model's own scaling to the plain frequencies."""
    if config.rope_scaling is None:
        return base
    scaling = config.rope_scaling.of_context(config.context_length)
    if scaling.factors:
        base = base / torch.tensor(scaling.factors, dtype=torch.float64)
    interpolated = base / scaling.factor
    match scaling.kind:
        case "linear" | "proportional":
            return interpolated
        case "dynamic":
            ratio = max(1.0, config.context_length / scaling.original_context_length)
            raised = scaling.factor * ratio - (scaling.factor - 1)  # theta ^ (1 - 2 / head_dim) times this
            pairs = torch.arange(len(base), dtype=torch.float64)
            return base * raised ** (-2 * pairs / (config.rotated - 2))
        case "longrope":
            return base
        case "llama3":
            # How often a pair turns within the original context decides: rarely, stretched; often, kept.
            turns = scaling.original_context_length * base / (2 * math.pi)
            between = max(scaling.high_freq_factor - scaling.low_freq_factor, 1e-9)  # nothing, where they are the same
            kept = (turns - scaling.low_freq_factor) / between
        case "yarn":
            first, last = (_pair_that_turns(config, scaling, beta) for beta in (scaling.beta_fast, scaling.beta_slow))
            if scaling.truncate:
                first, last = math.floor(first), math.ceil(last)
            first, last = max(first, 0), min(last, config.rotated - 1)
            width = last - first if last != first else 0.001
            kept = 1 - (torch.arange(len(base), dtype=torch.float64) - first) / width
    kept = kept.clamp(0, 1)
    return kept * base + (1 - kept) * interpolated


def _pair_that_turns(config: ModelConfig, scaling: RopeScaling, turns: float) -> float:
    """Returns the number, not a whole one, of the pair that turns so often within the original context."""
    ratio = scaling.original_context_length / (turns * 2 * math.pi)
    return config.rotated * math.log(ratio) / (2 * math.log(config.rope_theta))


class RotaryTable(torch.nn.Module):
    """Cosines and sines of positions, float32: as many as a cache can have (`reach`), since the context length may be
    millions.

    Angles are float32 products, as in the reference implementations that the weights were trained with; their cosines
    are taken in float64 and rounded, so that an entry's bits do not depend on its place in the table.
    """

    table: torch.Tensor  # [positions, head_dim]: cosines, then sines

    def __init__(self, config: ModelConfig, device: torch.device | str) -> None:
        super().__init__()
        pairs = config.rotated // 2
        self._context_length, self._turning = config.context_length, frequencies(config)
        self._size = torch.ones(config.head_dim // 2, dtype=torch.float64)
        if config.rope_scaling is not None:
            self._size[:pairs] = config.rope_scaling.of_context(config.context_length).attention_factor
        self._compiled = torch.device(device).type == "cpu" and native.available()
        self.rotary = layers.Rotary(half=config.head_dim // 2)  # the table as the library takes it
        self.register_buffer("table", torch.empty((0, config.head_dim), device=device), persistent=False)
        self.reach(_BLOCK)

    def reach(self, positions: int) -> None:
        """Has so many positions from now on, but no more than the context length, nor fewer than before."""
        first, last = len(self.table), min(positions, self._context_length)
        if last <= first:
            return
        half = len(self._size)
        table = torch.empty((last - first, 2 * half), dtype=torch.float32)
        for start in range(0, last - first, _BLOCK):
            block = table[start : start + _BLOCK]
            numbers = torch.arange(first + start, first + start + len(block), dtype=torch.float32)
            angles = torch.outer(numbers, self._turning).double()
            block[:, :half] = angles.cos() * self._size
            block[:, half:] = angles.sin() * self._size
        self.table = torch.cat((self.table, table.to(self.table.device)))
        self.rotary.table, self.rotary.count = self.table.data_ptr(), last

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns cosines and signed sines for rows at `positions` `[N]`, each `[N, 1, head_dim]`, for `rotate`."""
        if self._compiled:
            return layers.rotations(self.rotary, positions)
        cos, sin = self.table.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


class Rotations(torch.nn.Module):
    """A table for each way in which layers of a model rotate."""

    def __init__(self, config: ModelConfig, device: torch.device | str) -> None:
        super().__init__()
        self._head_dim = config.head_dim if config.latents is None else config.latents.rotated
        self._kinds = frozenset(config.layer_ropes)
        self.model = RotaryTable(config.for_full_layers(), device)
        self.window = RotaryTable(config.for_windows(), device) if "window" in self._kinds else None

    def reach(self, positions: int) -> None:
        """See `RotaryTable.reach`."""
        self.model.reach(positions)
        if self.window is not None:
            self.window.reach(positions)

    def at(self, positions: torch.Tensor) -> dict[Rope, Rotation]:
        """What `rotate` needs for rows at `positions` `[N]`, each `[N, 1, head_dim]`; by 1 and 0 nothing changes."""
        rotations: dict[Rope, Rotation] = {rope: table.at(positions) for rope, table in self.tables().items()}
        return rotations | self.unturned(len(positions), positions.device)

    def tables(self) -> dict[Rope, RotaryTable]:
        """Returns the tables that layers look at."""
        tables: dict[Rope, RotaryTable] = {}
        if "model" in self._kinds:
            tables["model"] = self.model
        if self.window is not None:
            tables["window"] = self.window
        return tables

    def unturned(self, rows: int, device: torch.device | None = None) -> dict[Rope, Rotation]:
        """Returns what layers have that do not rotate, if there are any: it is the same for all positions."""
        if "none" not in self._kinds:
            return {}
        shape = (rows, 1, self._head_dim)
        return {"none": (torch.ones(shape, device=device), torch.zeros(shape, device=device))}


class QueryFactors(torch.nn.Module):
    """What the queries of each position are multiplied by where they grow. Looked up, not computed row by row: the
    bits of a logarithm may depend on its row."""

    table: torch.Tensor  # one factor for all positions between two at which they grow

    def __init__(self, growth: QueryGrowth, context_length: int, device: torch.device | str) -> None:
        super().__init__()
        self._growth = growth
        steps = torch.arange(-(-(context_length + growth.ahead) // growth.every), dtype=torch.float32)
        table = 1 + growth.beta * torch.log(1 + steps)
        self.register_buffer("table", table.to(device), persistent=False)

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        """For rows at `positions` `[N]`: `[N, 1, 1]`."""
        steps = (positions + self._growth.ahead) // self._growth.every
        return self.table.index_select(0, steps).view(-1, 1, 1)


def rotate(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """Rotates each head of `x` `[N, heads, head_dim]`; computed in float32, returned in x's dtype."""
    wide = x.float()
    rotated = wide * cos
    rotated += wide.roll(x.shape[-1] // 2, -1).mul_(signed_sin)  # not a fused multiply-add: its rounding would vary
    return rotated.to(x.dtype)

"""Where the tensors of a model lie among those of a file: some are rows of a larger one.

Tensors that have one stored name lie below each other in the order of the model (fused q, k and v; gate and up), or
take turns row by row, those of experts one behind the other, `[experts, rows, ...]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from tandem.worker.checkpoints.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Place:
    """A stored tensor and the part of it that is meant."""

    stored: str
    expert: int | None = None  # None: it is not divided by experts
    rows: slice | torch.Tensor | None = None  # None: all of them


def places_of(
    shapes: Mapping[str, tuple[int, ...]],
    stored_name: Callable[[str], tuple[str, int | None]],
    *,
    by_turns: bool = False,
) -> tuple[dict[str, Place], dict[str, tuple[int, ...]]]:
    """Returns each tensor's place, and the shape of each stored tensor.

    shapes: those of the model, by canonical name in its order. `stored_name` gives the stored name and the expert.
    `by_turns`: the rows of experts that have one stored name take turns.
    """
    found: dict[str, Place] = {}
    rows: dict[tuple[str, int | None], int] = {}
    stored_shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        stored, expert = stored_name(name)
        first = rows.get((stored, expert), 0)
        end = rows[stored, expert] = first + shape[0]
        found[name] = Place(stored, expert, slice(first, end))
        lead = () if expert is None else (expert + 1,)
        stored_shapes[stored] = (*lead, end, *shape[1:])
    whole: dict[str, int] = {}
    for (stored, _), end in rows.items():
        whole[stored] = max(end, whole.get(stored, 0))
    for name, place in found.items():
        if place.rows == slice(0, whole[place.stored]):
            found[name] = Place(place.stored, place.expert)
        elif by_turns and place.expert is not None and isinstance(place.rows, slice):
            size = place.rows.stop - place.rows.start
            turns = whole[place.stored] // size
            found[name] = Place(place.stored, place.expert, slice(place.rows.start // size, None, turns))
    return found, stored_shapes


def places_with_latents(
    config: ModelConfig,
    shapes: Mapping[str, tuple[int, ...]],
    stored_name: Callable[[str], tuple[str, int | None]],
    *,
    by_turns: bool = False,
    by_kv_head: bool = False,
) -> tuple[dict[str, Place], dict[str, tuple[int, ...]]]:
    """Returns what `places_of` does, of q, k and v `by_kv_head` if they are so, and where a file has `key_up` and
    `value_up` of a layer with latents in one matrix `[heads * (unrotated + value), rank]`, each head's keys before its
    values. Those of `key_up` are stored transposed, head by head (`transposed_by_head`)."""
    latents = config.latents
    if latents is None:
        found, stored = places_of(shapes, stored_name, by_turns=by_turns)
        return found | (_by_kv_head(config, found) if by_kv_head else {}), stored
    parts = {"key_up": (0, latents.unrotated), "value_up": (latents.unrotated, latents.value)}
    of = {name: parts[part] for name in shapes if (part := name.rpartition("attention.")[2]) in parts}
    shapes = dict(shapes) | {name: (config.num_heads * count, latents.rank) for name, (_, count) in of.items()}
    found, stored = places_of(shapes, stored_name, by_turns=by_turns)
    first_rows = torch.arange(config.num_heads)[:, None] * (latents.unrotated + latents.value)
    rows = {part: (first_rows + first + torch.arange(count)).reshape(-1) for part, (first, count) in parts.items()}
    found |= {name: Place(found[name].stored, None, rows[name.rpartition(".")[2]]) for name in of}
    return found, stored


def _by_kv_head(config: ModelConfig, found: Mapping[str, Place]) -> dict[str, Place]:
    """Returns the places of q, k and v, and of their biases, in one tensor that has the queries of each key, that key
    and its value below each other."""
    group, size, rows = config.num_heads // config.num_kv_heads, config.head_dim, {}
    first_rows = torch.arange(config.num_kv_heads)[:, None] * (group + 2) * size
    for part, first, count in (("q", 0, group), ("k", group, 1), ("v", group + 1, 1)):
        rows[part] = (first_rows + first * size + torch.arange(count * size)).reshape(-1)
    parts = {name: name.rpartition("attention.")[2].removesuffix("_bias") for name in found if ".attention." in name}
    return {name: Place(found[name].stored, None, rows[part]) for name, part in parts.items() if part in rows}


def transposed_by_head(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Returns `[heads * out, in]` of the heads' matrices `[heads * in, out]` below each other."""
    return rows.view(heads, -1, rows.shape[1]).transpose(1, 2).reshape(heads * rows.shape[1], -1)

"""Where the tensors of a model lie among those of a file: some are rows of a larger one.

Tensors that have one stored name lie below each other in the order of the model (fused q, k and v; gate and up), or
take turns row by row, those of experts one behind the other, `[experts, rows, ...]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A stored tensor and the part of it that is meant."""

    stored: str
    expert: int | None = None  # None: it is not divided by experts
    rows: slice | None = None  # None: all of them


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
        elif by_turns and place.expert is not None and place.rows is not None:
            size = place.rows.stop - place.rows.start
            turns = whole[place.stored] // size
            found[name] = Place(place.stored, place.expert, slice(place.rows.start // size, None, turns))
    return found, stored_shapes

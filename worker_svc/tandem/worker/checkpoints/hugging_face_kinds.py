"""What Step 3.5 and Laguna say of either kind of layers, those with a window and those without: how much of a head
rotates and by which theta, and how many heads of queries there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tandem.worker.checkpoints.fields import Fields

FULL, WINDOWED = KINDS = ("full_attention", "sliding_attention")
PART = "partial_rotary_factor"
_WINDOWS_PART = "partial_rotary_factor of sliding_attention"  # where `with_parts` puts it


def with_parts(config: Fields, usual: Mapping[str, Mapping[str, Any]], kinds: Sequence[str]) -> Fields:
    """Returns the config with what of a head rotates beside the RoPE parameters, which say it for each kind of layers
    that there is; `usual` are the parameters of a kind that is not there."""
    said, parameters = config.object("rope_parameters"), {}
    for key in said.values.keys() - set(KINDS):
        raise said.error(key, "is beside parameters that differ by layer, which is not served")
    for kind in KINDS:
        if kind in kinds and not isinstance(said.values.get(kind), dict):
            raise said.error(kind, "is missing")
        parameters[kind] = said.object(kind) if said.has(kind) else said.with_values(dict(usual[kind]))
    parts = {kind: each.number(PART, 1.0) for kind, each in parameters.items()}
    rest = {kind: {key: one for key, one in each.values.items() if key != PART} for kind, each in parameters.items()}
    own = {"rope_parameters": rest, PART: parts[FULL], _WINDOWS_PART: parts[WINDOWED]}
    return config.with_values(config.values | own)


def windows_part(config: Fields, head_dim: int, windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns how many of a head's numbers layers with a window rotate, if other ones than the others do, as fields of
    `ModelConfig`. Without windows there is no theta of theirs."""
    if not windows:
        return {"window_rope_theta": None}
    full, part = (int(head_dim * config.number(key)) for key in (PART, _WINDOWS_PART))
    return {"window_rotary_dim": 0 if part == full else part}


def query_heads(by_layer: Sequence[int]) -> dict[str, Any]:
    """Returns the heads of queries of each layer as fields of `ModelConfig`."""
    return {"num_heads": by_layer[0], "query_heads": tuple(by_layer) if len(set(by_layer)) > 1 else ()}

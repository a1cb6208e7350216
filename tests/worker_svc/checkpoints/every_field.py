"""What a field of a checkpoint does: what is computed with each value that is tried, against the rule of the field."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.checkpoints.known_fields import NEUTRAL, USED, Only, Rule
from tandem.worker.model.loading import load_transformer
from tests.worker_svc.model.llama_folders import logits_in_chunks, some_ids

LENGTH = 40
IDS = some_ids(97, LENGTH)
TOMORROW = "a_field_of_tomorrow"
_COMPUTED: dict[Any, torch.Tensor] = {}
ABSENT = object()


@dataclass(frozen=True)
class Served:
    """What a caller can see of a checkpoint."""

    logits: torch.Tensor
    facts: tuple[Any, ...]

    def same(self, other: Served) -> bool:
        """To the bit."""
        return self.facts == other.facts and torch.equal(self.logits, other.logits)


def served(path: Path) -> Served | str:
    """What a checkpoint computes, or why it is refused."""
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError as error:
        return str(error)
    config = checkpoint.config
    weights = hashlib.sha256()
    for _, tensor in checkpoint.tensors():
        plain = tensor if isinstance(tensor, torch.Tensor) else tensor.dequantize()
        weights.update(plain.contiguous().view(torch.uint8).numpy().data)
    key = (config, weights.digest())
    if key not in _COMPUTED:  # or else the same weights were computed with in the same way
        model = load_transformer(checkpoint, "cpu", torch.float32)
        length = min(LENGTH, config.context_length)
        _COMPUTED[key] = logits_in_chunks(model, IDS[:length], [length])
    facts = (config.context_length, checkpoint.bos_id, checkpoint.eos_ids, dict(checkpoint.sampling_defaults))
    return Served(_COMPUTED[key], facts)


def others(value: Any) -> list[Any]:
    """Values that a field of this value could have as well."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, value * 2, value * 4]
        case float():
            return [value * 2, value / 4 or 0.5]
        case str():
            return [f"{value}x"]
        case list():
            return [value[:-1], [*value, 7], [7]]
        case dict():
            return [{**value, TOMORROW: 1}]
    return [True, 3, 0.5, "other", [1], {"a": 1}]


class Field:
    """One field and its rule, and what became of the checkpoint for each value that was tried."""

    def __init__(self, key: str, rule: Rule | None, before: Served) -> None:
        self.key, self.rule, self.before = key, rule, before
        self.tried: list[object] = []
        self.mattered = False

    def check(self, value: object, after: Served | str) -> None:
        """Against the rule, as far as one value tells."""
        said = f"{self.key} = {value!r}, which is {self.rule}"
        self.tried.append(value)
        if isinstance(after, str):
            assert self.rule is not NEUTRAL, f"{said}: {after}"
            assert self.rule is USED or self.key in after, f"{said}: {after}"
            self.mattered = True
        elif not after.same(self.before):
            assert self.rule is USED, f"{said} but changes what is computed"
            self.mattered = True
        elif self.rule is not USED:
            assert self.rule is NEUTRAL or (isinstance(self.rule, Only) and self.rule.allows(value)), f"{said}: served"

    def end(self, idle: Iterable[str] = ()) -> None:
        """Some value of a field that is used must matter; a step of rounding may swallow another one."""
        if self.rule is USED and self.tried:
            assert self.mattered or self.key in idle, f"{self.key} is said to be used, but none of {self.tried} matters"


def write(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not ABSENT}))

"""Checks that no field of a checkpoint is quietly left out: it is used, known to change nothing, or refused by its
name.

A reader has a table of the fields that it knows, and `check_fields` walks over those that a file has.

| rule | the field |
|---|---|
| `USED` | is read by the reader, which refuses what it cannot serve |
| `NEUTRAL` | changes nothing that is computed: training, bookkeeping, how another program runs the model |
| `Only` | changes nothing with these values; others are refused |

A field that is in no table is refused: it may change the mathematics. `null` says that a field is not set.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from tandem.worker.checkpoints.fields import Fields, shown


class Known(Enum):
    """What is to be done with a field whatever its value is."""

    USED = "used"
    NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True)
class Only:
    """The values with which a field changes nothing; without any, the field must not be there."""

    values: tuple[Any, ...] = ()

    def allows(self, value: object) -> bool:
        """Tells whether the value is one of them; a number is not a boolean here."""
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in self.values)


USED, NEUTRAL = Known.USED, Known.NEUTRAL
Rule: TypeAlias = Known | Only
Table: TypeAlias = dict[str, Rule]


def rules(rule: Rule, *names: str) -> dict[str, Rule]:
    """Makes a table in which all names, each line of which may have several, have one rule."""
    return dict.fromkeys(" ".join(names).split(), rule)


def check_fields(fields: Fields, table: Table, families: Iterable[str] = ()) -> None:
    """Raises CheckpointError for the first field that may not be there; names that begin with one of `families` and
    are not in the table are neutral."""
    for key, value in fields.values.items():
        if value is None:
            continue
        rule = table.get(key)
        if rule is None and not key.startswith(tuple(families)):
            raise fields.error(
                key, f"({shown(value)}) is not known, and may change what the model computes; without it it is served"
            )
        if isinstance(rule, Only) and not rule.allows(value):
            allowed = f"served: {', '.join(map(shown, rule.values))}" if rule.values else "served without it"
            raise fields.error(key, f"is {shown(value)}, which is not served; {allowed}")

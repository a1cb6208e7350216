"""One line in the log for each request: what was asked, by whom, how it ended and what it cost. Never text."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar

logger = logging.getLogger("tandem.common.access")

# Seconds of calls whose line is at debug if they succeed, as those of what is no work (probes, load reports): a line
# takes some 40 us of the processor, a third of a short Encode.
_SHORT = 0.005

_facts: ContextVar[dict[str, object] | None] = ContextVar("facts", default=None)


def begin_facts() -> dict[str, object]:
    """Begins to collect what the handler of this task's request tells."""
    facts: dict[str, object] = {}
    _facts.set(facts)
    return facts


def tell(**facts: object) -> None:
    """Adds fields to the line of the request that this task serves; what is told again replaces what was."""
    found = _facts.get()
    if found is not None:
        found.update(facts)


def level_of(code: str, seconds: float, work: bool) -> int:
    """Returns the level of the line of a request that has ended; `work` says whether it was any."""
    return logging.INFO if work and (code != "OK" or seconds >= _SHORT) else logging.DEBUG


def note(
    method: str,
    code: str,
    seconds: float,
    caller: str,
    peer: Callable[[], str | None],
    facts: dict[str, object],
    level: int,
) -> None:
    """Writes the line of a request that has ended; `method` is its name without the service's. `peer` is asked only
    where the line is written."""
    if logger.isEnabledFor(level):
        told = {"code": code, "milliseconds": round(seconds * 1000, 1), "caller": caller, "peer": peer() or "", **facts}
        logger.log(level, method, extra=told)

"""How requests end: what `outcome.py` decides, and what the front makes a finish or a status of."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tandem.worker.engine.account import FinishReason


class Failure(enum.IntEnum):
    """Ends that are no finish on the wire but a status; numbers that no `FinishReason` will have."""

    ERROR = 100
    IMPOSSIBLE = 101  # its constraints leave no token
    GUIDE = 102  # its guide has reached a limit


@dataclass(frozen=True, slots=True)
class End:
    """Why a request is over; `trim` of its last output tokens are not part of the answer."""

    reason: FinishReason | Failure
    matched_token: int | None = None
    matched_sequence: int | None = None
    trim: int = 0
    detail: str = ""  # of a failure, in words for the caller
    broken: bool = False  # the request's keys and values are not to be shown to anybody

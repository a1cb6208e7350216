"""Several samples of one prompt: the first computes it, the others wait for that and then share its pages.

Samples are requests of their own, alike but for their numbers, which follow each other, and their seeds. When the first
has its first token, the others join the queue: whole pages of the prompt are found in the page table like any other
prefix, the last one, which the first sample goes on filling, is copied. So the prompt is held and computed once, and
each other sample computes its last prompt token anew, from which its own first token is drawn.

A group that bypasses the cache shares under a name that no other request can have, and leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.worker.engine.request import Request

_LONGER = 300  # characters; `CacheParams.salt` has 256 bytes at most


def sample_seed(seed: int, index: int) -> int:
    """Returns the seed of sample `index`: the request's own for the first, a pure function of both for the others."""
    if index == 0:
        return seed
    return int.from_bytes(hashlib.blake2b(struct.pack("<QI", seed, index), digest_size=8).digest(), "little")


def private_salt(number: int) -> str:
    """Returns the salt of a group that shares with nobody else: longer than any of a request, and where callers' salts
    begin with a number, it begins with blanks. Gateways may be told of it."""
    return f"{number:>{_LONGER}}"


@dataclass(slots=True)
class Forks:
    """Keeps the samples that wait for their prompt."""

    _waiting: dict[int, tuple[Request, list[Request]]] = field(default_factory=dict)  # by the first one's number
    _first: dict[int, int] = field(default_factory=dict)  # the first sample's number by the others'

    def hold(self, first: Request, others: Sequence[Request]) -> None:
        """Holds the other samples until the first has its first token."""
        if others:
            self._waiting[first.number] = (first, list(others))
            for request in others:
                request.sharing.leader = first
                self._first[request.number] = first.number

    def started(self) -> list[Request]:
        """Releases and returns, in order, the samples whose first sample has its first token now."""
        if not self._waiting:
            return []
        firsts = [first for first, _ in self._waiting.values() if first.output_tokens]
        return [request for first in firsts for request in self.release(first)]

    def release(self, first: Request) -> list[Request]:
        """Returns, in order, the samples that waited for this prompt, which is computed or never will be."""
        if first.number not in self._waiting:
            return []
        _, others = self._waiting.pop(first.number)
        for request in others:
            del self._first[request.number]
        return others

    def take(self, number: int) -> Request | None:
        """Takes one sample out, if it waits here."""
        first = self._first.pop(number, None)
        if first is None:
            return None
        _, others = self._waiting[first]
        found = next(request for request in others if request.number == number)
        others.remove(found)
        return found

"""Chooses the worker that gets a prompt: the one that has most likely cached its prefix. Pure.

Rendezvous hashing: each worker scores hash(key, worker) and the highest wins, so that a worker that leaves moves only
its own keys. Load is bounded (Mirrokni et al., "Consistent Hashing with Bounded Loads", 2016): a worker that already
has more than its fair share of this client's running requests, times a slack, passes the request on to the next.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

# Prompts that share this many first tokens go to one worker. Fewer would put every prompt with one common opening
# phrase on one worker; more would part the turns of a short conversation.
PREFIX_TOKENS = 64
SLACK = 1.25
# Below this many running requests a worker is never called overloaded.
FREE_REQUESTS = 4

T = TypeVar("T")


def prefix_key(salt: str, prompt_ids: Sequence[int]) -> str:
    """Returns a key that is equal for prompts that may share cached pages: 16 hexadecimal digits of the salt and the
    first tokens."""
    digest = hashlib.blake2b(salt.encode(), digest_size=8)
    digest.update(b"\0" + array("I", prompt_ids[:PREFIX_TOKENS]).tobytes())
    return digest.hexdigest()


def score(key: str, worker: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{key}\0{worker}".encode(), digest_size=8).digest(), "big")


def choose(key: str, workers: Iterable[T], name: Callable[[T], str], running: Callable[[T], int]) -> T:
    """Returns the first worker in rendezvous order that is not overloaded. At least one worker must be given."""
    order = sorted(workers, key=lambda worker: score(key, name(worker)), reverse=True)
    fair = (sum(running(worker) for worker in order) + 1) / len(order)
    capacity = max(FREE_REQUESTS, math.ceil(SLACK * fair))
    return next((worker for worker in order if running(worker) < capacity), order[0])

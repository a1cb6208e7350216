"""Ranks that share a model in threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from tandem.worker.model.parallel import Ranks

T = TypeVar("T")
SECONDS = 120  # a bound for a machine under load, not an expectation


class _Table:
    """Where ranks lay their parts for each other."""

    def __init__(self, size: int) -> None:
        self.all_here = threading.Barrier(size, timeout=SECONDS)
        self.parts: list[torch.Tensor] = [torch.empty(0)] * size


@dataclass(frozen=True, slots=True)
class RanksInThreads(Ranks):
    """As processes' ranks, but for how they exchange parts."""

    table: _Table = field(kw_only=True)

    def _gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        self.table.parts[self.rank] = part.contiguous()
        self.table.all_here.wait()
        parts = [each.clone() for each in self.table.parts]
        self.table.all_here.wait()  # before anybody goes on with the numbers of his part
        return parts


def in_threads(size: int, work: Callable[[Ranks], T]) -> list[T]:
    """What each of so many ranks finds, in their order; raises what one of them raises."""
    table = _Table(size)

    def begun(rank: int) -> T:
        try:
            return work(RanksInThreads(rank, size, table=table))
        except BaseException:
            table.all_here.abort()
            raise

    with ThreadPoolExecutor(size) as threads:
        ends = [threads.submit(begun, rank) for rank in range(size)]
        errors = [end.exception() for end in ends]
    for error in sorted(filter(None, errors), key=lambda each: isinstance(each, threading.BrokenBarrierError)):
        raise error
    return [end.result() for end in ends]

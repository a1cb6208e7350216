"""What the kernels ask of a GPU: how much shared memory its programs have, and of which generation it is."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

_RESERVED = 1 << 10  # bytes of shared memory that each program takes beside its own


class Card(NamedTuple):
    """A GPU."""

    capability: tuple[int, int]
    processors: int
    shared: int  # bytes of shared memory that a program may have
    shared_together: int  # and all programs of a processor

    def programs(self, shared: int) -> int:
        """Returns how many programs with so much shared memory a processor has room for."""
        return max(1, self.shared_together // (shared + _RESERVED))


HOPPER = Card((9, 0), 132, 227 << 10, 228 << 10)


def card_of(device: torch.device) -> Card:
    """Returns the GPU of a device; for a CPU, under Triton's interpreter, the one that the kernels were made for."""
    return _card(device.index) if device.type == "cuda" else HOPPER


@functools.cache
def _card(index: int | None) -> Card:
    about = torch.cuda.get_device_properties(index if index is not None else torch.cuda.current_device())
    return Card(
        (about.major, about.minor),
        about.multi_processor_count,
        about.shared_memory_per_block_optin,  # type: ignore[attr-defined]
        about.shared_memory_per_multiprocessor,
    )

"""Memory and use of the NVIDIA cards that this process may see, by the driver's own library (NVML) at each scrape.

A card has the driver's number. `CUDA_VISIBLE_DEVICES` leaves out others, where it names whole cards; numbers in it are
CUDA's, which are the driver's where `CUDA_DEVICE_ORDER` is `PCI_BUS_ID`, or all cards are alike.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

logger = logging.getLogger("tandem.worker.cards")

LIBRARY = "libnvidia-ml.so.1"
_UUID_BYTES = 96


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))  # percent


class Card(NamedTuple):
    """A card as it is now; None is what it does not tell."""

    number: int
    used_bytes: int | None
    total_bytes: int | None
    busy: float | None  # share of the last moments in which it computed anything


class Nvml:
    """The driver's library. Raises OSError where there is none, or no driver."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._library = ctypes.CDLL(library)
        if status := self._library.nvmlInit_v2():
            raise OSError(f"NVML does not start (status {status})")

    def cards(self, visible: str | None) -> Iterator[Card]:
        """Yields the cards that `visible` (as `CUDA_VISIBLE_DEVICES`) has."""
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return
        for number in range(count.value):
            card = ctypes.c_void_p()
            if not self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(card)):
                uuid = ctypes.create_string_buffer(_UUID_BYTES)
                self._library.nvmlDeviceGetUUID(card, uuid, ctypes.c_uint(_UUID_BYTES))
                if is_visible(visible, number, uuid.value.decode("ascii", "replace")):
                    yield self._card(number, card)

    def _card(self, number: int, card: ctypes.c_void_p) -> Card:
        memory, utilization = _Memory(), _Utilization()
        known = not self._library.nvmlDeviceGetMemoryInfo(card, ctypes.byref(memory))
        busy = None if self._library.nvmlDeviceGetUtilizationRates(card, ctypes.byref(utilization)) else utilization.gpu
        return Card(
            number,
            memory.used if known else None,
            memory.total if known else None,
            None if busy is None else busy / 100,
        )


def is_visible(visible: str | None, number: int, uuid: str) -> bool:
    """Tells whether `CUDA_VISIBLE_DEVICES` has a card; where it is not set or names parts of cards, it has all."""
    names = [name.strip() for name in (visible or "").split(",") if name.strip()]
    if not names or any(name.startswith("MIG") for name in names):
        return visible != ""
    return any(name == str(number) or (name.startswith("GPU-") and uuid.startswith(name)) for name in names)


class CardMetrics(Collector):
    """Gauges of each card; none where there are no cards."""

    def __init__(self, registry: CollectorRegistry, library: str = LIBRARY) -> None:
        self._nvml: Nvml | None = None
        try:
            self._nvml = Nvml(library)
        except OSError as error:
            logger.debug("no cards are measured: %s", error)
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Yields the gauges as they are now."""
        used = GaugeMetricFamily("tandem_gpu_memory_used_bytes", "Memory of a card that is in use", labels=["gpu"])
        total = GaugeMetricFamily("tandem_gpu_memory_total_bytes", "Memory that a card has", labels=["gpu"])
        busy = GaugeMetricFamily(
            "tandem_gpu_utilization_ratio", "Share of time in which a card computed", labels=["gpu"]
        )
        cards = () if self._nvml is None else self._nvml.cards(os.environ.get("CUDA_VISIBLE_DEVICES"))
        for card in cards:
            for family, value in ((used, card.used_bytes), (total, card.total_bytes), (busy, card.busy)):
                if value is not None:
                    family.add_metric([str(card.number)], value)
        return (used, total, busy)

"""A virtual card for each test, and engines there that take a processor little time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("triton")

from tests.worker_svc.card.quick import quick
from tests.worker_svc.card.virtual_card import VirtualCard, present


@pytest.fixture(scope="module")
def _quick() -> Iterator[None]:
    with quick():
        yield


@pytest.fixture
def card() -> Iterator[VirtualCard]:
    with present(VirtualCard()) as there:
        yield there

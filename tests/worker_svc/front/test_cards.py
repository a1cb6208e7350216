"""What a worker tells of its cards, by a library with the driver's calls: two cards, of which one says little."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tandem.worker.front.cards import CardMetrics, is_visible

DRIVER = """
#include <string.h>
struct memory { unsigned long long total, free, used; };
struct utilization { unsigned gpu, memory; };
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned n, void **card) { *card = (void *)(size_t)(n + 1); return n == 2 ? 15 : 0; }
int nvmlDeviceGetUUID(void *card, char *text, unsigned size) {
    strncpy(text, card == (void *)1 ? "GPU-aa" : "GPU-bb", size);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *card, struct memory *m) { m->total = 80ull << 30; m->used = 5ull << 30; return 0; }
int nvmlDeviceGetUtilizationRates(void *card, struct utilization *u) { u->gpu = 75; return card == (void *)2 ? 3 : 0; }
"""


@pytest.fixture
def driver(tmp_path: Path) -> str:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "driver.c").write_text(DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "driver.so", tmp_path / "driver.c"], check=True)
    return str(tmp_path / "driver.so")


def test_each_card_tells_what_it_knows(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    registry = CollectorRegistry()
    CardMetrics(registry, driver)
    for gpu in ("0", "1"):
        assert registry.get_sample_value("tandem_gpu_memory_used_bytes", {"gpu": gpu}) == 5 << 30
        assert registry.get_sample_value("tandem_gpu_memory_total_bytes", {"gpu": gpu}) == 80 << 30
    assert registry.get_sample_value("tandem_gpu_utilization_ratio", {"gpu": "0"}) == 0.75
    assert registry.get_sample_value("tandem_gpu_utilization_ratio", {"gpu": "1"}) is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert registry.get_sample_value("tandem_gpu_memory_used_bytes", {"gpu": "0"}) is None


def test_where_there_is_no_driver_there_are_no_cards() -> None:
    registry = CollectorRegistry()
    CardMetrics(registry, "no-such-library.so")
    assert not [sample for family in registry.collect() for sample in family.samples]


@pytest.mark.parametrize(
    ("visible", "seen"),
    [(None, True), ("", False), ("0,3", True), ("1", False), ("GPU-ab", True), ("GPU-c", False), ("MIG-ab/1/0", True)],
)
def test_cards_are_left_out_as_cuda_leaves_them_out(visible: str | None, seen: bool) -> None:
    assert is_visible(visible, 3, "GPU-abcdef") == seen

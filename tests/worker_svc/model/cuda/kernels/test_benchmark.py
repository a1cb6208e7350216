"""The benchmark of cards runs, part for part, where there is none: what its numbers are is not looked at."""

from __future__ import annotations

import json
import math
import sys

import pytest

from benchmarks import gpu
from benchmarks.gpu_parts import Scale
from tests.worker_svc.model.cuda.kernels.conftest import DEVICE


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a card runs the benchmark itself")
def test_parts_tell_their_results(capsys: pytest.CaptureFixture[str]) -> None:
    parts = ["trace", "kernels", "products", "fp8_products", "dependent", "serving", "traffic", "overlap", "states"]
    gpu.run_mode("fast", parts, math.inf, Scale.small())
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    results = {each["part"]: each["result"] for each in told if "part" in each}
    assert not [part for part in parts if "error" in results[part]], results
    assert results["overlap"]["same_ids"]
    assert gpu.look_up(results, "kernels.prefill.rate_share") > 0
    assert "not measured" in gpu.table({"fast": results})
    assert results["trace"]["rows_1"]["kernels"] and results["start_8b"]["product"] == "library"
    assert results["traffic"]["greedy"]["ids"] == results["traffic"]["drafts_looked_up"]["ids"]
    assert results["traffic"].keys() > {"top_p", "penalties"}


def test_a_part_without_budget_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    gpu.run_mode("fast", ["peer"], 0.0, Scale.small())
    assert "left out" in capsys.readouterr().out


def test_a_process_that_hangs_is_ended_and_what_it_told_is_kept() -> None:
    hangs = 'import signal; print(\'{"began": "8b"}\', flush=True); signal.pause()'
    told = list(gpu.told_by([sys.executable, "-c", hangs], lambda part: 0.0 if part == "8b" else 60.0))
    assert told == [{"began": "8b"}]

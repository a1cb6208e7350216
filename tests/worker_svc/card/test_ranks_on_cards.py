"""Models with states or latents that two ranks share, each with a virtual card: both answer alike, and as one processor
does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

import torch

from tests.exhaustive import some
from tests.worker_svc.card.rank_on_a_card import MODELS, OPTIONS, requests
from tests.worker_svc.card.test_engine_on_a_card import answers, assert_alike, built

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real card")

CASES = [(kind, same) for kind in MODELS for same in (False, True)]


@pytest.mark.parametrize(
    ("kind", "reproducible"), some(CASES, *((kind, False) for kind in ("delta rule", "latents of chosen tokens")))
)
def test_two_ranks_answer_alike_and_as_a_processor(
    kind: str, reproducible: bool, tmp_path: Path, repository: Path
) -> None:
    command = [sys.executable, "-m", "tests.worker_svc.card.rank_on_a_card"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "2", str(tmp_path / "store"), kind, str(reproducible)],
            cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    told = [(rank.communicate(), rank.returncode) for rank in ranks]
    for (_, error), code in told:
        assert code == 0, error[-3000:]
    one, other = (json.loads(out.splitlines()[-1]) for (out, _), _ in told)
    assert one == other
    found = {int(number): [tuple(each) for each in answer] for number, answer in one.items()}
    assert_alike(found, answers(built("cpu", model=MODELS[kind], **OPTIONS), requests()))  # type: ignore[arg-type]

"""Models that two ranks share, each with a virtual card: both answer alike, and as one processor does; in reproducible
mode a request's bits are the same alone and in a crowd, with states and latents too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("triton")

import torch

from tests.exhaustive import some
from tests.worker_svc.card.rank_on_a_card import MODELS, OPTIONS, Told, requests
from tests.worker_svc.card.test_engine_on_a_card import Answers, answers, assert_alike, built

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real card")

CASES = [(kind, same) for kind in MODELS for same in (False, True)]
QUICKLY = [("delta rule", False), ("delta rule", True), ("latents of chosen tokens", False)]


def told_by_two_ranks(kind: str, reproducible: bool, folder: Path, repository: Path, *more: str) -> Told:
    """What both ranks tell, which is the same."""
    command = [sys.executable, "-m", "tests.worker_svc.card.rank_on_a_card"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "2", str(folder / "store"), kind, str(reproducible), *more],
            cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    told = [(rank.communicate(), rank.returncode) for rank in ranks]
    for (_, error), code in told:
        assert code == 0, error[-3000:]
    one, other = (json.loads(out.splitlines()[-1]) for (out, _), _ in told)
    assert one == other
    return cast(Told, one)


def with_numbers(found: Answers) -> Answers:
    """Answers as they were before JSON made strings of their numbers."""
    return {int(number): [tuple(each) for each in answer] for number, answer in found.items()}  # type: ignore[misc]


@pytest.mark.parametrize(("kind", "reproducible"), some(CASES, *QUICKLY))
def test_two_ranks_answer_alike_and_as_a_processor(
    kind: str, reproducible: bool, tmp_path: Path, repository: Path
) -> None:
    told = told_by_two_ranks(kind, reproducible, tmp_path, repository)
    found = with_numbers(told["together"])
    assert_alike(found, answers(built("cpu", model=MODELS[kind], **OPTIONS), requests()))
    assert_alike(found, with_numbers(told["alone"]))
    if reproducible:
        assert told["row_invariant"], "the start found rows whose bits depend on others"
        assert told["together"] == told["alone"]


def test_ranks_agree_on_a_product_where_the_library_of_one_serves_it_alone(tmp_path: Path, repository: Path) -> None:
    told = told_by_two_ranks("usual", True, tmp_path, repository, "1")
    assert told["row_invariant"] and told["products"] == ["same_bits"]
    assert told["together"] == told["alone"]

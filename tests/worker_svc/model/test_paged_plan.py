"""Jobs cover each split of each block once, and leave no program with much more than the others."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.worker.model.attention import Segment
from tandem.worker.model.paged_plan import cut, divide

SPLIT, LANES = 256, 33


def planned(lengths: list[int], window: int = 0, room: int = 32 * LANES) -> tuple[np.ndarray, np.ndarray, int]:
    pages = np.arange(200)
    segments = [Segment(row, 1, length - 1, pages) for row, length in enumerate(lengths)]
    return divide(cut(segments, 1), SPLIT, window, LANES, room)


@pytest.mark.parametrize("room", [32 * LANES, 20, 0])
@pytest.mark.parametrize("window", [0, 300])
@pytest.mark.parametrize("lengths", [[1], [1000] * 34, [4096] * 48, [1, 256, 257, 9000, 77]], ids=str)
def test_each_split_of_a_block_is_one_job_or_part_of_one(lengths: list[int], window: int, room: int) -> None:
    blocks, jobs, partials = planned(lengths, window, room)
    assert partials <= room
    done = [(int(job[0]), split) for job in jobs for split in range(job[1], job[1] + job[2])]
    first = [max(0, length - window) // SPLIT if window else 0 for length in lengths]
    wanted = [(i, split) for i, n in enumerate(lengths) for split in range(first[i], (n - 1) // SPLIT + 1)]
    assert sorted(done) == wanted
    for number, block in enumerate(blocks):  # a divided block's partials lie behind each other, in order
        own = jobs[jobs[:, 0] == number]
        assert own[:, 3].tolist() == ([-1] if not block[5] else list(range(block[4], block[4] + block[5])))
    assert sorted(jobs[jobs[:, 3] >= 0, 3]) == list(range(partials))


@pytest.mark.parametrize("count", [1, 16, 34, 40, 48, 64, 100, 256])
def test_programs_have_about_as_much_to_do(count: int) -> None:
    lengths = np.random.default_rng(count).integers(900, 1100, count).tolist()
    _, jobs, _ = planned(lengths)
    busiest = np.bincount(np.arange(len(jobs)) % LANES, weights=jobs[:, 2]).max()
    assert busiest <= max(1.25 * jobs[:, 2].sum() / LANES, jobs[:, 2].sum() / LANES + 1)

"""Where weights lie."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from tandem.worker.checkpoints.memory import _SHARED, Weights, give_back, zeros


def test_weights_lie_side_by_side_and_are_nobody_elses() -> None:
    weights = Weights()
    a, b = weights.zeros((100, 1000), torch.int16), weights.zeros((50, 700), torch.float32)
    assert 0 <= b.data_ptr() - a.data_ptr() - a.nbytes < 64 and not b.data_ptr() % 64
    a.fill_(-1)
    assert not b.any() and a.shape == (100, 1000) and b.shape == (50, 700)
    assert b.untyped_storage().nbytes() == b.nbytes


@pytest.mark.parametrize("size", [8, 64 << 10, _SHARED, _SHARED + 8])
def test_weights_of_any_size_are_zero(size: int) -> None:
    weights = Weights()
    for _ in range(3):
        whole = weights.zeros((size // 8,), torch.float64)
        assert whole.nbytes == size and not whole[0] and not whole[-1]
        whole[-1] = 1


def test_what_is_shared_goes_with_the_last_weight() -> None:
    weights = Weights()
    kept, gone = (weights.zeros((1 << 20,), torch.uint8) for _ in range(2))
    place, names = kept.data_ptr(), Path("/proc/self/maps")

    def is_mapped() -> bool:
        ranges = (line.split()[0].split("-") for line in names.read_text().splitlines())
        return any(int(first, 16) <= place < int(last, 16) for first, last in ranges)

    del gone
    gc.collect()
    assert is_mapped() and not kept.any()
    del kept
    gc.collect()
    assert not is_mapped()
    assert not weights.zeros((1 << 20,), torch.uint8).any()


def test_an_end_that_is_given_back_takes_nothing_of_what_lies_beside_it() -> None:
    weights = Weights()
    whole, next_one = weights.zeros((100, 10_007), torch.uint8), weights.zeros((1 << 20,), torch.uint8)
    whole.fill_(1)
    next_one.fill_(2)
    give_back(whole[33:])
    assert (whole[:33] == 1).all() and (next_one == 2).all()
    assert not whole[34:99].any(), "whole pages of it are new"
    give_back(whole[:0])


def test_a_copy_has_a_mapping_of_its_own() -> None:
    a, b = zeros((1 << 20,), torch.uint8), zeros((1 << 20,), torch.uint8)
    assert not a.data_ptr() % 4096 and not b.data_ptr() % 4096 and a.data_ptr() != b.data_ptr()

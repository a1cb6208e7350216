"""Blocks become the numbers that the gguf package makes of them, to the bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from tandem.worker.checkpoints.ggml_blocks import BLOCK_KINDS, QuantizedTensor
from tests.worker_svc.checkpoints.random_blocks import dequantized, random_blocks


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_sizes_and_numbers_of_a_kind_are_those_of_llama_cpp(kind: str) -> None:
    theirs = gguf.GGMLQuantizationType[kind]
    ours = BLOCK_KINDS[kind]
    assert ours.number == theirs.value
    assert (ours.block_numbers, ours.block_bytes) == gguf.GGML_QUANT_SIZES[theirs]


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_random_blocks_are_dequantized_as_the_gguf_package_does(kind: str) -> None:
    blocks = random_blocks(kind, 64 * 3).reshape(64, -1)
    expected = dequantized(blocks, kind)
    tensor = QuantizedTensor(BLOCK_KINDS[kind], torch.from_numpy(blocks).view(64, 3, -1))
    assert tensor.shape == expected.shape
    assert np.isfinite(expected).all() and expected.std() > 0
    np.testing.assert_array_equal(tensor.dequantize().numpy(), expected)


def test_rows_are_cut_and_reordered_without_being_dequantized() -> None:
    kind = BLOCK_KINDS["Q4_K"]
    tensor = QuantizedTensor(kind, torch.from_numpy(random_blocks("Q4_K", 12)).view(6, 2, -1))
    whole = tensor.dequantize()
    assert torch.equal(tensor[2:5].dequantize(), whole[2:5])
    order = torch.tensor([5, 0, 3])
    assert torch.equal(tensor[order].dequantize(), whole[order])
    assert tensor[2:5].blocks.untyped_storage().data_ptr() == tensor.blocks.untyped_storage().data_ptr()
    assert (len(tensor), tensor.shape, tensor.nbytes) == (6, (6, 512), 12 * 144)


def test_scales_of_nvfp4_are_all_that_llama_cpp_takes_bytes_for() -> None:
    blocks = np.zeros((64, 36), dtype=np.uint8)
    blocks[:, :4] = np.arange(256).reshape(64, 4)
    blocks[:, 4:] = 0x21
    expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType.NVFP4)
    tensor = QuantizedTensor(BLOCK_KINDS["NVFP4"], torch.from_numpy(blocks).view(64, 1, -1), factor=0.7)
    np.testing.assert_array_equal(tensor.dequantize().numpy(), expected * np.float32(0.7))
    kept = tensor[:63].grouped()
    assert kept is not None and torch.equal(kept.dequantize(), tensor[:63].dequantize())
    assert tensor.grouped() is None  # 255 is 480 there, which e4m3 has not

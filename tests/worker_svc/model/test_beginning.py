"""What a model begins with, looked up by the compiled library, has the bits of torch's operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from benchmarks.random_llama import llama
from tandem.worker.checkpoints.grouped import Quantization
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.beginning import CompiledBeginning
from tandem.worker.model.cpu.wide_panels import WidePanels
from tandem.worker.model.linear import HalfPanels, PlainWeight
from tandem.worker.model.quantization import INT8, QuantizedWeight, quantize
from tandem.worker.model.rope import Rotations
from tandem.worker.model.weights import Embedding

pytestmark = pytest.mark.skipif(not native.available(), reason="there is no compiled library")

ROWS = 70
Made = Callable[[torch.Tensor], torch.nn.Module]


def plain(dtype: torch.dtype) -> Made:
    return lambda numbers: PlainWeight(numbers.to(dtype), shared=True)


def panels(kind: type[WidePanels] | type[HalfPanels], dtype: torch.dtype) -> Made:
    def made(numbers: torch.Tensor) -> torch.nn.Module:
        weight = kind(*numbers.shape, dtype)
        weight.fill(0, numbers.to(dtype))
        return weight

    return made


def quantized(kind: Quantization) -> Made:
    def made(numbers: torch.Tensor) -> torch.nn.Module:
        rows = quantize(numbers, kind)
        weight = QuantizedWeight(kind, *numbers.shape, rows, torch.device("cpu"))
        weight.fill(0, rows)
        return weight

    return made


DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WEIGHTS: dict[str, Made] = {
    **{f"plain {dtype}": plain(dtype) for dtype in DTYPES},
    **{f"wide panels {dtype}": panels(WidePanels, dtype) for dtype in DTYPES},
    **{f"panels {dtype}": panels(HalfPanels, dtype) for dtype in DTYPES[1:]},
    "int8": quantized(INT8),
    "int4 in groups": quantized(Quantization(4, 32)),
}


@pytest.mark.parametrize("columns", [40, 72])
@pytest.mark.parametrize("name", WEIGHTS)
def test_vectors_are_those_of_torch(name: str, columns: int) -> None:
    numbers = torch.randn((ROWS, columns), generator=torch.Generator().manual_seed(0))
    embedding = Embedding(ROWS, columns, torch.float32, tied=False)
    embedding.weights.append(WEIGHTS[name](numbers))
    config = replace(llama("tiny", 128), rope_theta=1e4)
    rotations = Rotations(config, "cpu")
    for by in (1.0, 5.65685):
        beginning = CompiledBeginning.of(embedding, by, rotations)
        assert beginning is not None
        for ids, positions in (([0, 69, 17, 31, 32, 5], range(6)), ([3], [100]), ([4], [7]), (range(70), range(70))):
            given = torch.tensor(ids), torch.tensor(positions)
            x, turned = beginning.begin(*given)
            assert torch.equal(x, embedding(given[0]) * by)
            expected = rotations.at(given[1])
            assert turned.keys() == expected.keys()
            for rope, both in expected.items():
                assert all(map(torch.equal, turned[rope], both))


def test_tables_that_grow_later_are_looked_up() -> None:
    config = replace(llama("tiny", 128), context_length=1 << 15)
    embedding = Embedding(ROWS, 8, torch.float32, tied=False)
    embedding.weights.append(PlainWeight(torch.ones((ROWS, 8))))
    rotations = Rotations(config, "cpu")
    beginning = CompiledBeginning.of(embedding, 1.0, rotations)
    assert beginning is not None
    ids, positions = torch.tensor([1]), torch.tensor([20_000])
    with pytest.raises(IndexError, match="positions"):
        beginning.begin(ids, positions)
    rotations.reach(20_001)
    cos, _ = beginning.begin(ids, positions).rotations["model"]
    assert torch.equal(cos, rotations.at(positions)["model"][0])


@pytest.mark.parametrize("token", [-1, ROWS])
def test_a_token_that_is_not_there_is_an_error(token: int) -> None:
    embedding = Embedding(ROWS, 8, torch.float32, tied=False)
    embedding.weights.append(PlainWeight(torch.ones((ROWS, 8))))
    beginning = CompiledBeginning.of(embedding, 1.0, Rotations(llama("tiny", 128), "cpu"))
    assert beginning is not None
    with pytest.raises(IndexError, match="tokens"):
        beginning.begin(torch.tensor([0, token]), torch.tensor([0, 1]))

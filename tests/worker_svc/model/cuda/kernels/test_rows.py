"""Each kernel that works row by row equals torch in float64, and a row's bits do not depend on the others."""

from __future__ import annotations

import pytest
import torch

from tandem.worker.checkpoints.grouped import to_float8
from tandem.worker.model.cuda.kernels.add_norm import add_norm, add_norm_float8
from tandem.worker.model.cuda.kernels.float8 import rows_to_float8
from tandem.worker.model.cuda.kernels.swiglu import swiglu, swiglu_float8
from tests.worker_svc.model.cuda.kernels.conftest import DEVICE, DTYPES

ERRORS = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # relative, of one rounding


def random(*size: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(*size, generator=torch.Generator().manual_seed(size[-1])) * 3).to(dtype).to(DEVICE)


def add_norm_reference(x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Computes the norm by torch in float64, but for the rounding of the sum; `x` stays as it is."""
    wide = (x if delta is None else (x.float() + delta.float()).to(x.dtype)).double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def swiglu_reference(gate_up: torch.Tensor, size: int) -> torch.Tensor:
    """Computes the activation by torch in float64."""
    gate, up = gate_up[:, :size].double(), gate_up[:, size:].double()
    return gate / (1 + (-gate).exp()) * up


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 48, 64, 1000])
@pytest.mark.parametrize("with_delta", [True, False])
def test_the_norm_equals_torch_in_float64(size: int, dtype: torch.dtype, with_delta: bool) -> None:
    x, weight = random(7, size, dtype=dtype), random(size, dtype=dtype)
    delta = random(7, size, dtype=dtype).flip(0) if with_delta else None
    expected = add_norm_reference(x, delta, weight, 1e-5)
    total = x if delta is None else x + delta
    alone = torch.cat(
        [add_norm(x[i : i + 1].clone(), None if delta is None else delta[i : i + 1], weight, 1e-5) for i in (0, 6)]
    )
    ours = add_norm(x, delta, weight, 1e-5)
    assert torch.equal(x, total)
    torch.testing.assert_close(ours.double(), expected, rtol=ERRORS[dtype], atol=1e-6)
    assert torch.equal(ours[[0, 6]], alone)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 172, 1025])
def test_the_activation_equals_torch_in_float64(size: int, dtype: torch.dtype) -> None:
    gate_up = random(5, 2 * size, dtype=dtype)
    gate_up[0, 0], gate_up[1, 0] = 80, -80  # where exp overflows float16 and nearly float32
    ours = swiglu(gate_up, size)
    torch.testing.assert_close(ours.double(), swiglu_reference(gate_up, size), rtol=2 * ERRORS[dtype], atol=1e-6)
    assert torch.equal(swiglu(gate_up[3:4], size), ours[3:4])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_8_bit_floats_are_those_of_torch(dtype: torch.dtype) -> None:
    x = random(6, 200, dtype=dtype)
    x[1], x[2, 7], x[3, 9] = 0, float("nan"), float("inf")
    made = rows_to_float8(x)
    expected = to_float8(x)
    ours, theirs = made.dequantize(), expected.dequantize()
    assert ours[2:4].isnan().all() and theirs[2:4].isnan().all()
    sound = [0, 1, 4, 5]
    assert torch.equal(made.scale[sound], expected.scale[sound])
    if DEVICE.type == "cuda":
        assert torch.equal(ours[sound], theirs[sound])
    else:  # the interpreter rounds towards zero, and forgets a carry
        step = theirs.abs() / 2 + made.scale * 2**-9
        assert ((ours - theirs).abs() <= step)[sound].all()


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("size", [48, 1000])
def test_what_ends_as_8_bit_floats_is_what_is_made_of_it_afterwards(size: int, dtype: torch.dtype) -> None:
    x, weight = random(5, size, dtype=dtype), random(size, dtype=dtype)
    x[2, 7] = float("nan")
    delta, gate_up = x.flip(0), random(5, 2 * size, dtype=dtype)
    apart = [rows_to_float8(add_norm(x.clone(), delta, weight, 1e-5)), rows_to_float8(swiglu(gate_up, size))]
    sums = x.clone()
    for ours, theirs in zip(
        [add_norm_float8(sums, delta, weight, 1e-5), swiglu_float8(gate_up, size)], apart, strict=True
    ):
        assert torch.equal(ours.q.view(torch.uint8), theirs.q.view(torch.uint8))
        assert torch.equal(ours.scale.view(torch.int32), theirs.scale.view(torch.int32))
    assert torch.equal(sums.nan_to_num(), (x + delta).nan_to_num())


def test_no_rows_are_no_work() -> None:
    nothing = random(0, 64, dtype=torch.float32)
    assert add_norm(nothing, nothing, random(64, dtype=torch.float32), 1e-5).shape == (0, 64)
    assert swiglu(nothing, 32).shape == (0, 32)
    assert rows_to_float8(nothing).q.shape == (0, 64)

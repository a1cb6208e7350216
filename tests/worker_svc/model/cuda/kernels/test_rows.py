"""Each kernel that works row by row equals torch in float64, and a row's bits do not depend on the others."""

from __future__ import annotations

import pytest
import torch

from tandem.worker.checkpoints.grouped import Float8Rows
from tandem.worker.model.cuda.kernels.add_norm import add_norm
from tandem.worker.model.cuda.kernels.float8 import rows_to_float8
from tandem.worker.model.cuda.kernels.norm_heads import norm_heads
from tandem.worker.model.cuda.kernels.swiglu import swiglu
from tandem.worker.model.float8 import to_float8
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
@pytest.mark.parametrize(("size", "kv_heads"), [(48, 1), (128, 3)])
def test_the_norm_of_heads_equals_torch_in_float64(size: int, kv_heads: int, dtype: torch.dtype) -> None:
    heads = 2 * kv_heads
    projected = random(5, (heads + 2 * kv_heads) * size + 16, dtype=dtype)  # with more behind it in each row
    q_weight, k_weight, v_weight = random(3, size, dtype=dtype)
    qkv = projected[:, :-16].view(5, -1, size)
    before, alone = projected.clone(), projected[3:4].clone()
    norm_heads(qkv, [(heads, q_weight), (kv_heads, k_weight)], 1e-5)
    was = before[:, :-16].view(5, -1, size)
    for part, weight in ((slice(0, heads), q_weight), (slice(heads, heads + kv_heads), k_weight)):
        expected = add_norm_reference(was[:, part], None, weight, 1e-5)
        torch.testing.assert_close(qkv[:, part].double(), expected, rtol=ERRORS[dtype], atol=1e-6)
    assert torch.equal(qkv[:, heads + kv_heads :], was[:, heads + kv_heads :])
    assert torch.equal(projected[:, -16:], before[:, -16:])
    values = qkv[:, heads + kv_heads :].clone()
    norm_heads(qkv[:, heads:], [(0, q_weight), (kv_heads, k_weight), (kv_heads, v_weight)], 1e-5)
    expected = add_norm_reference(values, None, v_weight, 1e-5)
    torch.testing.assert_close(qkv[:, heads + kv_heads :].double(), expected, rtol=ERRORS[dtype], atol=1e-6)
    norm_heads(alone[:, :-16].view(1, -1, size), [(heads, q_weight), (kv_heads, k_weight)], 1e-5)
    assert torch.equal(alone, projected[3:4])


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
    q, scale = rows_to_float8(x)
    expected = to_float8(x)
    ours, theirs = Float8Rows(q, scale).dequantize(), expected.dequantize()
    assert ours[2:4].isnan().all() and theirs[2:4].isnan().all()
    sound = [0, 1, 4, 5]
    assert torch.equal(scale[sound], expected.scale[sound])
    if DEVICE.type == "cuda":
        assert torch.equal(ours[sound], theirs[sound])
    else:  # the interpreter rounds towards zero, and forgets a carry
        step = theirs.abs() / 2 + scale * 2**-9
        assert ((ours - theirs).abs() <= step)[sound].all()


def test_no_rows_are_no_work() -> None:
    nothing = random(0, 64, dtype=torch.float32)
    assert add_norm(nothing, nothing, random(64, dtype=torch.float32), 1e-5).shape == (0, 64)
    assert swiglu(nothing, 32).shape == (0, 32)
    assert rows_to_float8(nothing)[0].shape == (0, 64)

"""Experts that are computed together give what they give one after the other, in float64; and what a row gets does not
depend on the rows beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from tandem.worker.checkpoints.grouped import E8M0, Float8Rows, Grouped, Quantization, to_float8
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.mlp import ClampedSwiGLU, LimitedSwiGLU
from tandem.worker.model.cpu import native
from tandem.worker.model.cuda import experts as cuda_experts
from tandem.worker.model.cuda.kernels.experts import arrange, most_blocks, route
from tandem.worker.model.cuda.kernels.product import Tile
from tandem.worker.model.cuda.operations import TritonOperations
from tandem.worker.model.moe import MixtureOfExperts, choose
from tandem.worker.model.quantization import quantize
from tandem.worker.model.weights import Rows, WeightFiller
from tests.worker_svc.model.cuda.kernels.conftest import DEVICE, DTYPES

HIDDEN, INNER = 136, 48
QWEN = Experts(4, 2, INNER, True)
GPT_OSS = Experts(4, 2, INNER, True, biases=True, clamped=ClampedSwiGLU(1.7, 0.5))
STEP = Experts(4, 2, INNER, True, (), "sigmoid", True, shared_size=32, clamped=LimitedSwiGLU(0.4))
STEP = replace(STEP, shared_clamped=LimitedSwiGLU(0.3))
GEMMA4 = Experts(4, 2, INNER, True, activation="gelu_tanh", weighed=True, logit_multiplier=0.5)
SHARED = Experts(4, 3, INNER, False, (), "sigmoid", True, scale=1.5, shared_size=32, shared_router=True)
LFM2 = replace(SHARED, normalized=True, scale=1.0, sum_offset=0.3, shared_size=0, shared_router=False)
NEMOTRON = replace(SHARED, shared_router=False, activation="relu2", gated=False)
ERRORS = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def in_groups_of_float8(numbers: torch.Tensor) -> Float8Rows:
    scale = torch.rand(len(numbers), -(-numbers.shape[1] // 128)) + 0.5
    return Float8Rows(numbers.to(torch.float8_e4m3fn), scale)


def mxfp4(numbers: torch.Tensor) -> Grouped:
    kind, shape = Quantization(4, 32, "e2m1"), (len(numbers), -(-numbers.shape[1] // 32))
    return Grouped(
        kind, torch.randint(0, 16, numbers.shape, dtype=torch.uint8), torch.randint(122, 127, shape, dtype=E8M0), None
    )


@pytest.fixture(autouse=True)
def _large_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the interpreter is quicker with; fast and reproducible mode then differ in rows alone."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr(cuda_experts, "FLOAT32", (Tile(16, 64, 64), Tile(16, 64, 64)))
        monkeypatch.setattr(cuda_experts, "FEW_ROWS", (Tile(16, 64, 128), Tile(16, 128, 128)))
        monkeypatch.setitem(cuda_experts.INTEGERS, torch.int8, 64)


KINDS: dict[str, Callable[[torch.Tensor], Rows]] = {
    "plain": lambda numbers: numbers,
    "int8": lambda numbers: quantize(numbers, Quantization(8, 0)),
    "int8 in groups": lambda numbers: quantize(numbers, Quantization(8, 64)),
    "int4": lambda numbers: quantize(numbers, Quantization(4, 32)),
    "mxfp4": mxfp4,
    "fp8": to_float8,
    "fp8 in groups": in_groups_of_float8,
}


def layer(
    config: Experts, dtype: torch.dtype, convert: Callable[[torch.Tensor], Rows], *, reproducible: bool = True
) -> tuple[MixtureOfExperts, dict[str, torch.Tensor]]:
    """A layer with random weights, joined, and what its matrices stand for, by name."""
    torch.manual_seed(0)
    operations = TritonOperations(4, reproducible=reproducible)
    with patch.object(native, "available", return_value=False):  # which a CPU would multiply by otherwise
        mixture = MixtureOfExperts(HIDDEN, config, dtype, operations)
        filler = WeightFiller(DEVICE, dtype, quantized_weight=operations.quantized_weight)
        numbers = {}
        for name, module in mixture.named_modules():
            if not hasattr(module, "out_features"):
                continue
            rows = torch.randn(module.out_features, module.in_features) / module.in_features**0.5
            stored: Rows = rows.to(dtype) if "expert" not in name else convert(rows)
            if isinstance(stored, torch.Tensor):
                stored = stored.to(dtype)
            filler._rows_left[module] = module.out_features
            filler._store(module, 0, stored)
            numbers[name] = (stored if isinstance(stored, torch.Tensor) else stored.dequantize()).double()
            if module.bias is not None:
                numbers[name + ".bias"] = torch.randn(module.out_features).to(dtype).double()
                module.bias.weight = torch.nn.Parameter(numbers[name + ".bias"].to(dtype).to(DEVICE), False)
        if mixture.router_bias is not None:
            numbers["router_bias"] = torch.randn(config.count).double()
            mixture.router_bias.weight = torch.nn.Parameter(numbers["router_bias"].float().to(DEVICE), False)
        if mixture.weights is not None:
            mixture.weights.weight = torch.nn.Parameter(torch.rand(config.count, device=DEVICE) + 0.5, False)
        mixture.join()
    assert not mixture.apart, mixture.apart
    return mixture, numbers


def feed_forward(config: Experts, numbers: dict[str, torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
    """One expert, in float64."""
    if not config.gated:
        inner = (x @ numbers[f"{name}.up"].T + numbers.get(f"{name}.up.bias", 0)).relu().square()
        return inner @ numbers[f"{name}.down"].T + numbers.get(f"{name}.down.bias", 0)
    gate, up = (x @ numbers[f"{name}.gate_up"].T + numbers.get(f"{name}.gate_up.bias", 0)).chunk(2, dim=-1)
    if config.activation == "gelu_tanh":
        inner = torch.nn.functional.gelu(gate, approximate="tanh") * up
    elif not isinstance(config.clamped, ClampedSwiGLU):
        its = config.shared_clamped if name == "shared" else config.clamped
        limit = float("inf") if its is None else its.limit
        inner = torch.nn.functional.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)
    else:
        gate, up = gate.clamp(max=config.clamped.limit), up.clamp(-config.clamped.limit, config.clamped.limit)
        inner = gate * torch.sigmoid(config.clamped.alpha * gate) * (up + 1)
    return inner @ numbers[f"{name}.down"].T + numbers.get(f"{name}.down.bias", 0)


def exact(
    config: Experts, numbers: dict[str, torch.Tensor], x: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor
) -> torch.Tensor:
    """The layer of these choices in float64, pair by pair."""
    entering = x @ numbers["into_experts"].T if config.latent else x
    result = torch.zeros_like(entering)
    for row in range(len(x)):
        for share, expert in zip(shares[row].tolist(), chosen[row].tolist(), strict=True):
            result[row] += share * feed_forward(config, numbers, f"experts.{expert}", entering[row])
    if config.latent:
        result = result @ numbers["out_of_experts"].T
    if config.shared_size:
        gate = torch.sigmoid(x @ numbers["shared_router"].T) if config.shared_router else 1.0
        result += gate * feed_forward(config, numbers, "shared", x)
    return result


@pytest.mark.parametrize(
    ("config", "kind", "reproducible"),
    [(QWEN, kind, True) for kind in KINDS]
    + [(GPT_OSS, "mxfp4", True), (SHARED, "plain", True), (QWEN, "plain", False), (GPT_OSS, "int4", False)]
    + [(GEMMA4, "plain", True), (replace(NEMOTRON, latent=72), "plain", True)]
    + [(STEP, "plain", True), (STEP, "int4", False)]
    + [(replace(NEMOTRON, biases=True), kind, True) for kind in ("int8 in groups", "int4", "fp8 in groups")],
)
def test_a_layer_equals_float64(config: Experts, kind: str, reproducible: bool) -> None:
    dtype = DTYPES[0] if reproducible else DTYPES[-1]
    mixture, numbers = layer(config, dtype, KINDS[kind], reproducible=reproducible)
    x = torch.randn(4, HIDDEN).to(dtype)
    shares, chosen = mixture.choose(x.to(DEVICE))
    ours = mixture(x.to(DEVICE)).cpu()
    assert ours.dtype == dtype
    wanted = exact(config, numbers, x.double(), shares.cpu().double(), chosen.cpu())
    error = ((ours.double() - wanted).norm() / wanted.norm()).nan_to_num(nan=1e9).item()
    assert error < ERRORS[dtype]


@pytest.mark.usefixtures("_rows_alike")
@pytest.mark.parametrize("kind", ["plain", "int4"])
def test_a_row_has_the_same_bits_in_any_company(kind: str) -> None:
    mixture, _ = layer(Experts(3, 2, 32, True), torch.float32, KINDS[kind])
    x = torch.randn(20, HIDDEN, device=DEVICE)  # more of an expert than go into a block
    together = mixture(x)
    for rows in (slice(0, 1), slice(17, 20)):
        assert torch.equal(mixture(x[rows]), together[rows])


ROUTERS = [
    QWEN, SHARED, LFM2, GEMMA4, Experts(100, 8, 8, True), Experts(24, 4, 8, True, (), "sigmoid", True, 4, 2, 2.5),
    Experts(12, 3, 8, False, groups=3, groups_per_token=2),
    Experts(24, 3, 8, False, groups=4, groups_per_token=2, best_of_group=1),
    Experts(16, 2, 8, True, score="mixer", jitter=0.1),
]  # fmt: skip


@pytest.mark.parametrize("config", ROUTERS, ids=lambda c: f"{c.score} {c.count} {c.groups}")
def test_the_router_chooses_what_torch_chooses(config: Experts) -> None:
    logits = torch.randn(9, config.count, device=DEVICE)
    bias = torch.randn(config.count, device=DEVICE) if config.biased else None
    weights = torch.rand(config.count, device=DEVICE) + 0.5 if config.weighed else None
    wanted, numbers = choose(logits, bias, weights, config)
    shares, chosen = route(logits, bias, config, weights)
    assert torch.equal(chosen.long(), numbers)
    torch.testing.assert_close(shares, wanted)
    _, of_nan = route(torch.full_like(logits, float("nan")), bias, config)
    assert int(of_nan.min()) >= 0 and int(of_nan.max()) < config.count


@pytest.mark.parametrize(("rows", "count", "per_row", "block"), [(1, 128, 8, 16), (70, 4, 2, 16), (200, 7, 6, 64)])
def test_blocks_hold_every_pair_once_with_its_expert(rows: int, count: int, per_row: int, block: int) -> None:
    chosen = torch.stack([torch.randperm(count)[:per_row] for _ in range(rows)]).to(torch.int32)
    chosen[rows // 2 :] = chosen[0]  # many of one expert, of some others none
    order, blocks = (part.cpu() for part in arrange(chosen.to(DEVICE), count, block))
    flat, seen = chosen.flatten(), []
    for expert, first, end in blocks[blocks[:, 0] >= 0].tolist():
        pairs = order[first:end].tolist()
        assert 0 < len(pairs) <= block and all(flat[pair] == expert for pair in pairs) and pairs == sorted(pairs)
        seen += pairs
    assert sorted(seen) == list(range(rows * per_row))
    assert len(blocks) == most_blocks(rows * per_row, count, block)

"""Experts in one compiled call against experts one after the other, and against themselves in other company."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.checkpoints.grouped import FLOAT8, Quantization, to_float8
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.mlp import ClampedSwiGLU, LimitedSwiGLU
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.operations import NativeOperations
from tandem.worker.model.cpu.wide_panels import WidePanels
from tandem.worker.model.float8 import Float8Weight
from tandem.worker.model.linear import FloatRows, HalfPanels, Linear, PlainWeight
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.moe import MixtureOfExperts, choose
from tandem.worker.model.quantization import QuantizedWeight
from tandem.worker.model.transformer import Transformer
from tests.worker_svc.checkpoints.gguf_models import save_gguf
from tests.worker_svc.model.llama_folders import logits_in_chunks, some_ids
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.test_native import random_matrix
from tests.worker_svc.model.tiny_models import MODELS

CPU = torch.device("cpu")
EXPERTS = Experts(count=9, per_token=3, intermediate_size=40, normalized=True)
QUANTIZED = [
    Quantization(8, 0),
    Quantization(8, 32),
    *(Quantization(4, group) for group in (32, 128)),
    Quantization(4, 32, "e2m1"),
    Quantization(4, 16, "e2m1"),
    Quantization(4, 32, "iq4"),
]
ARCHITECTURES = ["qwen3 moe", "mixtral", "gpt oss", "glm4 moe, groups, norms, scaled", "gemma4 with experts"]
ARCHITECTURES += ["llama4", "qwen3 next", "nemotron 3, latents, groups"]
WIDE = [f"wide {name}" for name in ("bfloat16", "float16", "float32") if native.wide_serves(getattr(torch, name))]
KINDS = ["bfloat16", "float16", *WIDE, "fp8", *QUANTIZED]


@pytest.fixture(autouse=True)
def _compiled() -> None:
    if not native.available():
        pytest.skip("no AVX2, or no C compiler")


def give_weight(linear: Linear, kind: str | Quantization) -> None:
    rows, columns = linear.out_features, linear.in_features
    weight: torch.nn.Module
    if isinstance(kind, Quantization):
        matrix = random_matrix(kind, rows, columns, FLOAT8 if kind.group == 16 else torch.float16)
        if not kind.code:
            matrix = replace(matrix, scale=matrix.scale / 100)
        weight = QuantizedWeight(kind, rows, columns, matrix, CPU)
        weight.fill(0, matrix)
    else:
        numbers = torch.randn((rows, columns)) / columns**0.5
        if kind == "fp8":
            weight = Float8Weight(rows, columns, CPU)
            weight.fill(0, to_float8(numbers))
        else:
            dtype = getattr(torch, kind.removeprefix("wide "))
            weight = (WidePanels if kind.startswith("wide ") else HalfPanels)(rows, columns, dtype)
            weight.fill(0, numbers.to(dtype))
    linear.weights.append(weight)


def mixture(kind: str | Quantization, config: Experts = EXPERTS, hidden: int = 72) -> MixtureOfExperts:
    """Experts of random numbers, computed together."""
    torch.manual_seed(0)
    layer = MixtureOfExperts(hidden, config, torch.float32, NativeOperations())
    layer.router.weights.append(PlainWeight(torch.randn(config.count, hidden)))
    for linear in layer.experts.modules():
        if isinstance(linear, Linear):
            give_weight(linear, kind)
            if linear.bias is not None:
                linear.bias.weight.data.normal_()
    if layer.router.bias is not None:
        layer.router.bias.weight.data.normal_()
    layer.join()
    assert not layer.apart, layer.apart
    return layer


def apart(layer: MixtureOfExperts, x: torch.Tensor) -> torch.Tensor:
    """What the same experts give one after the other."""
    joined, layer.joined = layer.joined, None
    try:
        return layer(x)
    finally:
        layer.joined = joined


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("rows", "gated"), [(1, True), (2, True), (40, True), (600, True), (1, False), (40, False)])
def test_experts_together_have_the_bits_of_experts_apart(kind: str | Quantization, rows: int, gated: bool) -> None:
    layer = mixture(kind, EXPERTS if gated else replace(EXPERTS, activation="relu2", gated=False))
    x = torch.randn(rows, 72)
    together = layer(x)
    assert bool(together.isfinite().all())
    assert torch.equal(together, apart(layer, x))


GATES: list[dict[str, Any]] = [{"activation": "gelu_tanh"}, {"activation": "relu2"}, {"activation": "silu"}]
GATES += [{"activation": "relu"}]
GATES += [{"activation": "relu2", "gated": False}, {"activation": "gelu_tanh", "gated": False}]
GATES += [{"clamped": ClampedSwiGLU(1.702, 1.5)}, {"clamped": LimitedSwiGLU(0.5)}]


@pytest.mark.parametrize("changes", GATES, ids=str)
@pytest.mark.parametrize("biases", [False, True])
def test_every_gate_is_that_of_torch(changes: dict[str, object], biases: bool) -> None:
    layer = mixture("bfloat16", replace(EXPERTS, intermediate_size=28, biases=biases, **changes))
    x = torch.randn(50, 72)
    torch.testing.assert_close(layer(x), apart(layer, x), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["bfloat16", "fp8", Quantization(8, 32), Quantization(4, 32)], ids=str)
def test_a_row_has_the_same_bits_in_any_company_and_with_any_threads(kind: str | Quantization) -> None:
    layer = mixture(kind, replace(EXPERTS, intermediate_size=72), hidden=640)
    x = torch.randn(1500, 640)  # more pairs than there is room for at once
    together, threads = layer(x), torch.get_num_threads()
    for count in (1, 3):
        torch.set_num_threads(count)
        try:
            assert torch.equal(layer(x), together)
        finally:
            torch.set_num_threads(threads)
    for first, last in ((0, 1), (1, 3), (700, 717), (717, 1500)):
        assert torch.equal(layer(x[first:last]), together[first:last])


def test_a_row_that_is_not_finite_spoils_no_other() -> None:
    layer = mixture(Quantization(8, 32))
    x = torch.randn(12, 72)
    expected = layer(x)
    x[5] = float("nan")
    spoilt = layer(x)
    assert bool(spoilt[5].isnan().all())
    others = torch.arange(12) != 5
    assert torch.equal(spoilt[others], expected[others])


@pytest.mark.parametrize("kind", ["bfloat16", Quantization(8, 32), Quantization(4, 32)], ids=str)
def test_all_rows_may_choose_the_same_expert(kind: str | Quantization) -> None:
    layer = mixture(kind, replace(EXPERTS, per_token=1))
    x = torch.randn(1, 72) + torch.randn(1100, 72) / 1000
    assert torch.equal(layer(x), apart(layer, x))


def test_experts_of_different_kinds_are_computed_apart() -> None:
    layer = mixture("bfloat16")
    down = layer.experts[4].down
    down.weights = torch.nn.ModuleList()
    give_weight(down, Quantization(8, 32))
    layer.join()
    assert layer.apart == "experts' matrices are of different kinds"
    assert bool(layer(torch.randn(7, 72)).isfinite().all())


def assert_is_transformers(
    path: Path, theirs: Any, dtype: torch.dtype, near: float, share: float | None = None
) -> None:
    """The logits, whole and in chunks, of a model whose experts are compiled. With `share`, half of the rows at least
    are but for one of their size: products round to 8 bits, and a router may choose another expert for it."""
    ours: Transformer = load_transformer(open_checkpoint(path), "cpu", dtype)
    assert not ours.experts_apart
    ids = some_ids(97, 40)
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0].float()
    whole = logits_in_chunks(ours, ids, [len(ids)])
    if share is None:
        torch.testing.assert_close(whole, expected, atol=near, rtol=0)
    else:
        assert ((whole - expected).norm(dim=1) / expected.norm(dim=1)).median() < share
    for chunks in ([1], [16, 5]):
        assert torch.equal(logits_in_chunks(ours, ids, chunks), whole), chunks


@pytest.fixture
def activations_stay_float32() -> Iterator[None]:
    """Instructions for bf16, which round activations to it, are not used."""
    native.limit_bf16("shifts")
    yield
    native.limit_bf16("amx")


@pytest.mark.usefixtures("activations_stay_float32")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_models_compute_what_transformers_does(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    theirs = saved(kind, tmp_path, **changes)
    for parameter in theirs.parameters():  # no number is lost in the matrices that follow
        parameter.data = parameter.data.to(dtype).float()
    theirs.save_pretrained(tmp_path)
    assert_is_transformers(tmp_path, theirs, dtype, near=2e-4)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_K"])
def test_a_quantized_file_computes_what_transformers_does(kind: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "moe_intermediate_size": 256, "head_dim": 64, "initializer_range": 0.06}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    theirs = saved("Qwen3Moe", tmp_path, **MODELS["qwen3 moe"][1] | sizes | {"norm_topk_prob": True})
    path = save_gguf(theirs, tmp_path / "model.gguf", kind)
    assert_is_transformers(path, theirs, torch.float32, near=2e-3, share=None if kind == "Q8_0" else 0.1)


CHOICES: tuple[dict[str, Any], ...] = (
    {},
    {"normalized": False, "scale": 2.5},
    {"groups": 4, "groups_per_token": 2},
    {"groups": 4, "groups_per_token": 2, "best_of_group": 1},
)
MIXED = {"per_token": 2, "normalized": False, "jitter": 0.2}


@pytest.mark.parametrize(
    ("score", "changes"), [*itertools.product(("softmax", "sigmoid"), CHOICES), ("mixer", MIXED)], ids=str
)
def test_experts_are_chosen_as_by_torch_and_a_row_chooses_the_same_in_any_company(
    score: str, changes: dict[str, Any]
) -> None:
    config = replace(Experts(12, 4, 8, normalized=True), score=score, **changes)
    logits, bias, weights = 3 * torch.randn(400, 16)[:, :12], torch.randn(12) / 5, torch.rand(12) + 0.5
    route = mixture("bfloat16", config)._route
    shares, chosen = route(logits, bias, weights)
    theirs = choose(logits.double(), bias.double(), weights.double(), config)
    assert torch.equal(chosen.sort().values, theirs[1].sort().values)
    by_expert = [each.gather(1, numbers.argsort()) for each, numbers in ((shares, chosen), theirs)]
    torch.testing.assert_close(by_expert[0], by_expert[1].float(), rtol=2e-6, atol=1e-7)
    for some in (slice(7, 8), slice(100, 103)):
        alone = route(logits[some], bias, weights)
        assert torch.equal(alone[0], shares[some])
        assert torch.equal(alone[1], chosen[some])
    logits[3] = float("nan")
    spoilt = route(logits, bias, weights)
    assert bool(spoilt[0][3].isnan().all())
    assert len(set(spoilt[1][3].tolist())) == config.per_token
    assert torch.equal(spoilt[0][4:], shares[4:])


@pytest.mark.parametrize("columns", [8, 72, 640, 1029])
def test_a_product_of_floats_is_that_in_float64_and_the_same_bits_in_any_company(columns: int) -> None:
    x, weight = torch.randn(43, columns), torch.randn(29, columns) / columns**0.5
    together = native.float_product(x, weight)
    torch.testing.assert_close(together.double(), x.double() @ weight.double().T, rtol=0, atol=1e-5)
    for first, last in ((0, 1), (5, 7), (9, 12), (3, 43)):
        assert torch.equal(native.float_product(x[first:last], weight), together[first:last])


def test_routers_of_a_quantized_file_stay_floats_and_are_in_the_call(tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "moe_intermediate_size": 256, "head_dim": 64, "initializer_range": 0.06}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "norm_topk_prob": True}
    theirs = saved("Qwen3Moe", tmp_path, **MODELS["qwen3 moe"][1] | sizes)
    ours = load_transformer(open_checkpoint(save_gguf(theirs, tmp_path / "model.gguf", "Q8_0")), "cpu", torch.float32)
    for layer in ours.layers:
        assert isinstance(layer.feed_forward, MixtureOfExperts)
        kinds = {type(weight) for weight in layer.feed_forward.router.weights}
        assert kinds == {WidePanels if native.wide_serves(torch.float32) else FloatRows}
        assert layer.compiled is not None
        assert not layer.compiled.ends_early  # type: ignore[operator,union-attr]

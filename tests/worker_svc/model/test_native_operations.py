"""The compiled operations of a layer against torch's, and against themselves in other company. Attention:
`test_attention.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.random_llama import RandomCheckpoint, llama
from tandem.worker.checkpoints.grouped import Quantization
from tandem.worker.checkpoints.model_parts.beside_stream import PerLayerInputs
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.heads import KVHeads
from tandem.worker.checkpoints.model_parts.indexer import Indexer
from tandem.worker.checkpoints.model_parts.latents import Latents
from tandem.worker.checkpoints.model_parts.mlp import Activation, ClampedSwiGLU
from tandem.worker.checkpoints.model_parts.recurrences import DeltaNet, Lightning, Mamba, ShortConvolution
from tandem.worker.checkpoints.model_parts.rope import QueryGrowth
from tandem.worker.checkpoints.model_parts.stream import KeptNorms
from tandem.worker.model.cpu import layer as native_layer
from tandem.worker.model.cpu import native, stack
from tandem.worker.model.cpu.native.library import calls
from tandem.worker.model.cpu.operations import NativeOperations
from tandem.worker.model.kv_cache import CacheShape, KeyChannels, KVCache
from tandem.worker.model.kv_formats import Plain, kv_format
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.operations import TorchOperations
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.states import StateCache, StateShape, StateWork
from tandem.worker.model.unfinished import Unfinished
from tandem.worker.model.work import Work

OURS, TORCH = NativeOperations(), TorchOperations()


@pytest.fixture(autouse=True, params=[1, 3])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    if not native.available():
        pytest.skip("no AVX2, or no C compiler")
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("size", [8, 72, 2048])
def test_a_norm_is_that_in_float64_and_the_same_bits_in_any_company(size: int) -> None:
    x, delta, weight = numbers(40, size), numbers(40, size + 3)[:, :size], numbers(size)
    changed = x.clone()
    together = OURS.add_norm(changed, delta, weight, 1e-5)
    assert torch.equal(changed, x + delta)
    exact = torch.nn.functional.rms_norm(changed.double(), (size,), weight.double(), 1e-5)
    torch.testing.assert_close(together.double(), exact, atol=1e-6, rtol=1e-6)
    assert torch.equal(OURS.add_norm(changed, None, weight, 1e-5), together)
    for rows in (slice(0, 1), slice(5, 12)):
        assert torch.equal(OURS.add_norm(x[rows].clone(), delta[rows], weight, 1e-5), together[rows])
    # Whose rows are parts of longer ones, as products with columns that fill up a panel give them.
    longer = numbers(40, size + 3)[:, :size]
    alone = OURS.add_norm(longer[:1], None, weight, 1e-5)
    assert torch.equal(OURS.add_norm(longer, None, weight, 1e-5)[:1], alone)


POWERS = (-140, -40, -9, -7, -6, 4, 5, 8, 9, 30, 100, 120)  # also where an e4m3 float begins and ends


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16", "int8", "int6", "int4", "fp8"])
@pytest.mark.parametrize("head_dim", [8, 40, 64])
def test_rotating_and_storing_has_the_bits_of_torch(head_dim: int, stored: str) -> None:
    plain = getattr(torch, stored, None) if "float" in stored else None
    form = Plain(plain) if plain else kv_format(stored, torch.float32)
    heads, kv_heads, rows = 6, 2, 600  # so many that threads share them
    qkv = numbers(rows, heads + 2 * kv_heads, head_dim)
    qkv[7, heads:] = torch.tensor([float("nan"), float("inf"), -float("inf"), 3.39e38] * (head_dim // 4))
    turned = numbers(rows, 1, head_dim)
    qkv[8:20] *= torch.tensor([2.0**power for power in (-140, -40, -9, -7, -6, 4, 5, 8, 9, 30, 100, 120)]).view(
        -1, 1, 1
    )
    places = torch.randperm(640, generator=torch.Generator().manual_seed(1))[:rows]
    slots = torch.stack([places // 16, places % 16])
    channels = KeyChannels(numbers(kv_heads, head_dim), numbers(kv_heads, head_dim).exp())
    normalized = [channels] if form.normalizes_keys else None
    shape = CacheShape((KVHeads(kv_heads, head_dim),), 40, 16, form)
    caches = [KVCache(shape, "cpu", normalized) for _ in range(2)]
    queries = [
        operations.rotate_and_store(qkv.clone(), (turned.cos(), turned.sin()), cache, 0, slots)
        for operations, cache in zip((OURS, TORCH), caches, strict=True)
    ]
    assert torch.equal(*queries)
    for ours, theirs in zip(*((*cache.keys[0], *cache.values[0]) for cache in caches), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_what_a_row_computes_does_not_depend_on_what_others_hold() -> None:
    gate_up = numbers(33, 1232)
    together = OURS.swiglu(gate_up, 616)
    gate_up[4] = float("nan")
    spoilt = OURS.swiglu(gate_up, 616)
    assert spoilt[4].isnan().all()
    assert torch.equal(spoilt[5:], together[5:])


@pytest.mark.parametrize("size", [8, 40])
@pytest.mark.parametrize("norms", [0, 1, 2, 3])
def test_what_comes_before_the_rotation_is_as_torch_computes_it_and_the_same_bits_in_any_company(
    norms: int, size: int
) -> None:
    heads, kv_heads, rows = 6, 2, 50
    qkv = numbers(rows, heads + 2 * kv_heads, size)
    first = Unfinished(numbers(qkv[0].numel()), tuple(numbers(size + n)[:size] for n in range(1, norms + 1)), 1e-5)
    rotation = numbers(rows, 1, size).cos(), numbers(rows, 1, size).sin()
    slots = torch.stack([torch.arange(rows) // 16, torch.arange(rows) % 16])
    shape = CacheShape((KVHeads(kv_heads, size),), 4, 16, Plain(torch.float32))

    def run(operations: TorchOperations, some: slice) -> tuple[torch.Tensor, ...]:
        cache, turned = KVCache(shape, "cpu"), (rotation[0][some], rotation[1][some])
        queries = operations.rotate_and_store(qkv[some].clone(), turned, cache, 0, slots[:, some].contiguous(), first)
        page, place = slots[:, some]
        return queries.contiguous(), cache.keys[0][0][page, :, place], cache.values[0][0][page, :, place]

    together = run(OURS, slice(None))
    torch.testing.assert_close(together, run(TORCH, slice(None)), atol=2e-6, rtol=2e-6)
    alone = [run(OURS, slice(row, row + 1)) for row in range(rows)]
    for ours, theirs in zip(together, zip(*alone, strict=True), strict=True):
        assert torch.equal(ours, torch.cat(theirs))


def test_a_gate_with_gelu_is_that_in_float64() -> None:
    gate_up = numbers(33, 1232) * 4
    gate_up[3, :8] = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 60.0, -60.0, 1e4, -1e4])
    gate, up = gate_up.double().chunk(2, dim=1)
    exact = torch.nn.functional.gelu(gate, approximate="tanh") * up
    together = OURS.geglu(gate_up, 616)
    torch.testing.assert_close(together.double(), exact, atol=2e-6, rtol=2e-6)
    assert torch.equal(OURS.geglu(gate_up[5:6], 616), together[5:6])
    gate_up[4] = float("nan")
    assert OURS.geglu(gate_up, 616)[4].isnan().all()


def test_gelu_is_that_in_float64_wherever_it_is_large_or_small() -> None:
    x = torch.linspace(-13, 13, 8 * 6500)
    x[:8] = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 60.0, -60.0, 1e4, -1e4])
    ours, wide = OURS.activate("gelu", x[None].clone())[0].double(), x.double()
    exact = wide / 2 * torch.special.erfc(-wide * 0.5**0.5)  # which keeps the digits of small numbers
    torch.testing.assert_close(ours, exact, atol=1e-30, rtol=3e-5)
    torch.testing.assert_close(ours[x > -4], exact[x > -4], atol=1e-30, rtol=3e-6)
    beyond = torch.tensor([float("nan"), float("inf"), -float("inf"), 0, 0, 0, 0, 0])
    assert OURS.activate("gelu", beyond[None].clone())[0][:3].nan_to_num(7.0, 8.0).tolist() == [7, 8, 0]


@pytest.mark.parametrize("biased", [True, False])
def test_a_layer_norm_is_that_in_float64_and_the_same_bits_in_any_company(biased: bool) -> None:
    x, delta, weight, bias = numbers(7, 72) + 3, numbers(7, 72, 1)[..., 0], numbers(72), numbers(72, 1)[:, 0]
    added = (x + delta).double()
    wide = (weight.double(), bias.double() if biased else None)
    expected = torch.nn.functional.layer_norm(added, (72,), *wide, 1e-5)
    ours = (weight, bias if biased else None, 1e-5)
    here = x.clone()
    together = OURS.add_layer_norm(here, delta, *ours)
    assert torch.equal(here, x + delta)
    torch.testing.assert_close(together.double(), expected, atol=2e-6, rtol=2e-6)
    assert torch.equal(OURS.add_layer_norm(x[2:3].clone(), delta[2:3], *ours), together[2:3])


@pytest.mark.parametrize("activation", ["silu", "relu", "relu2", "gelu", "gelu_tanh"])
def test_an_activation_is_that_of_torch_and_the_same_bits_in_any_company(activation: Activation) -> None:
    x = 3 * numbers(5, 72)
    together = OURS.activate(activation, x.clone())
    torch.testing.assert_close(together, TORCH.activate(activation, x.clone()), atol=1e-6, rtol=2e-6)
    assert torch.equal(OURS.activate(activation, x[3:4].clone()), together[3:4])


@pytest.mark.parametrize("count", [72, 9, 3, 18])  # 18: of four numbers each, which torch computes
def test_gates_of_attention_are_those_in_float64_and_the_same_bits_in_any_company(count: int) -> None:
    x, gates = numbers(7, 72), 5 * numbers(7, 72 + count)[:, 72:]
    expected = x.double() * gates.double().sigmoid().repeat_interleave(72 // count, dim=1)
    together = OURS.gate_by_sigmoid(x.clone(), gates)
    torch.testing.assert_close(together.double(), expected, atol=1e-6, rtol=2e-6)
    assert torch.equal(OURS.gate_by_sigmoid(x[3:4].clone(), gates[3:4]), together[3:4])


@pytest.mark.parametrize("count", [72, 9, 3, 18])
def test_gates_by_softplus_are_those_in_float64_and_the_same_bits_in_any_company(count: int) -> None:
    x, gates = numbers(7, 72), 20 * numbers(7, 72 + count)[:, 72:]
    wide = torch.nn.functional.softplus(gates.double(), threshold=100)
    expected = x.double() * wide.repeat_interleave(72 // count, dim=1)
    together = OURS.gate_by_softplus(x.clone(), gates)
    torch.testing.assert_close(together.double(), expected, atol=1e-30, rtol=1e-6)
    torch.testing.assert_close(TORCH.gate_by_softplus(x.clone(), gates).double(), expected, atol=1e-30, rtol=1e-6)
    assert torch.equal(OURS.gate_by_softplus(x[3:4].clone(), gates[3:4]), together[3:4])


def test_a_limited_gate_is_that_in_float64_and_the_same_bits_in_any_company() -> None:
    gate_up = 3 * numbers(7, 144)
    gate, up = gate_up.double().chunk(2, dim=1)
    expected = torch.nn.functional.silu(gate).clamp(max=0.7) * up.clamp(-0.7, 0.7)
    together = OURS.limited_swiglu(gate_up, 72, 0.7)
    torch.testing.assert_close(together.double(), expected, atol=1e-6, rtol=2e-6)
    torch.testing.assert_close(TORCH.limited_swiglu(gate_up, 72, 0.7).double(), expected, atol=1e-6, rtol=2e-6)
    assert torch.equal(OURS.limited_swiglu(gate_up[3:4], 72, 0.7), together[3:4])


MULTIPLIERS = {"embedding_multiplier": 6.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3}
ONE_LATENT = {"num_kv_heads": 1, "head_dim": 32, "rotary_dim": 8}
UNGATED = Experts(
    **{"count": 8, "per_token": 3, "intermediate_size": 40, "normalized": True, "score": "sigmoid", "biased": True},
    **{"scale": 2.5, "shared_size": 80, "activation": "relu2", "gated": False},
)
LAYERS: Mapping[str, dict[str, Any]] = {
    "window": {"windows": (20, 0)},
    "multipliers, a layer that does not rotate": {"unrotated_layers": (1,), **MULTIPLIERS},
    "window with a theta of its own": {"windows": (20, 0), "window_rope_theta": 99.0},
    "Qwen2's biases": {"qkv_bias": True, "output_bias": True},
    "Qwen3's norms of heads": {"qk_norm": "head"},
    "OLMo's norms of all heads, and after its parts": {"qk_norm": "whole", "norm_placement": "after"},
    "OLMoE's limit": {"qk_norm": "whole", "qkv_limit": 0.5},
    "GLM's norms around its parts": {"norm_placement": "both", "qkv_bias": True},
    "Gemma's": {"norm_placement": "both", "activation": "gelu_tanh", "attention_soft_cap": 3.0},
    "no gate": {"activation": "relu2", "gated": False},
    "StarCoder's norms and biases": {
        **{"norm": "layer", "norm_bias": True, "qkv_bias": True, "output_bias": True, "mlp_bias": True},
        **{"gated": False, "activation": "gelu_tanh"},
    },
    "biases everywhere": {"qkv_bias": True, "output_bias": True, "mlp_bias": True, "gate_multiplier": 0.7},
    "Qwen3.5's gates of attention": {"qk_norm": "head", "attention_gate": True},
    "Llama 4's, queries growing": {"qk_norm": "unit", "query_growth": QueryGrowth(0.1, 8), "unrotated_layers": (1,)},
    "a norm before both parts at once": {"norm": "layer", "parallel": True},
    "a norm before each of both parts at once": {
        **{"norm": "layer", "norm_bias": True, "parallel": True, "parallel_norms": True, "mlp_bias": True},
        **{"gated": False, "activation": "gelu"},
    },
    "OLMo 1's norms without weights, and its limit": {
        **{"norm": "layer", "norm_weights": False, "qkv_limit": 0.5, "qkv_bias": True},
    },
    "HunYuan's norms of heads behind the rotation": {"qk_norm": "behind", "qkv_bias": True},
    "layers of one part each": {"feed_forward_alone": (1,), "gated": False, "activation": "relu2"},
    "Gemma 4's inputs and scales of layers, and another layer's keys": {
        **{"norm_placement": "both", "activation": "gelu_tanh", "qk_norm": "head", "value_norm": True},
        **{"per_layer_inputs": PerLayerInputs(16, 512), "layer_scale": True, "shared_layers": 1},
    },
    "Gemma 4's keys that are values": {"qk_norm": "head", "value_norm": True, "values_are_keys": True},
    "latents": {"latents": Latents(24, 8, 16, 16, query_rank=48), **ONE_LATENT},
    "Mistral 4's latents, queries growing": {
        **{"latents": Latents(24, 8, 16, 16, query_rank=48), "query_growth": QueryGrowth(0.1, 8), **ONE_LATENT},
    },
    "MiMo's shorter values, multiplied, and scores of nothing in windows": {
        **{"value_dim": 8, "mixing_multiplier": 0.7, "qkv_bias": True, "sinks": True, "sinks_in_windows": True},
        **{"windows": (0, 21), "num_kv_heads": 4, "full_heads": KVHeads(2, 16)},
    },
    "Step 3.5's heads, gates and limits by layer": {
        **{"query_heads": (4, 8), "windows": (0, 21), "window_rope_theta": 99.0, "rotary_dim": 8, "qk_norm": "head"},
        **{"window_rotary_dim": 16, "attention_gate": True, "gate_by_head": True, "qkv_bias": True, "mlp_bias": True},
        "experts": Experts(4, 2, 64, normalized=True, shared_size=72, dense_layers=(0,)),
        **{"swiglu_limits": (0.0, 0.3), "shared_swiglu_limits": (0.4, 0.2)},
    },
    "MiniMax-01's norms that take the stream's place": {
        **{
            "kept_norms": KeptNorms(1.5, 2.5, 0.7),
            "mixing_multiplier": 1.3,
            "experts": Experts(4, 2, 64, normalized=True, scale=0.9),
        },
    },
    "Laguna's gates by softplus": {"qk_norm": "head", "attention_gate": True, "gate_activation": "softplus"},
    "latents in 8 bits": {"latents": Latents(24, 8, 16, 16), **ONE_LATENT},
    "latents in 4 bits, their channels centred": {
        "latents": Latents(40, 8, 24, 12, query_rank=32),
        **ONE_LATENT,
        "head_dim": 48,
    },
    "latents of chosen tokens": {
        "latents": Latents(24, 8, 16, 16, query_rank=48),
        "indexer": Indexer(heads=4, size=16, most=21, layers=(0,)),
        **ONE_LATENT,
    },
    "latents of chosen tokens in 8 bits": {
        "latents": Latents(24, 8, 16, 16, query_rank=48),
        "indexer": Indexer(heads=18, size=16, most=50, layers=(0, 1)),
        **ONE_LATENT,
    },
    "experts, scores of nothing": {"sinks": True, "experts": Experts(4, 2, 64, normalized=True)},
    "experts behind a dense layer": {
        **{"qk_norm": "head"},
        "experts": Experts(4, 2, 64, normalized=False, dense_layers=(0,)),
    },
    "gpt-oss's experts": {
        "experts": Experts(4, 2, 64, normalized=True, clamped=ClampedSwiGLU(1.7, 7.0), biases=True),
    },
    "experts and biases that fill no register, a shared one with biases": {
        "experts": Experts(6, 2, 64, normalized=True, biases=True, shared_size=64, dense_layers=(1,)),
        "mlp_bias": True,
    },
    "DeepSeek's experts in groups": {
        "experts": Experts(
            **{"count": 8, "per_token": 3, "intermediate_size": 40, "normalized": True, "score": "sigmoid"},
            **{"biased": True, "groups": 4, "groups_per_token": 2, "scale": 2.5, "shared_size": 64},
        ),
    },
    "a shared expert by a router of its own": {
        "experts": Experts(6, 2, 64, normalized=False, shared_size=72, shared_router=True, logit_multiplier=0.5),
    },
    "Nemotron 3's experts": {"feed_forward_alone": (1,), "experts": UNGATED},
    "Nemotron 3's experts of another width": {
        "feed_forward_alone": (1,),
        "mlp_bias": True,
        "experts": replace(UNGATED, latent=48),
    },
    "Llama 4's expert": {
        "experts": Experts(4, 1, 64, normalized=False, score="sigmoid", shared_size=64, weighs_input=True),
    },
    "SparseMixer": {"experts": Experts(4, 2, 64, normalized=False, score="mixer", jitter=0.01)},
}


KINDS = (None, Quantization(8, 0), Quantization(4, 32))


@pytest.mark.parametrize(
    ("described", "kind"),
    [
        *(pytest.param({}, kind, id=f"plain, {kind}") for kind in KINDS),
        *(
            pytest.param(described, kind, id=name)
            for (name, described), kind in zip(LAYERS.items(), cycle(KINDS), strict=False)
        ),
    ],
)
def test_a_layer_in_one_call_has_the_bits_of_one_in_pieces(
    described: dict[str, Any], kind: Quantization | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(llama("tiny", 128), num_layers=2, **described)
    half = torch.bfloat16
    checkpoint = RandomCheckpoint(config, "cpu", half)
    model = load_transformer(checkpoint, "cpu", half, quantization=kind, operations=OURS)
    assert all(layer.compiled is not None for layer in model.layers)  # type: ignore[union-attr]
    assert not any(layer.compiled.ends_early for layer in model.layers)  # type: ignore[union-attr]
    stored = {None: "auto", Quantization(8, 0): "int8", Quantization(4, 32): "fp8"}[kind]
    shape = CacheShape(config.cache_heads, 8, 16, kv_format(stored, half))
    channels = [KeyChannels(numbers(*heads[:2]), numbers(*heads[:2]).exp()) for heads in config.cache_heads]
    tokens = np.arange(1, 60, dtype=np.int32)
    answers = []
    for most in (0, native_layer.MOST_ROWS):
        monkeypatch.setattr(native_layer, "MOST_ROWS", most)
        monkeypatch.setattr(native_layer, "MOST_WIDE_ROWS", most)
        runner = ModelRunner(model, KVCache(shape, "cpu", channels if stored == "fp8" else None))
        whole = runner.forward([Work(tokens, 0, np.arange(4), 3)])
        runner.forward([Work(tokens[:17], 0, np.arange(4, 8), 0)])
        steps = [runner.forward([Work(tokens[i : i + 1], i, np.arange(4, 8), 1)]).clone() for i in range(17, 59)]
        assert torch.equal(torch.cat([step[:1] for step in steps[-3:]]), whole[:3])
        answers.append(whole[:3])
    assert torch.equal(*answers)


def test_layers_that_follow_each_other_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(llama("tiny", 128), num_layers=4, recurrence=DeltaNet((1, 2), 2, 8, 16, 24, 4))
    model = load_transformer(RandomCheckpoint(config, "cpu", torch.bfloat16), "cpu", torch.bfloat16, operations=OURS)
    counts: list[int] = []

    class Counted:
        def tandem_layers(self, turns: int, count: int, *rest: int) -> int:
            counts.append(count)
            failed: int = calls().tandem_layers(turns, count, *rest)
            return failed

    monkeypatch.setattr(stack, "calls", Counted)
    runner = ModelRunner(model, KVCache(CacheShape(config.cache_heads, 8, 16, kv_format("auto", model.dtype)), "cpu"))
    runner.forward([Work(np.arange(1, 2, dtype=np.int32), 0, np.arange(4), 1)])
    assert counts == [4]
    # Of rows that are not wanted, the last layer computes less, piece by piece.
    runner.forward([Work(np.arange(1, 10, dtype=np.int32), 0, np.arange(4), 1)])
    assert counts == [4, 3]


@pytest.fixture(params=["amx", "twos"])
def way_that_packs_gates(request: pytest.FixtureRequest) -> Iterator[str]:
    try:
        if not native.limit_bf16(request.param):
            pytest.skip(f"no {request.param}")
        yield request.param
    finally:
        native.limit_bf16("amx")


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.usefixtures("way_that_packs_gates")
def test_a_row_has_the_same_bits_where_gates_are_packed_for_the_next_product(activation: Activation) -> None:
    config = replace(llama("tiny", 256), num_layers=2, activation=activation)
    assert config.intermediate_size % 32 == 0
    model = load_transformer(RandomCheckpoint(config, "cpu", torch.bfloat16), "cpu", torch.bfloat16, operations=OURS)
    shape = CacheShape(config.cache_heads, 32, 16, kv_format("auto", model.dtype))
    tokens = np.arange(1, 251, dtype=np.int32)

    def rows(*counts: int) -> torch.Tensor:
        runner = ModelRunner(model, KVCache(shape, "cpu"))
        work = [Work(tokens[:count], 0, np.arange(16) + 16 * n, count) for n, count in enumerate(counts)]
        return runner.forward(work)[: counts[0]]

    whole = rows(len(tokens), 100)
    # Few rows are gated apart; of more, as many are taken at once as their blocks are high, and these as many together.
    for count in (1, 12, 13, 17, 24, 25, 32, 33, 65, 97, 168, 169, 199, 249):
        assert torch.equal(rows(count), whole[:count]), count
    for beside in (6, 7, 40):
        assert torch.equal(rows(len(tokens), beside), whole), beside


def test_caches_of_one_model_take_turns() -> None:
    config = replace(llama("tiny", 128), num_layers=2)
    model = load_transformer(RandomCheckpoint(config, "cpu", torch.bfloat16), "cpu", torch.bfloat16, operations=OURS)
    channels = [KeyChannels(numbers(*heads[:2]), numbers(*heads[:2]).exp()) for heads in config.cache_heads]

    def runner(stored: str, of: list[KeyChannels] | None) -> ModelRunner:
        return ModelRunner(
            model, KVCache(CacheShape(config.cache_heads, 8, 16, kv_format(stored, model.dtype)), "cpu", of)
        )

    def step(runner: ModelRunner, place: int) -> torch.Tensor:
        return runner.forward([Work(np.array([place + 1], dtype=np.int32), place, np.arange(4), 1)]).clone()

    kinds = (("auto", None), ("int8", None), ("fp8", channels))
    alone = [[step(one, place) for place in range(5)] for one in (runner(*kind) for kind in kinds)]
    runners = [runner(*kind) for kind in kinds]
    by_turns = [[step(one, place) for one in runners] for place in range(5)]
    for of_one, in_turn in zip(alone, zip(*by_turns, strict=True), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(of_one, in_turn, strict=True))


@pytest.mark.parametrize("kind", [Quantization(8, 0), Quantization(4, 32)], ids=str)
def test_quantized_layers_are_compiled_also_where_the_processor_computes_in_bf16(kind: Quantization) -> None:
    config = replace(llama("tiny", 128), num_layers=2)
    checkpoint = RandomCheckpoint(config, "cpu", torch.bfloat16)
    model = load_transformer(checkpoint, "cpu", torch.bfloat16, quantization=kind, operations=OURS)
    assert model.dtype == torch.float32
    assert all(layer.compiled is not None for layer in model.layers)  # type: ignore[union-attr]


STATES = {
    "a gated delta rule": DeltaNet((0, 1), key_heads=2, value_heads=8, key_dim=16, value_dim=24, kernel=4),
    "a state space with biases": Mamba((0, 1), 16, 8, 2, 16, 4, input_bias=True, output_bias=True),
    "a convolution": ShortConvolution((0, 1), channels=64, kernel=3),
    "attention beside a state space": Mamba(
        **{"layers": (0, 1, 2), "heads": 6, "head_dim": 24, "groups": 2, "state_size": 16, "kernel": 4, "norm": "none"},
        **{"multipliers": (1.5, 0.5, 0.7, 0.9, 1.25), "output_multiplier": 0.5, "beside_attention": True},
    ),
    "a gated delta rule by matrices apart, betas doubled, norms after attention": DeltaNet(
        *((0, 1), 4, 4, 8, 16, 4), beta_multiplier=2.0, norm_eps=1e-3, apart=True
    ),
    "lightning attention, norms that take the stream's place": Lightning((0, 1), 4, 24, output_multiplier=0.7),
}
AFTER_ATTENTION = {"norm_placement": "after_attention", "qk_norm": "whole"}
BESIDE = {"mixing_multiplier": 0.75, "gate_multiplier": 1.5, "feed_forward_multiplier": 0.5}


ODD = 44  # an intermediate size that the call does not serve
_KIND_OF = [*zip(STATES, (*KINDS, KINDS[1], None, None), strict=True), ("a convolution", None)]


@pytest.mark.parametrize(
    ("name", "kind", "inner"), [*((*each, None) for each in _KIND_OF), *((name, None, ODD) for name in STATES)]
)
def test_a_layer_with_a_state_in_one_call_has_the_bits_of_one_in_pieces(
    name: str, kind: Quantization | None, inner: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = BESIDE if isinstance(states_of := STATES[name], Mamba) and states_of.beside_attention else {}
    others = AFTER_ATTENTION if isinstance(states_of, DeltaNet) and states_of.apart else beside
    if isinstance(states_of, Lightning):
        others = {"kept_norms": KeptNorms(1.5, 2.5, 0.7), "mixing_multiplier": 1.3}
    config = replace(llama("tiny", 128), num_layers=3, recurrence=states_of, **others)
    config = replace(config, intermediate_size=inner or config.intermediate_size)
    checkpoint = RandomCheckpoint(config, "cpu", torch.bfloat16)
    model = load_transformer(checkpoint, "cpu", torch.bfloat16, quantization=kind, operations=OURS)
    calls = [layer.compiled for layer in model.layers]  # type: ignore[union-attr]
    if inner is None:
        assert all(call is not None and not call.ends_early for call in calls)  # type: ignore[union-attr]
    else:  # what has its feed-forward part behind both cannot go on behind a call
        assert all(call is None if beside else call.ends_early for call in calls)  # type: ignore[union-attr]
    shape = CacheShape(config.cache_heads, 8, 16, kv_format("auto", torch.bfloat16))
    tokens = np.arange(1, 60, dtype=np.int32)
    answers, states = [], []
    for most in (0, native_layer.MOST_ROWS):
        monkeypatch.setattr(native_layer, "MOST_ROWS", most)
        monkeypatch.setattr(native_layer, "MOST_WIDE_ROWS", most)
        states.append(StateCache(StateShape(STATES[name], 2, 2), "cpu"))
        runner = ModelRunner(model, KVCache(shape, "cpu"), states[-1])
        whole = runner.forward([Work(tokens, 0, np.arange(4), 3, state=StateWork(0, 0, 59))])
        pages = np.arange(4, 8)
        runner.forward([Work(tokens[:17], 0, pages, 0, state=StateWork(1, 0, 17))])
        steps = [
            runner.forward([Work(tokens[i : i + 1], i, pages, 1, state=StateWork(1, i, i + 1))]).clone()
            for i in range(17, 59)
        ]
        assert torch.equal(torch.cat([step[:1] for step in steps[-3:]]), whole[:3])
        answers.append(whole[:3])
    assert torch.equal(*answers)
    for parts in ("recurrent", "tails"):
        assert all(torch.equal(*both) for both in zip(*(getattr(each, parts) for each in states), strict=True))

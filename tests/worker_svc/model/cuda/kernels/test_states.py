"""Kernels of layers with states compute what is written down plainly in float64, and what compiled code does; the bits
of a sequence depend neither on its chunks nor on its company; and whole models are those of transformers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tandem.worker.checkpoints.model_parts.recurrences import DeltaNet, KimiDelta, Lightning, Mamba, ShortConvolution
from tandem.worker.model.cpu.operations import cpu_operations
from tandem.worker.model.cuda.graphs import GraphedRunner
from tandem.worker.model.cuda.kernels import recurrences
from tandem.worker.model.cuda.operations import TritonOperations
from tandem.worker.model.delta_rule import DeltaRule
from tandem.worker.model.kimi_delta_rule import KimiDeltaRule
from tandem.worker.model.lightning import LightningRule
from tandem.worker.model.mamba_rule import MambaRule
from tandem.worker.model.operations import Operations
from tandem.worker.model.recurrence import Rule
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.short_convolution import ConvolutionRule
from tandem.worker.model.states import StateCache, StatePlan, StateShape, StateWork
from tandem.worker.model.work import Work
from tests.exhaustive import some
from tests.worker_svc.model.cuda.kernels.conftest import DEVICE, DTYPES
from tests.worker_svc.model.cuda.kernels.test_whole_model import cache_for, loaded, operations_for
from tests.worker_svc.model.llama_folders import some_ids
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.tiny_models.hybrids import (
    FALCON,
    GRANITE_HYBRID,
    HYBRID,
    KIMI,
    LFM2,
    LING,
    MINIMAX_01,
    OLMO_HYBRID,
)

SLOTS, JOURNAL = 5, 3


def random(seed: int, *size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def delta_rule(key: int = 8, value: int = 16, kernel: int = 3, **options: Any) -> DeltaRule:
    sizes = DeltaNet((0,), 1, 2, key, value, kernel, **options)
    heads = sizes.value_heads
    parts = -random(2, heads).exp(), random(3, heads), random(4, value)
    return DeltaRule(sizes, 1e-6, random(1, kernel, sizes.channels), *parts)


def kimi_rule(head_dim: int = 8, kernel: int = 3, least: float = 0.0) -> KimiDeltaRule:
    sizes = KimiDelta((0,), 2, head_dim, kernel, least=least)
    parts = -random(2, 2).exp(), random(3, sizes.size), random(4, head_dim)
    return KimiDeltaRule(sizes, 1e-6, random(1, kernel, sizes.channels), *parts)


def state_space(state: int = 8, head_dim: int = 8, **options: Any) -> MambaRule:
    sizes = Mamba((0,), 2, head_dim, 1, state, 4, least_dt=0.1, most_dt=2.0, multipliers=(0.8, 1, 1, 1, 0.7), **options)
    parts = -random(2, 2).exp(), random(3, 2), random(4, 2), random(5, sizes.size)
    return MambaRule(sizes, 1e-5, random(1, 4, sizes.channels), random(6, sizes.channels), *parts)


def lightning(head_dim: int = 8) -> LightningRule:
    sizes = Lightning((0,), 2, head_dim)
    rate = -random(2, 2).exp()
    ones = torch.ones(1, sizes.channels, device=DEVICE)
    return LightningRule(sizes, 1e-6, ones, rate, torch.zeros_like(rate), random(5, sizes.size))


def convolution(channels: int = 24) -> ConvolutionRule:
    return ConvolutionRule(ShortConvolution((0,), channels, 4), random(1, 4, channels), None)


RULES: dict[str, Callable[[], Rule]] = {
    "delta rule": delta_rule,
    "delta rule, sizes that fill nothing": lambda: delta_rule(6, 10, 1),
    "delta rule, betas doubled": lambda: delta_rule(beta_multiplier=2.0),
    "Kimi's delta rule": kimi_rule,
    "Kimi's delta rule, sizes that fill nothing": lambda: kimi_rule(6, 1),
    "Kimi's delta rule, decays with a bound": lambda: kimi_rule(least=-5.0),
    "state space": state_space,
    "state space, norm before the gate": lambda: state_space(5, 7, norm="before"),
    "state space without a norm": lambda: state_space(norm="none"),
    "lightning attention": lightning,
    "lightning attention, sizes that fill nothing": lambda: lightning(6),
    "convolution": convolution,
    "convolution of many channels": lambda: convolution(136),
}


def rows_for(rule: Rule, rows: int, seed: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of `mixed` and of `gates`."""
    sizes = rule.sizes
    if isinstance(sizes, ShortConvolution):
        return random(seed, rows, sizes.channels), 2 * random(seed + 1, rows, sizes.channels)
    if isinstance(sizes, Lightning):
        mixed = random(seed, rows, sizes.channels + sizes.size)
        return mixed, mixed[:, :0]
    gates = sizes.factors if isinstance(sizes, DeltaNet | KimiDelta) else sizes.heads
    return random(seed, rows, sizes.channels + sizes.size), 2 * random(seed + 1, rows, gates)


def new_cache(rule: Rule) -> StateCache:
    """States that hold what somebody has left there."""
    cache = StateCache(StateShape(rule.sizes, SLOTS, JOURNAL), DEVICE)
    for part in (*cache.recurrent, *cache.tails, *cache.journals):
        part.copy_(random(part.numel(), *part.shape))
    return cache


Works = Sequence[tuple[int, int, int, StateWork]]


def move(
    rule: Rule, works: Works, cache: StateCache, rows: tuple[torch.Tensor, torch.Tensor], ops: Operations | None = None
) -> torch.Tensor:
    plan = StatePlan(works, cache)
    return (ops or TritonOperations(4)).plan_states(plan, DEVICE).recur(rule, 0, *rows).clone()


def silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def in_float64(rule: Rule, mixed: Any, gates: Any) -> tuple[Any, Any]:
    """What all rows of a fresh sequence give, and the state behind them: written as the papers do."""
    sizes, kernel = rule.sizes, rule.sizes.kernel
    part = {name: getattr(rule, name) for name in ("filter_rows", "filter_bias", "norm", "bias") if hasattr(rule, name)}
    part = {name: each.double().cpu().numpy() for name, each in part.items() if each is not None}
    before = np.concatenate([np.zeros((kernel - 1, sizes.channels)), mixed[:, : sizes.channels]])
    heads, rows, columns = sizes.state
    state, out = np.zeros(sizes.state), []
    for t in range(len(mixed)):
        x = (before[t : t + kernel] * part["filter_rows"]).sum(0) + part.get("filter_bias", 0)
        if isinstance(rule, ConvolutionRule):
            out.append(x * gates[t])
            continue
        x, z = silu(x), mixed[t, sizes.channels :].reshape(heads, columns)
        y = np.zeros((heads, columns))
        for head in range(heads):
            if isinstance(rule, KimiDeltaRule):
                of_head = slice(head * rows, (head + 1) * rows)
                q, k, v = x.reshape(3, heads, rows)[:, head]
                q, k = q / np.sqrt((q * q).sum() + 1e-6) / math.sqrt(rows), k / np.sqrt((k * k).sum() + 1e-6)
                a = gates[t, heads:][of_head] + part["bias"][of_head]
                rate, least = float(rule.decay_rate[head]), rule.sizes.least
                decays = least / (1 + np.exp(rate * a)) if least else rate * np.logaddexp(0, a)
                state[head] *= np.exp(decays)[:, None]
                b = gates[t, head]
                state[head] += np.outer(k, (v - k @ state[head]) / (1 + np.exp(-b)))
                y[head] = q @ state[head]
            elif isinstance(rule, DeltaRule):
                of = rule.sizes
                at = head // (heads // of.key_heads) * rows
                q, k = x[at:][:rows], x[of.key_size + at :][:rows]
                q, k = q / np.sqrt((q * q).sum() + 1e-6) / math.sqrt(rows), k / np.sqrt((k * k).sum() + 1e-6)
                v = x[2 * of.key_size + head * columns :][:columns]
                b, a = gates[t, head], gates[t, heads + head]
                decay = np.exp(float(rule.decay_rate[head]) * np.logaddexp(0, a + part["bias"][head]))
                state[head] *= decay
                state[head] += np.outer(k, (v - k @ state[head]) * of.beta_multiplier / (1 + np.exp(-b)))
                y[head] = q @ state[head]
            elif isinstance(rule, LightningRule):
                v, k, q = x.reshape(3, heads, rows)[:, head]
                state[head] = np.exp(float(rule.rate[head])) * state[head] + np.outer(k, v)
                y[head] = q @ state[head]
            else:
                assert isinstance(rule, MambaRule)
                given, group = x[head * columns :][:columns], head // (heads // rule.sizes.groups) * rows
                write, read = x[sizes.size + group :][:rows], x[sizes.size + rule.sizes.groups * rows + group :][:rows]
                dt = np.logaddexp(0, gates[t, head] * rule.sizes.multipliers[4] + part["bias"][head])
                dt = min(max(dt, rule.sizes.least_dt), rule.sizes.most_dt)
                state[head] = np.exp(float(rule.rate[head]) * dt) * state[head] + np.outer(write, dt * given)
                y[head] = read @ state[head] + float(rule.skip[head]) * given
        if isinstance(rule, KimiDeltaRule):
            y = y / np.sqrt((y * y).mean(-1, keepdims=True) + rule.eps) * part["norm"] / (1 + np.exp(-z))
        elif isinstance(rule, LightningRule):
            y = y / np.sqrt((y * y).mean() + rule.eps) * part["norm"].reshape(heads, columns) / (1 + np.exp(-z))
        elif isinstance(rule, DeltaRule):
            y = y / np.sqrt((y * y).mean(-1, keepdims=True) + rule.eps) * part["norm"] * silu(z)
        else:
            gate, norm = silu(z * rule.sizes.multipliers[0]), rule.sizes.norm
            y = y if norm == "before" else y * gate
            y = y if norm == "none" else y / np.sqrt((y * y).mean() + rule.eps)  # of one group
            y = y * part["norm"].reshape(heads, columns) * (gate if norm == "before" else 1)
        out.append(y.ravel())
    return np.stack(out), state


@pytest.mark.parametrize("dtype", some(DTYPES, torch.float32), ids=str)
@pytest.mark.parametrize(
    "name",
    some(
        RULES,
        "delta rule",
        "delta rule, betas doubled",
        "Kimi's delta rule",
        "Kimi's delta rule, decays with a bound",
        "state space, norm before the gate",
        "lightning attention",
        "convolution",
    ),
)
def test_kernels_compute_what_is_written_in_float64(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrences, "_NUMBERS", 32)  # so that a head has several programs
    rule = RULES[name]()
    rows = tuple(each.to(dtype) for each in rows_for(rule, 7))
    cache = new_cache(rule)
    # Padding behind the rows: of nobody.
    ours = move(rule, [(0, 6, 0, StateWork(1, 0, 6))], cache, (rows[0], rows[1]))
    mixed, gates = (each[:6].double().cpu().numpy() for each in rows)
    expected, state = in_float64(rule, mixed, gates)
    near = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    np.testing.assert_allclose(ours[:6].double().cpu().numpy(), expected, rtol=near, atol=near)
    assert not ours[6].any()
    np.testing.assert_allclose(cache.recurrent[0][1].double().cpu().numpy(), state, rtol=2e-5, atol=2e-5)
    if dtype == torch.float32 and DEVICE.type == "cpu":
        theirs = new_cache(rule)
        compiled = move(rule, [(0, 6, 0, StateWork(1, 0, 6))], theirs, (rows[0], rows[1]), cpu_operations())
        torch.testing.assert_close(ours, compiled, rtol=1e-5, atol=1e-5)
        for one, other in ((cache.recurrent, theirs.recurrent), (cache.tails, theirs.tails)):
            torch.testing.assert_close(one[0], other[0], rtol=1e-5, atol=1e-5)


def everything(cache: StateCache, slots: Sequence[int]) -> list[torch.Tensor]:
    parts = cache.recurrent[0], cache.tails[0], cache.journals[0]
    return [part[slot] for part in parts for slot in slots]


@pytest.mark.parametrize("name", some(RULES, "delta rule", "Kimi's delta rule", "convolution"))
def test_bits_depend_neither_on_chunks_nor_on_company_nor_on_what_turned_out_wrong(name: str) -> None:
    rule = RULES[name]()
    mixed, gates = rows_for(rule, 10)
    other = rows_for(rule, 4, seed=20)
    whole = new_cache(rule)
    expected = move(rule, [(0, 6, 0, StateWork(0, 0, 5, ((2, 3), (4, 2))))], whole, (mixed[:6], gates[:6]))

    pieces = new_cache(rule)
    # One piece that ends in two drafts, of which the second is wrong; two others beside it and behind it.
    rows = [torch.cat((beside[:2], own[:3], beside[2:])) for own, beside in zip((mixed, gates), other, strict=True)]
    wrong = [each.clone() for each in rows]
    wrong[0][4], wrong[1][4] = 7, -7
    first = move(
        rule,
        [(0, 2, 0, StateWork(1, 0, 2)), (2, 3, 0, StateWork(0, 0, 1)), (5, 2, 3, StateWork())],
        pieces, (wrong[0], wrong[1]),
    )  # fmt: skip
    found = [first[2:4]]
    # What was right of it is repeated: the state is behind 1 token, and saved behind 2 on the way to 3.
    saves = ((2, 3),)
    found.append(move(rule, [(0, 1, 2, StateWork(0, 1, 3, saves))], pieces, (mixed[2:3], gates[2:3])))
    for at in range(3, 6):
        work = StateWork(0, at if at != 5 else 4, at if at == 4 else min(at + 1, 5), ((4, 2),) if at == 3 else ())
        found.append(move(rule, [(0, 1, at, work)], pieces, (mixed[at : at + 1], gates[at : at + 1])))
    assert torch.equal(torch.cat(found), expected)
    for slot in (0, 2, 3):
        of_whole, of_pieces = whole.recurrent[0][slot], pieces.recurrent[0][slot]
        assert torch.equal(of_whole, of_pieces), slot
        tail = rule.sizes.kernel - 1 + (slot == 0)  # behind the state, the last token
        assert torch.equal(whole.tails[0][slot, :tail], pieces.tails[0][slot, :tail]), slot
    assert torch.equal(whole.journals[0][0, :1], pieces.journals[0][0, :1])
    for one, before in zip(everything(whole, [1, 4]), everything(new_cache(rule), [1, 4]), strict=True):
        assert torch.equal(one, before)  # slots of nobody are left alone


@pytest.mark.parametrize("name", some(RULES, "state space"))
def test_numbers_of_any_size_stay_with_their_sequence(name: str) -> None:
    rule = RULES[name]()
    mixed, gates = rows_for(rule, 8)
    own = StateWork(0, 0, 2)
    alone = move(rule, [(0, 2, 0, own)], new_cache(rule), (mixed[:2], gates[:2]))
    mixed[2], gates[2] = 0, 0
    mixed[3:5], gates[3] = 0, 300
    gates[4], mixed[5], gates[5] = -300, 1e4, 1e3
    mixed[6], gates[6], gates[7] = math.nan, math.nan, math.inf
    cache = new_cache(rule)
    works = [(0, 2, 0, own), (2, 4, 0, StateWork(1, 0, 4)), (6, 1, 0, StateWork(2, 0, 1))]
    answers = move(rule, works, cache, (mixed, gates))
    assert torch.equal(answers[:2], alone)
    assert answers[2:6].isfinite().all() and cache.recurrent[0][1].isfinite().all()
    assert answers[6].isnan().all()
    expected, _ = in_float64(rule, mixed[2:6].double().cpu().numpy(), gates[2:6].double().cpu().numpy())
    torch.testing.assert_close(answers[2:6].double().cpu(), torch.from_numpy(expected), rtol=1e-4, atol=1e-5)


TINY = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3.5": (
        "Qwen3_5Text",
        HYBRID | TINY | {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
        | {"linear_num_key_heads": 1, "linear_num_value_heads": 2}
        | {"linear_key_head_dim": 8, "linear_value_head_dim": 8},
    ),
    "lfm2": ("Lfm2", LFM2 | TINY | {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}),
    "granite hybrid": (
        "GraniteMoeHybrid",
        GRANITE_HYBRID | TINY | {"num_local_experts": 0, "num_hidden_layers": 2, "layer_types": ["mamba", "attention"]}
        | {"mamba_n_heads": 4, "shared_intermediate_size": 32},
    ),
    "olmo hybrid": (
        "OlmoHybrid",
        OLMO_HYBRID | TINY | {"num_key_value_heads": 2, "num_hidden_layers": 2}
        | {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2}
        | {"linear_num_value_heads": 2, "linear_value_head_dim": 8},
    ),
    "kimi linear": (
        "KimiLinear",
        KIMI | {"hidden_size": 32, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
        | {"linear_head_dim": 8, "linear_num_heads": 2, "num_attention_heads": 2, "num_key_value_heads": 2},
    ),
    "ling 3": (
        "BailingHybrid",
        LING | {"hidden_size": 32, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
        | {"head_dim": 8, "num_attention_heads": 2, "num_key_value_heads": 2},
    ),
    "minimax 01": (
        "MiniMax",
        MINIMAX_01 | TINY | {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
        | {"intermediate_size": 24, "linear_attn_beta_factor": 1.3},
    ),
    "falcon h1": ("FalconH1", FALCON | TINY | {"mamba_n_heads": 6}),
}  # fmt: skip


@pytest.mark.usefixtures("_rows_alike")
@pytest.mark.parametrize("name", some(MODELS, "qwen3.5", "olmo hybrid"))
def test_models_with_states_are_those_of_transformers_whole_in_chunks_and_in_fixed_places(
    name: str, tmp_path: Path
) -> None:
    kind, changes = MODELS[name]
    theirs = saved(kind, tmp_path, **changes)
    model = loaded(tmp_path, operations_for(True, split=64))
    cache, ids = cache_for(model, 4), np.array(some_ids(97, 7), dtype=np.int32)
    sizes, pages = model.config.recurrence, np.arange(2)
    assert sizes is not None
    states = StateCache(StateShape(sizes, SLOTS, JOURNAL), DEVICE)
    usual, fixed = ModelRunner(model, cache, states), GraphedRunner(model, cache, 4, states)
    fixed.prepare()

    def run(runner: ModelRunner, start: int, end: int, samples: int, state: StateWork) -> torch.Tensor:
        company = [Work(ids[:1], 0, pages[:1] + 3, 1)] if runner is fixed else []
        works = [*company, Work(ids[start:end], start, pages, samples, state=state)]
        return runner.forward(works)[len(company) :][:samples].clone()

    whole = run(usual, 0, 7, 7, StateWork(0, 0, 7))
    with torch.inference_mode():
        expected = theirs(torch.tensor(ids[None].astype(np.int64))).logits[0]
    torch.testing.assert_close(whole.cpu(), expected, atol=1e-4, rtol=0)
    run(usual, 0, 5, 0, StateWork(1, 0, 5))
    found = [run(fixed, at, at + 1, 1, StateWork(1, 5, at)) for at in (5, 6)]
    assert torch.equal(torch.cat(found), whole[5:])

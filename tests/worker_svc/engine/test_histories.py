"""Random engine histories on a real transformer: every answer is bit-equal to the one that its request gets alone, and
some are cut somewhere and go on, by a worker that still has their pages or by one that has nothing.

`TANDEM_HISTORIES`, for all variants together, and `TANDEM_HISTORY_STEPS` make it longer; 200 and 1000 is what a release
is tried with. The seed of a history is its number and its variant. `TANDEM_HISTORY_FIRST` is the first one's number, so
that others than the suite's are tried, or one that a failure has told.

Alone, one request of `TOKEN_BY_TOKEN` gets its tokens one by one. The others' answers are put to the test as drafts:
each token is sampled anew, from a forward pass of the request alone, and the first that differs ends the draft. That
takes a tenth of the steps.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BailingHybridConfig,
    BambaConfig,
    DeepseekV3Config,
    FalconH1Config,
    Gemma3nTextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GlmMoeDsaConfig,
    GPT2Config,
    GraniteMoeHybridConfig,
    KimiLinearConfig,
    LagunaConfig,
    Lfm2MoeConfig,
    Lfm3Config,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MiMoV2FlashConfig,
    MiniMaxConfig,
    Mistral4Config,
    NemotronHConfig,
    OlmoHybridConfig,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Step3p7TextConfig,
)

from tandem.worker.engine.account import FinishReason
from tandem.worker.engine.engine import Engine
from tandem.worker.engine.pages import PageTable
from tandem.worker.engine.process.build import build_engine
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.request import Drafting, LogprobOptions, Request, Sharing, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.engine.scheduler import SchedulerLimits
from tandem.worker.engine.speculation.costs import Free
from tandem.worker.engine.states import StateTable
from tandem.worker.engine.stops import StopSequences
from tandem.worker.model.head import Head, HeadRunner
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import kv_format
from tandem.worker.model.runner import ModelRunner, Work
from tandem.worker.model.states import StateCache, StateShape
from tests.worker_svc.model.heads import add_head
from tests.worker_svc.model.step_model import register

register()
HISTORIES = int(os.environ.get("TANDEM_HISTORIES", "12"))
STEPS = int(os.environ.get("TANDEM_HISTORY_STEPS", "20"))
FIRST = int(os.environ.get("TANDEM_HISTORY_FIRST", "0"))
VOCABULARY, CONTEXT = 64, 96
CROWD = 16  # no more arrive while so many run or wait: a longer queue shows nothing new and takes long to repeat alone
TOKEN_BY_TOKEN = 8
GOES_ON = 3  # so many requests, one of which is cut
VARIANTS = [("llama", dtype, kv) for dtype in ("float32", "bfloat16") for kv in ("auto", "fp8", "int8", "int4")]
# The layers with states are compiled where their sizes are multiples of 8.
VARIANTS += [("hybrid", "float32", "auto"), ("hybrid", "bfloat16", "int8"), ("hybrid in torch", "float32", "auto")]
# Heads of two sizes, layers that look at another one's keys, and inputs of layers.
VARIANTS += [("gemma4", "float32", "auto"), ("gemma4", "bfloat16", "int4")]
# Layers in chunks, queries that grow, and one expert a token.
VARIANTS += [("llama4", dtype, kv) for dtype, kv in (("float32", "auto"), ("bfloat16", "int8"), ("float32", "int4"))]
# Convolutions beside experts, Mamba-2 beside attention in one layer, and in layers of their own.
VARIANTS += [("lfm2", "float32", "auto"), ("lfm2", "bfloat16", "int4"), ("falcon", "bfloat16", "auto")]
VARIANTS += [("nemotron", "bfloat16", "auto")]
VARIANTS += [("experts", "bfloat16", "auto")]  # compiled
VARIANTS += [("latents", "float32", "auto"), ("latents", "bfloat16", "int8"), ("latents", "float32", "int4")]
VARIANTS += [("latents", "bfloat16", "fp8")]
VARIANTS += [("granite", "bfloat16", "auto")]  # Mamba-2 in layers of their own beside experts
# A place in the list is a variant's seed: what is new comes last.
VARIANTS += [("llama", "float32", "int6"), ("llama", "bfloat16", "int6"), ("latents", "bfloat16", "int6")]
# States, and the head of the model's own checkpoint guesses.
VARIANTS += [("head", "float32", "auto"), ("head", "bfloat16", "int8")]
# Tokens that an indexer chooses, for two layers.
VARIANTS += [("indexed", "float32", "auto"), ("indexed", "bfloat16", "int8"), ("indexed", "float32", "fp8")]
# Norms by the kind of layer and betas of up to 2, Mamba-2 beside layers that rotate, a table of positions, convolutions
# beside windows, and a delta rule beside experts.
VARIANTS += [("olmo hybrid", "float32", "auto"), ("bamba", "bfloat16", "auto"), ("gpt2", "bfloat16", "auto")]
VARIANTS += [("lfm3", "bfloat16", "auto"), ("qwen3 next", "bfloat16", "int4"), ("olmo hybrid", "bfloat16", "int8")]
# Decays of each row of a state beside latents, values shorter than keys beside sinks and windows, queries that grow.
VARIANTS += [("kimi", "float32", "auto"), ("mimo", "bfloat16", "auto"), ("mistral4", "float32", "auto")]
VARIANTS += [("kimi", "bfloat16", "int8"), ("mimo", "float32", "int4")]
# Heads of queries by layer, gates of heads, gates with limits, parts that rotate by the kind of layer.
VARIANTS += [
    ("minimax", "float32", "auto"),
    ("minimax", "bfloat16", "int8"),
    ("step", "bfloat16", "auto"),
    ("laguna", "float32", "auto"),
    ("laguna", "bfloat16", "int8"),
]
# Gates of heads of latents, and decays with a bound.
VARIANTS += [("ling", "float32", "auto"), ("ling", "bfloat16", "int8")]
# Several streams, gates that are thinned, and layers that look at another one's keys.
VARIANTS += [("gemma3n", "float32", "auto"), ("gemma3n", "bfloat16", "int8"), ("gemma3n", "float32", "int4")]


TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
}


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-llama")
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(**TINY, num_hidden_layers=2)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tiny_others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for name, value_dim in (("hybrid", 16), ("hybrid in torch", 12)):
        torch.manual_seed(1)
        config = Qwen3_5TextConfig(
            **TINY,
            num_hidden_layers=3,
            head_dim=8,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=value_dim,
            bos_token_id=1,
        )
        folders[name] = tmp_path_factory.mktemp("hybrid")
        Qwen3_5ForCausalLM(config).save_pretrained(folders[name])
    folders["head"] = tmp_path_factory.mktemp("head")
    model = Qwen3_5ForCausalLM(config)
    model.save_pretrained(folders["head"])
    add_head("Qwen3_5Text", folders["head"], model)
    torch.manual_seed(1)
    experts = Qwen3MoeConfig(
        **TINY, num_hidden_layers=2, head_dim=8, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24
    )
    folders["experts"] = tmp_path_factory.mktemp("experts")
    Qwen3MoeForCausalLM(experts).save_pretrained(folders["experts"])
    torch.manual_seed(1)
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    gemma4 = Gemma4TextConfig(
        **TINY,
        num_hidden_layers=4,
        layer_types=kinds,
        sliding_window=20,
        head_dim=8,
        global_head_dim=16,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCABULARY,
        bos_token_id=1,
    )
    folders["gemma4"] = tmp_path_factory.mktemp("gemma4")
    Gemma4ForCausalLM(gemma4).save_pretrained(folders["gemma4"])
    torch.manual_seed(1)
    llama4 = Llama4TextConfig(
        **TINY,
        num_hidden_layers=3,
        head_dim=8,
        no_rope_layers=[1, 0, 1],
        attention_chunk_size=20,
        moe_layers=[1],
        intermediate_size_mlp=48,
        num_local_experts=3,
        floor_scale=8,
        bos_token_id=1,
        eos_token_id=2,
    )
    folders["llama4"] = tmp_path_factory.mktemp("llama4")
    Llama4ForCausalLM(llama4).save_pretrained(folders["llama4"])
    for name, config in others().items():
        torch.manual_seed(1)
        folders[name] = tmp_path_factory.mktemp(name)
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folders[name])
    return folders


_NOT_KIMIS = ("q_lora_rank", "n_routed_experts", "first_k_dense_replace", "n_group", "topk_group")


def others() -> dict[str, Any]:
    """Configs of models with latents, and with other states than a gated delta rule's."""
    mamba = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 2, "num_hidden_layers": 3}
    nemotron = {"mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2, "head_dim": 8}
    nemotron |= {"n_routed_experts": 4, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 16}
    experts = {"num_experts_per_tok": 2}
    latents = {"kv_lora_rank": 24, "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
    latents |= TINY | {"num_key_value_heads": 4, "first_k_dense_replace": 1}
    latents |= {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
    latents |= {"n_group": 4, "topk_group": 2}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    by_kind: dict[str, Any] = {"num_hidden_layers": 3, "head_dim": 8, "sliding_window": 20, "moe_intermediate_size": 24}
    by_kind |= {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}
    by_kind |= {"mlp_layer_types": ["dense", "sparse", "sparse"]}
    rope = {"rope_type": "default", "rope_theta": 100.0}
    parts = {"full_attention": rope | {"partial_rotary_factor": 0.5}, "sliding_attention": rope}
    by_kind["rope_parameters"] = parts
    deltas: dict[str, Any] = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8}
    deltas |= {"linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
    return {
        "gemma3n": Gemma3nTextConfig(
            **TINY | ids,
            num_hidden_layers=5,
            layer_types=[*["sliding_attention", "full_attention"] * 2, "sliding_attention"],
            sliding_window=20,
            head_dim=8,
            num_kv_shared_layers=2,
            activation_sparsity_pattern=[0.8, 0.0, 0.5, 0.0, 0.6],
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=VOCABULARY - 10,
            laurel_rank=8,
        ),
        "olmo hybrid": OlmoHybridConfig(**TINY, **deltas, **ids, num_hidden_layers=3),
        "qwen3 next": Qwen3NextConfig(
            **TINY,
            **experts,
            **deltas,
            num_hidden_layers=3,
            head_dim=8,
            num_experts=4,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=16,
        ),
        "lfm3": Lfm3Config(
            **TINY,
            num_hidden_layers=4,
            head_dim=8,
            sliding_window=20,
            **ids,
            layer_types=["conv", "full_attention", "conv", "sliding_attention"],
        ),
        "bamba": BambaConfig(**TINY, **mamba, attn_layer_indices=[1], num_logits_to_keep=None),
        "gpt2": GPT2Config(
            **ids, n_embd=32, n_head=4, n_layer=2, n_positions=CONTEXT, vocab_size=VOCABULARY, initializer_range=0.3
        ),
        "kimi": KimiLinearConfig(
            **{key: value for key, value in latents.items() if key not in _NOT_KIMIS},
            **ids,
            num_hidden_layers=3,
            num_experts=4,
            linear_head_dim=8,
            linear_num_heads=4,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
        ),
        "mimo": MiMoV2FlashConfig(
            **TINY,
            **ids,
            num_hidden_layers=3,
            head_dim=8,
            v_head_dim=4,
            sliding_window=20,
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=24,
            layer_types=["full_attention", "sliding_attention", "full_attention"],
        ),
        "ling": BailingHybridConfig(
            **{key: value for key, value in latents.items() if key not in _NOT_KIMIS},
            **ids,
            num_hidden_layers=3,
            num_local_experts=4,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            head_dim=8,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
        ),
        "minimax": MiniMaxConfig(
            **TINY,
            **experts,
            num_hidden_layers=3,
            head_dim=8,
            num_local_experts=4,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            **dict.fromkeys(("full_attn_alpha_factor", "linear_attn_alpha_factor", "mlp_alpha_factor"), 1.5),
        ),
        "step": Step3p7TextConfig(
            **TINY,
            **ids,
            **by_kind,
            n_routed_experts=4,
            num_experts_per_tok=2,
            share_expert_dim=24,
            num_sliding_attention_heads=6,
            swiglu_limits=[0.0, 0.5, 0.5],
            swiglu_limits_shared=[0.5, 0.0, 0.5],
        ),
        "laguna": LagunaConfig(
            **TINY,
            **ids,
            **by_kind,
            num_experts=4,
            num_experts_per_tok=2,
            shared_expert_intermediate_size=24,
            num_attention_heads_per_layer=[4, 6, 2],
        ),
        "mistral4": Mistral4Config(
            **latents,
            **ids,
            num_hidden_layers=2,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 100.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "llama_4_scaling_beta": 0.1,
            },
        ),
        "latents": DeepseekV3Config(**latents, num_hidden_layers=2),
        "indexed": GlmMoeDsaConfig(
            **latents | {"first_k_dense_replace": 2},
            num_hidden_layers=2,
            indexer_types=["full", "shared"],
            index_topk=12,
            index_head_dim=16,
            index_n_heads=4,
        ),
        "lfm2": Lfm2MoeConfig(
            **TINY,
            **experts,
            num_hidden_layers=3,
            layer_types=["conv", "full_attention", "conv"],
            num_experts=4,
            num_dense_layers=1,
            moe_intermediate_size=24,
        ),
        "falcon": FalconH1Config(**TINY, **mamba | {"num_hidden_layers": 2}, mamba_d_ssm=64, mamba_rms_norm=True),
        "nemotron": NemotronHConfig(**TINY, **nemotron, **experts, hybrid_override_pattern="M-*EM"),
        "granite": GraniteMoeHybridConfig(
            **TINY,
            **mamba,
            **experts,
            layer_types=["mamba", "attention", "mamba"],
            num_local_experts=4,
            shared_intermediate_size=24,
        ),
    }


@dataclass
class Answer:
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: FinishReason | None = None
    trim: int = 0  # of the last ids, which are not part of the answer


def random_request(draw: np.random.Generator, number: int, capacity: int, *, plain: bool) -> Request:
    """Prompts share prefixes often; lengths, samplers, priorities and salts differ. Steps of plain ones may overlap."""
    prompt = np.concatenate([np.arange(draw.integers(0, 40)) % 7, draw.integers(0, VOCABULARY, draw.integers(1, 20))])[
        : capacity - 2
    ]
    output = int(draw.integers(1, min(40, capacity - len(prompt), CONTEXT - len(prompt))))
    sampling = Sampling(
        temperature=float(draw.choice([0.0, 0.7, 1.3])),
        top_k=int(draw.choice([0, 8])),
        top_p=float(draw.choice([1.0, 0.9])),
        repetition_penalty=1.0 if plain else float(draw.choice([1.0, 1.3])),
        seed=int(draw.integers(0, 2**63)),
    )
    sequences = [draw.integers(0, VOCABULARY, length).tolist() for length in (1, 2)] if draw.random() < 0.3 else []
    stopping = Stopping(
        max_tokens=output,
        min_tokens=0 if plain and sequences else min(output, int(draw.choice([0, 5]))),
        stop_ids=frozenset({3} if draw.random() < 0.2 else ()),
        sequences=StopSequences(sequences) if sequences else None,
    )
    request = Request.make(
        number,
        prompt,
        sampling,
        stopping,
        priority=int(draw.integers(-2, 3)),
        caller=("", "b", "c")[number % 3],
        salt=str(draw.choice(["", "a"])),
        bypass=bool(draw.random() < 0.1),
        logprobs=LogprobOptions(sampled=True),
    )
    if not plain and draw.random() < 0.5:
        request.drafting = Drafting(int(draw.integers(1, 9)), ngram=int(draw.integers(0, 3)))
    return request


def other_sample(request: Request, number: int) -> Request:
    """One of the same prompt, as a group of samples has them."""
    other = again(request)
    other.number, other.sharing, other.priority = (
        number,
        Sharing(request.sharing.salt, request.sharing.bypass),
        request.priority,
    )
    other.caller = request.caller
    other.sampling = dataclasses.replace(request.sampling, seed=number)
    return other


def again(request: Request) -> Request:
    """The same request, fresh."""
    return Request.make(
        request.number,
        request.tokens[: request.prompt_tokens],
        request.sampling,
        request.stopping,
        bypass=True,
        logprobs=LogprobOptions(sampled=True),
    )


def gone_on(request: Request, known: list[int]) -> Request:
    """The rest of a request, of which somebody has the first ids."""
    rest = Request.make(
        request.number,
        request.tokens[: request.prompt_tokens],
        request.sampling,
        request.stopping,
        resumed=known,
        salt=request.sharing.salt,
        bypass=request.sharing.bypass,
        logprobs=LogprobOptions(sampled=True),
    )
    rest.drafting = request.drafting
    return rest


class Expectation:
    """A `Proposer` of what is expected to come."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> None:
        for request, count in zip(requests, counts, strict=True):
            expected = self.ids[request.output_tokens :][:count]
            request.tokens[request.num_tokens : request.num_tokens + len(expected)] = expected
            request.drafts = len(expected)

    def forget(self, request: Request) -> None:
        pass


class Forgetful:
    """A `Proposer` that computes a request anew, as a whole, for each of its guesses."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> None:
        for request, count in zip(requests, counts, strict=True):
            for place in range(count):
                end = request.num_tokens + place
                work = Work(request.tokens[:end], 0, np.arange(-(-end // 8)), 1)
                request.tokens[end] = int(self._runner.forward([work])[0].argmax())
                request.drafts = place + 1

    def forget(self, request: Request) -> None:
        pass


def collect(engine: Engine, answers: dict[int, Answer]) -> None:
    result = engine.step()
    rows = zip(result.numbers.tolist(), result.sampled.ids.tolist(), result.sampled.logprobs.tolist(), strict=True)
    for number, token, logprob in rows:
        answers[number].ids.append(token)
        answers[number].logprobs.append(logprob)
    for finish in result.finished:
        assert answers[finish.number].reason is None
        answers[finish.number].reason, answers[finish.number].trim = finish.reason, finish.trim


@pytest.mark.parametrize(("kind", "dtype", "kv_cache_dtype"), VARIANTS)
def test_any_history_gives_each_request_what_it_gets_alone(
    tiny_llama: Path, tiny_others: dict[str, Path], kind: str, dtype: str, kv_cache_dtype: str
):
    built = build_engine(
        EngineConfig(
            model=str(tiny_others.get(kind, tiny_llama)),
            device="cpu",
            threads=1,
            dtype=dtype,
            kv_cache_dtype=kv_cache_dtype,
            page_size=8,
            draft_model="mtp" if kind == "head" else "",
        )
    )
    assert built.row_invariant
    runner = built.engine._runner
    assert isinstance(runner, ModelRunner)
    per_variant = max(2, HISTORIES // len(VARIANTS))
    sizes = built.config.recurrence
    head = built.engine._draft_runner.model if built.engine._draft_runner is not None else None
    drafts = overlapped = kept = 0
    for history in range(FIRST, FIRST + per_variant):
        print(f"history {history}")  # which pytest tells of a failure
        plain = history % 2 == 1
        draw = np.random.default_rng([history, VARIANTS.index((kind, dtype, kv_cache_dtype))])
        pages = int(draw.integers(13, 40))
        stored = kv_format(kv_cache_dtype, getattr(torch, dtype))
        shape = CacheShape(built.config.cache_heads, pages, 8, stored, built.shape.hidden)
        cache = KVCache(shape, "cpu", runner.cache.key_channels)
        # The same model guesses for itself in half of the histories.
        guesser = ModelRunner(runner.model, KVCache(shape, "cpu", runner.cache.key_channels))
        if isinstance(head, Head):
            assert cache.hidden is not None
            cache.hidden.fill_(50.0)
            head.follow(runner.model, cache.hidden)
            plain_format = kv_format("auto", getattr(torch, dtype))
            head_shape = CacheShape(head.config.cache_heads, pages, 8, plain_format)
            guesser = HeadRunner(ModelRunner(head, KVCache(head_shape, "cpu")), 64)
        # A stale number that was read would show.
        caches = cache, guesser.cache
        parts = [part for one in caches for layer in (*one.keys, *one.values) for part in layer]
        for part in (*parts, *(keys for one in caches for keys in one.index_keys.values())):
            part.copy_((torch.randn(part.shape) * 50).to(part.dtype))
        limits = SchedulerLimits(max_batch_tokens=int(draw.integers(8, 80)), max_running=int(draw.integers(1, 9)))
        slots, states = None, None
        if sizes is not None:
            slots = StateTable(limits.max_running + int(draw.integers(1, 12)), 1, int(draw.integers(1, 10)))
            slots.spare = slots.total - limits.max_running
            states = StateCache(StateShape(sizes, slots.total, slots.journal), "cpu")
            for part in (*states.recurrent, *states.tails, *states.journals):
                part.fill_(torch.nan)
        engine = Engine(
            ModelRunner(runner.model, cache, states),
            PageTable(pages, 8, states=slots),
            limits,
            draft_runner=guesser if not plain and (sizes is None or head is not None) else None,
            draft_context_length=CONTEXT,
            overlap=True,
            costs=Free(),
        )
        if sizes is not None and head is None and not plain:
            engine._speculation.model = Forgetful(guesser)

        requests: dict[int, Request] = {}
        answers: dict[int, Answer] = {}
        step = 0
        while step < STEPS or engine.has_work:
            alive = len(engine.scheduler.running) + engine.scheduler.waiting
            if step < STEPS and alive < CROWD and draw.random() < 0.3:
                for _ in range(draw.integers(1, 4)):
                    request = random_request(draw, len(requests), pages * 8, plain=plain)
                    count = int(draw.integers(1, 5)) if draw.random() < 0.2 else 1
                    samples = [request, *(other_sample(request, len(requests) + i) for i in range(1, count))]
                    requests |= {sample.number: sample for sample in samples}
                    answers |= {sample.number: Answer() for sample in samples}
                    engine.submit(*samples)
            if requests and draw.random() < 0.05:
                engine.abort(int(draw.integers(0, len(requests))))
            if draw.random() < 0.01:
                engine.table.clear()
            if engine.has_work:
                collect(engine, answers)
                overlapped += engine._flight is not None
            else:
                engine.tidy()
            engine.check()
            step += 1
        assert engine.table.referenced == 0
        statistics = engine.scheduler.statistics
        # Of a head of random numbers, hardly any are accepted.
        drafts += statistics.draft_tokens_accepted if head is None else statistics.draft_tokens_proposed
        kept += engine.scheduler.statistics.cached_prompt_tokens
        engine.overlap = False
        engine._speculation.model = expectation = Expectation()

        for number, request in requests.items():
            crowded = answers[number]
            assert crowded.reason is not None
            alone = {number: Answer()}
            lonely = again(request)
            if number % TOKEN_BY_TOKEN:
                expectation.ids = crowded.ids
                lonely.drafting = Drafting(CONTEXT, ngram=0)
                engine._speculation.learn(lonely, 10_000, 10_000)  # as if all were accepted
            engine.submit(lonely)
            while engine.has_work:
                collect(engine, alone)
            expected = alone[number]
            if crowded.reason is FinishReason.CANCELLED:
                expected.ids = expected.ids[: len(crowded.ids)]
                expected.logprobs = expected.logprobs[: len(crowded.logprobs)]
            else:
                assert (crowded.reason, crowded.trim) == (expected.reason, expected.trim)
            assert crowded.ids == expected.ids
            assert crowded.logprobs == expected.logprobs, "not the same bits"
            if number % GOES_ON == 0 and len(crowded.ids) > 1 and crowded.reason is not FinishReason.CANCELLED:
                cut = int(draw.integers(1, len(crowded.ids)))
                if draw.random() < 0.5:
                    engine.table.clear()  # another worker
                rest = {number: Answer()}
                expectation.ids = crowded.ids
                engine.submit(gone_on(request, crowded.ids[:cut]))
                while engine.has_work:
                    collect(engine, rest)
                assert rest[number].ids == crowded.ids[cut:]
                assert rest[number].logprobs == crowded.logprobs[cut:], "not the same bits"
                assert (rest[number].reason, rest[number].trim) == (crowded.reason, crowded.trim)
                engine.check()
    assert drafts and overlapped and kept

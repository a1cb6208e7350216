"""Models of every architecture in sizes drawn by chance: logits as transformers', and the same bits in chunks and in
company, in float32, 16 bits and quantized, and with caches in every form."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.checkpoints.grouped import Quantization
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.engine.process.calibration import key_channels
from tandem.worker.model.kv_formats import FEW_BITS
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.row_invariance import choose_padding
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.transformer import Transformer
from tandem.worker.model.weights import MadeOf
from tests.worker_svc.model.llama_folders import logits_in_chunks, new_cache, new_states, some_ids
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.tiny_models import MODELS
from tests.worker_svc.model.tiny_models.shared import ABSENT, SIZES

# Of logits up to 4; a state adds up all tokens, and transformers is as far from float64 as we are.
NEAR, NEAR_WITH_STATES = 2e-4, 1e-3
MADE_OF: dict[str, MadeOf] = {
    "bfloat16": "stored",
    "int8": Quantization(8, 0),
    "int8 by 64": Quantization(8, 64),
    "int4 by 32": Quantization(4, 32),
    "fp8": "fp8",
}
# Multiples of what instructions take at once, and others.
HEADS = (2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 72, 80, 96, 128, 160, 256)
HIDDEN = (16, 20, 24, 32, 40, 48, 60, 64, 72, 96, 100, 120, 128, 130, 192)
INNER = (1, 3, 7, 8, 15, 16, 24, 31, 32, 33, 40, 64, 65, 96, 100, 128, 160, 256)
STATES = (2, 6, 8, 16, 24, 32, 40, 64, 128)
# What is drawn where a model has such a field.
FIELDS: dict[str, tuple[int, ...]] = {
    "intermediate_size": INNER,
    "moe_intermediate_size": INNER,
    "shared_expert_intermediate_size": INNER,
    "share_expert_dim": INNER,
    "sliding_window": (1, 2, 5, 16, 17, 21, 40),
    "attention_chunk_size": (1, 2, 5, 16, 17, 21, 40),
    "linear_key_head_dim": STATES,
    "linear_value_head_dim": STATES,
    "linear_conv_kernel_dim": (2, 3, 4, 5),
    "conv_L_cache": (2, 3, 4, 5),
    "mamba_d_state": STATES,
    "ssm_state_size": STATES,
    "kv_lora_rank": (2, 6, 8, 16, 22, 24, 32, 64, 96),
    "q_lora_rank": (1, 7, 8, 16, 32, 33),
    "qk_nope_head_dim": (1, 2, 8, 9, 16, 24, 64),
    "qk_rope_head_dim": (2, 4, 6, 8, 16, 32),
    "v_head_dim": (1, 2, 8, 9, 16, 24, 64),
    "index_topk": (1, 2, 5, 16, 17, 40),
    "index_head_dim": (32, 34, 36, 40, 64, 100),
    "index_n_heads": (16, 17, 20, 32),  # with few, scores may be equal, of which transformers takes any
}
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
CHOSEN = ("num_experts_per_tok", "top_k_experts")


def drawn(random: Random) -> tuple[str, str, dict[str, Any]]:
    """The name of a row of `MODELS`, its class, and its settings with other sizes."""
    name = random.choice(sorted(MODELS))
    kind, changes = MODELS[name]
    return name, kind, sized(kind, changes, random)


def sized(kind: str, changes: dict[str, Any], random: Random) -> dict[str, Any]:
    """The settings of such a model with other sizes."""
    given = SIZES | changes
    sizes: dict[str, Any] = {
        field: random.choice(choices) for field, choices in FIELDS.items() if isinstance(given.get(field), int)
    }
    sizes["vocab_size"] = random.choice((5, 31, 32, 33, 64, 97, 100, 128, 160, 257))
    sizes["num_key_value_heads"] = random.choice((1, 1, 2, 3, 4))
    sizes["num_attention_heads"] = heads = sizes["num_key_value_heads"] * random.choice((1, 2, 3, 4, 5, 8))
    if "kv_lora_rank" in given:  # a key for each query
        sizes["num_key_value_heads"] = heads
        sizes["hidden_size"] = heads * random.choice((3, 4, 8, 10, 16))
    else:
        sizes |= _widths(given, kind, heads, random)
    if kind == "DeepseekV4":
        sizes |= _compressed(heads, random)
    if "vocab_size_per_layer_input" in given:
        sizes["vocab_size_per_layer_input"] = sizes["vocab_size"]
    experts = next((field for field in EXPERTS if given.get(field)), None)
    chosen = next((field for field in CHOSEN if field in given), None)
    if experts and chosen and "n_group" not in given:
        sizes[experts] = random.choice((1, 2, 3, 5, 8, 12))
        sizes[chosen] = 1 if kind == "Llama4Text" else random.randint(1, min(sizes[experts], 6))
    if "linear_num_key_heads" in given:
        sizes["linear_num_key_heads"] = random.choice((1, 2, 3))
        sizes["linear_num_value_heads"] = sizes["linear_num_key_heads"] * random.choice((1, 2, 3))
    if given.get("num_attention_heads_per_layer"):
        sizes["num_attention_heads_per_layer"] = [
            sizes["num_key_value_heads"] * random.choice((1, 2, 3)) for _ in given["num_attention_heads_per_layer"]
        ]
    if given.get("num_sliding_attention_heads"):
        sizes["num_sliding_attention_heads"] = sizes["num_key_value_heads"] * random.choice((1, 2, 3))
    return _in_own_names(kind, changes | sizes)


def _compressed(heads: int, random: Random) -> dict[str, Any]:
    """The sizes of keys that are compressed, and of streams."""
    head_dim, index = random.choice(HEADS), random.choice(FIELDS["index_head_dim"])
    rotated = 2 * random.randint(1, min(head_dim, index) // 2)
    sparse, heavy = random.choice((1, 2, 4, 5, 16)), random.choice((1, 3, 8, 16, 20, 64))
    return {
        **{"num_key_value_heads": 1, "head_dim": head_dim, "index_head_dim": index},
        "partial_rotary_factor": rotated / head_dim if int(rotated / head_dim * head_dim) == rotated else 1.0,
        **{"o_groups": random.choice([n for n in (1, 2, 3, 4) if heads % n == 0]), "o_lora_rank": random.choice(INNER)},
        **{"hc_mult": random.choice((1, 2, 3, 4)), "hc_sinkhorn_iters": random.choice((1, 2, 20))},
        "compress_rates": {"compressed_sparse_attention": sparse, "heavily_compressed_attention": heavy},
    }


def _in_own_names(kind: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """The sizes of older models as these call them, which have not all of them."""
    if kind in _LEARNED:
        return _learned(kind, dict(sizes))
    if kind not in ("GPTNeoX", "GPTJ", "Falcon"):
        return sizes
    sizes = dict(sizes) | {"num_key_value_heads": None, "head_dim": None}
    if kind == "Falcon":
        newer = sizes.get("new_decoder_architecture")
        sizes["num_kv_heads"] = next(n for n in (3, 2, 1) if sizes["num_attention_heads"] % n == 0) if newer else None
        sizes["ffn_hidden_size"], sizes["intermediate_size"] = sizes.get("intermediate_size") or 80, None
    if kind == "GPTJ":
        usual = {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_inner": "intermediate_size"}
        for theirs, name in usual.items():
            sizes[theirs], sizes[name] = sizes.get(name) or sizes.get(theirs), None
        sizes["rotary_dim"] = min(sizes["n_embd"] // sizes["n_head"], sizes["rotary_dim"])
    return sizes


_LEARNED = ("GPT2", "GPTBigCode", "GPTNeo", "OPT")  # positions


def _learned(kind: str, sizes: dict[str, Any]) -> dict[str, Any]:
    sizes |= {"num_key_value_heads": None, "head_dim": None}
    usual = {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_inner": "intermediate_size"}
    usual = {"GPTNeo": {"num_heads": "num_attention_heads"}, "OPT": {"ffn_dim": "intermediate_size"}}.get(kind, usual)
    for theirs, name in usual.items():
        sizes[theirs], sizes[name] = sizes.get(name) or sizes.get(theirs), None
    return sizes


def _widths(given: dict[str, Any], kind: str, heads: int, random: Random) -> dict[str, Any]:
    """The hidden size, and that of heads where a model has it apart."""
    rope = str(given.get("rope_parameters"))
    # What is rotated must be a number of pairs, and states divide the hidden size.
    kept = "partial_rotary_factor" in rope or kind in ("Glm", "Glm4", "Glm4Moe", "MiniMaxM2", "Qwen3Next", "Helium")
    if given.get("head_dim") is None:
        even = {"StableLm": 8, "Phi": 4, "GPTNeoX": 4, "Bamba": 4}.get(
            kind, 2
        )  # a quarter of which is rotated, or half
        possible = [each for each in HEADS if each * heads <= 512 and each % even == 0]
        size = 8 if "longrope" in rope else random.choice(possible)
        if kind == "Bamba":  # whose states have six heads
            size *= 3
        return {"hidden_size": heads * size}
    hidden = random.choice(HIDDEN)
    if "mamba_n_heads" in given or "mamba_num_heads" in given:
        hidden = hidden // 24 * 24 + 24
    if kind == "Helium":  # whose heads must divide it
        hidden = heads * given["head_dim"]
    # whose configuration wants it so
    if kind in ("Cwm", "HyperCLOVAX", "Exaone", "VaultGemma", "Jais2", "Gemma3nText"):
        hidden = hidden // heads * heads + heads
    return {"hidden_size": hidden} | ({} if kept else {"head_dim": random.choice(HEADS)})


def compared(kind: str, changes: dict[str, Any], length: int, folder: Path) -> str:
    """Says what is wrong with such a model; "" if nothing is."""
    theirs = saved(kind, folder, **changes)
    checkpoint = open_checkpoint(folder)
    ours = load_transformer(checkpoint, "cpu", torch.float32, config=in_context(checkpoint.config, length))
    ids = some_ids(changes["vocab_size"], length)
    whole, problems = _alone(ours, ids, "float32")
    problems += filter(None, [far(whole, theirs, ids, NEAR if ours.config.recurrence is None else NEAR_WITH_STATES)])
    problems += _cached(ours, ids, "float32")
    for number, (how, made_of) in enumerate(MADE_OF.items()):
        other = load_transformer(checkpoint, "cpu", torch.bfloat16, quantization=made_of, config=ours.config)
        problems += _alone(other, ids, how)[1]
        if number == length % len(MADE_OF):
            problems += _cached(other, ids, how)
    return "; ".join(problems)


def in_context(config: ModelConfig, length: int) -> ModelConfig:
    """The config with the length as its context where frequencies depend on that, which is the sequence's length to
    transformers."""
    scaling = config.rope_scaling
    if scaling is None or scaling.kind not in ("dynamic", "longrope"):
        return config
    return config.with_context_length(length)


@torch.inference_mode()
def logits_of(theirs: Any, ids: list[int]) -> torch.Tensor:
    """What transformers computes, `[len(ids), vocab]`."""
    logits: torch.Tensor = theirs(torch.tensor([ids])).logits[0]
    return logits


class _Choices(TorchFunctionMode):
    """Sees by how much what a router or an indexer chooses is better than the next, at the least."""

    def __init__(self) -> None:
        super().__init__()
        self.least = float("inf")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.topk, torch.Tensor.topk):
            scores, k = args[0], args[1] if len(args) > 1 else kwargs["k"]
            if k < scores.shape[-1]:
                ordered = scores.double().sort(-1, descending=True).values
                between = (ordered[..., k - 1] - ordered[..., k])[torch.isfinite(ordered[..., k])]
                size = scores[torch.isfinite(scores)].abs().max().item()
                if len(between):
                    self.least = min(self.least, between.min().item() / max(size, 1e-30))
        return func(*args, **kwargs)


def _close_choice(theirs: Any, ids: list[int]) -> bool:
    """Tells whether something is chosen that is hardly better than the next: any rounding may choose the other."""
    with _Choices() as choices:
        logits_of(theirs, ids)
    return choices.least < 1e-6


@torch.no_grad()
def _moved_by_rounding(theirs: Any, ids: list[int], exact: torch.Tensor) -> float:
    """How far logits in float64 move where each weight does by as little as float32 rounds it. Some models make much of
    it for a token or two, and whoever rounds otherwise is far from the other there."""
    before = [weight.clone() for weight in theirs.parameters()]
    farthest = 0.0
    for _ in range(4):
        for weight, exactly in zip(theirs.parameters(), before, strict=True):
            weight.copy_(exactly * (1 + 2**-24 * torch.randn_like(exactly)))
        farthest = max(farthest, (logits_of(theirs, ids) - exact).square().mean().sqrt().item())
    for weight, exactly in zip(theirs.parameters(), before, strict=True):
        weight.copy_(exactly)
    return farthest


def far(ours: torch.Tensor, theirs: Any, ids: list[int], near: float) -> str:
    """Says how far logits are from transformers', if they are neither near nor about as near to those in float64."""
    expected = logits_of(theirs, ids).float()
    distance = (ours - expected).abs().max().item()
    if distance <= near * max(1.0, expected.abs().max().item() / 4):
        return ""
    if not torch.isfinite(expected).all():
        return "" if torch.equal(torch.isfinite(ours), torch.isfinite(expected)) else "finite where transformers is not"
    exact = logits_of(theirs.double(), ids)
    own, its = ((one.double() - exact).square().mean().sqrt().item() for one in (ours, expected))
    if own > 4 * its:
        its = max(its, _moved_by_rounding(theirs, ids, exact))
    theirs.float()
    if own <= 4 * its or _close_choice(theirs, ids):
        return ""
    away = f"{distance:.2g} from transformers, of {expected.abs().max():.2g}"
    return f"{away}; {own:.2g} from float64, transformers {its:.2g}"


def _alone(model: Transformer, ids: list[int], how: str) -> tuple[torch.Tensor, list[str]]:
    """The logits of all ids at once, and what depends on chunks or company."""
    problems = []
    cache = new_cache(model, 128, model.dtype)
    runner = ModelRunner(model, cache, new_states(model, cache))
    if not choose_padding(runner):
        problems.append(f"{how}: other bits in company")
    whole = logits_in_chunks(model, ids, [len(ids)], runner.row_multiple)
    if not torch.isfinite(whole).all():
        problems.append(f"{how}: not finite")
    problems += [
        f"{how}: other bits in chunks {chunks}"
        for chunks in ([17, 1], [16, 5])
        if not torch.equal(logits_in_chunks(model, ids, chunks, runner.row_multiple), whole)
    ]
    return whole, problems


def _cached(model: Transformer, ids: list[int], how: str) -> list[str]:
    """Which forms of keys and values depend on chunks."""
    problems = []
    if model.config.compression is not None:  # which is refused
        return problems
    sizes = [heads.size for heads in model.config.cache_heads]
    for form in FEW_BITS:
        if any(size % form.multiple for size in sizes):
            continue
        channels = key_channels(model, torch.device("cpu"), model.dtype, 1) if form.normalizes_keys else None
        whole, *others = (
            logits_in_chunks(model, ids, chunks, cache=new_cache(model, len(ids), model.dtype, form, channels))
            for chunks in ([len(ids)], [17, 1], [16, 5])
        )
        if not torch.isfinite(whole).all():
            problems.append(f"{how}, cache of {form.name}: not finite")
        if not all(torch.equal(each, whole) for each in others):
            problems.append(f"{how}, cache of {form.name}: other bits in chunks")
    return problems


def fuzz(minutes: float, seed: int, first: int = 1, most: int | None = None) -> Counter[str]:
    """Compares models, from number `first` on; what was found, each with how often."""
    found: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    until, number = time.monotonic() + minutes * 60, first
    while time.monotonic() < until and (most is None or number < first + most):
        random = Random(f"{seed} shape {number}")
        name, kind, changes = drawn(random)
        length = random.choice((1, 2, 17, 33, 50, 63))
        with tempfile.TemporaryDirectory() as folder:
            try:
                problem = compared(kind, changes, length, Path(folder))
                end = "differs" if problem else "equal"
            except CheckpointError as error:
                problem, end = "", f"refused: {str(error).partition(': ')[2]}"
            except Exception:
                problem = traceback.format_exc()
                # Sizes that transformers itself has no model of.
                ours = "/transformers/" not in problem.rpartition('File "')[2] and "in saved\n" not in problem
                problem, end = (problem, "broken") if ours else ("", f"not made: {problem.splitlines()[-1][:100]}")
        ends[end] += 1
        if problem:
            found[name] += 1
            shown = {key: None if value is ABSENT else value for key, value in changes.items()}
            print(f"FOUND {name}, shape {number}, {length} ids: {problem}\n  {shown}", flush=True)
        number += 1
    print(f"{number - first} shapes")
    for end, count in sorted(ends.items()):
        print(f"  {count} {end}")
    return found

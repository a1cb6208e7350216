"""Random Llamas made by transformers, saved in both layouts, and a way to run ours on token ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tandem.worker.model.attention import Segment
from tandem.worker.model.kv_cache import CacheShape, KeyChannels, KVCache
from tandem.worker.model.kv_formats import KVFormat, Plain
from tandem.worker.model.states import StateCache, StatePlan, StateShape, StateWork
from tandem.worker.model.transformer import Transformer

PAGE_SIZE = 16  # small, so that short sequences cross pages


def random_llama(**sizes: Any) -> LlamaForCausalLM:
    """A reference model whose weights, norms included, are random enough that every part shows in the logits."""
    settings: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 60,
        "intermediate_size": 100,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.15,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "attn_implementation": "eager",
    }
    torch.manual_seed(0)
    model: LlamaForCausalLM = randomized(LlamaForCausalLM(LlamaConfig(**(settings | sizes))))
    return model


def randomized(model: Any) -> Any:
    """The model with norms and biases that are not 1 and 0."""
    model.train(False)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        elif name.endswith(("A_log", "alpha_p", "alpha_n", "dt_bias", ".D", ".sinks")) or name.endswith("bias"):
            torch.nn.init.normal_(parameter, 0, 0.5)
        elif name.endswith(("scale", "base")):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    for name, buffer in model.named_buffers():
        if name.endswith(("correction_bias", "expert_bias")):
            torch.nn.init.normal_(buffer, 0, 0.2)
        elif name.endswith("tid2eid"):
            experts = model.config.n_routed_experts
            buffer.copy_(torch.rand(len(buffer), experts).argsort(1)[:, : buffer.shape[1]])
        elif name.endswith("act_fn.beta"):
            torch.nn.init.uniform_(buffer, 0.3, 0.7)
        elif name.endswith("layer_scalar"):
            torch.nn.init.uniform_(buffer, 0.7, 1.3)
    return model


def save_meta(model: LlamaForCausalLM, folder: Path, **params: Any) -> Path:
    """The same weights in Meta's layout; `params` are added to params.json, and None takes a key away."""
    config = model.config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    source = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    state = {"tok_embeddings.weight": source["model.embed_tokens.weight"], "norm.weight": source["model.norm.weight"]}
    if not config.tie_word_embeddings:
        state["output.weight"] = source["lm_head.weight"]
    for layer in range(config.num_hidden_layers):
        theirs, ours = f"model.layers.{layer}.", f"layers.{layer}."
        q, k = source[theirs + "self_attn.q_proj.weight"], source[theirs + "self_attn.k_proj.weight"]
        state |= {
            ours + "attention.wq.weight": _neighbours(q, heads),
            ours + "attention.wk.weight": _neighbours(k, kv_heads),
            ours + "attention.wv.weight": source[theirs + "self_attn.v_proj.weight"],
            ours + "attention.wo.weight": source[theirs + "self_attn.o_proj.weight"],
            ours + "feed_forward.w1.weight": source[theirs + "mlp.gate_proj.weight"],
            ours + "feed_forward.w2.weight": source[theirs + "mlp.down_proj.weight"],
            ours + "feed_forward.w3.weight": source[theirs + "mlp.up_proj.weight"],
            ours + "attention_norm.weight": source[theirs + "input_layernorm.weight"],
            ours + "ffn_norm.weight": source[theirs + "post_attention_layernorm.weight"],
        }
    described = {
        "dim": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "n_heads": heads,
        "n_kv_heads": kv_heads,
        "vocab_size": config.vocab_size,
        "multiple_of": config.intermediate_size,  # two thirds of 4 dim, rounded up to one multiple
        "norm_eps": config.rms_norm_eps,
        "rope_theta": 10000.0,
        "max_seq_len": config.max_position_embeddings,
    }
    described |= params
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.json").write_text(json.dumps({key: v for key, v in described.items() if v is not None}))
    torch.save(state, folder / "consolidated.00.pth")
    return folder


def _neighbours(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Meta's order of rows: row 2i of a head is transformers' row i, row 2i + 1 its row i + head_dim / 2."""
    head_dim = weight.shape[0] // heads
    half = head_dim // 2
    order = [head * head_dim + place for head in range(heads) for i in range(half) for place in (i, i + half)]
    return weight[order].contiguous()


def new_cache(
    model: Transformer,
    tokens: int,
    dtype: torch.dtype = torch.float32,
    form: KVFormat | None = None,
    channels: Sequence[KeyChannels] | None = None,
) -> KVCache:
    """A cache with room for that many tokens, in the `form`, by default plain; some need `channels`."""
    config = model.config
    pages = -(-tokens // PAGE_SIZE)
    shape = CacheShape(config.cache_heads, pages, PAGE_SIZE, form or Plain(dtype))
    return KVCache(shape, "cpu", channels)


def new_states(model: Transformer, cache: KVCache) -> StateCache | None:
    """States beside a cache: a slot for each of its pages, so that a sequence's can be that of its first page."""
    sizes = model.config.recurrence
    return None if sizes is None else StateCache(StateShape(sizes, cache.shape.pages, 2), "cpu")


@torch.inference_mode()
def step(
    model: Transformer,
    cache: KVCache,
    work: Sequence[tuple[Sequence[int], int, Sequence[int]]],
    wanted: Sequence[int] | None = None,
    states: StateCache | None = None,
    multiple: int = 0,
) -> torch.Tensor:
    """The logits of the `wanted` rows, else of all tokens, of one forward pass, padded to the model's row multiple.

    work: sequences' token ids, their first position and their pages.
    multiple: that row multiple, for which every matrix is asked, where it is known.
    """
    total, multiple = sum(len(ids) for ids, _, _ in work), multiple or model.row_multiple
    padded = -(-total // multiple) * multiple
    all_ids, positions = torch.zeros(padded, dtype=torch.int64), torch.zeros(padded, dtype=torch.int64)
    slots = torch.stack([torch.full((padded,), cache.padding_page), torch.arange(padded) % PAGE_SIZE])
    segments, row = [], 0
    state_works: list[tuple[int, int, int, StateWork]] = []
    for ids, position, pages in work:
        part = slice(row, row + len(ids))
        all_ids[part] = torch.tensor(ids)
        positions[part] = torch.arange(position, position + len(ids))
        slots[0, part] = torch.tensor(pages)[positions[part] // PAGE_SIZE]
        slots[1, part] = positions[part] % PAGE_SIZE
        segments.append(Segment(row, len(ids), position, np.array(pages, dtype=np.int64)))
        state_works.append((row, len(ids), position, StateWork(pages[0], position, position + len(ids))))
        row += len(ids)
    config = model.config
    kinds = set(config.attention_kinds)
    heads = config.num_heads
    plans = {kind: model.operations.plan(segments, cache, kind.query_heads or heads, kind) for kind in kinds}
    plan = None
    if states is not None:
        plan = model.operations.plan_states(StatePlan(state_works, states), states.device)
    if wanted is not None:
        return model(all_ids, positions, cache, slots, plans, torch.tensor(wanted, dtype=torch.int64), plan)
    return model(all_ids, positions, cache, slots, plans, torch.arange(padded), plan)[:total]


def logits_in_chunks(
    model: Transformer, ids: Sequence[int], chunks: Sequence[int], multiple: int = 0, cache: KVCache | None = None
) -> torch.Tensor:
    """The logits `[len(ids), vocab]` of a sequence that is computed in chunks of these lengths, the last repeating;
    rows are padded to the `multiple`, the model's own by default, and pages are those of the `cache`."""
    dtype = model.dtype
    cache, pages = cache or new_cache(model, len(ids), dtype), range(-(-len(ids) // PAGE_SIZE))
    states, multiple = new_states(model, cache), multiple or model.row_multiple
    results, start, index = [], 0, 0
    while start < len(ids):
        length = min(chunks[min(index, len(chunks) - 1)], len(ids) - start)
        work = (ids[start : start + length], start, list(pages))
        results.append(step(model, cache, [work], states=states, multiple=multiple))
        start, index = start + length, index + 1
    return torch.cat(results)


def some_ids(vocab_size: int, length: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    ids: list[int] = np.random.default_rng(seed).integers(0, vocab_size, length).tolist()
    return ids

"""What each rank has of a model; that they compute together is tested with real processes (tests/integration)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.beside_stream import PerLayerInputs, Streams
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.heads import KVHeads
from tandem.worker.checkpoints.model_parts.indexer import Indexer
from tandem.worker.checkpoints.model_parts.latents import Latents
from tandem.worker.checkpoints.model_parts.limits import ConfigError
from tandem.worker.checkpoints.model_parts.recurrences import (
    DeltaNet,
    KimiDelta,
    Lightning,
    Mamba,
    Recurrence,
    ShortConvolution,
)
from tandem.worker.engine.process.build import build_engine
from tandem.worker.engine.process.config import BuildError, EngineConfig
from tandem.worker.model.parallel import Ranks
from tandem.worker.model.transformer import Transformer

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=103,
    hidden_size=48,
    intermediate_size=40,
    num_layers=2,
    num_heads=8,
    num_kv_heads=4,
    head_dim=6,
    context_length=64,
    norm_eps=1e-5,
    rope_theta=1e4,
    tie_embeddings=False,
    qkv_bias=True,
    output_bias=True,
)


EXPERTS = Experts(count=4, per_token=2, intermediate_size=16, normalized=True)
LATENTS = Latents(rank=10, rotated=4, unrotated=6, value=5, query_rank=12)
SHARED = replace(EXPERTS, score="sigmoid", biased=True, groups=2, shared_size=24, shared_router=True)
LATENT = {"latents": LATENTS, "num_kv_heads": 1, "head_dim": LATENTS.size, "rotary_dim": LATENTS.rotated}
REPLICATED = (
    "norm",
    "post_norm",
    "router",
    "router_bias",
    "router_logit_bias",
    "shared_router",
    "latent",
    "latent_bias",
    "latent_norm",
)
REPLICATED += ("decay_in", "gate_in")
REPLICATED += ("into_experts", "into_experts_bias", "out_of_experts")
REPLICATED += ("query_latent", "query_latent_bias", "query_norm")
REPLICATED += ("predict", "correct", "left", "right", "1", "2")
REPLICATED += ("scale", "own_norm", "router_norm", "expert_weights")
REPLICATED += ("index_query", "index_key", "index_norm", "index_norm_bias", "index_weights")
BIASES = {"mlp_bias": True, "experts": replace(EXPERTS, shared_size=24, dense_layers=(1,), biases=True)}
UNGATED = replace(EXPERTS, shared_size=24, activation="relu2", gated=False, latent=20)
SHORTER = {"value_dim": 4, "sinks": True, "sinks_in_windows": True, "mixing_multiplier": 0.7}
SHORTER |= {"windows": (0, 9), "full_heads": KVHeads(2, 6)}
BY_LAYER = {"query_heads": (8, 16), "attention_gate": True, "windows": (0, 9), "window_rope_theta": 99.0}
BY_LAYER |= {"gate_by_head": True, "rotary_dim": 4, "window_rotary_dim": 6, "swiglu_limits": (0.5, 0.0)}
BY_LAYER |= {"experts": replace(EXPERTS, shared_size=24), "shared_swiglu_limits": (0.0, 0.7)}
ONE_PART = {"feed_forward_alone": (1,), "gated": False, "activation": "relu2", "mlp_bias": True, "experts": UNGATED}
INDEXED = LATENT | {"indexer": Indexer(heads=3, size=6, most=4, layers=(0,))}


DELTA_NET = DeltaNet(layers=(0,), key_heads=8, value_heads=16, key_dim=4, value_dim=6, kernel=3)
KIMI = KimiDelta(layers=(0,), heads=16, head_dim=4, kernel=3)
LING = replace(KIMI, directly=True, least=-5.0)
CONVOLUTION = ShortConvolution(layers=(0,), channels=48, kernel=3, biases=True)
MAMBA = Mamba((0,), 16, 4, 8, 6, 3, input_bias=True, output_bias=True, norm="before")


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"experts": EXPERTS},
        {"experts": SHARED},
        LATENT,
        LATENT | {"attention_gate": True, "gate_by_head": True},
        INDEXED,
        BIASES,
        BIASES | {"gated": False},
        ONE_PART,
        SHORTER,
        BY_LAYER,
    ],
)
def test_parts_are_the_whole_and_fit_into_the_rank_s_modules(size: int, parts: dict[str, Any]) -> None:
    assert_parts_are_the_whole(replace(CONFIG, **parts, logit_bias=True), size)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "parts",
    [
        {"qk_norm": "whole"},
        {"layer_scale": True, "per_layer_inputs": PerLayerInputs(6, 103), "activation": "gelu_tanh", "gated": True}
        | {"qkv_bias": False, "output_bias": False},
        {"layer_scale": True, "norm_placement": "both", "experts": replace(EXPERTS, beside=True)},
        {"streams": Streams(3, 1, 5), "per_layer_inputs": PerLayerInputs(6, 90), "norm_placement": "both"}
        | {"sparsity": (0.9, 0.0), "inner_sizes": (40, 24)},
    ],
)
def test_ranks_share_norms_over_all_heads_and_what_gemma_3n_and_4_have(size: int, parts: dict[str, Any]) -> None:
    assert_parts_are_the_whole(replace(CONFIG, **parts), size)


@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("by_head", [False, True])
def test_ranks_share_gates_of_attention_and_have_all_norms_around_a_state(size: int, by_head: bool) -> None:
    parts = {"attention_gate": True, "gate_by_head": by_head, "norm_placement": "both", "recurrence": CONVOLUTION}
    assert_parts_are_the_whole(replace(CONFIG, qkv_bias=False, **parts), size)


@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize(
    "recurrence", [DELTA_NET, KIMI, LING, CONVOLUTION, MAMBA, replace(MAMBA, beside_attention=True)]
)
def test_parts_of_states_are_the_whole_and_fit_into_the_rank_s_modules(size: int, recurrence: Recurrence) -> None:
    assert_parts_are_the_whole(replace(CONFIG, recurrence=recurrence), size)


def assert_parts_are_the_whole(config: ModelConfig, size: int) -> None:
    seen = {name: torch.zeros(shape, dtype=torch.int64) for name, shape in config.tensor_shapes().items()}
    for rank in range(size):
        ranks = Ranks(rank, size)
        local = Transformer(config, "meta", torch.float32, ranks=ranks).config
        shapes = replace(local, vocab_size=-(-config.vocab_size // size)).tensor_shapes()
        for name, count in seen.items():
            part = ranks.part(name, config)
            views = [count[rows] for rows in part.rows] or [count]
            views = [view[:, part.columns] if part.columns is not None else view for view in views]
            for view in views:
                view += not part.vanishes
            ours = torch.cat(views)
            if name in ("embedding", "output", "output_bias"):
                assert len(ours) == local.vocab_size
            else:
                assert tuple(ours.shape) == shapes[name], name
    for name, count in seen.items():
        last = name.rsplit(".", 1)[-1]
        if (
            last in REPLICATED
            or "per_layer." in name
            or name.endswith(("delta_net.norm_weight", "kimi_delta.norm_weight", "decay_in", "gate_in"))
        ):
            expected = size
        elif last.removesuffix("_bias") in ("k", "v") and ".attention." in name:
            expected = max(1, size // config.layer_heads[int(name.split(".")[1])].number)
        else:
            expected = 1
        assert (count == expected).all(), name


@pytest.mark.parametrize(
    ("change", "size", "problem"),
    [
        ({}, 3, "num_heads 8 cannot be shared by 3 ranks"),
        ({"vocab_size": 5}, 4, "vocab_size 5 leaves nothing for the last of 4 ranks"),
        ({"num_heads": 12, "num_kv_heads": 4}, 6, "num_kv_heads 4 cannot be shared by 6 ranks"),
        ({"query_heads": (8, 12)}, 8, "query_heads 12 cannot be shared by 8 ranks"),
        ({"qk_norm": "whole"}, 8, "num_kv_heads 4 cannot be shared by 8 ranks"),
        ({"intermediate_size": 42}, 4, "intermediate_size 42 cannot be shared by 4 ranks"),
        ({"recurrence": Lightning((0,), 8, 6)}, 2, "lightning.heads are normed together, which 2 ranks cannot share"),
        ({"recurrence": replace(MAMBA, groups=1)}, 2, "mamba.groups 1 cannot be shared by 2 ranks"),
        ({"recurrence": replace(DELTA_NET, key_heads=2)}, 4, "delta_net.key_heads 2 cannot be shared by 4 ranks"),
    ],
)
def test_what_cannot_be_shared_is_refused_by_name(change: dict[str, Any], size: int, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Ranks(0, size).share(replace(CONFIG, **change))


def test_an_engine_in_a_thread_has_no_ranks(repository: Path) -> None:
    with pytest.raises(BuildError, match="tensor_parallel 2 takes processes of its own"):
        build_engine(EngineConfig(model=str(repository / "models/demo"), tensor_parallel=2))

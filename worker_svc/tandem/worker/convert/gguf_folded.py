"""The model that a GGUF file says, where it is another one with the same results: what has no key there.

Llama 3's scaling of RoPE    a tensor of divisors
multipliers of Falcon-H1     its matrices are multiplied by them, and its last norm where embedding and output are one
the least dt of Nemotron-H   is left out, which a note says
words that Gemma 3n's layers are given as the first one are written as it
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from tandem.worker.checkpoints.gguf_architectures.architecture import GgufArchitecture
from tandem.worker.checkpoints.gguf_config import known_divisors, rope_divisors
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.recurrences import Mamba
from tandem.worker.checkpoints.model_parts.rope import RopeScaling

_UNTURNED = 1e30  # what llama.cpp's converter divides a frequency by of which nothing is to be left
_FALCON = "falcon_h1"


def divisors_of(config: ModelConfig) -> tuple[float, ...]:
    """Returns what each of RoPE's frequencies is divided by in the file; empty where none is."""
    scaling = config.rope_scaling
    if scaling is None or scaling.kind == "longrope":
        return ()
    if scaling.kind == "proportional":
        turning, every = config.rotated // 2, config.layer_heads[-1].size // 2
        return (1.0,) * turning + (_UNTURNED,) * (every - turning)
    if scaling.kind == "llama3":
        return tuple(rope_divisors(config.rotated, config.rope_theta, scaling))
    return scaling.factors


def folded(config: ModelConfig, architecture: GgufArchitecture) -> tuple[ModelConfig, list[str]]:
    """Returns the model that the file is to say, and notes on what is lost."""
    notes = []
    scaling, sizes, inputs = config.rope_scaling, config.recurrence, config.per_layer_inputs
    if inputs is not None and inputs.vocab_size < config.vocab_size:
        config = replace(config, per_layer_inputs=replace(inputs, vocab_size=config.vocab_size))
    if scaling is not None and scaling.kind == "llama3":
        divisors = divisors_of(config)
        said = known_divisors(divisors, config.rope_theta) or RopeScaling("linear", factors=divisors)
        config = replace(config, rope_scaling=said)
    if config.windows and not any(config.layer_windows) and not (architecture.full_every or architecture.windowed):
        config = replace(config, windows=())  # no longer than the context
    if isinstance(sizes, Mamba) and architecture.name == "nemotron_h" and sizes.least_dt:
        notes.append(f"the file does not say that dt is at least {sizes.least_dt:g}: llama.cpp has no least dt")
        config = replace(config, recurrence=replace(sizes, least_dt=0.0))
    if isinstance(sizes, Mamba) and architecture.name == _FALCON:
        config = replace(
            config,
            attention_multiplier=None,
            mixing_multiplier=1.0,
            gate_multiplier=1.0,
            feed_forward_multiplier=1.0,
            recurrence=replace(sizes, multipliers=(1.0,) * 5, output_multiplier=1.0),
            embedding_multiplier=1.0,
            logit_multiplier=1.0,
        )
    return config, notes


def factors(config: ModelConfig, name: str) -> float | torch.Tensor:
    """Returns what a canonical tensor is multiplied by: a number, or one for each of its rows."""
    sizes = config.recurrence
    if config.architecture != _FALCON or not isinstance(sizes, Mamba):
        return 1.0
    z, x, b, c, dt = sizes.multipliers
    group = sizes.groups * sizes.state_size
    by: dict[str, float | torch.Tensor] = {
        "attention.k": config.attention_scale * math.sqrt(config.head_dim),
        "attention.output": config.mixing_multiplier,
        "mlp.gate": config.gate_multiplier,
        "mlp.down": config.feed_forward_multiplier,
        "mamba.z": z,
        "mamba.channels": torch.tensor([x, b, c]).repeat_interleave(torch.tensor([sizes.size, group, group])),
        "mamba.dt": dt,
        "mamba.output": sizes.output_multiplier,
        "embedding": config.embedding_multiplier,
    }
    if config.tie_embeddings:  # what is multiplied by one number as embedding is divided by it as output
        by["norm"] = config.logit_multiplier / config.embedding_multiplier
    else:
        by["output"] = config.logit_multiplier
    part = name.split(".", 2)[-1] if name.startswith("layers.") else name
    return by.get(part.removesuffix("_bias"), 1.0)

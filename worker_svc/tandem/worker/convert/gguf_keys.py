"""The keys of a GGUF file that make a given `ModelConfig`: the reader's tables (`gguf_config.py`), backwards.

Everything that may be said of a model is listed here; an architecture's table of known keys (`gguf_fields.py`) chooses
what its files say. What no key can say comes out when the written header is read back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tandem.worker.checkpoints.gguf_architectures import ARCHITECTURES
from tandem.worker.checkpoints.gguf_config import KEYS
from tandem.worker.checkpoints.gguf_fields import is_said
from tandem.worker.checkpoints.gguf_further import DELTA_NET_KEYS
from tandem.worker.checkpoints.gguf_gemma3n import KEYS as GEMMA3N_KEYS
from tandem.worker.checkpoints.gguf_gemma3n import SPARSITY, deviations
from tandem.worker.checkpoints.gguf_latents import INDEX_KEYS
from tandem.worker.checkpoints.gguf_latents import KEYS as LATENT_KEYS
from tandem.worker.checkpoints.gguf_states import MAMBA_KEYS
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.recurrences import DeltaNet, KimiDelta, Lightning, Mamba, ShortConvolution
from tandem.worker.checkpoints.model_parts.rope import yarn_attention_factor

_SOFTMAX, _SIGMOID, _SOFTMAX_OF_CHOSEN = 1, 2, 3  # llama.cpp's numbers
# Of which another key, or a tensor, says the same in another way.
_OTHERWISE = ("rope_scaling", "windows", "rotary_dim", "norm_eps", "experts.shared_size")


def describe(config: ModelConfig, kind: str) -> dict[str, Any]:
    """Returns the keys of a model for files of this `general.architecture`."""
    wanted = _sizes(config, kind) | _rope(config, kind) | _experts(config, kind) | _states(config)
    wanted |= _gemma3n(config) | _gemma4(config) | _latents(config)
    wanted |= _kinds_of_layers(config, kind)
    said = {f"{kind}.{key}": value for key, value in wanted.items() if is_said(kind, key, value)}
    return {"general.architecture": kind} | said


def _directly(source: Any, keys: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    """Returns what a table of fields and their keys says of one object, whose fields begin with `prefix`."""
    names = {name.removeprefix(prefix): key for name, key in keys.items() if name.startswith(prefix)}
    found = {key: getattr(source, name) for name, key in names.items() if "." not in name}
    return {key: value for key, value in found.items() if value is not None}


def _sizes(config: ModelConfig, kind: str) -> dict[str, Any]:
    architecture = ARCHITECTURES[kind]
    keys = {name: key for name, key in KEYS.items() if name.partition(".")[0] not in _OTHERWISE}
    windows = {window for window in config.windows if window}
    scale = config.logit_multiplier
    values = _directly(config, keys) | {
        "vocab_size": config.vocab_size,
        "context_length": config.context_length,
        "use_parallel_residual": config.parallel,
        "attention.value_length": config.value_dim or config.head_dim,
        "attention.value_scale": config.mixing_multiplier,
        architecture.norm_eps: config.norm_eps,
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "attention.scale": config.attention_multiplier,
        "logit_scale": 1 / scale if architecture.logit_scale_divides else scale,
        "attention.sliding_window": min(windows, default=None),
        "attention.rope_pattern": [layer not in config.unrotated_layers for layer in range(config.num_layers)],
    }
    if architecture.norm_eps_else:
        values[architecture.norm_eps_else] = config.norm_eps
    if architecture.norm_by_eps:
        del values[architecture.norm_eps if config.norm == "layer" else architecture.norm_eps_else]
    if windows:
        values["attention.sliding_window_pattern"] = [window > 0 for window in config.windows]
    if config.value_dim:
        values["attention.head_count_kv"] = [heads.number for heads in config.layer_heads]
    if architecture.folded and config.full_heads is None:
        attending = config.attention_layers
        heads = [config.num_kv_heads if layer in attending else 0 for layer in range(config.num_layers)]
        values["attention.head_count_kv"] = heads
    if config.feed_forward_alone is not None:
        sizes = [config.intermediate_size if config.feeds(layer) else 0 for layer in range(config.num_layers)]
        values["feed_forward_length"] = sizes
    return values


# --- RoPE


def _rope(config: ModelConfig, kind: str) -> dict[str, Any]:
    values: dict[str, Any] = {
        "rope.dimension_count": config.rotated,
        "rope.scaling.finetuned": not config.unrotated_layers,
    }
    if kind in ("qwen35", "qwen35moe"):  # llama.cpp wants parts of what turns, the same of text whatever they are
        half = config.rotated // 2
        first = -(-half // 3)
        second = -(-(half - first) // 2)
        values["rope.dimension_sections"] = [first, second, half - first - second, 0]
    scaling, growth = config.rope_scaling, config.query_growth
    if growth is not None:
        values |= {"attention.temperature_scale": growth.beta, "attention.temperature_length": growth.every}
    if scaling is None:
        return values
    if scaling.kind == "longrope":
        values["rope.scaling.original_context_length"] = scaling.original_context_length
        values["rope.scaling.attn_factor"] = float(scaling.attention_factor)
    if scaling.kind not in ("linear", "yarn"):
        return values
    usual = yarn_attention_factor(scaling.factor) if scaling.kind == "yarn" else 1.0
    values |= {"rope.scaling.type": scaling.kind, "rope.scaling.factor": float(scaling.factor)}
    if config.latents is None and kind != "mistral3":
        values["rope.scaling.attn_factor"] = scaling.attention_factor / usual
    if scaling.kind == "yarn":
        values |= {
            "rope.scaling.original_context_length": scaling.original_context_length,
            "rope.scaling.yarn_beta_fast": float(scaling.beta_fast),
            "rope.scaling.yarn_beta_slow": float(scaling.beta_slow),
        }
        if config.latents is not None:
            factor = math.sqrt(config.attention_scale * math.sqrt(config.latents.query))
            # A tenth of it, as llama.cpp's converter has it; what follows the digits of a float32 is rounding.
            every = round((factor - 1) / (usual - 1) / 10, 8) if usual > 1 else 0.0
            values["rope.scaling.yarn_log_multiplier"] = every
        elif kind == "mistral3" and usual > 1:
            values["rope.scaling.yarn_log_multiplier"] = (usual / scaling.attention_factor - 1) / (usual - 1)
    return values


# --- experts


def _experts(config: ModelConfig, kind: str) -> dict[str, Any]:
    experts, known = config.experts, ARCHITECTURES[kind].experts
    if experts is None:
        return {}
    dense = experts.dense_layers
    values = {
        **_directly(experts, {key: value for key, value in KEYS.items() if key not in _OTHERWISE}, "experts."),
        # Where the size of all is said, they are one.
        "expert_shared_count": (
            1 if known.shared == "size" and not known.may_share else experts.shared_size // experts.intermediate_size
        ),
        "moe_latent_size": experts.latent or None,
        "leading_dense_block_count": len(dense),
        "interleave_moe_layer_step": next(layer for layer in range(config.num_layers + 1) if layer not in dense) + 1,
        "expert_gating_func": _gating(experts),
    }
    if known.shared == "size":
        values["expert_shared_feed_forward_length"] = experts.shared_size or (None if known.may_share else 0)
    if known.dense_first:
        values["interleave_moe_layer_step"] = 1  # from the first one with experts on, all have them
    if experts.shared_multiplier != 1:
        values["expert_weights_scale"] = experts.scale / experts.shared_multiplier
    if known.normalized is None:
        values["expert_weights_norm"] = experts.normalized
    if experts.groups > 1:
        values |= {"expert_group_count": experts.groups, "expert_group_used_count": experts.groups_per_token}
    return values


def _gating(experts: Experts) -> int:
    if experts.score == "sigmoid":
        return _SIGMOID
    return _SOFTMAX_OF_CHOSEN if experts.clamped is not None else _SOFTMAX  # clamped: as gpt-oss has them


# --- parts that few have


def _states(config: ModelConfig) -> dict[str, Any]:
    sizes = config.recurrence
    match sizes:
        case DeltaNet():
            every = next(layer for layer in range(config.num_layers) if layer not in sizes.layers) + 1
            usual = tuple(layer for layer in range(config.num_layers) if (layer + 1) % every)
            values = _directly(sizes, DELTA_NET_KEYS, "delta_net.") | {"full_attention_interval": every}
            if sizes.layers != usual:
                recurrent = [layer in sizes.layers for layer in range(config.num_layers)]
                values |= {"attention.recurrent_layers": recurrent}
        case Mamba():
            values = _directly(sizes, MAMBA_KEYS, "mamba.")
        case KimiDelta():
            return {"ssm.conv_kernel": sizes.kernel, "kda.head_dim": sizes.head_dim}
        case ShortConvolution():
            return {"shortconv.l_cache": sizes.kernel}
        case Lightning():
            return _kept_norms(config, sizes.layers)
        case None:
            return _kept_norms(config, ())
    return values | {"ssm.inner_size": sizes.size}


def _gemma3n(config: ModelConfig) -> dict[str, Any]:
    streams, inputs = config.streams, config.per_layer_inputs
    if streams is None or inputs is None:
        return {}
    return {
        **_directly(streams, GEMMA3N_KEYS, "streams."),
        SPARSITY: [deviations(share) for share in config.sparsity or (0.0,) * config.num_layers],
        "attention.shared_kv_layers": config.shared_layers,
        "embedding_length_per_layer_input": inputs.size,
        "feed_forward_length": [config.inner_size(layer) for layer in range(config.num_layers)],
    }


def _kept_norms(config: ModelConfig, states: tuple[int, ...]) -> dict[str, Any]:
    if config.kept_norms is None:
        return {}
    recurrent = [layer in states for layer in range(config.num_layers)]
    return {"residual_scale": config.kept_norms.attention, "attention.recurrent_layers": recurrent}


def _gemma4(config: ModelConfig) -> dict[str, Any]:
    if not config.layer_scale:
        return {}
    layers, inputs = range(config.num_layers), config.per_layer_inputs
    heads, full = config.layer_heads, config.layer_heads[-1]
    return {
        "attention.head_count_kv": [heads[layer].number for layer in layers],
        "attention.key_length": full.size,
        "attention.value_length": full.size,
        "attention.key_length_swa": config.head_dim,
        "attention.value_length_swa": config.head_dim,
        "attention.shared_kv_layers": config.shared_layers,
        "rope.dimension_count": full.size,
        "rope.dimension_count_swa": config.head_dim,
        "feed_forward_length": [config.inner_size(layer) for layer in layers],
        "embedding_length_per_layer_input": 0 if inputs is None else inputs.size,
    }


def _kinds_of_layers(config: ModelConfig, kind: str) -> dict[str, Any]:
    if kind not in ("step35", "laguna"):
        return {}
    limits = {"swiglu_clamp_exp": config.swiglu_limits, "swiglu_clamp_shexp": config.shared_swiglu_limits}
    values: dict[str, Any] = {key: list(limit) for key, limit in limits.items() if limit}
    values["attention.head_count"] = [config.queries(layer) for layer in range(config.num_layers)]
    if config.windows:
        values["rope.dimension_count_swa"] = config.window_rotary_dim or config.rotated
    if kind == "step35":  # of which layers without a window rotate half
        return values | {"rope.dimension_count": 2 * config.rotated}
    if config.windows:  # of so many layers the first has none; 0: all have one
        full = [layer for layer, window in enumerate(config.windows) if not window]
        values["attention.sliding_window_pattern"] = (full[1] if len(full) > 1 else config.num_layers) if full else 0
    return values


def _latents(config: ModelConfig) -> dict[str, Any]:
    sizes, experts = config.latents, config.experts
    if sizes is None:
        return {}
    values: dict[str, Any] = _directly(sizes, LATENT_KEYS, "latents.") | {
        "attention.head_count_kv": 1,
        "attention.key_length": sizes.size,
        "attention.value_length": sizes.rank,
        "attention.key_length_mla": sizes.query,
        "attention.value_length_mla": sizes.value,
        "attention.q_lora_rank": sizes.query_rank or None,
    }
    if config.recurrence is not None:
        attending = config.attention_layers
        values["attention.head_count_kv"] = [int(layer in attending) for layer in range(config.num_layers)]
    if config.indexer is not None:
        values |= _directly(config.indexer, INDEX_KEYS, "indexer.")
        choosing = [layer in config.indexer.layers for layer in range(config.num_layers)]
        values[INDEX_KEYS["indexer.layers"]] = choosing
    if experts is None:
        values |= {"leading_dense_block_count": config.num_layers, "expert_shared_count": 0}
        values |= {"expert_feed_forward_length": config.intermediate_size}
    return values

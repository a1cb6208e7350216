"""Builds an engine that is ready to run from a configuration."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tandem.common.cores import computing_threads
from tandem.worker.checkpoints import Checkpoint, open_checkpoint, open_head
from tandem.worker.checkpoints.adapters import LowRank
from tandem.worker.checkpoints.grouped import DEFAULT_INT4_GROUP, GROUPS, Quantization
from tandem.worker.checkpoints.hugging_face import HuggingFaceCheckpoint
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.engine import sampler
from tandem.worker.engine.engine import Engine
from tandem.worker.engine.grammars import Grammars
from tandem.worker.engine.guides.limits import GuideLimits
from tandem.worker.engine.pages import PageTable
from tandem.worker.engine.process.cache_size import cache_shapes, spare_states
from tandem.worker.engine.process.calibration import key_channels
from tandem.worker.engine.process.code_pages import release_code
from tandem.worker.engine.process.config import OWN_HEAD, BuildError, EngineConfig
from tandem.worker.engine.process.device import (
    choose_device,
    choose_dtype,
    choose_operations,
    fitting,
    require_kv_format,
)
from tandem.worker.engine.scheduler import SchedulerLimits
from tandem.worker.engine.speculation.costs import Free
from tandem.worker.engine.states import StateTable
from tandem.worker.model.cpu import native
from tandem.worker.model.cuda import device as cuda_device
from tandem.worker.model.float8 import Float8Weight
from tandem.worker.model.head import Head, HeadRunner
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.operations import Operations
from tandem.worker.model.parallel import ALONE, Ranks
from tandem.worker.model.quantization import QuantizedWeight
from tandem.worker.model.row_invariance import choose_padding, known_padding
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.states import StateCache, StateShape
from tandem.worker.model.transformer import Transformer
from tandem.worker.model.weights import MadeOf

logger = logging.getLogger("tandem.worker.engine")

DEFAULT_DRAFT_TOKENS = 4  # with a draft model
CPU_CROWD = 4  # of `SchedulerLimits`; on a GPU a step of 64 decodes takes hardly longer than one of four


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine and what there is to tell about it."""

    engine: Engine
    config: ModelConfig
    shape: CacheShape
    checkpoint_format: str
    eos_ids: tuple[int, ...]
    bos_id: int | None
    parameters: int
    weight_bytes: int
    dtype: str
    quantization: str  # "int8", "int4" or "fp8", whatever most bytes are; empty without
    device: torch.device
    threads: int
    row_invariant: bool
    ranks: int  # that share the model; `shape` is the part of one
    draft_shape: CacheShape | None = None  # of the draft model's cache, if there is one
    state_shape: StateShape | None = None  # of sequences' states, where layers have such
    sampling_defaults: Mapping[str, float | int] = field(default_factory=dict)
    draft_tokens: int = 0
    draft_model: str = ""
    adapters: tuple[str, ...] = ()  # beside the model, by their numbers

    @property
    def kv_bytes_per_token(self) -> int:
        """Returns the bytes of keys and values of one token, over all ranks and in all caches."""
        beside = self.draft_shape.bytes_per_token if self.draft_shape is not None else 0
        return (self.shape.bytes_per_token + beside) * self.ranks

    @property
    def kv_cache_bytes(self) -> int:
        """Returns the bytes that all caches of all ranks allocate, with their padding pages and states."""
        beside = self.draft_shape.bytes if self.draft_shape is not None else 0
        beside += self.state_shape.bytes if self.state_shape is not None else 0
        return (self.shape.bytes + beside) * self.ranks


def build_engine(
    config: EngineConfig,
    progress: Callable[[int, int], None] | None = None,
    checkpoint: Checkpoint | None = None,
    ranks: Ranks = ALONE,
) -> BuiltEngine:
    """Loads the model, allocates the cache and measures row invariance. `checkpoint` is one that is open already;
    with several `ranks`, all of them build their parts at the same time.

    Raises CheckpointError, ConfigError or BuildError, each with one line that says what is wrong.
    """
    threads, device = _prepare(config, ranks)
    config = config.on(device.type)
    checkpoint = checkpoint or open_checkpoint(Path(config.model), Path(config.adapter) if config.adapter else None)
    dtype = choose_dtype(config.dtype, device, checkpoint)
    served = served_config(checkpoint.config, config)
    require_kv_format(config.kv_cache_dtype, device, served)
    release_code()  # before weights take what there is
    model, draft = _load(config, checkpoint, served, device, dtype, progress, ranks)
    shape, draft_shape, state_shape = cache_shapes(config, model, draft, dtype, device, ranks)
    channels = key_channels(model, device, dtype, checkpoint.bos_id) if shape.format.normalizes_keys else None
    with fitting("the KV cache", "lower kv_cache_tokens or kv_cache_fraction, or set kv_cache_dtype to int8"):
        cache = KVCache(shape, device, channels)
        draft_cache = KVCache(draft_shape, device) if draft_shape is not None else None
        states = StateCache(state_shape, device) if state_shape is not None else None
    if state_shape is not None:
        logger.info(
            "%d slots for states of sequences, %d MiB each", state_shape.slots, state_shape.bytes_per_slot >> 20
        )
    if isinstance(draft, Head) and cache.hidden is not None:
        draft.follow(model, cache.hidden)
    runner, row_invariant = _runner(model, cache, states, config, ranks)
    draft_runner = _draft_runner(draft, draft_cache, config, ranks) if draft and draft_cache else None
    sampler.prepare(served.vocab_size, device, model.logits_dtype)
    return BuiltEngine(
        engine=_engine(config, checkpoint, runner, draft_runner, ranks),
        config=served,
        shape=shape,
        draft_shape=draft_shape,
        state_shape=state_shape,
        checkpoint_format=checkpoint.format,
        eos_ids=checkpoint.eos_ids,
        bos_id=checkpoint.bos_id,
        parameters=sum(math.prod(shape) for shape in served.tensor_shapes().values()),
        weight_bytes=ranks.total(_weight_bytes(model, draft)),
        dtype=str(dtype).removeprefix("torch."),
        quantization=quantization_name(model),
        device=device,
        threads=threads,
        row_invariant=row_invariant,
        ranks=ranks.size,
        sampling_defaults=checkpoint.sampling_defaults,
        draft_tokens=config.draft_tokens or (DEFAULT_DRAFT_TOKENS if draft is not None else 0),
        draft_model=config.draft_model,
        adapters=tuple(config.adapters()),
    )


def _prepare(config: EngineConfig, ranks: Ranks) -> tuple[int, torch.device]:
    """Sets up the process: how many threads, and which device."""
    if config.tensor_parallel != ranks.size:
        raise BuildError(f"tensor_parallel {config.tensor_parallel} takes processes of its own; set engine to process")
    threads = config.threads or max(1, computing_threads() // ranks.beside)
    torch.set_num_threads(threads)
    device = choose_device(config.device)
    if device.type == "cuda":
        cuda_device.prepare(device, reproducible=config.reproducible)
    elif native.available():
        native.round_to_int8(config.int8_activations)
    return threads, device


def _load(
    config: EngineConfig,
    checkpoint: Checkpoint,
    served: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    progress: Callable[[int, int], None] | None,
    ranks: Ranks,
) -> tuple[Transformer, Transformer | None]:
    """Loads a rank's part of the model, and the draft model, if there is one."""
    operations = choose_operations(device, dtype, reproducible=config.reproducible)
    quantization = _quantization(config)
    with fitting("the weights", "serve a smaller model, quantize it, or set dtype to bfloat16"):
        model = load_transformer(
            checkpoint,
            device,
            dtype,
            progress,
            config=served,
            operations=operations,
            quantization=quantization,
            ranks=ranks,
            adapters=_beside(config, checkpoint),
        )
    ranks.wait()
    return model, _draft_model(config, served, device, dtype, operations, ranks)


def _beside(config: EngineConfig, checkpoint: Checkpoint) -> list[dict[str, LowRank]]:
    """Reads the adapters that stay beside the model. Raises BuildError."""
    folders = config.adapters()
    if not folders:
        return []
    if not isinstance(checkpoint, HuggingFaceCheckpoint):
        raise BuildError(f"lora takes a model in Hugging Face's layout; {config.model} is {checkpoint.format}")
    return [checkpoint.low_rank(folder) for folder in folders.values()]


def _engine(
    config: EngineConfig, checkpoint: Checkpoint, runner: ModelRunner, draft: ModelRunner | None, ranks: Ranks
) -> Engine:
    pages, states, most = runner.cache.shape, None, config.max_running_requests
    if runner.states is not None:
        shape = runner.states.shape
        spare = spare_states(shape.slots, config)
        states, most = StateTable(shape.slots, spare, shape.journal), min(most, shape.slots - spare)
    return Engine(
        runner,
        PageTable(pages.pages, pages.page_size, states=states),
        SchedulerLimits(
            max_batch_tokens=config.step_tokens,
            max_running=most,
            crowd=CPU_CROWD if runner.device.type == "cpu" else None,
            checks=runner.device.type == "cpu",
        ),
        grammars=_grammars(config, checkpoint.config.vocab_size, sorted(checkpoint.eos_ids), ranks),
        draft_runner=draft,
        draft_context_length=draft.model.config.context_length if draft is not None else 0,
        costs=Free() if config.speculate == "always" else None,
        learns=ranks.size == 1,
        overlap=config.overlap == "on" or (config.overlap == "auto" and runner.device.type == "cuda"),
    )


def _grammars(config: EngineConfig, vocabulary_size: int, eos_ids: Sequence[int], ranks: Ranks) -> Grammars:
    limits = GuideLimits(
        config.guide_compile_seconds,
        config.guide_mask_seconds,
        config.guide_memory_mb << 20,
        config.guide_total_memory_mb << 20,
    )
    share = None
    if ranks.size > 1:
        from tandem.worker.engine.guides.frames import shared

        share = shared(ranks.broadcast)
    return Grammars(vocabulary_size, eos_ids, limits=limits, leads=ranks.rank == 0, share=share)


def _draft_model(
    config: EngineConfig,
    large: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    operations: Operations,
    ranks: Ranks,
) -> Transformer | None:
    """Loads the draft model, if there is one: whole on every rank, so that all guess the same, but for a head. Raises
    BuildError where its vocabulary is another one."""
    if not config.draft_model:
        return None
    if config.draft_model == OWN_HEAD:
        return _head(config, device, dtype, operations, ranks)
    checkpoint = open_checkpoint(Path(config.draft_model))
    if checkpoint.config.vocab_size != large.vocab_size:
        raise BuildError(
            f"draft_model {config.draft_model} has a vocabulary of {checkpoint.config.vocab_size} ids, "
            f"the model in {config.model} one of {large.vocab_size}; they must be the same"
        )
    require_kv_format("auto", device, checkpoint.config)
    if checkpoint.config.recurrence is not None:
        raise BuildError(f"draft_model {config.draft_model} has layers with states; all of its must have attention")
    with fitting("the draft model's weights", "serve without draft_model"):
        return load_transformer(checkpoint, device, dtype, operations=operations)


def _head(
    config: EngineConfig, device: torch.device, dtype: torch.dtype, operations: Operations, ranks: Ranks
) -> Transformer:
    """Loads a rank's part of the model's own head, which is divided as the model is."""
    checkpoint = open_head(Path(config.model))
    with fitting("the weights of the head that guesses", "serve without draft_model"):
        return load_transformer(
            checkpoint,
            device,
            dtype,
            config=served_config(checkpoint.config, config),
            operations=operations,
            quantization=_quantization(config),
            ranks=ranks,
        )


def _runner(
    model: Transformer, cache: KVCache, states: StateCache | None, config: EngineConfig, ranks: Ranks
) -> tuple[ModelRunner, bool]:
    """Makes the runner, and finds out whether a row's bits depend on the others; on CUDA with recorded decodes.

    Experts that are computed one after the other are chosen on the host, which a recording cannot wait for; several
    ranks were never recorded.
    """
    apart = model.experts_apart if cache.device.type == "cuda" else ""
    if apart:
        logger.warning("experts are computed one after the other, which is slow, and steps are not recorded: %s", apart)
    if not _is_recorded(model, cache, config, ranks):
        runner = ModelRunner(model, cache, states)
    else:
        from tandem.worker.model.cuda.graphs import GraphedRunner
        from tandem.worker.model.cuda.operations import VERIFIED

        runner = GraphedRunner(model, cache, min(config.max_running_requests * VERIFIED, config.step_tokens), states)
    with fitting("a step beside the weights and the KV cache", "lower kv_cache_tokens or kv_cache_fraction"):
        if cache.device.type == "cpu" and ranks.size == 1:  # several find out together, or not at all
            return runner, known_padding(runner)
        return runner, choose_padding(runner, lambda: _record(runner))


def _is_recorded(model: Transformer, cache: KVCache, config: EngineConfig, ranks: Ranks) -> bool:
    return cache.device.type == "cuda" and config.cuda_graphs and not model.experts_apart and ranks.size == 1


def _record(runner: ModelRunner) -> None:
    with fitting(
        "the recordings of CUDA graphs", "lower kv_cache_fraction or max_running_requests, or switch cuda_graphs off"
    ):
        runner.prepare(lambda done, total: logger.info("recorded %d of %d CUDA graphs", done, total))


def _draft_runner(draft: Transformer, cache: KVCache, config: EngineConfig, ranks: Ranks) -> ModelRunner:
    """Makes the draft model's runner, whose steps are decodes nearly all."""
    runner, most = ModelRunner(draft, cache), config.max_running_requests
    recorded = _is_recorded(draft, cache, config, ranks)
    if recorded:
        from tandem.worker.model.cuda.graphs import GraphedRunner

        runner = GraphedRunner(draft, cache, most)
        runner.row_multiple = 1  # a draft's bits decide about no answer
    if isinstance(draft, Head):
        runner = HeadRunner(runner, most)
    if recorded:
        _record(runner)
    return runner


def served_config(model: ModelConfig, config: EngineConfig) -> ModelConfig:
    """Applies the operator's own context length and rope; raises BuildError for a context that is too long."""
    if config.context_length > model.context_length and model.learned_positions:
        raise BuildError(
            f"context_length {config.context_length} is more than the {model.context_length} positions that the model "
            f"in {config.model} has learned, where its context ends"
        )
    longest = int(model.context_length * config.rope_scale * config.rope_alpha)
    if config.context_length > longest:
        wanted = config.context_length / model.context_length
        raise BuildError(
            f"context_length {config.context_length} is more than the {longest} tokens that the model in "
            f"{config.model} was made for; rope_scale or rope_alpha {wanted:.3g} would stretch it that far"
        )
    model = model.with_rope(config.rope_scale, config.rope_alpha)
    return model.with_context_length(config.context_length or model.context_length)


def _quantization(config: EngineConfig) -> MadeOf:
    group = config.quantize_group
    if group and group not in GROUPS:
        raise BuildError(
            f"quantize_group {group} is not served; use {', '.join(map(str, GROUPS))}, or 0 for the default"
        )
    if config.quantize in ("auto", "none", "fp8"):
        if group:
            raise BuildError(f"quantize_group {group} says how to quantize, but quantize is {config.quantize}")
        made_of: dict[str, MadeOf] = {"auto": "stored", "none": None, "fp8": "fp8"}
        return made_of[config.quantize]
    return Quantization(8, group) if config.quantize == "int8" else Quantization(4, group or DEFAULT_INT4_GROUP)


def quantization_name(model: Transformer) -> str:
    """Names what most bytes of the model's quantized weights are; empty if none is quantized."""
    sizes: dict[str, int] = {}
    for module in model.modules():
        if isinstance(module, QuantizedWeight | Float8Weight):
            sizes[module.name] = sizes.get(module.name, 0) + module.q.nbytes
    return max(sizes, key=lambda name: sizes[name], default="")


def _weight_bytes(*models: Transformer | None) -> int:
    """Adds up what models have, what they share once."""
    there = [weight for model in models if model for weight in (*model.parameters(), *model.buffers())]
    return sum({id(weight): weight.nbytes for weight in there}.values())

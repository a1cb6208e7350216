"""From a configuration to an engine that is ready to run."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from tandem.worker.checkpoints import Checkpoint, open_checkpoint
from tandem.worker.checkpoints.grouped import GROUPS, Quantization
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.engine import sampler
from tandem.worker.engine.calibration import key_channels
from tandem.worker.engine.config import EngineConfig
from tandem.worker.engine.guides.grammars import Grammars
from tandem.worker.engine.guides.limits import GuideLimits
from tandem.worker.engine.loop import Engine
from tandem.worker.engine.pages import PageTable
from tandem.worker.engine.scheduler import SchedulerLimits
from tandem.worker.engine.speculation_costs import Free
from tandem.worker.model import cuda_device
from tandem.worker.model.float8 import Float8Weight
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import kv_format
from tandem.worker.model.native_operations import cpu_operations
from tandem.worker.model.operations import Operations
from tandem.worker.model.parallel import ALONE, Ranks
from tandem.worker.model.quantization import QuantizedWeight
from tandem.worker.model.row_invariance import choose_padding
from tandem.worker.model.runner import ModelRunner, Work
from tandem.worker.model.transformer import Transformer, load_transformer
from tandem.worker.model.weights import MadeOf

logger = logging.getLogger("tandem.worker.engine")

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

DEFAULT_DRAFT_TOKENS = 4  # with a draft model

# Without a fixed size the cache takes this share of the memory that is free once the weights are loaded, but never more
# than every running request could fill.
CPU_CACHE_FRACTION = 0.25
CUDA_CACHE_FRACTION = 0.9

DEFAULT_INT4_GROUP = 64


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
    sampling_defaults: Mapping[str, float | int] = field(default_factory=dict)
    draft_tokens: int = 0
    draft_model: str = ""

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token, over all ranks and in all caches."""
        beside = self.draft_shape.bytes_per_token if self.draft_shape is not None else 0
        return self.shape.bytes_per_token * self.ranks + beside

    @property
    def kv_cache_bytes(self) -> int:
        """Bytes that all caches of all ranks allocate, with their padding pages."""
        beside = self.draft_shape.bytes if self.draft_shape is not None else 0
        return self.shape.bytes * self.ranks + beside


class BuildError(ValueError):
    """The configuration does not go together with the model or the machine; one line."""


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
    if config.tensor_parallel != ranks.size:
        raise BuildError(f"tensor_parallel {config.tensor_parallel} takes processes of its own; set engine to process")
    threads = config.threads or max(1, available_cores() // ranks.local)
    torch.set_num_threads(threads)
    device = _device(config.device)
    if device.type == "cuda":
        cuda_device.prepare(device, reproducible=config.reproducible)
    checkpoint = checkpoint or open_checkpoint(Path(config.model))
    model_config = served_config(checkpoint.config, config)
    dtype = _dtype(config.dtype, device, checkpoint)
    operations = _operations(device, dtype, config.reproducible)
    quantization = _quantization(config)
    with _fitting("the weights", "serve a smaller model, quantize it, or set dtype to bfloat16"):
        model = load_transformer(
            checkpoint,
            device,
            dtype,
            progress,
            config=model_config,
            operations=operations,
            quantization=quantization,
            ranks=ranks,
        )
    ranks.wait()
    draft = _draft_model(config, model_config, device, dtype, operations)
    if not config.kv_cache_tokens:
        most = _warm_up_tokens(config, model_config)
        with _fitting("a step beside the weights", "lower max_batch_tokens"):
            _warm_up(model, _cache_shape(config, model.config, dtype, device, most, ranks), device)
    beside = _draft_shape(draft, config, dtype, 1).bytes_per_token if draft is not None else 0
    _require_kv_format(config.kv_cache_dtype, device)
    shape = _cache_shape(config, model.config, dtype, device, config.kv_cache_tokens, ranks, beside)
    channels = key_channels(model, device, dtype, checkpoint.bos_id) if shape.format.normalizes_keys else None
    draft_shape = _draft_shape(draft, config, dtype, shape.pages) if draft is not None else None
    with _fitting("the KV cache", "lower kv_cache_tokens or kv_cache_fraction, or set kv_cache_dtype to int8"):
        cache = KVCache(shape, device, channels)
        draft_cache = KVCache(draft_shape, device) if draft_shape is not None else None
    runner, row_invariant = _runner(model, cache, config, ranks)
    sampler.prepare(model_config.vocab_size, device)
    limits = SchedulerLimits(max_batch_tokens=config.max_batch_tokens, max_running=config.max_running)
    weights = [
        tensor for each in (model, draft) if each is not None for tensor in (*each.parameters(), *each.buffers())
    ]
    return BuiltEngine(
        engine=Engine(
            runner,
            PageTable(shape.pages, shape.page_size),
            limits,
            grammars=_grammars(config, model_config.vocab_size, sorted(checkpoint.eos_ids), ranks),
            draft_runner=ModelRunner(draft, draft_cache) if draft is not None and draft_cache is not None else None,
            draft_context_length=draft.config.context_length if draft is not None else 0,
            costs=Free() if config.speculate == "always" else None,
            learns=ranks.size == 1,
            overlap=config.overlap == "on" or (config.overlap == "auto" and device.type == "cuda"),
        ),
        config=model_config,
        shape=shape,
        draft_shape=draft_shape,
        checkpoint_format=checkpoint.format,
        eos_ids=checkpoint.eos_ids,
        bos_id=checkpoint.bos_id,
        parameters=sum(math.prod(shape) for shape in model_config.tensor_shapes().values()),
        weight_bytes=ranks.total(sum(weight.numel() * weight.element_size() for weight in weights)),
        dtype=next(name for name, value in DTYPES.items() if value == dtype),
        quantization=quantization_name(model),
        device=device,
        threads=threads,
        row_invariant=bool(ranks.smallest(row_invariant)),
        ranks=ranks.size,
        sampling_defaults=checkpoint.sampling_defaults,
        draft_tokens=config.draft_tokens or (DEFAULT_DRAFT_TOKENS if draft is not None else 0),
        draft_model=config.draft_model,
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
    config: EngineConfig, large: ModelConfig, device: torch.device, dtype: torch.dtype, operations: Operations
) -> Transformer | None:
    """The model that guesses, if there is one: whole on every rank, so that all guess the same. Raises BuildError where
    it speaks other ids."""
    if not config.draft_model:
        return None
    checkpoint = open_checkpoint(Path(config.draft_model))
    if checkpoint.config.vocab_size != large.vocab_size:
        raise BuildError(
            f"draft_model {config.draft_model} has a vocabulary of {checkpoint.config.vocab_size} ids, "
            f"the model in {config.model} one of {large.vocab_size}; they must be the same"
        )
    with _fitting("the draft model's weights", "serve without draft_model"):
        return load_transformer(checkpoint, device, dtype, operations=operations)


def _draft_shape(draft: Transformer, config: EngineConfig, dtype: torch.dtype, pages: int) -> CacheShape:
    """The draft model's cache: the same pages, its own heads."""
    shape, stored = draft.config, kv_format("auto", dtype)
    return CacheShape(shape.num_layers, pages, config.page_size, shape.num_kv_heads, shape.head_dim, stored)


def _operations(device: torch.device, dtype: torch.dtype, reproducible: bool) -> Operations:
    """What computes beside the matrix products on this device."""
    if device.type != "cuda":
        return cpu_operations()
    from tandem.worker.model.cuda_operations import TritonOperations  # Triton is not installed where there is no CUDA

    return TritonOperations.on(device, reproducible=reproducible, float32=dtype == torch.float32)


def _runner(model: Transformer, cache: KVCache, config: EngineConfig, ranks: Ranks) -> tuple[ModelRunner, bool]:
    """What runs steps, and whether a row's bits depend on the others; on CUDA with recorded decodes.

    Experts are chosen on the host, which a recording cannot wait for; several ranks were never recorded.
    """
    recordable = model.config.experts is None and ranks.size == 1
    if cache.device.type != "cuda" or not config.cuda_graphs or not recordable:
        runner = ModelRunner(model, cache)
        return runner, _choose_padding(runner)
    from tandem.worker.model.cuda_graphs import GraphedRunner

    recorded = GraphedRunner(model, cache, config.max_running)
    row_invariant = _choose_padding(recorded)
    with _fitting(
        "the recordings of CUDA graphs", "lower kv_cache_fraction or max_running_requests, or switch cuda_graphs off"
    ):
        recorded.prepare(lambda done, total: logger.info("recorded %d of %d CUDA graphs", done, total))
    return recorded, row_invariant


def _choose_padding(runner: ModelRunner) -> bool:
    with _fitting("a step beside the weights and the KV cache", "lower kv_cache_tokens or kv_cache_fraction"):
        return choose_padding(runner)


@contextmanager
def _fitting(what: str, advice: str) -> Iterator[None]:
    """Turns an out-of-memory error of a card into a BuildError that says what did not fit and what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise BuildError(f"the card's memory is too small for {what}: {advice}") from error


def served_config(model: ModelConfig, config: EngineConfig) -> ModelConfig:
    """The model with the operator's own context length and rope; raises BuildError for a context that is too long."""
    longest = int(model.context_length * config.rope_scale * config.rope_alpha)
    if config.context_length > longest:
        wanted = config.context_length / model.context_length
        raise BuildError(
            f"context_length {config.context_length} is more than the {longest} tokens that the model in "
            f"{config.model} was made for; rope_scale or rope_alpha {wanted:.3g} would stretch it that far"
        )
    model = model.with_rope(config.rope_scale, config.rope_alpha)
    return model.with_context_length(config.context_length or model.context_length)


def available_cores() -> int:
    """Cores that this process may use: its affinity, and the quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no control group of version 2: nothing limits us
    return cores


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BuildError(f"device {name!r} is not known; use cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise BuildError(f"device {name!r} is not served; use cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BuildError(f"device {name!r} was asked for, but torch {torch.__version__} sees no CUDA device")
    if device.type == "cuda" and device.index is None:  # a device without a number equals none of its tensors'
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _dtype(name: str, device: torch.device, checkpoint: Checkpoint) -> torch.dtype:
    """The chosen dtype. Else the checkpoint's own, where that is half as wide and the device computes in it; a card
    computes a float32 checkpoint in bf16, a CPU without bf16 instructions all of them in fp32."""
    if name != "auto":
        if name not in DTYPES:
            raise BuildError(f"dtype {name!r} is not served; use auto, {', '.join(DTYPES)}")
        return DTYPES[name]
    if device.type == "cuda":
        with_bf16 = checkpoint.dtype != torch.float16 and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if with_bf16 else torch.float16
    with_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if with_bf16 and checkpoint.dtype != torch.float32 else torch.float32


def _require_kv_format(name: str, device: torch.device) -> None:
    """Raises BuildError for a KV cache that the device cannot read. A CPU converts whatever it is."""
    if name == "fp8" and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        raise BuildError(
            f"kv_cache_dtype fp8 needs a card of compute capability 8.9 or newer, which {device_name(device)} is not; "
            "use auto, int8 or int4"
        )


def _quantization(config: EngineConfig) -> MadeOf:
    group = config.quantize_group
    if config.quantize not in ("auto", "none", "int8", "int4", "fp8"):
        raise BuildError(f"quantize {config.quantize!r} is not served; use auto, none, int8, int4 or fp8")
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
    """What most bytes of the model's quantized weights are; empty if none is quantized."""
    sizes: dict[str, int] = {}
    for module in model.modules():
        if isinstance(module, QuantizedWeight | Float8Weight):
            sizes[module.name] = sizes.get(module.name, 0) + module.q.nbytes
    return max(sizes, key=lambda name: sizes[name], default="")


def _warm_up_tokens(config: EngineConfig, model: ModelConfig) -> int:
    return max(2 * config.page_size, min(config.max_batch_tokens, model.context_length) + config.page_size)


def _warm_up(model: Transformer, shape: CacheShape, device: torch.device) -> None:
    """Computes the largest chunk once, so that the memory it takes is no longer free when the cache is measured."""
    tokens = np.zeros(min((shape.pages - 1) * shape.page_size, model.config.context_length), dtype=np.int32)
    ModelRunner(model, KVCache(shape, device)).forward([Work(tokens, 0, np.arange(shape.pages), 1)])


def _cache_shape(
    config: EngineConfig,
    model: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    tokens: int,
    ranks: Ranks,
    beside: int = 0,
) -> CacheShape:
    """A rank's cache of `tokens`, or with 0 one that takes a share of the free memory, with `beside` bytes a token in
    another cache."""

    def shape(pages: int) -> CacheShape:
        stored = kv_format(config.kv_cache_dtype, dtype)
        return CacheShape(model.num_layers, pages, config.page_size, model.num_kv_heads, model.head_dim, stored)

    page_bytes = (shape(1).bytes_per_token + beside) * config.page_size
    if tokens:
        pages = tokens // config.page_size
    else:
        free = _free_memory(device) // (1 if device.type == "cuda" else ranks.local)
        fraction = config.kv_cache_fraction or (CUDA_CACHE_FRACTION if device.type == "cuda" else CPU_CACHE_FRACTION)
        pages_per_context = -(-model.context_length // config.page_size)
        pages = ranks.smallest(min(int(free * fraction) // page_bytes, config.max_running * pages_per_context))
    if pages < 2:
        raise BuildError(
            f"the KV cache would hold {pages} pages of {config.page_size} tokens; it needs at least 2: "
            "raise kv_cache_tokens or kv_cache_fraction, or lower page_size"
        )
    return shape(pages)


def _free_memory(device: torch.device) -> int:
    """Bytes that are free on the device, within the limit of our control group."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            free = min(free, int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no control group of version 2: nothing limits us
    return max(0, free)


def device_name(device: torch.device) -> str:
    """The processor's or card's own name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines: Sequence[str] = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "cpu"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "cpu"

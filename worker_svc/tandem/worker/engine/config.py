"""What an engine is told. No torch: the front reads this file too, and stays small."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.worker.engine.guides.limits import (
    DEFAULT_COMPILE_SECONDS,
    DEFAULT_MASK_SECONDS,
    DEFAULT_MEMORY_MB,
    DEFAULT_TOTAL_MEMORY_MB,
)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How to build an engine; 0 and "auto" let it choose."""

    model: str
    device: str = "auto"
    dtype: str = "auto"
    quantize: str = "auto"
    quantize_group: int = 0
    tensor_parallel: int = 1
    threads: int = 0
    page_size: int = 64
    kv_cache_dtype: str = "auto"  # or "fp8", "int8", "int4"
    kv_cache_tokens: int = 0
    kv_cache_fraction: float = 0.0
    context_length: int = 0
    rope_scale: float = 1.0
    rope_alpha: float = 1.0
    max_batch_tokens: int = 512
    max_running: int = 64
    reproducible: bool = True  # on CUDA; on a CPU always
    cuda_graphs: bool = True
    overlap: str = "auto"  # "on", "off", or "auto": on CUDA
    speculate: str = "auto"  # where it is likely to pay, or "always"
    draft_tokens: int = 0
    draft_model: str = ""
    guide_compile_seconds: float = DEFAULT_COMPILE_SECONDS  # of processor time, a guide
    guide_mask_seconds: float = DEFAULT_MASK_SECONDS  # of processor time, a mask
    guide_memory_mb: int = DEFAULT_MEMORY_MB  # a guide, beside the vocabulary
    guide_total_memory_mb: int = DEFAULT_TOTAL_MEMORY_MB  # all guides

"""Sizes the KV cache: as the operator says, or as a share of the memory that is free when all else is allocated.

Where layers have states, slots for these are accounted for together with the pages: two for each request that may run,
but at most half of the memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from tandem.worker.engine.process.config import BuildError, EngineConfig
from tandem.worker.engine.process.device import fitting, free_memory
from tandem.worker.model.head import Head
from tandem.worker.model.kv_cache import CacheShape, Hidden, KVCache
from tandem.worker.model.kv_formats import kv_format
from tandem.worker.model.parallel import Ranks
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.states import StateShape
from tandem.worker.model.transformer import Transformer
from tandem.worker.model.work import Work

CPU_CACHE_FRACTION = 0.25
CUDA_CACHE_FRACTION = 0.9
STATE_JOURNAL = 9  # tokens: a decode's own and eight drafts; each is a seventieth of a state's size


def cache_shapes(
    config: EngineConfig,
    model: Transformer,
    draft: Transformer | None,
    dtype: torch.dtype,
    device: torch.device,
    ranks: Ranks,
) -> tuple[CacheShape, CacheShape | None, StateShape | None]:
    """Returns the shapes of a rank's cache and the draft model's, with the same pages, and that of its states. Raises
    BuildError if too small."""

    def shape(model: Transformer, pages: int, stored: str) -> CacheShape:
        return CacheShape(model.config.cache_heads, pages, config.page_size, kv_format(stored, dtype))

    page = shape(model, 1, config.kv_cache_dtype)
    if isinstance(draft, Head):
        page = replace(page, hidden=Hidden(model.config.hidden_size, dtype))
    draft_page = shape(draft, 1, "auto") if draft is not None else None
    states = _states(config, model, device, ranks)
    if config.kv_cache_tokens:
        pages = config.kv_cache_tokens // config.page_size
    else:
        largest = min(config.step_tokens, model.config.context_length) + config.page_size
        warm_up_pages = _enough(max(2 * config.page_size, largest) // config.page_size, config)
        with fitting("a step beside the weights", "lower max_batch_tokens"):
            beside = _warm_up(model, replace(page, pages=warm_up_pages), device)
        page_bytes = sum(each.bytes_per_token for each in (page, draft_page) if each) * config.page_size
        states = _states(config, model, device, ranks)  # of what is free now
        taken = states.bytes if states is not None else 0
        pages = _free_pages(config, page_bytes, model.config.context_length, device, ranks, beside, taken)
    pages = _enough(pages, config)
    return replace(page, pages=pages), replace(draft_page, pages=pages) if draft_page is not None else None, states


def _states(config: EngineConfig, model: Transformer, device: torch.device, ranks: Ranks) -> StateShape | None:
    """Sizes the states, the same slots for all ranks; None where no layer has any."""
    if model.config.recurrence is None:
        return None
    one = StateShape(model.config.recurrence, 1, STATE_JOURNAL)
    half = int(_free(device, ranks) * _fraction(config, device) / 2)
    slots = config.state_slots or ranks.smallest(min(2 * config.max_running_requests, half // one.bytes))
    if slots < 2:
        raise BuildError(
            f"there would be {slots} slots of {one.bytes >> 20} MiB for sequences' states, and at least 2 are needed: "
            "raise state_slots or kv_cache_fraction"
        )
    return replace(one, slots=slots)


def spare_states(slots: int, config: EngineConfig) -> int:
    """Returns how many slots running requests leave to prefixes at least."""
    return max(1, slots // 4, slots - config.max_running_requests)


def _fraction(config: EngineConfig, device: torch.device) -> float:
    return config.kv_cache_fraction or (CUDA_CACHE_FRACTION if device.type == "cuda" else CPU_CACHE_FRACTION)


def _free(device: torch.device, ranks: Ranks) -> int:
    """Returns a rank's share of what is free: a card's is its own."""
    return free_memory(device) // (1 if device.type == "cuda" else ranks.local)


def _free_pages(
    config: EngineConfig,
    page_bytes: int,
    context_length: int,
    device: torch.device,
    ranks: Ranks,
    beside: int,
    taken: int,
) -> int:
    """Returns how many pages fit into a share of what is free `beside` the largest chunk, less what states take, but
    never more than every running request could fill."""
    free = _free(device, ranks) - beside
    pages_per_context = -(-context_length // config.page_size)
    return ranks.smallest(
        min(
            (int(free * _fraction(config, device)) - taken) // page_bytes,
            config.max_running_requests * pages_per_context,
        )
    )


def _enough(pages: int, config: EngineConfig) -> int:
    if pages < 2:
        raise BuildError(
            f"the KV cache would hold {pages} pages of {config.page_size} tokens; it needs at least 2: "
            "raise kv_cache_tokens or kv_cache_fraction, or lower page_size"
        )
    return pages


def _warm_up(model: Transformer, shape: CacheShape, device: torch.device) -> int:
    """Computes the largest chunk once; returns the bytes that it takes on a GPU beside its pages. What is left of
    loading and of this goes back to the system, so that the cache may have it."""
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.empty_cache()
    tokens = np.zeros(min((shape.pages - 1) * shape.page_size, model.config.context_length), dtype=np.int32)
    ModelRunner(model, KVCache(shape, device)).forward([Work(tokens, 0, np.arange(shape.pages), 1)])
    if not on_cuda:
        return 0
    torch.cuda.synchronize(device)
    kept = free_memory(device)
    torch.cuda.empty_cache()
    return max(0, free_memory(device) - kept - shape.bytes)

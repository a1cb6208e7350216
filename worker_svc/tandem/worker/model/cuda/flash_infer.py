"""Prefills by FlashInfer (Ye et al. 2025, https://arxiv.org/abs/2501.01005) in fast mode, where it is installed.

It has kernels for each generation of GPUs, on Hopper those of FlashAttention 3. Our pages are in its layout "HND". How
sums are split depends on the batch, and so do bits: reproducible mode never asks it.

What it plans goes to the GPU from a pinned buffer, which a next plan would overwrite before it has arrived. So each
kind of attention has two planners in turn, and one is taken again when what it sent is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch

from tandem.worker.checkpoints.model_parts.heads import AttentionKind
from tandem.worker.model.attention import Scores, Segment
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.kv_formats import Parts

_WORKSPACE = 128 << 20  # bytes, as its documentation recommends
_HEAD_DIMS = (64, 128, 256)


class Launch(Protocol):
    """A launch of an attention kernel and what it works on."""

    def attend(self, keys: Parts, values: Parts, q: torch.Tensor, out: torch.Tensor, scores: Scores) -> None: ...


@dataclass(slots=True)
class _Planner:
    """A wrapper of FlashInfer, which keeps one plan."""

    wrapper: Any
    sent: torch.cuda.Event | None = None


class FlashInfer:
    """The library, for one engine."""

    def __init__(self, module: Any) -> None:
        """Takes the imported module."""
        self._module = module
        self.name = f"FlashInfer {module.__version__}"
        self.refused = ""  # why it could not serve, once that is known; then it is not asked again
        self._workspace: torch.Tensor | None = None
        self._planners: dict[AttentionKind, list[_Planner]] = {}

    @staticmethod
    def installed() -> FlashInfer | None:
        """Returns the library, if it is installed."""
        try:
            import flashinfer  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            return None
        return FlashInfer(flashinfer)

    def refuses(self, cache: KVCache, kind: AttentionKind) -> str:
        """Returns why it cannot compute prefills over this cache, or nothing."""
        dtype = cache.keys[0][0].dtype
        if dtype not in (torch.bfloat16, torch.float16) or len(cache.keys[0]) > 1:
            return f"{self.name} is not given a cache of {cache.shape.format.name}"
        if kind.window < 0:
            return f"{self.name} is not given attention in chunks"
        if kind.heads.latent:
            return f"{self.name} is not given attention over latents"
        if kind.heads.size not in _HEAD_DIMS:
            return f"{self.name} has no heads of {kind.heads.size} numbers"
        return self.refused

    def planned(
        self, segments: Sequence[Segment], cache: KVCache, heads: int, scores: Scores, kind: AttentionKind
    ) -> Any:
        """Plans the attention of segments whose rows follow each other; returns what runs it."""
        size = cache.shape.page_size
        planner = self._planner(cache.device, kind)
        ends = np.array([s.position + s.length for s in segments])
        counts = -(-ends // size)

        def sums(counts: Any) -> torch.Tensor:
            return torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))

        held = np.concatenate([s.pages[:count] for s, count in zip(segments, counts.tolist(), strict=True)])
        planner.wrapper.plan(
            sums([s.length for s in segments]),
            sums(counts),
            torch.from_numpy(held.astype(np.int32)),
            torch.from_numpy((ends - (counts - 1) * size).astype(np.int32)),
            heads,
            *kind.heads[:2],
            size,
            causal=True,
            sm_scale=scores.scale,
            window_left=kind.window - 1,  # tokens before a query's own; -1: all
            logits_soft_cap=scores.cap,
            q_data_type=cache.keys[0][0].dtype,
            kv_data_type=cache.keys[0][0].dtype,
        )
        if cache.device.type == "cuda":
            planner.sent = planner.sent or torch.cuda.Event()  # type: ignore[no-untyped-call]
            planner.sent.record()
        return planner.wrapper

    def _planner(self, device: torch.device, kind: AttentionKind) -> _Planner:
        if self._workspace is None:
            self._workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device=device)
        if kind not in self._planners:
            wrapper = self._module.BatchPrefillWithPagedKVCacheWrapper
            self._planners[kind] = [_Planner(wrapper(self._workspace, "HND")) for _ in range(2)]
        both = self._planners[kind]
        both.reverse()
        if (sent := both[0].sent) is not None:
            sent.synchronize()
        return both[0]


@dataclass(slots=True)
class FlashInferLaunch:
    """One launch of FlashInfer's, and ours where it cannot serve."""

    library: FlashInfer
    segments: Sequence[Segment]
    cache: KVCache
    kind: AttentionKind
    ours: Callable[[], Launch]
    _wrapper: Any = None
    _planned_for: Scores | None = None
    _own: Launch | None = None

    def attend(self, keys: Parts, values: Parts, q: torch.Tensor, out: torch.Tensor, scores: Scores) -> None:
        if self._own is None and self._wrapper is None:
            self._prepare(q.shape[1], scores)
        if self._own is not None:
            self._own.attend(keys, values, q, out, scores)
            return
        assert scores == self._planned_for, "all layers of a kind make their scores alike"
        rows = slice(self.segments[0].row, self.segments[-1].row + self.segments[-1].length)
        self._wrapper.run(q[rows], (keys[0], values[0]), out=out[rows])

    def _prepare(self, heads: int, scores: Scores) -> None:
        library = self.library
        if scores.sinks is not None:
            library.refused = f"{library.name} is not given sinks"
        elif all(a.row + a.length == b.row for a, b in pairwise(self.segments)):
            try:
                self._wrapper = library.planned(self.segments, self.cache, heads, scores, self.kind)
                self._planned_for = scores
                return
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, OSError, ValueError) as error:  # it compiles what it has no binary of
                library.refused = f"{library.name} fails: {str(error).splitlines()[0]}"
        self._own = self.ours()

"""Prefills go to FlashInfer where it is there and may serve. It runs on GPUs alone: in its place stands a module with
its signatures, which does by torch's attention what its documentation says of them."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tandem.worker.model.cuda.flash_infer import FlashInfer
from tandem.worker.model.cuda.operations import TritonOperations
from tandem.worker.model.kv_formats import Int8, KVFormat, Plain
from tests.worker_svc.model.cuda.kernels.conftest import DEVICE
from tests.worker_svc.model.cuda.kernels.scenes import Scene

HALF = torch.float16


class BatchPrefillWithPagedKVCacheWrapper:
    """FlashInfer 0.7's, of which only documented arguments are taken."""

    made = 0
    fails = False

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        assert float_workspace_buffer.dtype == torch.uint8 and kv_layout == "HND"
        type(self).made += 1

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = HALF,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        if self.fails:
            raise RuntimeError("Ninja build failed.\nmore")
        numbers = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert all(each.dtype == torch.int32 for each in numbers) and causal and q_data_type == kv_data_type == HALF
        assert num_qo_heads % num_kv_heads == 0 and head_dim_qk == 64
        self.rows, self.first, self.pages, self.last = (each.tolist() for each in numbers)
        self.size, self.scale, self.window, self.cap = page_size, sm_scale, window_left, logits_soft_cap

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor], *, out: torch.Tensor) -> None:
        assert len(q) == self.rows[-1] and out.shape == q.shape and q.is_contiguous() and out.is_contiguous()
        for i, last in enumerate(self.last):
            held = self.pages[self.first[i] : self.first[i + 1]]
            length = (len(held) - 1) * self.size + last
            k, v = (cache[held].transpose(1, 2).flatten(0, 1)[:length].transpose(0, 1) for cache in paged_kv_cache)
            rows = slice(self.rows[i], self.rows[i + 1])
            queries = q[rows].transpose(0, 1)
            at = torch.arange(length - queries.shape[1], length, device=q.device)[:, None]
            key = torch.arange(length, device=q.device)
            seen = (key <= at) & ((key >= at - self.window) | (self.window < 0))
            attended = F.scaled_dot_product_attention(
                queries.float(), k.float(), v.float(), seen, scale=self.scale, enable_gqa=True
            )
            out[rows] = attended.transpose(0, 1).to(out.dtype)


@pytest.fixture
def flash_infer(monkeypatch: pytest.MonkeyPatch) -> FlashInfer:
    monkeypatch.setattr(BatchPrefillWithPagedKVCacheWrapper, "made", 0)
    wrapper: Any = BatchPrefillWithPagedKVCacheWrapper
    return FlashInfer(SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=wrapper, __version__="0.7"))


def served(flash_infer: FlashInfer, stored: KVFormat | None = None) -> tuple[TritonOperations, Scene]:
    operations = TritonOperations(5, reproducible=False, split=64)
    operations.flash_infer = flash_infer
    return operations, Scene.make([140, 70, 9], stored or Plain(HALF), dtype=HALF)


@pytest.mark.parametrize("window", [0, 1, 40])
def test_long_runs_are_what_torch_attends_and_what_our_kernel_does(window: int, flash_infer: FlashInfer) -> None:
    operations, scene = served(flash_infer)
    parts = [(2, 8, 9), (0, 100, 140), (1, 0, 70)]  # a decode first, then a chunk and a whole prompt
    scene.batch = lambda parts: without_gaps(scene, parts)  # type: ignore[method-assign]
    theirs = scene.attend(operations, parts, window)
    assert BatchPrefillWithPagedKVCacheWrapper.made == 2
    exact, ours = scene.exact(parts, window), scene.attend(TritonOperations(5, reproducible=False), parts, window)
    for a, b, c in zip(theirs, exact, ours, strict=True):
        assert (a.double() - b).abs().max() < 3e-3 and (a - c).abs().max() < 3e-3
    again = scene.attend(operations, parts, window)  # by the other of both planners
    assert all(torch.equal(a, b) for a, b in zip(theirs, again, strict=True))
    assert BatchPrefillWithPagedKVCacheWrapper.made == 2


def without_gaps(scene: Scene, parts: Any) -> Any:
    segments, q = Scene.batch(scene, parts)
    kept = torch.cat([torch.arange(s.row, s.row + s.length) for s in segments])
    return [type(s)(s.row - i, s.length, s.position, s.pages) for i, s in enumerate(segments)], q[kept.to(DEVICE)]


def test_what_it_may_not_serve_is_ours_and_the_log_says_so(
    flash_infer: FlashInfer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "tandem.worker.model.cuda")
    parts = [(0, 100, 140)]
    sinks = torch.zeros(4, device=DEVICE)
    for stored, special in ((Int8(), ()), (Plain(HALF), (0.0, sinks)), (Plain(HALF), ())):
        flash_infer.refused = ""
        monkeypatch.setattr(BatchPrefillWithPagedKVCacheWrapper, "fails", not special)
        operations, scene = served(flash_infer, stored)
        for _ in range(3):
            ours = scene.attend(operations, parts, 0, *special)
            assert (ours[0].double() - scene.exact(parts, 0, *special)[0]).abs().max() < 1e-2
    assert [record.message for record in caplog.records] == [
        "prefills are computed by our own kernel: FlashInfer 0.7 is not given a cache of int8",
        "prefills are computed by FlashInfer 0.7",
        "prefills are computed by our own kernel: FlashInfer 0.7 is not given sinks",
        "prefills are computed by FlashInfer 0.7",
        "prefills are computed by our own kernel: FlashInfer 0.7 fails: Ninja build failed.",
    ]


def test_reproducible_mode_never_asks_it(flash_infer: FlashInfer) -> None:
    operations, scene = served(flash_infer)
    operations.reproducible = True
    scene.attend(operations, [(0, 100, 140)])
    assert BatchPrefillWithPagedKVCacheWrapper.made == 0

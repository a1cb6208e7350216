"""Every number of rows that steps of decodes have is tried at start, also as it was recorded, and where the library
lets a row's bits depend on the others, our own products take over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

pytest.importorskip("triton")

import torch

from tandem.worker.checkpoints.grouped import FLOAT8
from tandem.worker.model import row_invariance
from tandem.worker.model.cuda import products as cuda_products
from tandem.worker.model.cuda.operations import TritonOperations
from tandem.worker.model.float8 import Float8Weight
from tandem.worker.model.linear import PlainWeight
from tandem.worker.model.operations import Products
from tandem.worker.model.row_trial import products_ignore_other_rows
from tandem.worker.model.runner import ModelRunner
from tests.worker_svc.card.test_engine_on_a_card import built
from tests.worker_svc.card.virtual_card import DEVICE, VirtualCard, present

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real card")

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def by_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A product whose rows know nothing of each other."""
    return (x[:, None, :].float() * w.float()).sum(-1).to(x.dtype)


def in_parts(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The same, added up in another order."""
    half = x.shape[1] // 2
    return by_rows(x[:, :half], w[:, :half]) + by_rows(x[:, half:], w[:, half:])


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualCard]:
    """The stand-ins of kernels compute a prefill by other sums than a decode: here decodes are compared with decodes.
    Each row takes a processor its time."""
    of, on = row_invariance._Trial.of, TritonOperations.on

    def decoding(runner: ModelRunner) -> row_invariance._Trial | None:
        trial = of(runner)
        assert trial is not None
        return replace(trial, whole=next(iter(trial.among_decodes([1]))).clone())

    def with_few_rows(device: torch.device, **options: bool) -> TritonOperations:
        operations = on(device, **options)
        operations.row_multiple = 4
        return operations

    monkeypatch.setattr(row_invariance, "_PREFILLS", ())
    monkeypatch.setattr(row_invariance._Trial, "of", staticmethod(decoding))
    monkeypatch.setattr(row_invariance._Trial, "ways", lambda trial: ())
    monkeypatch.setattr(row_invariance._Trial, "as_drafts", lambda trial: ())
    monkeypatch.setattr(TritonOperations, "on", staticmethod(with_few_rows))
    with present(VirtualCard()) as there:
        yield there


@pytest.mark.parametrize("dependent", ["by its number of rows", "in recordings"])
def test_a_library_that_one_step_shows_to_depend_on_rows_is_not_used(
    dependent: str, card: VirtualCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def library(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        other = card.recording is not None if dependent == "in recordings" else len(x) == 12
        return (in_parts if other else by_rows)(x, w)

    usual = Products(library), Products(by_rows)
    monkeypatch.setattr(cuda_products, "products", lambda reproducible: usual)
    engine = built(reproducible=True, max_running_requests=10, max_batch_tokens=12)  # recorded with 4, 8 and 12 rows
    runner = engine.engine._runner
    assert engine.row_invariant
    assert {w.product for w in runner.model.modules() if isinstance(w, PlainWeight)} == {by_rows}
    # Those of the library are gone, and nothing was recorded on the stream that all engines share.
    assert len(set(card.recorded_on)) == (2 if dependent == "in recordings" else 1) and None not in card.recorded_on


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("dtype", [torch.bfloat16, FLOAT8], ids=str)
def test_another_order_of_a_sum_shows_in_numbers_that_cancel(dtype: torch.dtype) -> None:
    if dtype == FLOAT8:
        weight: PlainWeight | Float8Weight = Float8Weight(48, 64, DEVICE)
    else:
        weight = PlainWeight(torch.zeros(48, 64, dtype=dtype, device=DEVICE))

    def product(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return (in_parts if len(x) == wrong else by_rows)(x, w)

    weight.product = product
    for wrong, alike in ((0, True), (24, False), (4, False)):
        assert products_ignore_other_rows(weight, [4, 8, 16, 24]) == alike, wrong

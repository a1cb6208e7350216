"""The virtual card refuses what a real one would not survive; else its silence would prove nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("triton")

import torch

from tandem.worker.model.cuda.kernels.swiglu import swiglu
from tests.worker_svc.card.virtual_card import DEVICE, CardTensor, VirtualCard, present

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real card")


@pytest.fixture
def card() -> Iterator[VirtualCard]:
    with torch.inference_mode(), present(VirtualCard(memory=1 << 20)) as there:
        yield there


def pinned(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers).pin_memory()


@pytest.mark.usefixtures("card")
def test_numbers_go_there_are_computed_with_and_come_back() -> None:
    x = torch.arange(6, device=DEVICE).view(2, 3)
    assert isinstance(x, CardTensor) and x.is_cuda and x.device == DEVICE and x[1].device == DEVICE
    x[:, 1] = 7
    x[1] += x[0]
    x[torch.tensor([0], device=DEVICE), 2] = 9
    assert (x @ x.T).tolist() == [[130, 161], [161, 254]]
    assert x.cpu().tolist() == [[0, 7, 9], [3, 14, 7]]


@pytest.mark.usefixtures("card")
def test_the_host_and_the_card_do_not_compute_together() -> None:
    x = torch.ones(3, device=DEVICE)
    for wrong in (lambda: x + torch.ones(3), lambda: x[torch.tensor([1])], lambda: torch.cat([x, torch.ones(1)])):
        with pytest.raises(AssertionError, match="tensors of the card and of cpu"):
            wrong()
    with pytest.raises(RuntimeError):
        x.numpy()
    with pytest.raises(AssertionError, match="is given a tensor of the host"):
        swiglu(torch.ones(1, 4), 2)
    assert (x + torch.tensor(1.0)).tolist() == [2, 2, 2]  # a single number may come along


@pytest.mark.parametrize(
    "read",
    [
        torch.Tensor.tolist,
        torch.Tensor.cpu,
        torch.Tensor.nonzero,
        lambda x: x[x > 0],
        lambda x: x.index_put_((x > 0,), torch.zeros((), device=DEVICE)),
        lambda x: bool((x > 0).all()),
        lambda x: torch.equal(x, x),
        lambda x: x.to("cpu", non_blocking=True),
        lambda x: x.copy_(torch.ones(2), non_blocking=True),
        lambda x: x.copy_(pinned(1, 2)),
        lambda x: x + torch.tensor([1.0, 2.0], device=DEVICE),
    ],
)  # fmt: skip
def test_waits_are_noticed(card: VirtualCard, read: object) -> None:
    x = torch.ones(2, device=DEVICE)
    assert not card.waits
    read(x)  # type: ignore[operator]
    assert len(card.waits) == 1


def test_copies_of_pinned_memory_wait_for_nothing(card: VirtualCard) -> None:
    x = pinned(1, 2, 3).to(DEVICE, non_blocking=True)
    x += 1
    here, event = torch.empty(3, pin_memory=True), torch.cuda.Event()
    here.copy_(x, non_blocking=True)
    assert here.tolist() != [2, 3, 4]
    event.record()
    x += 1
    assert not card.waits
    event.synchronize()
    assert here.tolist() == [2, 3, 4]
    assert [wait.behind for wait in card.waits] == [1]
    event.synchronize()
    assert len(card.waits) == 1


@pytest.mark.usefixtures("card")
def test_what_is_on_its_way_must_not_be_overwritten() -> None:
    source = pinned(1, 2, 3)
    source.to(DEVICE, non_blocking=True)
    source[1] = 5
    with pytest.raises(AssertionError, match="overwritten"):
        torch.cuda.synchronize()


@pytest.mark.usefixtures("card")
def test_an_event_that_was_never_recorded_is_not_waited_for() -> None:
    with pytest.raises(AssertionError, match="never recorded"):
        torch.cuda.Event().synchronize()


def recorded(x: torch.Tensor, out: torch.Tensor) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=None):
        out.copy_((x * 2).view(-1) + torch.ones_like(x))
        out.add_(1)
    return graph


def test_a_recording_computes_nothing_until_it_is_replayed(card: VirtualCard) -> None:
    x, out = torch.zeros(2, device=DEVICE), torch.zeros(2, device=DEVICE)
    graph = recorded(x, out)
    assert out.tolist() == [0, 0]
    x.fill_(4)
    graph.replay()
    assert out.tolist() == [10, 10]
    x.fill_(5)
    graph.replay()
    assert out.tolist() == [12, 12]
    assert card.replays == 2


@pytest.mark.usefixtures("card")
def test_what_a_recording_must_not_do_is_refused() -> None:
    x = torch.ones(1, 4, device=DEVICE)
    with pytest.raises(AssertionError, match="not recorded"):
        torch.cuda.CUDAGraph().replay()
    for wrong, why in (
        (lambda: x.tolist(), "in a recording"),
        (lambda: x.cpu(), "in a recording"),
        (lambda: x[x > 0], "in a recording"),
        (torch.cuda.synchronize, "in a recording"),
        (lambda: torch.ones(1).to(DEVICE, non_blocking=True), "in a recording"),
        (lambda: torch.ones(1).pin_memory(), "pinned memory"),
        (lambda: torch.empty(1, pin_memory=True), "pinned memory"),
        (lambda: swiglu(x, 2), "compiled in a recording"),
        (lambda: torch.cuda.Event().record(), "an event in a recording"),
    ):
        with pytest.raises(AssertionError, match=why), torch.cuda.graph(torch.cuda.CUDAGraph()):
            wrong()  # type: ignore[no-untyped-call]
    swiglu(x, 2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        swiglu(x, 2)
    with pytest.raises(AssertionError, match="twice"), torch.cuda.graph(graph):
        pass


def test_memory_ends_and_is_not_given_back(card: VirtualCard) -> None:
    x = torch.empty(1 << 18, dtype=torch.uint8, device=DEVICE)
    assert torch.cuda.mem_get_info() == (3 << 18, 1 << 20)
    view = x[3:].view(-1)
    del x
    assert card.most == 1 << 18
    del view
    y = torch.empty(3 << 18, dtype=torch.uint8, device=DEVICE)
    assert torch.cuda.mem_get_info() == (1 << 18, 1 << 20)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty((1 << 18) + 1, dtype=torch.uint8, device=DEVICE)
    del y

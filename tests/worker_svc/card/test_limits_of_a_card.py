"""What a card cannot do or has no room for is refused in words that help."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from tandem.worker.checkpoints.grouped import Float8Rows, to_float8
from tandem.worker.engine.process import build
from tandem.worker.engine.process.config import BuildError
from tandem.worker.model.cuda.products import same_bits
from tandem.worker.model.float8 import Float8Weight
from tests.worker_svc.card.test_engine_on_a_card import GREEDY, answers, built, checkpoint, some_requests
from tests.worker_svc.card.virtual_card import DEVICE, VirtualCard

pytestmark = [
    pytest.mark.usefixtures("_quick"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real card"),
]


def test_the_cache_takes_its_share_of_what_is_free(card: VirtualCard) -> None:
    card.memory = 2_000_000
    engine = built(kv_cache_tokens=0, max_running_requests=400, max_batch_tokens=400, cuda_graphs=False)
    assert engine.kv_cache_bytes > 0.4 * card.memory
    assert card.most <= card.memory
    answers(engine, some_requests(3, GREEDY))


@pytest.mark.parametrize(
    ("memory", "options", "what", "advice"),
    [
        (100_000, {}, "the weights", "quantize it"),
        (430_000, {"kv_cache_tokens": 0}, "a step beside the weights", "lower max_batch_tokens"),
        (2_000_000, {"kv_cache_tokens": 80_000}, "the KV cache", "lower kv_cache_tokens"),
        (0, {"max_running_requests": 64, "max_batch_tokens": 64}, "the recordings of CUDA graphs", "cuda_graphs off"),
        (560_000, {"draft_model": "draft"}, "the draft model's weights", "without draft_model"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_do(
    memory: int, options: dict[str, object], what: str, advice: str, card: VirtualCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "open_checkpoint", lambda path: checkpoint())
    if not memory:
        built(**options, cuda_graphs=False)
        memory = card.most + 1000
        card.forget()
    card.memory = memory
    with pytest.raises(BuildError, match=rf"too small for {what}.*{advice}"):
        built(**options)


def test_a_card_that_is_too_old_is_refused_in_one_line(card: VirtualCard) -> None:
    card.capability = (7, 5)
    with pytest.raises(
        BuildError, match=r"^a virtual card has compute capability 7\.5, .* from 8\.0 .* device to cpu$"
    ):
        built()


@pytest.mark.parametrize("why", [OutOfResources(106_500, 101_376, "shared memory"), CompilationError(None, None, "no")])
def test_a_kernel_that_a_card_does_not_take_is_a_refusal_in_one_line(
    why: Exception, card: VirtualCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(*arguments: object) -> None:
        raise why

    monkeypatch.setattr(card, "launch", launch)
    with pytest.raises(
        BuildError, match=r"^a kernel for a step beside the weights and the KV cache cannot run .* cpu$"
    ):
        built()


def test_a_card_without_8_bit_floats_multiplies_such_weights_as_plain_ones(card: VirtualCard) -> None:
    card.capability = (8, 0)
    weight = Float8Weight(48, 64, DEVICE)
    q = to_float8(torch.randn(48, 64))
    weight.fill(0, Float8Rows(q.q.to(DEVICE), q.scale.to(DEVICE)))
    x = torch.randn(3, 64, dtype=torch.bfloat16).to(DEVICE)
    expected = weight(x)
    weight.product = weight.plain_product = same_bits  # as where the library lets a row's bits depend on the others
    card.launches.clear()
    torch.testing.assert_close(weight(x).cpu(), expected.cpu())
    assert "_product" in card.launches
    # The kernel's numbers are all bf16, which it was given: nothing of it is compiled for 8-bit floats.
    assert not any("float8" in str(key) for key in card.compiled["_product"])


def test_a_card_that_is_too_old_for_fp8_keys_is_refused(card: VirtualCard) -> None:
    card.capability = (8, 0)
    with pytest.raises(BuildError, match=r"8\.9 or newer, which a virtual card is not"):
        built(kv_cache_dtype="fp8")

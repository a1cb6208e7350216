"""One of several ranks, a process that has a virtual card of its own.

    python -m tests.worker_svc.card.rank_on_a_card RANK RANKS STORE KIND REPRODUCIBLE [DEPENDENT]

prints what `Told` has as JSON. What ranks gather from each other goes from card to card, as with NCCL, and by the host
only here. DEPENDENT is a rank whose library lets a row's bits depend on how many there are, in steps of 320 rows.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypedDict
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F

from tandem.worker.engine.process.build import build_engine
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.request import Request
from tandem.worker.engine.sampling import Sampling
from tandem.worker.model.cuda import products as cuda_products
from tandem.worker.model.linear import PlainWeight
from tandem.worker.model.operations import Products
from tandem.worker.model.parallel import Ranks
from tests.worker_svc.card import test_engine_on_a_card as engines
from tests.worker_svc.card.quick import quick
from tests.worker_svc.card.test_states_on_a_card import MODELS as STATES
from tests.worker_svc.card.virtual_card import CardTensor, VirtualCard, _unseen, present

# Heads that two ranks can share.
MODELS: dict[str, Any] = {
    "usual": engines.MODEL,
    "several streams": engines.MODELS["several streams, gates that are thinned, shared keys"],
    **STATES,
    **{name: replace(engines.MODELS[name], num_heads=6) for name in ("latents", "latents of chosen tokens")},
}
OPTIONS: dict[str, Any] = {
    "dtype": "float32", "kv_cache_tokens": 26 * 8, "page_size": 8, "max_running_requests": 4, "max_batch_tokens": 16,
    "threads": 1, "state_slots": 8,
}  # fmt: skip


class Told(TypedDict):
    """What a rank tells."""

    row_invariant: bool
    products: list[str]  # by what matrices are multiplied
    together: engines.Answers
    alone: engines.Answers  # to the same requests, one after the other, with nothing cached


def requests() -> list[Request]:
    return engines.some_requests(5, engines.GREEDY, Sampling(temperature=0.8), output=14)


def between_cards(card: VirtualCard) -> Any:
    """`dist.all_gather` of tensors of the card."""
    usual = dist.all_gather

    def gather(parts: list[torch.Tensor], part: torch.Tensor, group: Any = None) -> None:
        there = [each for each in (*parts, part) if isinstance(each, CardTensor)]
        if not there:
            usual(parts, part, group=group)
            return
        assert len(there) == len(parts) + 1, "tensors of the card and of the host"
        assert card.recording is None, "ranks meet in a recording"
        with _unseen():
            usual([each.numbers for each in there[:-1]], there[-1].numbers, group=group)

    return gather


def dependent(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A product that adds up in another order where it has many rows."""
    half = x.shape[1] // 2
    if len(x) != 320:
        return F.linear(x, w)
    return F.linear(x[:, :half], w[:, :half]) + F.linear(x[:, half:], w[:, half:])


def main(rank: int, ranks: int, store: str, kind: str, reproducible: bool, library: Products) -> None:
    late = timedelta(minutes=10)  # of a rank that is not coming
    dist.init_process_group("gloo", None, late, ranks, rank, dist.FileStore(store, ranks))
    group = dist.new_group(backend="gloo")
    config = EngineConfig(model="random", device="cuda", tensor_parallel=ranks, reproducible=reproducible, **OPTIONS)
    with (
        quick(), present(VirtualCard()) as card, patch.object(dist, "all_gather", between_cards(card)),
        patch.object(cuda_products, "LIBRARY", library),
    ):  # fmt: skip
        with torch.no_grad():
            built = build_engine(config, checkpoint=engines.checkpoint(MODELS[kind]), ranks=Ranks(rank, ranks, group))
        together, alone = engines.answers(built, requests()), {}
        for request in requests():
            built.engine.table.clear()
            alone |= engines.answers(built, [request])
        assert not card.replays, "steps of several ranks are not recorded"
    weights = [each for each in built.engine._runner.model.modules() if isinstance(each, PlainWeight)]
    products = sorted({getattr(each.product, "__name__", "the library's") for each in weights})
    print(json.dumps(Told(row_invariant=built.row_invariant, products=products, together=together, alone=alone)))
    dist.destroy_process_group()


if __name__ == "__main__":
    is_dependent = sys.argv[1] in sys.argv[6:]
    main(
        int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5] == "True",
        Products(dependent) if is_dependent else cuda_products.LIBRARY,
    )  # fmt: skip

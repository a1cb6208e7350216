"""What an operator may make of a model's context and rope."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tandem.worker.engine.process.build import served_config
from tandem.worker.engine.process.config import BuildError, EngineConfig
from tandem.worker.engine.process.device import require_kv_format
from tests.worker_svc.checkpoints.test_model_config import GOOD


def test_without_wishes_the_model_is_served_as_it_is() -> None:
    assert served_config(GOOD, EngineConfig(model="m")) == GOOD


def test_a_longer_context_needs_a_stretched_rope() -> None:
    with pytest.raises(BuildError, match=r"context_length 256 is more than the 64 .* rope_scale or rope_alpha 4 "):
        served_config(GOOD, EngineConfig(model="m", context_length=256))
    scaled = served_config(GOOD, EngineConfig(model="m", context_length=256, rope_scale=4.0))
    assert (scaled.context_length, scaled.rope_scale, scaled.rope_theta) == (256, 4.0, GOOD.rope_theta)
    raised = served_config(GOOD, EngineConfig(model="m", context_length=256, rope_alpha=4.0))
    assert raised.rope_theta == pytest.approx(GOOD.rope_theta * 4 ** (10 / 8))
    with pytest.raises(BuildError, match="257"):
        served_config(GOOD, EngineConfig(model="m", context_length=257, rope_scale=4.0))


def test_a_stretched_rope_alone_leaves_the_context_as_it_is() -> None:
    assert served_config(GOOD, EngineConfig(model="m", rope_scale=2.0)).context_length == GOOD.context_length


@pytest.mark.parametrize(("size", "served"), [(12, ("fp8", "int8", "int6", "int4")), (10, ("fp8", "int8", "int4"))])
def test_a_cache_that_heads_of_this_size_cannot_have_is_refused(size: int, served: tuple[str, ...]) -> None:
    model, cpu = replace(GOOD, head_dim=size), torch.device("cpu")
    for name in ("auto", *served):
        require_kv_format(name, cpu, model)
    if "int6" not in served:
        with pytest.raises(BuildError, match=f"int6 needs heads of a multiple of 4 numbers, .* some of {size}; use"):
            require_kv_format("int6", cpu, model)

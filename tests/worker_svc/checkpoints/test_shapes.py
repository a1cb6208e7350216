"""The shapes that benchmarks measure, without their weights."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import transformers

from benchmarks.random_gguf import config_of
from benchmarks.shapes import SHAPES, VOCABULARY
from tests.worker_svc.checkpoints.gguf_tensors import named_tensors

_NAME = re.compile(r"(blk\.(?P<layer>\d+)\.)?[a-z0-9_]+(\.[a-z_]+)*")


@pytest.mark.parametrize("name", SHAPES)
def test_each_tensor_of_a_measured_shape_has_a_name_of_llama_cpps(name: str) -> None:
    shape = SHAPES[name]
    config = config_of(shape, shape.layers)
    assert config.vocab_size == VOCABULARY
    with torch.device("meta"):
        model: Any = transformers.AutoModelForCausalLM.from_config(config)
    tensors = named_tensors(model)
    found = [_NAME.fullmatch(one) for one, _ in tensors]
    unknown = [one for (one, _), match in zip(tensors, found, strict=True) if match is None or "None" in one]
    assert not unknown
    assert len({one for one, _ in tensors}) == len(tensors)
    assert {int(match["layer"]) for match in found if match and match["layer"]} == set(range(shape.layers))

"""`config.json` of published models that see or hear becomes a text model of as many parameters as it has."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.hugging_face_config import architecture_of, read_config
from tandem.worker.checkpoints.hugging_face_wrapped import text_fields, text_names, wrapper_of
from tandem.worker.checkpoints.places import places_with_latents
from tandem.worker.checkpoints.schemes import scheme_of
from tests.worker_svc.checkpoints.published_wrappers import PUBLISHED_WRAPPERS


@pytest.mark.parametrize("name", PUBLISHED_WRAPPERS)
def test_a_published_config_has_the_parameters_and_names_of_its_text_model(name: str) -> None:
    values, billions = PUBLISHED_WRAPPERS[name]
    whole = Fields(Path("config.json"), values)
    fields = text_fields(whole)
    architecture = architecture_of(fields)
    config = read_config(fields, architecture, fields.boolean("tie_word_embeddings", architecture.tied))
    parameters = sum(math.prod(shape) for shape in config.tensor_shapes().values())
    assert parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert (scheme_of(fields) is None) == ("quantization_config" not in str(values))
    if config.recurrence is None:
        _, stored = places_with_latents(config, config.tensor_shapes(), architecture.stored_name)
        assert sum(math.prod(shape) for shape in stored.values()) == parameters
        published = [f"language_model.{name}" for name in stored]
        names = text_names(Path(), published, wrapper_of(whole))
        assert {ours: stored[ours] for ours in names} == stored

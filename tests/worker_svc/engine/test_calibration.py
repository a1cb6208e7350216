"""What keys look like is learned from as few tokens as a context has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.engine.process.calibration import key_channels
from tandem.worker.model.loading import load_transformer


@pytest.mark.parametrize("context", [1, 2, 3])
def test_a_context_of_few_tokens_is_enough_to_learn_from(context: int, repository: Path) -> None:
    checkpoint = open_checkpoint(repository / "models" / "demo")
    config = checkpoint.config.with_context_length(context)
    model = load_transformer(checkpoint, "cpu", torch.float32, config=config)
    for mean, scale in key_channels(model, torch.device("cpu"), torch.float32, checkpoint.bos_id):
        assert mean.isfinite().all()
        assert scale.isfinite().all()
        assert (scale > 0).all()

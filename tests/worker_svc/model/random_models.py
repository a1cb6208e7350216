"""Random models of `tiny_models`, saved and loaded, and their logits compared with those of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.transformer import Transformer
from tests.worker_svc.model.llama_folders import (
    PAGE_SIZE,
    logits_in_chunks,
    randomized,
    some_ids,
)
from tests.worker_svc.model.step_model import register
from tests.worker_svc.model.tiny_models.shared import ABSENT, SIZES

# Which transformers has a class of, but has not among those that it finds for a config.
transformers.AutoModelForCausalLM.register(transformers.Mistral4Config, transformers.Mistral4ForCausalLM, exist_ok=True)
register()


def saved(kind: str, folder: Path, **changes: Any) -> Any:
    """A random model of one of transformers' classes, and its folder."""
    settings = {key: value for key, value in (SIZES | changes).items() if value is not None or key == "sliding_window"}
    settings = {key: None if value is ABSENT else value for key, value in settings.items()}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**settings)
    ways = {"attn_implementation": "eager", "experts_implementation": "eager"}  # which take any size
    model = randomized(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, **ways))
    model.save_pretrained(folder)
    if kind in ("InternLM3", "IQuestCoder", "Exaone"):  # whose own class transformers has as Llama's
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": [f"{kind}ForCausalLM"]}))
    return model


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> Transformer:
    return load_transformer(open_checkpoint(folder), "cpu", dtype)


def assert_logits_agree(ours: Transformer, theirs: Any, length: int) -> None:
    """With transformers' in one piece, and with our own in chunks and token by token, those to the bit."""
    ids = some_ids(97, length)
    whole = logits_in_chunks(ours, ids, [length])
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0].float()
    assert expected.std() > 0.3
    # A state adds up all tokens; transformers does so in chunks, and is as far from float64 as we are. Little is left
    # of a thinned gate, and a norm makes it large again.
    near = 1e-4 if ours.config.recurrence is None and not ours.config.sparsity else 2e-4
    torch.testing.assert_close(whole, expected, atol=near, rtol=0)
    for chunks in ([PAGE_SIZE + 1, 1], [PAGE_SIZE, 5]):
        assert torch.equal(logits_in_chunks(ours, ids, chunks), whole), chunks
